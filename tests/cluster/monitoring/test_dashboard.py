"""Every query of the Grafana dashboard has an answer on a Prometheus that scrapes a cluster under load."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.runtime.metric_table import METRICS
from raftlog.cluster.sinks.metrics import serve_metrics
from raftlog.cluster.sinks.runner import SinkProgress
from tests.house import dashboard
from tests.house.rules import ROOT
from tests.support import HANG_S, free_port, free_ports, wait_until

ANSWERED_S = 90
"""At most: some scrapes, and two of them within the window of each rate."""


def test_the_dashboard_is_of_today() -> None:
    """`make fix` writes it."""
    assert dashboard.FILE.read_text("utf-8") == dashboard.text()


def test_a_metric_to_look_at_is_on_the_dashboard_or_in_an_alert() -> None:
    """Each metric that has a bound in docs/operations.md, but for those of jobs that end by themselves. And every one
    that a query names exists."""
    shown = {*re.findall(r"\braftlog_[a-z_]+", " ".join(query for _, query in dashboard.queries()))}
    known = {*METRICS, *(f"{name}_bucket" for name in METRICS)}
    assert {name for name in shown if not name.startswith("raftlog_sink_")} <= known
    alerts = (ROOT / "docs/monitoring/alerts.yml").read_text("utf-8")
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


@contextmanager
def prometheus(folder: Path, targets: dict[str, list[int]]) -> Iterator[str]:
    """A Prometheus that scrapes these ports of each job every second; its URL."""
    path = shutil.which("prometheus")
    if path is None:
        pytest.skip("prometheus is not installed; Debian: apt-get install prometheus")
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        for job, ports in targets.items()
    ]
    rules = [str(ROOT / "docs/monitoring/alerts.yml")]
    file = folder / "prometheus.json"
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "rule_files": rules, "scrape_configs": jobs}))
    port = free_port()
    options = [f"--storage.tsdb.path={folder / 'series'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([path, f"--config.file={file}", *options], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(partial(is_ready, url), HANG_S, what="Prometheus")
        yield url
    finally:
        process.terminate()
        process.wait(HANG_S)


def is_ready(url: str) -> bool:
    """Whether it serves."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=HANG_S):
            return True
    except urllib.error.URLError:  # 503 while it starts
        return False


def answers(url: str, query: str) -> list[Any]:
    """The series that a query gives now, of the job `raftlog`."""
    query = query.replace("$job", "raftlog").replace("$__rate_interval", "10s")
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(query)}", timeout=HANG_S) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    """Three nodes with TLS under writes, reads, a session and a consumer group; then the leader is killed, and the next
    one has a follower that does not answer. A chart that is empty here would be empty for a user."""
    probes = free_ports(3)
    sink_port = free_port()
    run: Any = SimpleNamespace(name="orders", progress=SinkProgress())
    with LocalCluster(tmp_path / "nodes", 3, secure=True) as local:
        local.environments = {
            node: {"RAFTLOG_HTTP_PROBE_LISTEN": f"127.0.0.1:{port}"}
            for node, port in zip(local.nodes, probes, strict=True)
        }
        local.start()
        local.wait_ready()
        serve_metrics([run], sink_port)
        make_first_admin(local)
        with (
            prometheus(tmp_path, {"raftlog": probes, "sinks": [sink_port]}) as url,
            SyncClient(local.urls, tls=local.tls_files("client-operator")) as client,
        ):
            client.consumer("billing").claim()
            local.kill(local.leader())
            empty = dict(dashboard.queries())

            def all_answered() -> bool:
                client.put(b"k", b"v")
                client.get(b"k")
                run.progress.rows += 1
                for name in [name for name, query in empty.items() if answers(url, query)]:
                    del empty[name]
                return not empty

            wait_until(all_answered, ANSWERED_S, what=f"an answer of each query; without one: {empty}")
            (votes,) = answers(url, f"count(up{{{dashboard.JOB}}} == 0)")
            assert votes["value"][1] == "1"
