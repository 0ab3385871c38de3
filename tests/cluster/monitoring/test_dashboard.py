"""Every query of the Grafana dashboard has an answer on a Prometheus that scrapes a cluster under load."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.chaos.shim.driver import Shim
from raftlog.chaos.shim.library import ShimMissing
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.runtime.metric_table import METRICS
from raftlog.cluster.sinks.metrics import serve_metrics
from raftlog.cluster.sinks.runner import SinkProgress
from tests.cluster.monitoring.programs import answers, prometheus
from tests.house import dashboard
from tests.house.rules import ROOT
from tests.support import free_port, free_ports, wait_until

ANSWERED_S = 90
"""At most: some scrapes, and two of them within the window of each rate."""
SLOW_MS = 80
"""Each sync of the slow disk takes so much longer."""
ALERTS = ROOT / "docs/monitoring/alerts.yml"


def test_the_dashboard_is_of_today() -> None:
    """`make fix` writes it."""
    assert dashboard.FILE.read_text("utf-8") == dashboard.text()


def test_a_metric_to_look_at_is_on_the_dashboard_or_in_an_alert() -> None:
    """Each metric that has a bound in docs/operations/watch.md, but for those of jobs that end by themselves. And
    every one that a query names exists."""
    shown = {*re.findall(r"\braftlog_[a-z_]+", " ".join(query for _, query in dashboard.queries()))}
    known = {*METRICS, *(f"{name}_bucket" for name in METRICS)}
    assert {name for name in shown if not name.startswith("raftlog_sink_")} <= known
    alerts = ALERTS.read_text("utf-8")
    seen = {name.removesuffix("_bucket") for name in shown} | {*re.findall(r"\braftlog_[a-z_]+", alerts)}
    assert {name for name, row in METRICS.items() if row.worry} - seen == {
        "raftlog_backfill_missing",
        "raftlog_backfill_wrong_total",
        "raftlog_digest_agreed_age_seconds",
        "raftlog_disk_full",  # its own node says it too, by raftlog_disk_lacks_bytes
        "raftlog_disk_reserve_bytes",
        "raftlog_followers_held",
        "raftlog_link_closed_total",
        "raftlog_link_dropped_total",
        "raftlog_log_lines_lost_total",
        "raftlog_members_changing",
        "raftlog_scrub_failures_total",
        "raftlog_snapshot_received_bytes_total",
    }


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    """Three nodes with TLS under writes, reads, a session and a consumer group; a follower's disk is slow; then the
    leader is killed, and the next one has a follower that lags. A chart that is empty here would be empty for a user,
    and the charts of syncs, followers and elections show those faults."""
    probes = free_ports(3)
    sink_port = free_port()
    run: Any = SimpleNamespace(name="orders", progress=SinkProgress())
    with LocalCluster(tmp_path / "nodes", 3, secure=True) as local:
        shim = made_shim(tmp_path / "shim", [local.data(node) for node in local.nodes])
        local.environments = {
            node: {"RAFTLOG_HTTP_PROBE_LISTEN": f"127.0.0.1:{port}"} | shim.environment(local.data(node))
            for node, port in zip(local.nodes, probes, strict=True)
        }
        local.restore()
        serve_metrics([run], sink_port)
        make_first_admin(local)
        with (
            prometheus(tmp_path, {"raftlog": probes, "sinks": [sink_port]}, ALERTS) as url,
            SyncClient(local.urls, tls=local.tls_files("client-operator")) as client,
        ):
            client.consumer("billing").claim()
            wait_until(lambda: len(answers(url, "up == 1")) == len(probes) + 1, ANSWERED_S, what="a scrape of all")
            leader = local.leader()
            slow = next(node for node in local.nodes if node != leader)
            shim.inject("fdatasync", delay_ms=SLOW_MS, root=local.data(slow))
            local.kill(leader)
            events = f"raftlog_raft_events_total{{{dashboard.JOB},event='BecameLeader'}}"
            empty = dict(dashboard.queries()) | {
                "a slow disk": f"{dashboard.quantiles('raftlog_sync_seconds', 'instance')['p99 {{instance}}']} > 0.05",
                "a follower that lags": f"raftlog_follower_lag{{{dashboard.JOB}}} > 0",
                "an election": f"sum(increase({events}[5m])) > 0",
                "a node that is down": f"count(up{{{dashboard.JOB}}} == 0) == 1",
            }

            def all_answered() -> bool:
                client.put(b"k", b"v")
                client.get(b"k")
                run.progress.rows += 1
                for name in [name for name, query in empty.items() if answers(url, query)]:
                    del empty[name]
                return not empty

            wait_until(all_answered, ANSWERED_S, what=f"an answer of each query; without one: {empty}")


def made_shim(home: Path, folders: list[Path]) -> Shim:
    """The library that makes disks slow; skips without a compiler."""
    try:
        return Shim(home, folders)
    except ShimMissing as error:
        pytest.skip(str(error))
