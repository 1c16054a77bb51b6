"""Counters, histograms and gauges in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts of values at or below each bound; the last count is of values above all bounds."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        below = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {below}'
        inner = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{inner} {self.total:.6f}"
        yield f"{name}_count{inner} {below}"


class Metrics:
    """The server's metrics, updated from the event loop and from worker threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches, self._compute = Histogram(BATCH_SIZES), Histogram(SECONDS)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            self._seconds.setdefault(path, Histogram(SECONDS)).add(seconds)

    def batch(self, images: int) -> None:
        with self._lock:
            self._batches.add(images)

    def computed(self, seconds: float) -> None:
        with self._lock:
            self._compute.add(seconds)

    def text(self) -> str:
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        name = "vitreous_requests_total"
        yield from _header(name, "counter", "Answered requests by path and status.")
        for (path, status), count in sorted(self._requests.items()):
            yield f'{name}{{path="{path}",status="{status}"}} {count}'
        name = "vitreous_request_seconds"
        yield from _header(name, "histogram", "Time from the request's headers to the end of its answer.")
        for path, histogram in sorted(self._seconds.items()):
            yield from histogram.lines(name, f'path="{path}"')
        name = "vitreous_batch_pictures"
        yield from _header(name, "histogram", "Images per batch.")
        yield from self._batches.lines(name)
        name = "vitreous_batch_seconds"
        yield from _header(name, "histogram", "Time to decode and compute a batch.")
        yield from self._compute.lines(name)
        for name, (description, value) in self.gauges.items():
            yield from (*_header(name, "gauge", description), f"{name} {value():g}")


def _header(name: str, kind: str, description: str) -> tuple[str, str]:
    return f"# HELP {name} {description}", f"# TYPE {name} {kind}"
