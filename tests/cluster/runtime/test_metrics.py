"""What `/metrics` says of HTTP requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from raftlog.cluster.runtime.metrics import Metrics

SECONDS = (0.0, 0.005, 0.0051, 0.3, 0.0049, 99.0, 0.005)


def lines(text: bytes) -> list[str]:
    """The lines about requests, without the times at which their series began."""
    found = [line for line in text.decode().splitlines() if "raftlog_http_request" in line]
    return sorted(line.partition("} ")[0] if "_created{" in line else line for line in found)


def test_http_requests_read_as_the_counters_of_prometheus_client() -> None:
    """Names, buckets with their bounds, sums and counts are those of the library's own counter and histogram."""
    metrics, registry = Metrics(), CollectorRegistry()
    counter = Counter(
        "raftlog_http_requests", "HTTP requests, by route and status", ["route", "status"], registry=registry
    )
    text = "From the head of a request to the end of its answer"
    times = Histogram("raftlog_http_request_seconds", text, ["route"], registry=registry)
    assert lines(metrics.text()) == lines(generate_latest(registry))
    for route, status in (("/a", 200), ("/b", 200), ("/a", 404)):
        for seconds in SECONDS:
            metrics.http.answered.append((route, status, seconds))
            counter.labels(route, str(status)).inc()
            times.labels(route).observe(seconds)
    assert lines(metrics.text()) == lines(generate_latest(registry))
    assert any(line.startswith("raftlog_http_requests_created{") for line in lines(metrics.text()))
