"""Writes docs/monitoring/dashboard.json, the Grafana dashboard of a cluster, from the table below.

`make fix` runs it. tests/cluster/monitoring/test_dashboard.py runs every query on a Prometheus that scrapes a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.house.rules import ROOT

FILE: Final = ROOT / "docs" / "monitoring" / "dashboard.json"
JOB: Final = 'job="$job"'
_WIDTH: Final = 24  # of a row of Grafana
_HEIGHT: Final = 7


class Panel(NamedTuple):
    """One chart: its title, Grafana's name of the unit, and each query under the legend that it gets."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"


def _rate(metric: str, by: str = "", more: str = "") -> str:
    grouped = f"sum by ({by}) " if by else "sum "
    return f"{grouped}(rate({metric}{{{JOB}{more}}}[$__rate_interval]))"


def quantiles(metric: str, by: str = "") -> dict[str, str]:
    """Median and 99th percentile of a histogram, each under its legend."""
    buckets = _rate(f"{metric}_bucket", ", ".join(["le", *([by] if by else [])]))
    legend = f" {{{{{by}}}}}" if by else ""
    return {f"p{100 * q:g}{legend}": f"histogram_quantile({q}, {buckets})" for q in (0.5, 0.99)}


def _each(metric: str) -> str:
    return f"{metric}{{{JOB}}}"


NODE: Final = "{{instance}}"
ROWS: Final[dict[str, list[Panel]]] = {
    "Is it well": [
        Panel("Nodes that answer", "none", {"nodes": f"sum(up{{{JOB}}})"}, "stat"),
        Panel("Leader", "none", {NODE: f"{_each('raftlog_is_leader')} == 1"}, "stat"),
        Panel("Voters", "none", {"voters": f"max({_each('raftlog_voters')})"}, "stat"),
        Panel("Firing alerts", "none", {"alerts": 'count(ALERTS{alertstate="firing"}) or vector(0)'}, "stat"),
        Panel("Nodes without a vote", "none", {NODE: f"{_each('raftlog_cut_off')} + {_each('raftlog_healing')}"}),
        Panel("States that differ", "none", {NODE: _each("raftlog_digests_differ")}),
        Panel("Clock", "s", {NODE: _each("raftlog_clock_skew_seconds")}),
        Panel(
            "Versions",
            "none",
            {"{{version}} {{modules}}": f"count by (version, modules) ({_each('raftlog_build_info')})"},
        ),
    ],
    "Writes": [
        Panel("Writes by outcome", "ops", {"{{outcome}}": _rate("raftlog_submits_total", "outcome")}),
        Panel(
            "Records committed",
            "ops",
            {"records": f"max(rate({_each('raftlog_committed_index')}[$__rate_interval]))"},
        ),
        Panel(
            "Writes in line and under way",
            "none",
            {
                "in line": f"sum({_each('raftlog_queued_requests')})",
                "under way": f"sum({_each('raftlog_inflight_requests')})",
            },
        ),
        Panel("Requests in one entry", "none", quantiles("raftlog_batch_requests")),
        Panel("Problems", "ops", {"{{code}}": _rate("raftlog_http_problems_total", "code")}),
        Panel("Event loop is late", "s", quantiles("raftlog_loop_lag_seconds", "instance")),
    ],
    "Reads": [
        Panel("Requests by route", "ops", {"{{route}}": _rate("raftlog_http_requests_total", "route")}),
        Panel("Time of a request", "s", quantiles("raftlog_http_request_seconds", "route")),
        Panel("Reads and long polls that wait", "none", {NODE: _each("raftlog_waiters")}),
    ],
    "Disk": [
        Panel("Time of a sync", "s", quantiles("raftlog_sync_seconds", "instance")),
        Panel("Syncs", "ops", {NODE: _rate("raftlog_disk_syncs_total", "instance")}),
        Panel("Current operation", "s", {NODE: _each("raftlog_disk_stalled_seconds")}),
        Panel("Free", "bytes", {NODE: _each("raftlog_disk_free_bytes")}),
        Panel(
            "Log and snapshot",
            "bytes",
            {
                f"log {NODE}": _each("raftlog_log_bytes"),
                f"snapshot {NODE}": _each("raftlog_snapshot_bytes"),
            },
        ),
        Panel("Damaged places", "none", {NODE: _each("raftlog_damaged_places")}),
    ],
    "Followers": [
        Panel("Records that a follower lacks", "none", {"node {{peer}}": _each("raftlog_follower_lag")}),
        Panel(
            "Applied behind committed",
            "none",
            {NODE: f"{_each('raftlog_committed_index')} - {_each('raftlog_applied_index')}"},
        ),
        Panel("Links that are down", "none", {"{{instance}} {{link}}": f"1 - {_each('raftlog_link_up')}"}),
        Panel("Messages refused", "ops", {"node {{peer}}": _rate("raftlog_messages_refused_total", "peer")}),
    ],
    "Elections": [
        Panel("Term", "none", {NODE: _each("raftlog_term")}),
        Panel(
            "Events of the consensus",
            "none",
            {"{{event}}": f"sum by (event) (increase({_each('raftlog_raft_events_total')}[5m]))"},
        ),
        Panel(
            "Leaderships handed over for a disk or clock",
            "none",
            {"{{why}}": f"sum by (why) (increase({_each('raftlog_disk_handovers_total')}[5m]))"},
        ),
    ],
    "Sessions, groups and sinks": [
        Panel("Sessions", "none", {"sessions": f"max({_each('raftlog_sessions')})"}),
        Panel(
            "Lag of consumer groups",
            "none",
            {"{{consumer}}": f"max by (consumer) ({_each('raftlog_consumer_lag_records')})"},
        ),
        Panel(
            "Age of what a group has not read",
            "s",
            {"{{consumer}}": f"max by (consumer) ({_each('raftlog_consumer_lag_seconds')})"},
        ),
        Panel("Lag of sinks", "none", {"{{sink}}": "raftlog_sink_lag_records"}),
        Panel("Rows of sinks", "ops", {"{{sink}}": "sum by (sink) (rate(raftlog_sink_rows_total[$__rate_interval]))"}),
    ],
    "Certificates and process": [
        Panel("Until the certificate expires", "s", {NODE: _each("raftlog_certificate_expires_seconds")}),
        Panel("Processor", "percentunit", {NODE: _rate("process_cpu_seconds_total", "instance")}),
        Panel("Memory", "bytes", {NODE: _each("process_resident_memory_bytes")}),
        Panel("Open files", "none", {NODE: _each("process_open_fds")}),
    ],
}


