"""Processes of the harness are signalled by pid and never outlive it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.chaos.deploy.processes import ProcessError, Processes
from tests.support import wait_until

pytestmark = pytest.mark.serial

IDLE = [sys.executable, "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]

BUSY = """
import threading
def work():
    while True:
        pass
for _ in range(3):
    threading.Thread(target=work).start()
"""

HARNESS = """
import os, signal, sys
from pathlib import Path
from raftlog.chaos.deploy.processes import Processes
processes = Processes()
child = processes.start("child", sys.argv[2:], log=Path(sys.argv[1]))
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as owner:
        yield owner


def _gone(pid: int) -> bool:
    """Whether no such process runs: it ended and was reaped, or is an unreaped zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _threads(pid: int) -> list[str]:
    """The state letter of each of its threads."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return [stat.read_bytes().rpartition(b")")[2].split()[0].decode() for stat in stats]


def test_close_ends_running_processes(tmp_path: Path) -> None:
    """Leaving the owner kills every process, a paused one too, and waits for it."""
    with Processes() as owner:
        running = owner.start("running", IDLE, log=tmp_path / "a.log")
        paused = owner.start("paused", IDLE, log=tmp_path / "b.log")
        paused.pause()
    assert (running.is_running, paused.is_running) == (False, False)
    assert running.wait(0) == paused.wait(0) == -signal.SIGKILL


def test_no_thread_of_a_paused_process_runs(tmp_path: Path) -> None:
    """When `pause` returns, every thread stands, also one that kept a core busy; SIGCONT lets them go on."""
    with Processes() as owner:
        busy = owner.start("busy", [sys.executable, "-c", BUSY], log=tmp_path / "busy.log")
        wait_until(lambda: len(_threads(busy.pid)) == 4, 10, what="four threads")
        for _ in range(20):
            busy.pause()
            assert _threads(busy.pid) == ["T"] * 4
            busy.signal(signal.SIGCONT)
            wait_until(lambda: "T" not in _threads(busy.pid), 10, what="the threads to go on")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_when_their_harness_dies(tmp_path: Path, number: signal.Signals) -> None:
    """kill -9 of the harness, which leaves it no chance, and Ctrl-C, which it did not expect: its process is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, tmp_path / "child.log", *IDLE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as harness:
        assert harness.stdout is not None
        child = int(harness.stdout.readline())
        assert not _gone(child)
        harness.send_signal(number)
        harness.wait(10)
    wait_until(lambda: _gone(child), what="the child to end with its harness")


def test_a_signal_to_an_ended_process_fails_with_the_end_of_its_log(processes: Processes, tmp_path: Path) -> None:
    """No other process is hit under a reused number: the error shows the end of the log instead."""
    process = processes.start("brief", [sys.executable, "-c", "raise SystemExit('why')"], log=tmp_path / "log")
    assert process.wait(10) == 1
    with pytest.raises(ProcessError, match=r"brief cannot get SIGSTOP: it has ended(?s:.*)why"):
        process.pause()
    process.kill()


def test_a_process_that_does_not_end_is_an_error(processes: Processes, tmp_path: Path) -> None:
    """Waiting ends with an error, and the process goes on."""
    process = processes.start("idle", IDLE, log=tmp_path / "log")
    with pytest.raises(ProcessError, match=r"idle did not end within 0\.01 s"):
        process.wait(0.01)
    assert process.is_running


def test_environment_is_added(processes: Processes, tmp_path: Path) -> None:
    """The process sees what it is given beside what the harness has."""
    code = "import os; print(os.environ['CHAOS_WORD'], 'PATH' in os.environ)"
    process = processes.start(
        "env", [sys.executable, "-c", code], log=tmp_path / "log", environment={"CHAOS_WORD": "x"}
    )
    assert process.wait(10) == 0
    assert (tmp_path / "log").read_text() == "x True\n"
    assert "CHAOS_WORD" not in os.environ
