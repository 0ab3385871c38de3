"""The chaos harness as a user runs it: a short run with real faults is valid, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from raftlog.chaos.runs.judgement import HAPPEN_EVERY_MINUTE
from raftlog.chaos.runs.scenarios import LONG_S
from tests.acceptance.conftest import Measure
from tests.house.rules import ROOT
from tests.support import RAFTLOG, raftlog, wait_until

pytestmark = [pytest.mark.toxiproxy]

SECONDS = 25
SEED = 23
FAULTS = "partition-leader+partition-outward+kill-leader+pause-leader+power-cut-slow"
"""With that seed both lanes have several, one a power cut. None waits for the log to grow, as `left-behind` does."""

OFTEN_BEHIND = "left-behind+partition-leader+kill-leader"
"""In a minute several followers are left behind, also on a busy machine."""

SMALL = [
    "--set",
    f"retention.bytes={1 << 19}",
    "--set",
    f"retention.held_bytes={1 << 22}",  # the log waits for the sink, which is late where elections follow each other
    "--set",
    f"limits.snapshot_log_bytes={1 << 15}",
    "--set",
    f"limits.trailing_log_bytes={1 << 13}",
]
"""A third or less of what a run has by default: a slow machine, too, trims and installs snapshots within LONG_S."""
RUN = ("chaos", "run", "smoke", "--nodes", "3")


def _processes_of(folder: Path) -> list[int]:
    """The pids of all processes whose command line or working files name that folder, but not the harness itself."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = process.joinpath("cmdline").read_bytes()
            output = os.readlink(process / "fd/1")
        except OSError:
            continue
        if b"chaos\0run\0" not in command and (os.fsencode(folder) in command or output.startswith(str(folder))):
            found.append(int(process.name))
    return found


SECURE = ["--secure"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("form", "faults", "seconds"),
    [([], FAULTS, SECONDS), ([], OFTEN_BEHIND, LONG_S), pytest.param(SECURE, FAULTS, SECONDS, marks=pytest.mark.long)],
    ids=["plain", "minute", "secure"],
)
def test_a_smoke_run_of_chaos_is_valid(
    tmp_path: Path, toxiproxy_path: Path, record_property: Measure, form: list[str], faults: str, seconds: float
) -> None:
    """Registers and the log under partitions, kills and pauses, three nodes behind the real Toxiproxy: valid,
    with enough operations, faults of every lane that took effect, digests that all nodes agree on, and the page.
    A run of a minute has snapshots, trims and fetched segments inside the nodes, and requests that met each kind."""
    more = ("--seconds", seconds, "--seed", SEED, "--out", tmp_path, "--json", *SMALL, *form)
    done = raftlog(*RUN, "--nemesis", faults, *more, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    result = json.loads(done.stdout)
    assert (result["verdict"], result["seed"], result["problems"]) == ("valid", SEED, [])
    installed = [fault for fault in result["faults"] if fault["outcome"] == "installed"]
    assert {fault["lane"] for fault in installed} == {"network", "process"}
    assert all(fault["proof"] for fault in installed)
    assert [each["name"] for each in result["workloads"]] == ["register", "log", "direct", "direct-keys", "sink"]
    assert len(result["digests"]) == 3
    assert len({json.dumps(told) for told in result["digests"].values()}) == 1
    if seconds >= LONG_S:
        assert min(result["happened"][kind] for kind in HAPPEN_EVERY_MINUTE) > 0
        assert min(result["met"].values()) > 0
    assert (tmp_path / "latest" / "report.html").stat().st_size > 10_000
    assert not (tmp_path / "latest" / "nodes" / "data").exists()
    assert _processes_of(tmp_path) == []
    record_property(
        "measured",
        f"{result['operations']} operations in {result['load_s']} s, {len(installed)} faults, "
        f"{len(result['leaders'])} leaders, recovery {result['recovery_s']}",
    )


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("family", ["disk", "files", "members", "clock"])
def test_families_of_single_nodes(
    tmp_path: Path, toxiproxy_path: Path, record_property: Measure, family: str, nodes: int
) -> None:
    """Failing disks, damaged files, changes of members and wrong clocks, two minutes each: valid, every fault that took
    effect with its proof, and the members in the end those of the beginning."""
    words = ("chaos", "run", "--nemesis", family, "--nodes", nodes, "--seconds", 120, "--out", tmp_path, "--json")
    done = raftlog(*words, cwd=ROOT, timeout_s=1_100)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    result = json.loads(done.stdout)
    installed = [fault for fault in result["faults"] if fault["outcome"] == "installed"]
    assert all(fault["proof"] for fault in installed)
    assert sorted(result["digests"]) == [str(node) for node in range(1, nodes + 1)]
    record_property("measured", f"{result['command']}: {len(installed)} faults, {result['operations']} operations")


@pytest.mark.parametrize(("number", "form"), [(signal.SIGINT, SECURE), (signal.SIGKILL, [])])
def test_nothing_is_left_behind(tmp_path: Path, toxiproxy_path: Path, number: signal.Signals, form: list[str]) -> None:
    """Ctrl-C in the middle of a run ends with 8, for there is no verdict; after `kill -9` of the harness too, every
    node and the Toxiproxy server are gone."""
    with subprocess.Popen(
        [*RAFTLOG, *RUN, "--seconds", "100", "--out", str(tmp_path), *form],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as harness:
        try:
            wait_until(lambda: len(_processes_of(tmp_path)) >= 4, 60, what="three nodes and Toxiproxy")
            told = harness.stdout
            assert told is not None
            wait_until(lambda: "running" in told.readline(), 60, what="the load")
            harness.send_signal(number)
            code = harness.wait(60)
        finally:
            harness.kill()
    assert code == (8 if number is signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not _processes_of(tmp_path), 20, what="every process to be gone")
