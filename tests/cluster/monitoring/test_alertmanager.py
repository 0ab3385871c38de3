"""A killed node is an alert at the receiver of Debian's Alertmanager, and its restart ends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.monitoring.programs import alertmanager, answers, prometheus
from tests.house.rules import ROOT
from tests.support import HANG_S, free_ports, http_served, wait_until


@contextmanager
def receiver(got: list[dict[str, Any]]) -> Iterator[str]:
    """A webhook that keeps the alerts which it is sent; its URL."""

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            got.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    with http_served(Webhook) as url:
        yield f"{url}/"


@pytest.mark.serial
def test_a_killed_node_fires_and_its_restart_clears(tmp_path: Path) -> None:
    """Three nodes, Prometheus with the rules as they ship, except that each alert waits for a second (promtool tests
    their times), and Alertmanager with a webhook. A follower is killed: its alert arrives, and names it. It starts
    again: the same alert arrives as resolved."""
    shipped = (ROOT / "docs/monitoring/alerts.yml").read_text("utf-8")
    rules = tmp_path / "alerts.yml"
    rules.write_text(shipped.replace("for: 1m\n", "for: 1s\n"))
    ports = free_ports(3)
    got: list[dict[str, Any]] = []

    def arrived(status: str) -> list[dict[str, Any]]:
        labels = {"alertname": "RaftlogNodeDown", "instance": instance, "severity": "warning"}
        return [each for each in got if each["status"] == status and labels.items() <= each["labels"].items()]

    with LocalCluster(tmp_path / "nodes", 3) as local:
        local.environments = {
            node: {"RAFTLOG_HTTP_PROBE_LISTEN": f"127.0.0.1:{port}"}
            for node, port in zip(local.nodes, ports, strict=True)
        }
        local.restore()
        leader = local.leader()
        killed = next(node for node in local.nodes if node != leader)
        instance = f"127.0.0.1:{ports[local.nodes.index(killed)]}"
        with (
            receiver(got) as webhook,
            alertmanager(tmp_path, webhook) as manager,
            prometheus(tmp_path, {"raftlog": ports}, rules, manager) as url,
        ):
            wait_until(lambda: len(answers(url, 'up{job="$job"} == 1')) == len(ports), HANG_S, what="a scrape of all")
            assert arrived("firing") == []
            local.kill(killed)
            wait_until(lambda: arrived("firing"), HANG_S, what=f"the alert about {instance}")
            assert arrived("resolved") == []
            local.start_node(killed)
            (ended, *_) = wait_until(lambda: arrived("resolved"), HANG_S, what=f"the end of the alert about {instance}")
            assert ended["annotations"]["summary"] == f"raftlog: {instance} does not answer"
