"""The syncer by a clock that the test moves: the durable mark of an idle disk, and batches without disk space."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.cluster.config.settings import DiskSettings
from raftlog.cluster.disk.disk import Disk, OnAnswer
from raftlog.cluster.disk.syncer import NO_SPACE_RETRY_S, Syncer
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import get_logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.messages import AppendEntriesReply, RequestVoteReply
from raftlog.raft.ready import Ready, SyncBatch
from raftlog.raft.types import GENESIS, HardState
from tests.raft.lab import extend

IDLE_MS = 125
IDLE_S = IDLE_MS / 1_000
STEP_S = 1 / 64
"""All times here are sums of powers of two, so that they are exact."""


@dataclass(eq=False)
class Timer:
    """What `call_later` gives back."""

    due: float
    run: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """It does not run any more."""
        self.is_cancelled = True


@dataclass
class Bench:
    """A syncer, a disk whose work takes as long as the test says, and the clock and timers of both."""

    now: float = 1.0
    timers: list[Timer] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)  # when each was begun
    errors: list[BaseException] = field(default_factory=list)  # of the next marks
    failures: list[BaseException] = field(default_factory=list)  # what the node would end for
    synced: list[SyncBatch] = field(default_factory=list)
    under_way: asyncio.Future[None] | None = None  # a sync
    batches: list[SyncBatch] = field(default_factory=list)  # given to the disk
    meanwhile: Callable[[], None] | None = None  # happens while a mark is written
    reserve: Any = field(default_factory=lambda: SimpleNamespace(is_used=False))

    def __post_init__(self) -> None:
        self.syncer = Syncer(
            cast(Disk, self),
            DiskSettings(mark_idle_ms=IDLE_MS),
            synced=self.synced.append,
            failed=self.failures.append,
            metrics=Metrics(),
            logger=get_logger(),
        )

    # The disk's side and the loop's, as the syncer calls them.

    def carry_out(self, batch: SyncBatch, answered: OnAnswer) -> asyncio.Future[None]:
        """A sync, which lasts until `end_sync`."""
        self.batches.append(batch)
        self.under_way = asyncio.get_running_loop().create_future()
        self.under_way.add_done_callback(answered)
        return self.under_way

    def write_mark(self) -> asyncio.Future[None]:
        """A mark, which takes no time, and fails where the test says so."""
        self.marks.append(self.now)
        if self.meanwhile is not None:
            self.meanwhile()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.errors:
            done.set_exception(self.errors.pop(0))
        else:
            done.set_result(None)
        return done

    def call_later(self, wait_s: float, run: Callable[[], None]) -> Timer:
        """As the event loop's."""
        self.timers.append(Timer(self.now + wait_s, run))
        return self.timers[-1]

    # The test's side.

    async def advance(self, seconds: float) -> None:
        """Time passes, and each timer runs when it is due."""
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.due <= until and not timer.is_cancelled]:
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            self.now = max(self.now, timer.due)
            timer.run()
            await asyncio.sleep(0)
        self.now = until

    def begin_sync(self) -> None:
        """The node has something for the disk."""
        self.syncer.add(Ready(hard_state=HardState(1, 0, 1, 0)))
        assert self.syncer.start() is None

    async def end_sync(self, error: Exception | None = None) -> None:
        """The disk has it, or raises the error."""
        assert self.under_way is not None
        if error is None:
            self.under_way.set_result(None)
        else:
            self.under_way.set_exception(error)
        await asyncio.sleep(0)

    async def sync(self, seconds: float = STEP_S) -> None:
        """A sync that takes so long."""
        before = len(self.synced)
        self.begin_sync()
        await self.advance(seconds)
        await self.end_sync()
        assert len(self.synced) == before + 1


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A syncer that has not synced anything yet."""
    made = Bench()
    loop: Any = SimpleNamespace(get_running_loop=lambda: made, ensure_future=asyncio.ensure_future)
    monkeypatch.setattr("raftlog.cluster.disk.syncer.asyncio", loop)
    monkeypatch.setattr(clock, "monotonic", lambda: made.now)
    return made


async def test_a_mark_is_written_once_after_the_idle_time_of_the_last_sync(bench: Bench) -> None:
    """Not before, not twice, and not where nothing was synced; after the next sync there is another one."""
    await bench.advance(10)
    assert bench.marks == []
    for count in (1, 2):
        await bench.sync()
        await bench.advance(IDLE_S - STEP_S)
        assert len(bench.marks) == count - 1
        await bench.advance(STEP_S)
        assert bench.marks[count - 1 :] == [bench.now]
        await bench.advance(10)
        assert len(bench.marks) == count
    assert bench.failures == []


async def test_no_mark_is_written_while_syncs_follow_each_other_or_one_is_under_way(bench: Bench) -> None:
    """The idle time runs from the end of the last one. After a slow sync it is as long as that sync took."""
    for _ in range(40):
        await bench.sync()
        await bench.advance(IDLE_S - 2 * STEP_S)
    assert bench.marks == []
    slow_s = 8 * IDLE_S
    await bench.sync(slow_s)
    assert bench.marks == []
    await bench.advance(slow_s - STEP_S)
    assert bench.marks == []
    await bench.advance(STEP_S)
    assert bench.marks == [bench.now]


async def test_a_mark_without_room_is_written_again_until_there_is_room(bench: Bench) -> None:
    """A full disk is no failure of the node; any other error of a mark is."""
    bench.errors += [NoSpace("full"), NoSpace("full")]
    await bench.sync()
    first = bench.now + IDLE_S
    await bench.advance(10)
    assert bench.marks == pytest.approx([first, first + NO_SPACE_RETRY_S, first + 2 * NO_SPACE_RETRY_S])
    assert bench.failures == []
    fenced = DiskFenced("the disk failed")
    bench.errors.append(fenced)
    await bench.sync()
    await bench.advance(10)
    assert (len(bench.marks), bench.failures) == (4, [fenced])


@pytest.mark.parametrize("when", ["a mark is due later", "a mark is under way, without room", "a sync is under way"])
async def test_no_mark_is_written_after_close(bench: Bench, when: str) -> None:
    """The syncer closes at that moment. No timer is left, and the work under way begins nothing."""
    await bench.sync()
    if when == "a mark is under way, without room":
        bench.errors.append(NoSpace("full"))
        bench.meanwhile = bench.syncer.close
        await bench.advance(IDLE_S)
    elif when == "a sync is under way":
        bench.begin_sync()
        bench.syncer.close()
        await bench.end_sync()
    else:
        bench.syncer.close()
    assert [timer for timer in bench.timers if not timer.is_cancelled] == []
    marks = len(bench.marks)
    await bench.advance(10)
    assert (len(bench.marks), bench.failures) == (marks, [])


async def test_a_batch_whose_sync_failed_is_no_promise(bench: Bench) -> None:
    """The node ends for it, and no caller learns that the batch is durable."""
    bench.begin_sync()
    error = OSError("EIO")
    await bench.end_sync(error)
    assert (bench.failures, bench.synced) == ([error], [])


ENTRIES = tuple(extend(GENESIS, 1, 1))
VOTE = RequestVoteReply(sender=1, to=2, term=2, request_term=2, granted=True)
ACKNOWLEDGEMENT = AppendEntriesReply(sender=1, to=3, term=1, success=True, match=2, prev_index=0, round=1)


async def test_a_hard_state_goes_to_the_disk_while_entries_wait_for_disk_space(bench: Bench) -> None:
    """Its vote leaves, the acknowledgement does not. The first entry is tried again, and then all others, also those
    that came meanwhile. The acknowledgement leaves with them."""
    syncer = bench.syncer
    syncer.add(Ready(entries=ENTRIES, messages_after_sync=(ACKNOWLEDGEMENT,)))
    assert syncer.start() is None
    await bench.end_sync(NoSpace("full"))
    assert (syncer.is_waiting, syncer.is_busy, syncer.is_idle, bench.batches[1:]) == (True, False, False, [])
    syncer.add(Ready(hard_state=HardState(2, 2, 1, 0), messages_after_sync=(VOTE,)))
    syncer.add(Ready(entries=tuple(extend(ENTRIES[-1].mark, 2))))
    assert syncer.start() is None
    await bench.advance(2 * NO_SPACE_RETRY_S)  # the time of the retry comes during this sync
    assert bench.batches[1:] == [SyncBatch(HardState(2, 2, 1, 0), None, (), (VOTE,))]
    await bench.end_sync()
    assert bench.synced == bench.batches[1:2]
    assert (syncer.is_waiting, syncer.start()) == (True, None)
    assert bench.batches[2:] == [SyncBatch(None, None, ENTRIES[:1], ())]
    await bench.end_sync()
    assert (syncer.is_waiting, syncer.start()) == (False, None)
    assert [entry.index for entry in bench.batches[3].entries] == [2, 3]
    await bench.end_sync()
    assert bench.synced[2].messages == (ACKNOWLEDGEMENT,)
    assert (syncer.is_waiting, syncer.is_idle, bench.failures) == (False, True, [])


async def test_messages_that_need_no_entry_leave_while_entries_wait_for_disk_space(bench: Bench) -> None:
    """The answer to a heartbeat needs no entry: without it the leader would step down. That batch finds no space again,
    and takes nothing with it that came meanwhile."""
    answer = replace(ACKNOWLEDGEMENT, match=0)
    bench.syncer.add(Ready(entries=ENTRIES, messages_after_sync=(ACKNOWLEDGEMENT,)))
    assert bench.syncer.start() is None
    bench.syncer.add(Ready(hard_state=HardState(1, 0, 1, 0), messages_after_sync=(answer,)))
    await bench.end_sync(NoSpace("full"))
    assert bench.batches[1:] == [SyncBatch(HardState(1, 0, 1, 0), None, (), (answer,))]
    await bench.end_sync()
    bench.syncer.add(Ready(messages_after_sync=(answer,)))
    assert bench.syncer.start() == SyncBatch(None, None, (), (answer,))
    assert bench.syncer.start() is None
    await bench.advance(NO_SPACE_RETRY_S)
    await bench.end_sync(NoSpace("full"))
    await bench.advance(NO_SPACE_RETRY_S)
    assert bench.batches[2:] == [SyncBatch(None, None, ENTRIES[:1], ())] * 2
    await bench.end_sync()
    assert bench.syncer.start() is None
    assert bench.batches[4:] == [SyncBatch(None, None, ENTRIES[1:], (ACKNOWLEDGEMENT,))]
