"""Tests the preload library on a small process: it records, fails, delays, hangs, kills, and knows durable bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog.chaos.shim import library, shadow
from raftlog.chaos.shim.driver import CALL_NAMES, Shim
from raftlog.chaos.shim.library import ShimMissing
from raftlog.chaos.shim.trace import Action, Call, CallKind
from tests.chaos.shim import shim_victim
from tests.support import wait_until

pytestmark = pytest.mark.serial

DEADLINE_S = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The watched folder: a file `f` of 4,096 durable bytes."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "f").write_bytes(b"." * 4_096)
    return folder


@pytest.fixture
def shim(tmp_path: Path, root: Path) -> Shim:
    """The library, with nothing injected."""
    try:
        return Shim(tmp_path / "shim", [root])
    except ShimMissing as error:
        pytest.skip(str(error))


def begin(shim: Shim, root: Path, *steps: str) -> subprocess.Popen[str]:
    """Starts the victim in the watched folder."""
    return subprocess.Popen(
        [sys.executable, shim_victim.__file__, *steps],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **shim.environment(root)},
    )


def run(shim: Shim, root: Path, *steps: str) -> tuple[int, list[str]]:
    """The exit code of the victim, and what it printed."""
    victim = begin(shim, root, *steps)
    told, _ = victim.communicate(timeout=DEADLINE_S)
    return victim.returncode, told.splitlines()


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# ---------------------------------------------------------------------------------------------------------------


def test_calls_are_recorded_in_order(shim: Shim, root: Path) -> None:
    """Every kind of call, with its file, place and bytes; files elsewhere are not watched."""
    steps = ["create,g", "pwrite,g,3,abc", "pwritev,g,6,de,f", "append,g,xyz", "truncate,g,4", "allocate,g,100"]
    steps += ["sync,g", "fsync,g", "sync_folder,.", "rename,g,h", "mkdir,d", "create,d/i", "rmtree,d", "unlink,h"]
    code, told = run(shim, root, *steps, f"create,{root.parent}/elsewhere", "zeros,f,4096")
    assert (code, told) == (0, [str(i) for i in range(len(steps) + 2)])
    calls = [call for call in shim.calls() if not call.is_begin]
    names = [(call.kind.name.lower(), Path(call.path).relative_to(root).as_posix()) for call in calls]
    assert names == [
        ("create", "g"),
        ("pwrite", "g"),
        ("pwrite", "g"),
        ("write", "g"),
        ("ftruncate", "g"),
        ("allocate", "g"),
        ("fdatasync", "g"),
        ("fsync", "g"),
        ("fsync", "."),
        ("rename", "g"),
        ("mkdir", "d"),
        ("create", "d/i"),
        ("unlink", "d/i"),
        ("rmdir", "d"),
        ("unlink", "h"),
        ("pwrite", "f"),
    ]
    assert [(call.offset, call.data) for call in calls if call.data] == [(3, b"abc"), (6, b"def"), (9, b"xyz")]
    assert calls[-1].length == 4_096
    assert calls[9].to == str(root / "h")
    assert all(call.time_ns for call in calls)


@pytest.mark.parametrize("name", ["EIO", "ENOSPC"])
def test_every_kind_of_call_can_fail(shim: Shim, root: Path, name: str) -> None:
    """Each call fails as asked and changes nothing, and the trace proves it; healed, the same steps go through."""
    steps = {
        "pwrite": "pwrite,f,0,x",
        "write": "append,f,x",
        "ftruncate": "truncate,f,1",
        "allocate": "allocate,f,9000",
        "fsync": "fsync,f",
        "fdatasync": "sync,f",
        "rename": "rename,f,g",
        "unlink": "unlink,f",
        "create": "create,g",
        "mkdir": "mkdir,d",
        "sync": "sync,f",
        "data": "append,f,x",
    }
    assert {*steps, "rmdir", "any"} == set(CALL_NAMES)
    before = content(root)
    for call, step in steps.items():
        rule = shim.inject(call, error=name, root=root)  # type: ignore[arg-type]
        assert run(shim, root, step) == (0, [f"0 {name}"])
        assert [hit.action for hit in shim.hits(rule)] == [Action.ERROR]
        assert content(root) == before
        shim.heal(rule)
    assert run(shim, root, *list(steps.values())[:5])[1] == ["0", "1", "2", "3", "4"]


def test_the_nth_call_and_so_many_times(shim: Shim, root: Path) -> None:
    """nth counts the calls that fit; times ends it; name and root choose the file; rules that do not fit do nothing."""
    (root / "g").write_bytes(b"")
    shim.inject("pwrite", error="EIO", name="*/nothing")
    shim.inject("pwrite", error="EIO", root=root, name="f", nth=2, times=2)
    steps = ["pwrite,g,0,x", *["pwrite,f,0,x"] * 5]
    assert run(shim, root, *steps)[1] == ["0", "1", "2 EIO", "3 EIO", "4", "5"]
    assert run(shim, root, *steps)[1] == ["0", "1", "2 EIO", "3 EIO", "4", "5"], "each process counts by itself"


def test_calls_can_be_delayed_and_hang_until_healed(shim: Shim, root: Path) -> None:
    """A delay delays; what hangs stays until it is healed, in its own thread only, and says so in the trace."""
    rule = shim.inject("fdatasync", delay_ms=150, root=root)
    assert run(shim, root, "sync,f", "sync,f")[1] == ["0", "1"]
    begins = [call.time_ns for call in shim.calls() if call.is_begin and call.rule == rule]
    ends = [call.time_ns for call in shim.calls() if call.kind is CallKind.FDATASYNC and not call.is_begin]
    assert [end - start >= 150_000_000 for start, end in zip(begins, ends, strict=True)] == [True, True]
    shim.heal()
    rule = shim.inject("fdatasync", hang=True, root=root)
    victim = begin(shim, root, "pwrite,f,0,x", "sync,f", "pwrite,f,1,y")
    wait_until(lambda: shim.hits(rule), DEADLINE_S, what="a call that hangs")
    assert victim.poll() is None
    shim.heal()
    assert victim.communicate(timeout=DEADLINE_S)[0].splitlines() == ["0", "1", "2"]


@pytest.mark.parametrize(("when", "left"), [("before", b"...."), ("half", b"ab.."), ("after", b"abcd")])
def test_the_nth_call_can_kill_its_process(shim: Shim, root: Path, when: Any, left: bytes) -> None:
    """SIGKILL before the second pwrite, behind it, or with half of it written."""
    rule = shim.kill_at("pwrite", 2, root=root, when=when)
    code, told = run(shim, root, "pwrite,f,100,x", "pwrite,f,0,abcd", "pwrite,f,200,z")
    assert (code, told) == (-signal.SIGKILL, ["0"])
    assert content(root)["f"][:4] == left
    assert len(shim.hits(rule)) == 1
    shim.heal()
    assert run(shim, root, "pwrite,f,0,abcd")[0] == 0


def test_half_a_sync_is_none(shim: Shim, root: Path) -> None:
    """Killed within fdatasync: the trace has the proof, and what it should have made durable is not."""
    rule = shim.kill_at("fdatasync", 1, root=root, when="half")
    assert run(shim, root, "pwrite,f,0,abcd", "sync,f") == (-signal.SIGKILL, ["0"])
    assert [hit.action for hit in shim.hits(rule)] == [Action.KILL_HALF]
    shim.restore_synced(root)
    assert content(root)["f"][:4] == b"...."


# ---------------------------------------------------------------------------------------------------------------
# Loss of power.


def test_only_synced_bytes_survive_a_power_cut(shim: Shim, root: Path) -> None:
    """Bytes count with fdatasync of the file, names with fsync of the folder; both as they were when it began."""
    rule = shim.kill_at("unlink", 1, name="*/end")
    steps = ["pwrite,f,0,AA", "sync,f", "pwrite,f,2,BB", "create,g", "pwrite,g,0,named", "sync,g", "sync_folder,."]
    steps += ["create,h", "pwrite,h,0,nameless", "sync,h", "create,i", "sync_folder,.", "pwrite,i,0,empty"]
    steps += ["rename,g,j", "truncate,f,10", "create,end", "unlink,end"]
    assert run(shim, root, *steps)[0] == -signal.SIGKILL
    assert content(root)["f"] == b"AABB......", "a kill alone loses nothing"
    left = shim.restore_synced(root)
    assert content(root) == {"f": b"AA" + b"." * 4_094, "g": b"named", "h": b"nameless", "i": b""}
    assert (left.files_in_doubt, left.bytes_in_doubt) == (2, 7)
    assert shim.hits(rule)
    shim.heal()
    assert run(shim, root, "pwrite,f,0,ZZ", "unlink,g")[0] == 0
    shim.restore_synced(root)
    assert content(root) == {"f": b"AA" + b"." * 4_094, "g": b"named", "h": b"nameless", "i": b""}, "a second cut"


def test_a_failed_sync_loses_for_good(shim: Shim, root: Path) -> None:
    """The next fdatasync does not make durable what a failed one missed; only bytes written again become durable."""
    shim.inject("fdatasync", error="EIO", root=root, times=1)
    steps = ["pwrite,f,0,lost", "sync,f", "pwrite,f,8,kept", "sync,f"]
    assert run(shim, root, *steps)[1] == ["0", "1 EIO", "2", "3"]
    shim.restore_synced(root)
    assert content(root)["f"][:12] == b"........kept"


def test_bytes_written_during_a_sync_are_not_synced(root: Path, tmp_path: Path) -> None:
    """A sync makes durable the bytes and names that were there when it began."""
    where = root.resolve()

    def call(kind: CallKind, path: Path, data: bytes = b"", serial: int = 0, *, is_begin: bool = False) -> Call:
        return Call(0, 1, kind, str(path), "", 0, len(data), 0, is_begin, 0, Action.NONE, serial, data or None)

    calls = [
        call(CallKind.PWRITE, where / "f", b"one"),
        call(CallKind.FDATASYNC, where / "f", serial=1, is_begin=True),
        call(CallKind.FSYNC, where, serial=2, is_begin=True),
        call(CallKind.PWRITE, where / "f", b"two"),
        call(CallKind.CREATE, where / "g"),
        call(CallKind.FDATASYNC, where / "f", serial=1),
        call(CallKind.FSYNC, where, serial=2),
    ]
    left = shadow.Shadow(root, where)
    left.replay(calls)
    left.write(tmp_path / "left", None)
    assert {name: data[:3] for name, data in content(tmp_path / "left").items()} == {"f": b"one"}


@pytest.mark.parametrize("seed", range(4))
def test_threads_never_lose_bytes_reported_durable(shim: Shim, root: Path, seed: int) -> None:
    """Eight threads write and sync one file, killed at any call: each number reported as durable is there."""
    chance = Random(seed)
    shim.kill_at("any", chance.randint(20, 700), when=chance.choice(["before", "after", "half"]))
    code, told = run(shim, root, "threads,f,8")
    assert code == -signal.SIGKILL
    newest = [0] * 8
    for line in told:
        if line.startswith("durable "):
            thread, turn = map(int, line.split()[1:])
            newest[thread] = turn
    shim.restore_synced(root, torn=chance if seed % 2 else None)
    data = content(root)["f"]
    for thread, turn in enumerate(newest):
        there = data[thread * 8 : thread * 8 + 8]
        assert turn == 0 or int(there) >= turn, (thread, turn, there)


def test_a_torn_write_is_old_or_new_by_sectors(shim: Shim, root: Path) -> None:
    """Over seeds every sector is at times the old one and at times the new one, and never anything else."""
    assert run(shim, root, f"pwrite,f,0,{'n' * 4_096}")[0] == 0
    seen: set[tuple[int, bytes]] = set()
    first = shadow.Shadow(shim._durable[root.resolve()], root.resolve())
    first.replay(shim.calls())
    for seed in range(40):
        to = root.parent / "torn"
        first.write(to, Random(seed))
        data = (to / "f").read_bytes()
        assert len(data) == 4_096
        seen |= {(start, data[start : start + shadow.SECTOR]) for start in range(0, 4_096, shadow.SECTOR)}
    assert len(seen) == 2 * 4_096 // shadow.SECTOR
    assert {piece for _, piece in seen} == {b"." * shadow.SECTOR, b"n" * shadow.SECTOR}


# ---------------------------------------------------------------------------------------------------------------
# Mistakes.


def test_mistakes_are_named(shim: Shim) -> None:
    """A call, an error or a count that does not exist is refused before a process sees it."""
    with pytest.raises(ValueError, match="is no call"):
        shim.inject("sink", error="EIO")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no error of the operating system"):
        shim.inject("sync", error="EVIL")
    with pytest.raises(ValueError, match="fails calls, or delays"):
        shim.inject("sync", error="EIO", hang=True)
    with pytest.raises(ValueError, match="counts from 1"):
        shim.kill_at("sync", 0)


def test_a_missing_compiler_is_reported_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason and the fix, for the tests that skip."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ShimMissing, match="no C compiler"):
        library.compiler()
    with pytest.raises(ShimMissing, match="no C compiler"):
        Shim(tmp_path / "none", [])


def test_each_process_of_its_own_root(shim: Shim, root: Path, tmp_path: Path) -> None:
    """A root that comes later is watched too, each with a record of its own. The effects of a rule there are still
    reported after a loss of power has removed the record. Files that the harness puts into a root between two processes
    are durable.
    """
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_bytes(b"." * 8)
    shim.watch(other)
    rule = shim.inject("pwrite", error="EIO", root=other, times=1)
    for folder in (root, other):
        victim = subprocess.Popen(
            [sys.executable, shim_victim.__file__, "pwrite,f,0,abc"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shim.environment(folder)},
        )
        victim.communicate(timeout=DEADLINE_S)
    assert [Path(call.path).parent for call in shim.hits(rule)] == [other.resolve()]
    assert [Path(call.path).parent for call in shim.calls() if call.data] == [root.resolve()]
    shim.restore_synced(other)
    assert len(shim.hits(rule)) == 1
    shim.restore_synced(root)
    assert content(root)["f"] == b"." * 4_096, "unsynced bytes are gone"
    (root / "f").write_bytes(b"new")
    shim.watch(root)
    shim.restore_synced(root)
    assert content(root) == {"f": b"new"}
