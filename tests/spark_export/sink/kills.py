"""Kills exports: `raftlog export --follow` with all that it started, at moments that the folder's contents choose.

A moment is the n-th change of the export's folder, drawn at random. Another moment is between write and commit: all
files of a batch are written and no file says yet that they count. Both are hit on a busy machine too.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raftlog.spark_export.export.manifest import NEXT, UNFINISHED, find_manifest

CHANGES_MAX = 40  # of the folder, after which a kill comes at the latest
DEADLINE_S = 900.0  # for one run, on whatever machine


@dataclass
class Tally:
    """What the kills met: a run of tests in which they met too little proves too little."""

    kills: int = 0
    in_batch: int = 0  # a plan was there: a batch was under way
    written: int = 0  # all files of a batch were there, and nothing said that they count
    ends: list[int] = field(default_factory=list)  # where the export stood, kill by kill


def command(engine: str, folder: Path, urls: Sequence[str], last: int, *options: str) -> list[str]:
    """The export as a process, with the tasks in Spark or in that process."""
    return [
        sys.executable,
        "-m",
        "raftlog.cluster.cli.main",
        "export",
        "--engine",
        engine,
        "--to",
        str(folder),
        "--follow",
        "--to-index",
        str(last),
        "--every",
        "0",
        "--endpoints",
        ",".join(urls),
        "--timeout",
        "120",
        *options,
    ]


def kill_at_random(
    arguments: list[str], folder: Path, kills: int, chance: random.Random, check: Callable[[], None]
) -> Tally:
    """Starts the export so often, kills each but the last, and lets that one end; `check` is called after each kill."""
    tally = Tally()
    for number in range(kills):
        is_at_commit = number % 3 == 2
        moment = _at_commit(folder) if is_at_commit else _after_changes(folder, chance.randint(1, CHANGES_MAX))
        process = subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            is_over = _watch(process, moment, pauses=not is_at_commit)
        finally:
            kill_session(process)
        if is_over:
            break
        tally.kills += 1
        tally.in_batch += (folder / UNFINISHED / "plan.json").exists()
        tally.written += (folder / UNFINISHED / NEXT).exists()
        manifest = find_manifest(folder)
        tally.ends.append(manifest.last if manifest is not None else 0)
        check()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return tally


def _watch(process: "subprocess.Popen[bytes]", moment: Iterator[bool], *, pauses: bool) -> bool:
    """Waits for the moment; True where the export came to its end before. Without `pauses` it looks all the time: a
    batch that is written and does not count yet is there for less than a millisecond."""
    until = time.monotonic() + DEADLINE_S
    for is_now in moment:
        if is_now:
            return False
        if process.poll() is not None:
            assert process.stderr is not None
            assert process.returncode == 0, process.stderr.read().decode()
            return True
        assert time.monotonic() < until, "the export neither went on nor ended"
        if pauses:
            process_wait(process)
    raise AssertionError("a moment never ends")


def process_wait(process: "subprocess.Popen[bytes]") -> None:
    """A few milliseconds, or until it ends."""
    try:
        process.wait(0.003)
    except subprocess.TimeoutExpired:
        pass


def _after_changes(folder: Path, changes: int) -> Iterator[bool]:
    """True at the n-th time that the folder looks otherwise than before."""
    before = contents(folder)
    while True:
        now = contents(folder)
        changes -= now != before
        before = now
        yield changes <= 0


def _at_commit(folder: Path) -> Iterator[bool]:
    """True as soon as a batch is written that does not count yet."""
    path = folder / UNFINISHED / NEXT
    before = _number(path)  # what an earlier kill has left is no new moment
    while True:
        yield _number(path) not in (None, before)


def _number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def contents(folder: Path) -> dict[str, int]:
    """Every file with its size, and every folder with -1; what goes meanwhile is left out, also a folder on its way
    (which `glob` would stop at)."""
    found = {}
    for parent, folders, files in os.walk(folder):
        found.update({os.path.join(parent, name): -1 for name in folders})
        for name in files:
            with suppress(OSError):
                found[os.path.join(parent, name)] = os.stat(os.path.join(parent, name)).st_size
    return found


def kill_session(process: "subprocess.Popen[Any]") -> None:
    """kill -9 of the process and all that it started (the JVM, its Python workers), again until none is left."""
    process.kill()  # before it does any more: to find the others takes milliseconds
    until = time.monotonic() + 30
    while pids := session_pids(process.pid):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.poll()
        assert time.monotonic() < until, f"{pids} do not die"
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def session_pids(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.name))
    return found
