"""The response of /metrics: the server's metrics in the Prometheus text format."""

from collections.abc import Iterator

from vitreous.serving.batch_queue import Histogram, Metrics


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
