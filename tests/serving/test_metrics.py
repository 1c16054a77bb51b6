import re

from vitreous.serving.metrics import Histogram, Metrics, histogram_lines, prometheus_text

LINE = re.compile(r'^[a-z_]+(\{([a-z]+="[^"]*",?)*\})? [0-9.e+-]+$')


def test_histogram_buckets_count_values_at_or_below_their_bound() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 9):
        histogram.add(value)
    assert list(histogram_lines(histogram, "x")) == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="2"} 3',
        'x_bucket{le="4"} 4',
        'x_bucket{le="+Inf"} 5',
        "x_sum 16.000000",
        "x_count 5",
    ]


def test_the_text_format_is_valid() -> None:
    metrics = Metrics()
    metrics.gauges["vitreous_waiting"] = ("Images that wait.", lambda: 3)
    for status in (200, 200, 429):
        metrics.request("/v1/classify", status, 0.02)
    metrics.batch(3)
    metrics.computed(0.1)
    lines = prometheus_text(metrics).splitlines()
    assert 'vitreous_requests_total{path="/v1/classify",status="200"} 2' in lines
    assert 'vitreous_request_seconds_count{path="/v1/classify"} 3' in lines
    assert 'vitreous_request_seconds_bucket{path="/v1/classify",le="0.025"} 3' in lines
    assert "vitreous_waiting 3" in lines
    assert all(LINE.match(line) for line in lines if not line.startswith("#"))
    described = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert described == {line.split()[2] for line in lines if line.startswith("# HELP")}