def queries() -> Iterator[tuple[str, str]]:
    """Every query, under its row and panel."""
    for row, panels in ROWS.items():
        for panel in panels:
            for query in panel.queries.values():
                yield f"{row}: {panel.title}", query


def dashboard() -> dict[str, Any]:
    """As Grafana imports it. It asks for the data source; the job, which is the cluster, is chosen on its page."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels: list[dict[str, Any]] = []
    y = 0
    for row, those in ROWS.items():
        panels.append(
            {"type": "row", "title": row, "collapsed": False, "panels": [], "gridPos": _place(0, y, _WIDTH, 1)}
        )
        y += 1
        width = _WIDTH // min(4, len(those))
        for number, panel in enumerate(those):
            column, line = number % 4, number // 4
            panels.append(
                {
                    "type": panel.kind,
                    "title": panel.title,
                    "datasource": source,
                    "gridPos": _place(column * width, y + line * _HEIGHT, width, _HEIGHT),
                    "fieldConfig": {"defaults": {"unit": panel.unit, "min": None if panel.title == "Clock" else 0}},
                    "targets": [
                        {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": source}
                        for place, (legend, query) in enumerate(panel.queries.items())
                    ],
                }
            )
        y += _HEIGHT * -(-len(those) // 4)
    choices = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "job",
            "type": "query",
            "label": "Cluster",
            "datasource": source,
            "query": "label_values(raftlog_term, job)",
            "refresh": 2,
        },
    ]
    return {
        "title": "raftlog",
        "uid": "raftlog",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": choices},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
