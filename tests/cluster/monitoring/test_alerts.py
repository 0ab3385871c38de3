"""The alert rules of docs/monitoring fire where something is wrong, clear when it is well again, and have a runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from raftlog.cluster.runtime.metric_table import METRICS
from tests.house.rules import ROOT

RULES: Final = ROOT / "docs/monitoring/alerts.yml"
ALERTS: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]
}
HOUR: Final = 60
NODE: Final = 'job="raftlog",instance="n{}"'

Cases = dict[str, tuple[int, dict[str, tuple[str, str]]]]


def each_node(metric: str, *values: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """A series for each node of a cluster: what it shows while something is wrong, and afterwards."""
    return {f"{metric}{{{NODE.format(node)}}}": value for node, value in enumerate(values, 1)}


def buckets(wrong: dict[str, str], healthy: dict[str, str]) -> dict[str, tuple[str, str]]:
    """A histogram of the time of syncs of one node."""
    name = "raftlog_sync_seconds_bucket"
    return {f'{name}{{{NODE.format(1)},le="{le}"}}': (wrong[le], healthy[le]) for le in wrong}


CASES: Final[Cases] = {
    "RaftlogNoLeader": (1, each_node("raftlog_is_leader", ("0x9", "1x9"), ("0x9", "0x9"))),
    "RaftlogNodeDown": (2, each_node("up", ("1x9", "1x9"), ("0x9", "1x9"))),
    "RaftlogNoMajorityToSpare": (
        3,
        each_node("raftlog_is_member", ("1x9", "1x9"), ("1x9", "1x9"), ("_x9", "1x9"))
        | each_node("raftlog_voters", ("3x9", "3x9"))
        | each_node("raftlog_learners", ("0x9", "0x9")),
    ),
    "RaftlogNoVote": (
        2,
        each_node("raftlog_cut_off", ("1x9", "0x9"), ("0x9", "0x9"))
        | each_node("raftlog_healing", ("0x9", "0x9"), ("0x9", "0x9")),
    ),
    "RaftlogDiskFull": (1, each_node("raftlog_disk_lacks_bytes", ("4096x9", "0x9"), ("0x9", "0x9"))),
    "RaftlogDiskFullSoon": (
        3 * HOUR,
        each_node("raftlog_disk_free_bytes", ("1000000000000-2000000000x200", "900000000000x200"))
        | each_node("raftlog_disk_lacks_bytes", ("0x200", "0x200")),
    ),
    "RaftlogSlowDisk": (
        20,
        buckets(
            {"0.01": "0+1x30", "0.1": "0+100x30", "+Inf": "0+100x30"},
            {"0.01": "31+100x30", "0.1": "3100+100x30", "+Inf": "3100+100x30"},
        ),
    ),
    "RaftlogFollowerLags": (20, {'raftlog_follower_lag{job="raftlog",peer="2"}': ("5000+100x30", "9x30")}),
    "RaftlogElectionsRepeat": (
        10,
        {f'raftlog_raft_events_total{{{NODE.format(1)},event="BecameLeader"}}': ("0+1x15", "15x60")},
    ),
    "RaftlogCertificateExpires": (
        1,
        each_node("raftlog_certificate_expires_seconds", ("2000000x9", "30000000x9"), ("30000000x9", "30000000x9")),
    ),
    "RaftlogClockWrong": (6, each_node("raftlog_clock_skew_seconds", ("-2x9", "0.1x9"), ("0x9", "0x9"))),
    "RaftlogStatesDiffer": (1, each_node("raftlog_digests_differ", ("1x9", "0x9"))),
    "RaftlogDamage": (12, each_node("raftlog_damaged_places", ("2x20", "0x20"))),
    "RaftlogGroupHoldsLog": (
        20,
        {'raftlog_consumer_lag_seconds{job="raftlog",consumer="billing"}': ("30000x30", "10x30")},
    ),
    "RaftlogSinkFails": (6, {'raftlog_sink_failing{job="sinks",sink="orders"}': ("1x20", "0x20")}),
    "RaftlogUpgradeUnfinished": (
        25 * HOUR,
        each_node("raftlog_cluster_version", ("1x1600", "2x60"), ("1x1600", "2x60"))
        | each_node("raftlog_cluster_version_known", ("2x1600", "2x60"), ("1x1600", "2x60"))
        | {
            'raftlog_build_info{job="raftlog",instance="n1",version="1"}': ("1x1600", "_x60"),
            'raftlog_build_info{job="raftlog",instance="n1",version="2"}': ("_x1600", "1x60"),
            'raftlog_build_info{job="raftlog",instance="n2",version="2"}': ("1x1600", "1x60"),
        },
    ),
}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs it. Skips where it is missing."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed; Debian: apt-get install prometheus")
    return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)


def test_the_rules_have_no_fault() -> None:
    """As `promtool check rules` sees it."""
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_runbook_and_a_case() -> None:
    """The table of docs/production.md has the same alerts, in the same order, and each links to what to do."""
    text = (ROOT / "docs/production.md").read_text("utf-8")
    rows = re.findall(r"^\| `(Raftlog\w+)` \| .+ \| .*(?:\]\(|`raftlog ).* \|$", text, re.MULTILINE)
    assert rows == list(ALERTS) == list(CASES)
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} == {"critical", "warning"}


def test_every_metric_of_an_alert_exists() -> None:
    """In this version."""
    known = {*METRICS, "raftlog_sink_failing", "raftlog_sync_seconds_bucket"}
    for name, rule in ALERTS.items():
        used = {*re.findall(r"\braftlog_\w+", rule["expr"])}
        assert used <= known, name
        assert used or "up{" in rule["expr"], name


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_and_clears(name: str, tmp_path: Path) -> None:
    """It fires once its time is over, and it is gone once the series say that all is well. No other alert is needed to
    say it, and series of a healthy cluster never fire it."""
    fires_at, series = CASES[name]
    ends_at = max(_length(wrong) for wrong, _ in series.values())
    clears_at = ends_at + min(_length(healthy) for _, healthy in series.values()) - 1
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    firing = {"expr": query, "eval_time": f"{fires_at}m", "exp_samples": [{"labels": "{}", "value": 1}]}
    cleared = {"expr": query, "eval_time": f"{clears_at}m", "exp_samples": []}
    both = [{"series": each, "values": f"{wrong} {healthy}"} for each, (wrong, healthy) in series.items()]
    well = [{"series": each, "values": healthy} for each, (_, healthy) in series.items()]
    never = {**cleared, "eval_time": f"{clears_at - ends_at}m"}
    tests = [
        {"interval": "1m", "input_series": both, "promql_expr_test": [firing, cleared]},
        {"interval": "1m", "input_series": well, "promql_expr_test": [never]},
    ]
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def _length(values: str) -> int:
    """Samples that a notation such as 0+1x30 stands for."""
    return int(values.rpartition("x")[2]) + 1
