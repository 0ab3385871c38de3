"""A disk that fails, hangs, fills up or loses power under a running node."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import DiskFenced, NoSpace, ReadDamaged
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.types import Entry, HardState
from raftlog.raft.wal.operations import FileOperation
from tests.cluster.files.disk_lab import batch, effects_of, make_folder, open_disk, read_all
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, after_power_cut, make_entries
from tests.support import wait_until_async

SECOND = make_entries(FIRST.mark, 1, (100,))[0]


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    """An open disk with one entry behind the first."""
    opened, _ = open_disk(make_folder(tmp_path))
    await opened.carry_out(batch(SECOND))
    assert await opened.read_entries(1, 99, 1) == (SECOND,)  # what follows the answer is done too
    yield opened
    await opened.close()


def next_entry() -> Entry:
    return make_entries(SECOND.mark, 1, (50,))[0]


def fail_with(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


async def test_pitfall_63_a_failed_sync_is_final(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one failed fdatasync nothing is acknowledged any more, although the next one would succeed.

    Guard: Writer.fail, and Writer.check before anything else (the kernel marks the pages clean: a retry lies).
    """
    entries = [next_entry()]
    with monkeypatch.context() as patch:
        patch.setattr("raftlog.cluster.files.shard_files.os.fdatasync", fail_with(errno.EIO))
        with pytest.raises(DiskFenced, match="writes no more"):
            await disk.carry_out(batch(*entries))
    assert disk.is_fenced
    with pytest.raises(DiskFenced):
        await disk.carry_out(batch(*entries))
    with pytest.raises(DiskFenced):
        await disk.carry_out(batch(hard_state=HardState(9)))
    with pytest.raises(DiskFenced):
        await disk.carry_out(batch())
    with pytest.raises(DiskFenced):
        await disk.write_effects(effects_of([FIRST]))
    with pytest.raises(DiskFenced):
        await disk.write_mark()
    assert await read_all(disk, 2)  # durable entries can still be read


