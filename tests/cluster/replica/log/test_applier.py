"""What the applier keeps of the newest entries, and what an installed snapshot does to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.protocol.digest_points import POINT_BLOCK
from raftlog.cluster.protocol.proposals import Pending
from raftlog.cluster.protocol.request import NEVER
from raftlog.cluster.protocol.waiters import ReadWaiter
from raftlog.cluster.records.entries import log_entry
from raftlog.cluster.replica.log.applier import Applier
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import GENESIS, Entry, EntryKind, Mark
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.machine import StateMachine
from tests.support import wait_until_async


def applier_of(writes: list[asyncio.Future[None]] | None = None, **limits: int) -> Applier:
    """An applier at the beginning of a log, whose disk takes effects at once; or, with `writes`, when these end."""
    loop = asyncio.get_running_loop()

    def write_effects(_: list[bytes]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = loop.create_future()
        if writes is None:
            done.set_result(None)
        else:
            writes.append(done)
        return done

    def fail(error: BaseException) -> None:
        raise error

    made = LimitSettings(**limits)
    disk: Any = SimpleNamespace(write_effects=write_effects)
    return Applier(
        StateMachine(),
        cast(Disk, disk),
        Pending(made, Metrics(), 1),
        limits=made,
        applied=GENESIS,
        last_user=0,
        ledger_last=0,
        failed=fail,
        wake=lambda: None,
    )


def entries_after(mark: Mark, count: int) -> list[Entry]:
    """So many appends behind that mark."""
    made: list[Entry] = []
    for _ in range(count):
        block = encode_block([BlockRecord(Operation.APPEND, None, b"v")], plain=True)
        made.append(seal_entry(mark, term=1, kind=EntryKind.COMMANDS, count=1, time_ms=5, clock_ms=6, data=block))
        mark = made[-1].mark
    return made


def apply_all(applier: Applier) -> None:
    """Applies what waits. A slice ends after some time, so on a busy machine it takes several."""
    while applier.waiting:
        assert applier.run()


async def test_a_reader_skips_nothing_over_an_installed_snapshot() -> None:
    """Entries 1 to 5 are applied, a leader's snapshot covers 6 to 9, entries 10 to 12 follow. A reader from 4 on finds
    nothing in memory, because memory ends before the snapshot. A reader from 10 on finds all three.
    """
    applier, other = applier_of(), StateMachine()
    before = entries_after(GENESIS, 9)
    applier.waiting += before[:5]
    apply_all(applier)
    for entry in before:
        other.apply(log_entry(entry))
    applier.installed(other, before[-1].mark, 9)
    assert (applier.applied, applier.ledger.written, applier.last_user_index) == (9, 9, 9)
    applier.waiting += entries_after(applier.mark, 3)
    apply_all(applier)
    assert applier.recent.read(4, 100, 1 << 20) is None
    assert [entry.index for entry, _ in applier.recent.read(10, 100, 1 << 20) or []] == [10, 11, 12]


async def test_log_counts_from_the_begin_of_a_snapshot() -> None:
    """Its bytes and its records alike: otherwise every small record after the first many would make one due."""
    applier = applier_of()
    applier.waiting.extend(entries_after(GENESIS, 3))
    apply_all(applier)
    assert applier.log_bytes > 0
    assert applier.log_records == 3
    applier.begin_counting()
    assert (applier.log_bytes, applier.log_records) == (0, 0)


async def test_a_waiter_for_an_index_in_a_snapshot_is_woken() -> None:
    """The index is applied: it came with the snapshot."""
    applier, other = applier_of(), StateMachine()
    before = entries_after(GENESIS, 3)
    for entry in before:
        other.apply(log_entry(entry))
    covered, beyond = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    applier.waiters.add(3, ReadWaiter(covered, NEVER))
    applier.waiters.add(4, ReadWaiter(beyond, NEVER))
    applier.installed(other, before[-1].mark, 3)
    assert covered.result() == 3
    assert not beyond.done()


async def test_effects_count_as_written_when_their_own_write_is_done() -> None:
    """Entries 1 to 3 are being written while 4 and 5 are applied: the end of the first write says nothing of them."""
    writes: list[asyncio.Future[None]] = []
    applier = applier_of(writes)
    entries = entries_after(GENESIS, 5)
    applier.waiting += entries[:3]
    apply_all(applier)
    applier.waiting += entries[3:]
    apply_all(applier)
    assert (applier.applied, applier.ledger.written, len(writes)) == (5, 0, 1)
    writes[0].set_result(None)
    await wait_until_async(lambda: len(writes) == 2)
    assert (applier.ledger.written, applier.is_written) == (3, False)
    writes[1].set_result(None)
    await wait_until_async(lambda: applier.is_written)
    assert applier.ledger.written == 5


async def test_a_slice_ends_with_a_digest_point() -> None:
    """Of two points that wait to be applied each ends a slice of its own: the replica compares its state there with the
    majority's before anything behind it is answered. The newest point alone would pass over reports about the others.
    """
    applier = applier_of(apply_slice_ms=1_000)
    before = entries_after(GENESIS, 2)
    first = seal_entry(
        before[-1].mark, term=1, kind=EntryKind.COMMANDS, count=1, time_ms=5, clock_ms=6, data=POINT_BLOCK
    )
    between = entries_after(first.mark, 1)
    second = seal_entry(
        between[-1].mark, term=1, kind=EntryKind.COMMANDS, count=1, time_ms=5, clock_ms=6, data=POINT_BLOCK
    )
    applier.waiting.extend([*before, first, *between, second, *entries_after(second.mark, 2)])
    ends = []
    while applier.run():
        ends.append(applier.applied)
    assert ends == [first.index, second.index, second.index + 2]
