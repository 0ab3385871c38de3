"""Processes of the harness never outlive it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.chaos.deploy.processes import Guard
from raftlog.cluster.node.local_cluster import wait_stopped
from tests.support import wait_until

pytestmark = pytest.mark.serial

IDLE = [sys.executable, "-S", "-c", "import signal; signal.pause()"]

BUSY = """
import threading
def work():
    while True:
        pass
for _ in range(3):
    threading.Thread(target=work).start()
"""

HARNESS = """
import signal, subprocess, sys
from raftlog.chaos.deploy.processes import Guard
guard = Guard()
child = subprocess.Popen(sys.argv[1:], start_new_session=True)
guard.watch(child.pid)
print(child.pid, flush=True)
signal.pause()
"""


def is_gone(pid: int) -> bool:
    """Whether no such process runs: it ended and was reaped, or is an unreaped zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _threads(pid: int) -> list[str]:
    """The state letter of each of its threads."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return [stat.read_bytes().rpartition(b")")[2].split()[0].decode() for stat in stats]


def test_a_closed_guard_has_killed_what_it_watched() -> None:
    """Leaving the guard kills every process, a paused one too; one that has ended before is no error."""
    with Guard() as guard:
        processes = [subprocess.Popen(IDLE) for _ in range(3)]
        for each in processes:
            guard.watch(each.pid)
        processes[1].send_signal(signal.SIGSTOP)
        processes[2].kill()
        processes[2].wait(10)
    assert [each.wait(10) for each in processes] == [-signal.SIGKILL] * 3


def test_no_thread_of_a_paused_process_runs() -> None:
    """Once `wait_stopped` returns, every thread stands, also one that kept a core busy; SIGCONT lets them go on."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        wait_until(lambda: len(_threads(busy.pid)) == 4, 10, what="four threads")
        for _ in range(20):
            busy.send_signal(signal.SIGSTOP)
            assert wait_stopped(busy.pid, 30)
            assert _threads(busy.pid) == ["T"] * 4
            busy.send_signal(signal.SIGCONT)
            wait_until(lambda: "T" not in _threads(busy.pid), 10, what="the threads to go on")
        busy.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_when_their_harness_dies(number: signal.Signals) -> None:
    """kill -9 of the harness, which leaves it no chance, and Ctrl-C, which it did not expect: its process is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, *IDLE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as harness:
        assert harness.stdout is not None
        child = int(harness.stdout.readline())
        assert not is_gone(child)
        harness.send_signal(number)
        harness.wait(10)
    wait_until(lambda: is_gone(child), what="the child to end with its harness")