async def test_a_short_write_is_final(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of which the system leaves out a part without a reason is an error like any other."""
    real = os.pwrite
    monkeypatch.setattr(
        "raftlog.cluster.files.shard_files.os.pwrite", lambda f, data, at: real(f, bytes(data)[:-1], at)
    )
    with pytest.raises(DiskFenced, match="bytes were written"):
        await disk.carry_out(batch(next_entry()))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_write_of_entries_that_fails_is_final(disk: Disk, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Also ENOSPC: within allocated space it is no back-pressure, for bytes of an entry may have been written."""
    with monkeypatch.context() as patch:
        patch.setattr("raftlog.cluster.files.shard_files.os.pwrite", fail_with(number))
        with pytest.raises(DiskFenced):
            await disk.carry_out(batch(next_entry()))


async def test_no_room_for_rows_or_effects_is_back_pressure(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """.idx and .ledger can be built again: while they find no space, entries go on in the space that is there."""
    real = ShardFiles.write

    def write(files: ShardFiles, name: str, position: int, data: bytes) -> None:
        if name.endswith((".idx", ".ledger")):
            raise OSError(errno.ENOSPC, "no space")
        real(files, name, position, data)

    first = [next_entry()]
    with monkeypatch.context() as patch:
        patch.setattr(ShardFiles, "write", write)
        await disk.carry_out(batch(*first))  # its entries are durable: it is acknowledged
        second = make_entries(first[0].mark, 1, (60,))
        await disk.write_effects(effects_of([FIRST]))
        with pytest.raises(NoSpace):
            await disk.write_mark()  # rows and effects first; any `finish` would find it too
        await disk.carry_out(batch(*second))
        with pytest.raises(NoSpace):
            await disk.write_mark()
    await disk.write_mark()
    assert (await read_all(disk, second[0].index))[2:] == [*first, *second]
    assert (await disk.read_raw(1, 1, 1)).next == 2


async def test_pitfall_62_a_batch_is_answered_after_its_sync(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the sync runs no caller learns that the batch is durable; hard state is synced before entries come.

    Guard: Sync behind every Write in Journal.append and keep_slot, executed before the answer.
    """
    done: list[str] = []
    real_write, real_sync = os.pwrite, os.fdatasync

    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sync(descriptor: int) -> None:
        assert not future.done() or len(done) >= 4  # then the second slot of the hard state follows
        real_sync(descriptor)
        done.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}').rsplit('/', 1)[1]}")

    def write(descriptor: int, data: bytes, position: int) -> int:
        done.append(f"write {os.readlink(f'/proc/self/fd/{descriptor}').rsplit('/', 1)[1]}")
        return real_write(descriptor, data, position)

    monkeypatch.setattr("raftlog.cluster.files.shard_files.os.pwrite", write)
    monkeypatch.setattr("raftlog.cluster.files.shard_files.os.fdatasync", sync)
    future = asyncio.ensure_future(disk.carry_out(batch(next_entry(), hard_state=HardState(2, 1))))
    segment = "00000000000000000001.seg"
    await wait_until_async(lambda: len(done) >= 4 or future.done())
    if len(done) < 4:
        await future  # says why not
    assert done[:4] == ["write hard_state", "sync hard_state", f"write {segment}", f"sync {segment}"]
    monkeypatch.undo()
    await future


async def test_pitfall_72_a_hanging_disk_is_seen(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a sync hangs, the event loop goes on, reads do too, and the watchdog sees for how long.

    Guard: the writing thread of its own, and Worker.busy_ms, which needs no thread to answer.
    """
    release = threading.Event()
    real = os.fdatasync

    def hang(descriptor: int) -> None:
        release.wait(10)
        real(descriptor)

    await wait_until_async(lambda: disk.stalled_ms() == 0)
    monkeypatch.setattr("raftlog.cluster.files.shard_files.os.fdatasync", hang)
    future = asyncio.ensure_future(disk.carry_out(batch(next_entry())))
    await wait_until_async(lambda: disk.stalled_ms() > 20)
    assert not future.done()
    assert len(await disk.read_entries(0, 2, 1 << 20)) == 2  # the reading thread does not hang with it
    release.set()
    await future
    await wait_until_async(lambda: disk.stalled_ms() == 0)


async def test_a_disk_that_hangs_is_left_behind(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the next segment is being made, and the disk takes no more: a node can be stopped all the same, and
    its event loop does not wait with it. Guard: the timeout in `Background.stop`."""
    release, hangs = threading.Event(), threading.Event()

    def hang(descriptor: int) -> None:
        hangs.set()
        release.wait(10)
        hangs.clear()

    with monkeypatch.context() as patch:
        patch.setattr("raftlog.cluster.files.shard_files.os.fsync", hang)
        patch.setattr("raftlog.cluster.disk.disk.STOP_TIMEOUT_S", 0.05)
        await disk.carry_out(batch(*make_entries(SECOND.mark, 1, (5_000,))))
        await wait_until_async(hangs.is_set)
        await disk.close()
        assert hangs.is_set()
        release.set()
    disk._is_open = True  # its threads end once it goes on


async def test_pitfall_56_a_snapshot_is_durable_before_it_counts(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger synced, chunks and meta synced, renamed, folder synced: in this order.

    Guard: SyncFolder after the Rename in SnapshotPlan.finish; Disk._sync_ledgers before the first chunk.
    """
    done: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "rename")}

    def sync(kind: str) -> Callable[[int], None]:
        def note(descriptor: int) -> None:
            done.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}').rsplit('shard-0/', 1)[1]}")
            real[kind](descriptor)

        return note

    def rename(old: Path, new: Path) -> None:
        done.append(f"rename {Path(old).name} {Path(new).name}")
        real["rename"](old, new)

    await disk.write_effects(effects_of([FIRST]))
    await disk.write_mark()
    for kind in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"raftlog.cluster.files.shard_files.os.{kind}", sync(kind))
    monkeypatch.setattr("os.rename", rename)
    await disk.save_snapshot(FIRST.mark, CONFIGURATION, [b"state"], 1)
    name = "00000000000000000001"
    assert done == [
        f"sync log/{name}.ledger",
        f"sync snapshots/{name}.new/chunks",
        f"sync snapshots/{name}.new/meta",
        f"sync snapshots/{name}.new",
        f"rename {name}.new {name}",
        "sync snapshots",
    ]


