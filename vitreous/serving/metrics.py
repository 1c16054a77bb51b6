"""Metrics of the server, in the Prometheus text format for /metrics. The middleware and the scheduler update them."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

SECOND_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)  # histogram buckets


class Histogram:
    """Histogram of values. Buckets are defined by upper bounds; the last bucket counts values above all bounds."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """Server metrics, updated by the event loop and by worker threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.batches, self.compute = Histogram(BATCH_BOUNDS), Histogram(SECOND_BOUNDS)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def request(self, path: str, status: int, seconds: float) -> None:
        with self.lock:
            self.requests[path, status] += 1
            self.seconds.setdefault(path, Histogram(SECOND_BOUNDS)).add(seconds)

    def batch(self, images: int) -> None:
        with self.lock:
            self.batches.add(images)

    def computed(self, seconds: float) -> None:
        with self.lock:
            self.compute.add(seconds)


# ---- Text format -----------------------------------------------------------------------------------------------------


def prometheus_text(metrics: Metrics) -> str:
    with metrics.lock:
        return "\n".join(_lines(metrics)) + "\n"


def _lines(metrics: Metrics) -> Iterator[str]:
    name = "vitreous_requests_total"
    yield from _header(name, "counter", "Completed requests by path and status.")
    for (path, status), count in sorted(metrics.requests.items()):
        yield f'{name}{{path="{path}",status="{status}"}} {count}'
    name = "vitreous_request_seconds"
    yield from _header(name, "histogram", "Time from the request headers to the end of the response.")
    for path, histogram in sorted(metrics.seconds.items()):
        yield from histogram_lines(histogram, name, f'path="{path}"')
    for name, description, histogram in (
        ("vitreous_batch_pictures", "Images per batch.", metrics.batches),
        ("vitreous_batch_seconds", "Time to decode and compute a batch.", metrics.compute),
    ):
        yield from (*_header(name, "histogram", description), *histogram_lines(histogram, name))
    for name, (description, value) in metrics.gauges.items():
        yield from (*_header(name, "gauge", description), f"{name} {value():g}")


def _header(name: str, kind: str, description: str) -> tuple[str, str]:
    return f"# HELP {name} {description}", f"# TYPE {name} {kind}"


def histogram_lines(histogram: Histogram, name: str, labels: str = "") -> Iterator[str]:
    below = 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        below += count
        yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {below}'
    inner = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{inner} {histogram.total:.6f}"
    yield f"{name}_count{inner} {below}"
