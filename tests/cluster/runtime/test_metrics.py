"""The names, types, labels and first values of `/metrics`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from raftlog.cluster.protocol.disk_reports import Why
from raftlog.cluster.runtime.metric_table import HTTP_BUCKETS, METRICS
from raftlog.cluster.runtime.metrics import READ, Metrics
from tests.cluster.nodes import cluster_of
from tests.house.metrics_page import PAGE, page
from tests.house.rules import ROOT

SECONDS = (0.0, 0.005, 0.0051, 0.3, 0.0049, 99.0, 0.005)
OF_A_PROCESS = {"raftlog_certificate_expires_seconds", "raftlog_build_info"}
"""Not of a node alone: `raftlog node` adds them, the first one with TLS."""
UNITS = re.compile(r"_(s|ms|us|ns|sec|milliseconds?|minutes?|kb|mb|kilobytes?|bits?|percent)(_|$)")
TYPES = re.compile(r"_(gauge|counter|histogram|summary)(_|$)")


def test_histograms_read_as_those_of_prometheus_client() -> None:
    """Names, buckets with their bounds, sums and counts are those of the library's own histogram."""
    metrics, registry = Metrics(), CollectorRegistry()
    name = "raftlog_http_request_seconds"
    times = Histogram(name, METRICS[name].meaning, ["route"], buckets=HTTP_BUCKETS, registry=registry)
    for route in ("/a", "/b"):
        for seconds in SECONDS:
            metrics.http.answered.append((route, 200, seconds, READ))
            times.labels(route).observe(seconds)
    own = [line for line in metrics.text().decode().splitlines() if name in line]
    assert own == [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_counters_begin_at_zero_with_all_values_of_their_labels() -> None:
    """Else a query for their rise misses the first one, and a dashboard is empty. A peer's counter begins with it."""
    metrics = Metrics()
    metrics.peers = lambda: ["2", "3"]
    for name, row in METRICS.items():
        for value in (*row.values, *(("2", "3") if row.label == "peer" and row.kind == "counter" else ())):
            assert metrics.registry.get_sample_value(name, {row.label: value}) == 0, (name, value)
    assert METRICS["raftlog_disk_handovers_total"].values == tuple(Why)
    assert {name for name, row in METRICS.items() if row.label and row.kind == "counter" and not row.values} == {
        "raftlog_link_dropped_total",  # by peer
        "raftlog_http_requests_total",  # by the routes of the server, in tests/cluster/http/test_errors.py
    }
    assert b"_created" not in metrics.text()


async def test_a_node_serves_every_metric_of_the_table_from_its_start(tmp_path: Path) -> None:
    """And no other. `promtool check metrics` finds no fault in them, nor do the same rules here."""
    async with cluster_of(2, tmp_path) as nodes:
        leader = await nodes.leader()
        metrics = leader.state.metrics
        assert isinstance(metrics, Metrics)
        metrics.http.answered.append(("/livez", 200, 0.0, READ))
        families = list(text_string_to_metric_families(metrics.text().decode()))
        named = {f"{each.name}_total" if each.type == "counter" else each.name: each for each in families}
        consumers = {name for name, row in METRICS.items() if row.label == "consumer"}
        assert named.keys() == METRICS.keys() - OF_A_PROCESS - consumers
        assert all(each.type == METRICS[name].kind for name, each in named.items())
        for peer in {"1", "2"} - {str(leader.node_id)}:
            assert metrics.registry.get_sample_value("raftlog_link_dropped_total", {"peer": peer}) is not None
        metrics.show_process()
        text = metrics.text()
    served = text_string_to_metric_families(text.decode())
    assert {"raftlog_build_info", "process_cpu_seconds", "python_gc_collections"} <= {each.name for each in served}
    for name, row in METRICS.items():
        assert name.endswith("_total") == (row.kind == "counter"), name
        assert re.fullmatch(r"[a-z_]+", name), name
        assert not UNITS.search(name.removesuffix("_total")), name
        assert not TYPES.search(name), name
        assert not name.endswith(("_count", "_sum", "_bucket")), name
        assert row.meaning, name
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian: apt-get install prometheus")
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_table_of_metrics_in_the_docs_is_of_today() -> None:
    """`make fix` writes it."""
    text = PAGE.read_text("utf-8")
    assert text == page(text)


def test_every_metric_that_the_docs_name_exists() -> None:
    """In queries, alerts and prose."""
    known = {*METRICS, *(f"{name}_{part}" for name in METRICS for part in ("bucket", "sum", "count"))}
    for name in ("production", "security", "http_api", "promises", "operations/watch", "operations/disks"):
        text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        assert {*re.findall(r"`(?:sum\(|abs\()?(raftlog_[a-z_]+)", text)} <= known, name
