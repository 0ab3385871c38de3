"""A node as a service of systemd: what it reports to NOTIFY_SOCKET, and the unit.

raftlog.cluster.runtime.service_manager, cluster/node/raftlog@.service.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import SyncClient
from raftlog.cluster.config.exit_codes import NOT_MENDED_BY_A_START, NodeExit
from raftlog.cluster.node.formatting import UNIT, create_cluster
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.runtime.service_manager import ServiceManager
from tests.cluster.nodes import QUICK
from tests.support import HANG_S, free_ports

PROGRAM = "/opt/raftlog/bin/raftlog"
WATCHDOG_S = 0.4
WAIT_S = 60.0
"""Bound of a wait for one report, in seconds."""


class Manager:
    """The socket of a service manager, and the reports that came."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.reports: list[str] = []

    def environment(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}

    def comes(self, timeout_s: float) -> bool:
        """Whether a report comes; it is in `reports` then."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return False
        self.reports.append(self._socket.recv(4_096).decode())
        return True

    def until(self, report: str) -> None:
        """Waits for the next report that begins so."""
        while self.comes(WAIT_S):
            if self.reports[-1].startswith(report):
                return
        raise AssertionError(f"no {report} among {self.reports}")

    def until_status(self, pattern: str) -> None:
        """Waits until the newest state is such a one."""
        while not re.fullmatch(pattern, next((each for each in reversed(self.reports) if "STATUS=" in each), "")[7:]):
            assert self.comes(WAIT_S), self.reports

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """One with either kind of address."""
    made = Manager(
        str(tmp_path / "notify") if request.param == "path" else f"@raftlog-{tmp_path.name}-{free_ports(1)[0]}"
    )
    yield made
    made.close()


@pytest.mark.serial
def test_a_node_reports_its_start_a_hand_over_a_standstill_and_its_stop(tmp_path: Path, manager: Manager) -> None:
    """READY=1 comes once there is a leader, and once. STATUS= follows role and leader. A stopped process sends no
    WATCHDOG=1; it goes on when the process does. STOPPING=1 comes before the end."""
    with LocalCluster(tmp_path / "cluster", settings=QUICK) as cluster:
        cluster.environments[1] = manager.environment()
        cluster.start([1])
        manager.until("WATCHDOG=1")
        manager.until_status(r"(follower|pre_candidate), term 1, not ready")
        assert "READY=1" not in manager.reports
        cluster.start()
        manager.until("READY=1")
        cluster.wait_ready()
        with SyncClient(cluster.urls, deadline_s=60) as client:
            for to, state in ((1, r"leader, term \d+"), (2, r"follower of node 2, term \d+"), (1, r"leader, term \d+")):
                if cluster.leader() != to:
                    client.transfer_leadership(to)
                manager.until_status(state)
        cluster.pause(1)
        while manager.comes(0):
            pass
        assert not manager.comes(3 * WATCHDOG_S), manager.reports
        cluster.resume(1)
        manager.until("WATCHDOG=1")
        pid = cluster.pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        manager.until("STOPPING=1")
        assert cluster.stop_node(1) == NodeExit.OK
        assert manager.reports.count("READY=1") == 1


async def test_a_blocked_event_loop_sends_no_sign_of_life(tmp_path: Path) -> None:
    """The reports leave from the event loop alone: while it waits in a system call of this test nothing comes."""
    listening = Manager(str(tmp_path / "notify"))
    manager = ServiceManager.of(listening.environment())
    assert manager is not None
    try:
        await asyncio.to_thread(listening.until, "WATCHDOG=1")
        while listening.comes(0):
            pass
        assert not listening.comes(3 * WATCHDOG_S), listening.reports
        await asyncio.to_thread(listening.until, "WATCHDOG=1")
    finally:
        manager.close()
        listening.close()


async def test_without_a_manager_nothing_is_made_and_a_deaf_one_delays_nothing(tmp_path: Path) -> None:
    """No NOTIFY_SOCKET: no object. A socket that is gone is tried again. Another process's watchdog is not ours."""
    assert ServiceManager.of({}) is None
    assert ServiceManager.of({"NOTIFY_SOCKET": "vsock:2:1234"}) is None
    address = str(tmp_path / "notify")
    other = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    manager = ServiceManager.of(other)
    assert manager is not None
    manager.look = lambda: (True, "leader")
    manager.stopping()
    listening = Manager(address)
    try:
        await asyncio.to_thread(listening.until, "STATUS=")
        assert listening.reports == ["STATUS=stops"]
    finally:
        manager.close()
        listening.close()


def unit_for(folder: Path) -> Path:
    """The unit, with a program that is there."""
    text = (Path(sys.modules[create_cluster.__module__].__file__ or "").parent / UNIT).read_text("utf-8")
    assert f"ExecStart={PROGRAM} node " in text
    (unit := folder / UNIT).write_text(text.replace(PROGRAM, sys.executable), "utf-8")
    return unit


def test_the_unit_is_right_and_keeps_the_node_in_bounds(tmp_path: Path) -> None:
    """systemd's own checks: no line is wrong, and the exposure is at most 2.0 of 10."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing (Debian: apt-get install systemd)")
    unit = unit_for(tmp_path)
    for words in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert unit.name not in done.stderr, done.stderr  # a warning names the unit


def test_the_unit_has_our_exit_codes_and_is_in_each_machines_folder(tmp_path: Path) -> None:
    """systemd starts no node again after an exit code that needs an operator. `raftlog create` copies the unit."""
    made = create_cluster(tmp_path / "made", ["127.0.0.1", "127.0.0.2"], port=7001, peer_port=7101)
    (text,) = {(machine / UNIT).read_text("utf-8") for machine in made.machines.values()}
    codes = " ".join(str(int(code)) for code in NOT_MENDED_BY_A_START)
    assert f"RestartPreventExitStatus={codes}\n" in text
    assert f"SuccessExitStatus={int(NodeExit.REMOVED)}\n" in text
