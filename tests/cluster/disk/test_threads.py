"""The disk's threads against each other: everything at once, with a switch at any bytecode where they share state."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

import pytest

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.findings import Finding
from raftlog.raft.types import Entry, HardState
from tests.cluster.disk.test_disk import entries_of
from tests.cluster.files.disk_lab import batch, effects_of, frames_of, make_folder, open_disk
from tests.raft.wal.interleaving import SHARED
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, make_entries
from tests.support import hang_s

FILES: Final = (*SHARED, "cluster/disk/segment_chores.py", "cluster/disk/writer.py")
SHARE: Final = 0.01
"""Of the bytecodes in those files: behind them the others go on first. Now the writing thread's, now the others'."""
PAUSE_S: Final = 0.0003
"""About as long as the other one needs to finish a segment."""
SECONDS: Final = 3.0


@pytest.fixture
def switching(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads that begin from here on hand the interpreter over at bytecodes by chance, and a sync costs nothing."""
    random, never = Random().random, threading.Event()

    def is_writing() -> bool:
        return threading.current_thread().name == "disk-write"

    def reached(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and random() < SHARE and is_writing() == (time.monotonic() % 0.1 < 0.05):
            never.wait(PAUSE_S)
        return reached

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return reached

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    before, traced = sys.getswitchinterval(), threading.gettrace()
    sys.setswitchinterval(1e-6)
    threading.settrace(called)
    yield
    threading.settrace(traced)
    sys.setswitchinterval(before)


class Story:
    """One disk on which all happens at once, and what must be on it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.random = Random(1)
        self.log: list[Entry] = [FIRST]  # entries of one record each, as they were acknowledged
        self.applied = self.saved = 0
        self.oldest = 1
        self.left = 2  # of those that read and save
        self.until = time.monotonic() + SECONDS
        self.news = (asyncio.Event(), asyncio.Event())  # another batch: for those that read, and those that save
        self.done: dict[str, int] = dict.fromkeys(("reads", "snapshots", "trims"), 0)

    @property
    def goes_on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.until

    async def write(self) -> None:
        """Appends that roll often, cuts of unapplied entries, and effects, until the others have ended."""
        term, random, log = 1, self.random, self.log
        while self.left:
            kept = len(log)
            if random.random() < 0.1:
                kept, term = random.randint(max(1, self.applied), len(log)), term + 1
            new = make_entries(log[kept - 1].mark, term, random.choices((50, 2_500, 9_000), (2, 6, 1)))
            if kept < len(log):
                await self.disk.carry_out(batch(*new, hard_state=HardState(term, 1), cut_after=kept))
            elif term > log[-1].term:
                await self.disk.carry_out(batch(*new, hard_state=HardState(term, 1)))
            else:
                await self.disk.carry_out(batch(*new))
            log[kept:] = new
            until = len(log) if random.random() < 0.7 else random.randint(self.applied, len(log))
            await self.disk.write_effects(effects_of(log[self.applied : until]))
            self.applied = until
            for event in self.news:
                event.set()

    async def more(self, news: asyncio.Event, batches: int) -> None:
        """Waits for so many of them."""
        for _ in range(batches):
            news.clear()
            async with asyncio.timeout(hang_s()):
                await news.wait()

    async def read(self) -> None:
        """Applied entries read back, or are gone."""
        while self.goes_on:
            await self.more(self.news[0], 1)
            applied, start = self.applied, self.random.randint(self.oldest, max(self.oldest, self.applied))
            for entry in await self.disk.read_entries(start - 1, len(self.log), 10_000):
                assert entry.index > applied or entry == self.log[entry.index - 1]
            if applied < start:
                continue
            raw = await self.disk.read_raw(start, applied, 10_000)
            assert [entry for _, entry in entries_of(raw)] == self.log[raw.first - 1 : raw.next - 1]
            assert frames_of(raw.ledger) == list(range(raw.first, raw.next))
            found = await self.disk.find_time(self.log[start - 1].time_ms)
            assert found == start or start < self.disk.oldest
            self.done["reads"] += 1
        self.left -= 1

    async def save(self) -> None:
        """Snapshots, trims behind them, and what else asks the disk now and then."""
        while self.goes_on:
            await self.more(self.news[1], 4)
            mark = self.applied
            if mark > self.saved:
                await self.disk.save_snapshot(self.log[mark - 1].mark, CONFIGURATION, [b"state"])
                self.oldest, self.saved = max(1, self.saved - 10), mark
                self.done["snapshots"] += 1
                self.done["trims"] += await self.disk.compact(self.oldest, mark + 1)
            await self.disk.end_before(mark, 10_000)
            await self.disk.write_mark()
            self.disk.statistics()
            self.disk.keep_reserve()
        self.left -= 1

    async def check_all(self) -> None:
        """Everything from the oldest entry on is there."""
        after = self.disk.oldest - 1
        while after < len(self.log):
            entries = await self.disk.read_entries(after, len(self.log), 1 << 16)
            assert list(entries) == self.log[after : after + len(entries)]
            assert entries
            after = entries[-1].index


async def test_disk_threads_lose_nothing_under_all_operations_at_once(tmp_path: Path, switching: None) -> None:
    """No thread fails, no damage is reported, and acknowledged entries read back, here and after a restart.

    It finds faults by chance, also unexpected ones; tests/raft/wal/test_threads.py finds them for certain. Without the
    copy in `Ledger.unsynced` it fails nearly always, without those in `Storage.is_finish_due` about one time in seven.
    """
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    found: list[list[Finding]] = []
    failed: list[Exception] = []
    disk.scrub(found.append, failed.append, bytes_per_second=1 << 30, pause_s=0.0)
    story = Story(disk)
    async with asyncio.TaskGroup() as group:
        for work in (story.write, story.read, story.save):
            group.create_task(work())
    await story.check_all()
    assert disk.statistics().rolls > 20
    assert min(story.done.values()) > 0, story.done
    await disk.close()
    assert not disk.is_fenced
    assert (found, failed) == ([], [])
    disk, recovered = open_disk(folder)
    assert recovered.notices == ()
    story.disk = disk
    await story.check_all()
