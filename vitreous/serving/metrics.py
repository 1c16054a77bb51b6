"""Figures for Prometheus, in its text format: what was asked, how it ended, how long it took and what waits."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PICTURES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class Histogram:
    """How many values lie at or below each bound; the last count is of those above all of them."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        counts, below = self.counts or [0] * (len(self.bounds) + 1), 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {below}'
        inner = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{inner} {self.total:.6f}"
        yield f"{name}_count{inner} {below}"


class Metrics:
    """Counted from the event loop and from the workers alike."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches, self._compute = Histogram(PICTURES), Histogram(SECONDS)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            self._seconds.setdefault(path, Histogram(SECONDS)).add(seconds)

    def batch(self, pictures: int) -> None:
        with self._lock:
            self._batches.add(pictures)

    def computed(self, seconds: float) -> None:
        with self._lock:
            self._compute.add(seconds)

    def text(self) -> str:
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        name = "vitreous_requests_total"
        yield from (f"# HELP {name} Requests that were answered, by path and status.", f"# TYPE {name} counter")
        for (path, status), count in sorted(self._requests.items()):
            yield f'{name}{{path="{path}",status="{status}"}} {count}'
        name = "vitreous_request_seconds"
        yield from (f"# HELP {name} From the request's headers to the end of its answer.", f"# TYPE {name} histogram")
        for path, histogram in sorted(self._seconds.items()):
            yield from histogram.lines(name, f'path="{path}"')
        name = "vitreous_batch_pictures"
        yield from (f"# HELP {name} Pictures that a model saw at once.", f"# TYPE {name} histogram")
        yield from self._batches.lines(name)
        name = "vitreous_batch_seconds"
        yield from (f"# HELP {name} Reading and computing a batch.", f"# TYPE {name} histogram")
        yield from self._compute.lines(name)
        for name, (about, value) in self.gauges.items():
            yield from (f"# HELP {name} {about}", f"# TYPE {name} gauge", f"{name} {value():g}")