def takes_a_part(number: int) -> Callable[[int, bytes, int], int]:
    """os.pwrite of a file system that fills: it takes what fits, and names the reason only for the rest."""
    real, left = os.pwrite, 3

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        nonlocal left
        if data and not left:
            raise OSError(number, os.strerror(number))
        part = bytes(data)[:left]
        left -= len(part)
        return real(descriptor, part, position)

    return pwrite


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, DiskFenced)]
)
@pytest.mark.parametrize("fails", [fail_with, takes_a_part])
async def test_pitfall_61_a_snapshot_that_fails_leaves_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: Any, number: int, error: type[Exception]
) -> None:
    """No room: NoSpace, nothing half-made stays, the node goes on. Any other error fences the disk. A full disk takes a
    part of a write first: that ended all nodes of a cluster whose disks were nearly full.

    Guard: SnapshotPlan writes aside, and abandons; `write_rest`.
    """
    await disk.write_effects(effects_of([FIRST]))
    await disk.write_mark()
    with monkeypatch.context() as patch:
        patch.setattr("raftlog.cluster.files.shard_files.os.pwrite", fails(number))
        with pytest.raises(error):
            await disk.save_snapshot(FIRST.mark, CONFIGURATION, [b"state"], 1)
    assert list((tmp_path / "node-1" / "shard-0" / "snapshots").iterdir()) == []
    assert disk.is_fenced == (number == errno.EIO)
    if number != errno.EIO:
        await disk.save_snapshot(FIRST.mark, CONFIGURATION, [b"state"], 1)


async def test_damage_found_by_a_reader_is_reported(disk: Disk, tmp_path: Path) -> None:
    """Bytes that were damaged under a running node are never served: the error names file, index and what to do."""
    path = tmp_path / "node-1" / "shard-0" / "log" / "00000000000000000001.seg"
    data = bytearray(path.read_bytes())
    start = data.index(b"RLEN", 100)
    data[start + 150] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadDamaged, match=r"00001\.seg.*after index 1.*another node"):
        await disk.read_entries(1, 2, 1 << 20)


class Trace(ShardFiles):
    """Notes every operation of the writing thread."""

    operations: list[FileOperation]

    def execute(self, operations: Iterable[FileOperation]) -> None:
        for operation in operations:
            self.operations.append(operation)
            super().execute([operation])


async def test_pitfall_62_power_cut_under_a_running_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with batches, votes, rolls and a cut, with the power cut at many of its operations: a restart on real
    files has everything that had been acknowledged by then, and effects only where they are intact.

    Guard: Writer.carry_out answers after the last Sync.
    """
    monkeypatch.setattr("raftlog.cluster.files.folder.ShardFiles", Trace)
    folder = make_folder_traced(tmp_path)
    shard = folder / "shard-0"
    start = {str(path.relative_to(shard)): path.read_bytes() for path in shard.rglob("*") if path.is_file()}
    operations: list[FileOperation] = []
    Trace.operations = operations
    disk, _ = open_disk(folder)
    log = [FIRST]
    promises: list[tuple[int, list[Entry], HardState]] = [(0, log, HardState(1))]
    term = 1
    for step in range(14):
        new = make_entries(log[-1].mark, term, (700, 90 * step))
        state = None
        if step % 5 == 4:
            term += 1
            state = HardState(term, step % 3)
        if step == 9:
            log = log[:-3]
            new = make_entries(log[-1].mark, term, (30, 2_000))
            await disk.carry_out(batch(*new, hard_state=state, cut_after=log[-1].index))
        else:
            await disk.carry_out(batch(*new, hard_state=state))
        log = log + new
        state = state or promises[-1][2]
        promises.append((len(operations), log, state))
        if step < 5:
            await disk.write_effects(effects_of(log[-2:] if step else log))
    await disk.close()
    monkeypatch.undo()
    for cut in range(0, len(operations), 4):
        files = MemoryFiles(start)
        files.execute(operations[:cut])
        left = after_power_cut(files, Random(cut)).content()
        copy = tmp_path / f"cut-{cut}"
        (copy / "shard-0" / "log").mkdir(parents=True)
        (copy / "identity.json").write_bytes((folder / "identity.json").read_bytes())
        for name, data in left.items():
            (copy / "shard-0" / name).write_bytes(data)
        again, recovered = open_disk(copy)
        done = max(i for i, (at, _, _) in enumerate(promises) if at <= cut)
        promised, state = promises[done][1:]
        coming = promises[min(done + 1, len(promises) - 1)]
        found = await read_all(again, recovered.last.index)
        assert found in (promised, coming[1][: len(found)]), f"cut after {cut} operations"
        if coming[1][: len(promised)] == promised:
            assert found[: len(promised)] == promised, f"cut after {cut} operations"
        assert recovered.hard_state.term in (state.term, coming[2].term)
        assert recovered.ledger_last <= recovered.last.index
        assert (await again.read_raw(1, recovered.ledger_last, 1 << 20)).first == 1
        await again.close()


def make_folder_traced(tmp_path: Path) -> Path:
    Trace.operations = []
    return make_folder(tmp_path)
