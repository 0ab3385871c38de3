"""Tests work around a snapshot: the compaction after a save, and the order of steps of an install."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.files.errors import NoSpace, StoredSnapshotDamaged
from raftlog.cluster.records.entries import log_entry
from raftlog.cluster.records.snapshot_stream import decode_preamble
from raftlog.cluster.replica.state import DiskSpace
from raftlog.cluster.replica.upkeep import disk_space, retention, snapshots
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import SnapshotInstall, SnapshotWrite
from raftlog.raft.types import GENESIS, Mark
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.cluster.replica.log.test_applier import entries_after


def replica_of(
    calls: list[tuple[str, Any]],
    *,
    keep_after: int = 0,
    sending: tuple[int, ...] = (),
    first: int = 1,
    is_changing: bool = False,
) -> Any:
    """A replica whose disk and core note what they are asked for."""

    def note(name: str) -> Any:
        return lambda *arguments: calls.append((name, arguments))

    async def end_before(index: int, size: int) -> int:
        return keep_after

    async def asked(name: str, answer: Any) -> Any:
        calls.append((name, ()))
        return answer

    followers = [SimpleNamespace(snapshot_index=index) for index in sending]
    status = SimpleNamespace(followers=followers, first=first, is_changing=is_changing)
    return SimpleNamespace(
        metrics=Metrics(),
        settings=SimpleNamespace(limits=LimitSettings(), retention=SimpleNamespace(bytes=0)),
        disk=SimpleNamespace(end_before=end_before, snapshot_bytes=1_000, install=lambda *_: asked("disk", None)),
        core=SimpleNamespace(
            compact=note("compact"),
            installed=note("core"),
            status=lambda: status,
            state=SimpleNamespace(knows=CLUSTER_VERSION),
        ),
        applier=SimpleNamespace(installed=note("applier"), waiting=0, is_written=True),
        syncer=SimpleNamespace(is_idle=True, has_space=True),
        writes=SimpleNamespace(pending=SimpleNamespace(skipped=note("pending"))),
        snapshots=SimpleNamespace(index=40, is_damaged=True, saving=None),
        driver=SimpleNamespace(spawn=lambda work: work.close()),
        damage=SimpleNamespace(snapshot_saved=lambda: None),
        machine=StateMachine(),
        logger=SimpleNamespace(info=lambda *_, **__: None),
    )


def test_a_full_disk_without_room_for_a_snapshot_gets_fewer_and_fewer_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose state outgrew its disk wrote as much of a snapshot as fitted every two seconds, for ever. After a
    trim it tries at once, and after a snapshot that was saved the pause is short again. Guard:
    `DiskSpace.save_pause_s`."""
    tried: list[float] = []
    mono, replica = (
        0.0,
        SimpleNamespace(
            disk_space=DiskSpace(0, (1, 1)),
            machine=SimpleNamespace(oldest=1, compacted_revision=1),
            is_leader=False,
            applier=SimpleNamespace(applied=100, grown_bytes=0),
            snapshots=SimpleNamespace(index=40, is_saving=False, is_receiving=False),
            core=SimpleNamespace(state=SimpleNamespace(receiving=None)),
            syncer=SimpleNamespace(is_waiting=False, has_space=False, look_for_disk_space=lambda: None),
            disk=SimpleNamespace(
                reserve=SimpleNamespace(is_used=True), keep_reserve=lambda *_, **__: None, has_trimmed=lambda _: True
            ),
        ),
    )

    def save(_: object) -> bool:
        tried.append(mono)
        return True

    monkeypatch.setattr(snapshots, "save", save)

    def look_until(end: float) -> list[float]:
        nonlocal mono
        tried.clear()
        while mono < end:
            disk_space.look_if_due(cast(Any, replica), mono)
            mono += 0.25
        return tried

    assert look_until(130) == [0, 2, 6, 14, 30, 62, 122]
    replica.machine.oldest = 50
    assert look_until(134) == [130, 132]
    replica.snapshots.index = 60
    assert look_until(140) == [136, 138]


@pytest.mark.parametrize(
    ("is_used", "is_saving", "is_waiting", "may_fill"),
    [
        (False, False, False, True),
        (True, False, False, True),
        (False, True, False, True),
        (True, True, False, False),
        (True, False, True, False),
        (False, False, True, False),
    ],
)
def test_the_reserve_grows_with_the_state_while_a_snapshot_is_saved(
    is_used: bool, is_saving: bool, is_waiting: bool, may_fill: bool
) -> None:
    """A save may be long, and the state grow meanwhile: two snapshots of its new size must fit when the disk is full.
    It does not take the last space while a snapshot or a batch may need what it gave."""
    asked: list[tuple[int, bool]] = []
    replica = SimpleNamespace(
        disk_space=DiskSpace(0, (1, 1)),
        machine=SimpleNamespace(oldest=1, compacted_revision=1),
        is_leader=False,
        applier=SimpleNamespace(applied=100, grown_bytes=70),
        snapshots=SimpleNamespace(index=40, is_saving=is_saving, is_receiving=False),
        core=SimpleNamespace(state=SimpleNamespace(receiving=None)),
        syncer=SimpleNamespace(is_waiting=is_waiting, has_space=True, look_for_disk_space=lambda: None),
        disk=SimpleNamespace(
            reserve=SimpleNamespace(is_used=is_used),
            keep_reserve=lambda grown, *, may_fill: asked.append((grown, may_fill)),
        ),
    )
    disk_space.look_if_due(cast(Any, replica), 0.0)
    assert asked == [(70, may_fill)]


@pytest.mark.parametrize(("sending", "kept"), [((), 90), ((0, 0), 90), ((0, 50), 50), ((95,), 90)])
async def test_a_saved_snapshot_keeps_the_log_behind_one_that_is_sent(sending: tuple[int, ...], kept: int) -> None:
    """A follower that is just given the snapshot of index 50 will need the entries from 51 on, whatever else may go."""
    calls: list[tuple[str, Any]] = []
    mark = Mark(100, 1, 0, 0, 0)
    await snapshots.saved(replica_of(calls, keep_after=90, sending=sending), mark)
    assert calls == [("compact", (mark, kept))]


@pytest.mark.parametrize(
    ("first", "is_changing", "has_space", "kept"),
    [(1, True, True, 0), (1, False, True, 90), (2, True, True, 90), (1, True, False, 90)],
)
async def test_a_whole_log_stays_whole_while_the_members_change(
    first: int, is_changing: bool, has_space: bool, kept: int
) -> None:
    """A new node may get all of it. A log without its beginning is no help to it, and a full disk needs the space."""
    calls: list[tuple[str, Any]] = []
    replica = replica_of(calls, keep_after=90, first=first, is_changing=is_changing)
    replica.syncer.has_space, replica.machine = has_space, SimpleNamespace(oldest=101)
    await snapshots.saved(replica, Mark(100, 1, 0, 0, 0))
    assert calls == [("compact", (Mark(100, 1, 0, 0, 0), kept))]


@pytest.mark.parametrize("has_space", [True, False])
async def test_the_core_forgets_nothing_for_a_log_that_a_snapshot_begins_anew(has_space: bool) -> None:
    """While a leader's snapshot of index 118 is put in force, the disk's log begins behind it and the core's does not
    yet. A full node that looked then ended with the assertion "no snapshot covers the log up to 118". A world of the
    simulator found it."""
    calls: list[tuple[str, Any]] = []
    mark = Mark(100, 1, 0, 0, 0)
    replica = replica_of(calls, keep_after=118)
    replica.syncer.has_space, replica.machine = has_space, SimpleNamespace(oldest=101)
    replica.core.state.log = SimpleNamespace(snapshot=mark)
    await snapshots.saved(replica, mark)
    await snapshots.make_room(replica)
    assert calls == [("compact", (mark, 0))] * 2


async def test_an_installed_snapshot_reaches_core_applier_and_waiting_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First the disk, then the core, then the state, then the writes whose places it covers."""
    calls: list[tuple[str, Any]] = []
    machine = StateMachine()
    entry = entries_after(GENESIS, 1)[0]
    mark = Mark(entry.index, entry.term, 0, 0, 0)

    async def restored(replica: Any, stored: Any) -> tuple[StateMachine, int]:
        return machine, 1

    monkeypatch.setattr(snapshots, "_restore", restored)
    replica = replica_of(calls)
    stored = SimpleNamespace(mark=mark, folder=Path("s"), configuration=Configuration(), configuration_index=1)

    async def check_received(index: int) -> Any:
        return SimpleNamespace(), stored

    replica.disk.check_received = check_received

    machine.apply(log_entry(entry))
    await snapshots._install(replica, SnapshotInstall(mark.index, mark.term))
    assert [name for name, _ in calls] == ["disk", "core", "applier", "pending"]
    assert calls[2][1] == (machine, mark, 1)
    assert calls[3][1] == (mark.index, mark.term)
    assert replica.snapshots.index == mark.index


async def test_an_install_waits_for_the_sync_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of that sync belongs to the log that the snapshot replaces: after the install it follows nothing."""
    calls: list[tuple[str, Any]] = []
    replica = replica_of(calls)
    replica.syncer.is_idle = False

    async def check_received(index: int) -> Any:
        calls.append(("check", index))
        raise StoredSnapshotDamaged("the test ends here")

    replica.disk.check_received = check_received
    installing = asyncio.create_task(snapshots._install(replica, SnapshotInstall(9, 1)))
    await asyncio.sleep(0)
    assert calls == []
    replica.syncer.is_idle = True
    with pytest.raises(StoredSnapshotDamaged):
        await installing
    assert calls == [("check", 9)]


async def test_a_save_waits_for_the_ledger_and_tells_the_newest_user_record_of_its_own_state() -> None:
    """The state is that of index 5. While the ledger is written up to there, more user records are applied: they are
    not in the snapshot, and its preamble does not name them."""
    saved: list[tuple[int, int]] = []
    machine = StateMachine()
    mark = Mark(5, 1, 0, 0, 0)
    replica = replica_of([])
    replica.applier = SimpleNamespace(
        ledger=SimpleNamespace(written=3),
        applied=5,
        mark=mark,
        last_user_index=4,
        log_bytes=0,
        grown_bytes=0,
        count_at_least=lambda size: None,
    )
    replica.machine = machine
    replica.core.state = SimpleNamespace(configurations=[(1, None)])

    async def save_snapshot(mark: Mark, configuration: Any, chunks: Any, index: int) -> None:
        first = await anext(aiter(chunks))
        saved.append((replica.applier.ledger.written, decode_preamble(first)))
        raise NoSpace("the test ends here")

    replica.disk.save_snapshot = save_snapshot
    replica.logger.warning = lambda *_, **__: None
    saving = asyncio.create_task(snapshots._save(replica))
    await asyncio.sleep(0)
    assert saved == [], "the ledger does not reach the snapshot yet"
    replica.applier.last_user_index, replica.applier.ledger.written = 9, 5
    await saving
    assert (saved, replica.snapshots.saving) == ([(5, 4)], None)


async def test_what_the_state_grows_while_it_is_saved_counts_on() -> None:
    """The reserve on the disk must have room for the next snapshot, which has it too."""
    replica = replica_of([])
    replica.applier = SimpleNamespace(
        ledger=SimpleNamespace(written=5),
        applied=5,
        mark=Mark(5, 1, 0, 0, 0),
        last_user_index=4,
        log_bytes=0,
        grown_bytes=700,
    )
    replica.core.state = SimpleNamespace(configurations=[(1, None)])

    async def save_snapshot(*_: object) -> None:
        replica.applier.grown_bytes += 40

    replica.disk.save_snapshot = save_snapshot
    await snapshots._save(replica)
    assert (replica.applier.grown_bytes, replica.snapshots.index) == (40, 40)


async def test_the_snapshot_before_the_newest_one_is_remembered() -> None:
    """A segment is deleted once two snapshots cover it, so retention needs the index of both."""
    replica = replica_of([])
    replica.snapshots.older = 20
    await snapshots.saved(replica, Mark(100, 1, 0, 0, 0))
    assert (replica.snapshots.index, replica.snapshots.older) == (100, 40)
    await snapshots.saved(replica, Mark(100, 1, 0, 0, 0))
    assert (replica.snapshots.index, replica.snapshots.older) == (100, 40), "the same one again"


async def test_pieces_after_a_failed_one_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core begins the transfer again at offset 0. A later piece of the failed transfer would not follow that."""
    written: list[int] = []
    failed: list[int] = []

    async def write(replica: Any, first: SnapshotWrite) -> None:
        written.append(first.offset)
        raise NoSpace("full")

    monkeypatch.setattr(snapshots, "_write", write)
    pieces = [SnapshotWrite(9, 1, offset, 300, b"x" * 100) for offset in (0, 100, 200)]
    replica = replica_of([])
    replica.snapshots = SimpleNamespace(jobs=deque(pieces), receiving=object())
    replica.life = SimpleNamespace(is_over=False)
    replica.core.snapshot_failed = lambda now: failed.append(1)
    replica.driver = SimpleNamespace(carry_out=lambda: None)
    replica.logger.error = lambda *_, **__: None
    await snapshots._receive(replica)
    assert (written, failed) == ([0], [1])
    assert not replica.snapshots.jobs
    assert replica.snapshots.receiving is None


async def test_a_full_disk_waits_for_no_follower_that_is_sent_a_snapshot() -> None:
    """The follower's disk may be full for good, and a trim frees nothing on the leader's disk before that has two
    snapshots, and its log goes without regard to the one that is sent."""
    calls: list[tuple[str, Any]] = []
    replica = replica_of(calls, keep_after=90, sending=(30,))
    replica.core.state.receiving, replica.snapshots.receiving = None, None
    replica.applier.log_bytes, replica.disk.snapshot_bytes = 0, 1_000
    assert not snapshots._may_save(replica)
    replica.syncer.has_space = False
    assert snapshots._may_save(replica)
    await snapshots.saved(replica, Mark(100, 1, 0, 0, 0))
    assert calls == [("compact", (Mark(100, 1, 0, 0, 0), 90))]


async def test_a_full_disk_forgets_trimmed_entries_without_another_snapshot() -> None:
    """The newest snapshot covers the trimmed entries. On a full disk the core forgets them, so that their files can be
    deleted. On a disk with space slow followers may still get them."""
    calls: list[tuple[str, Any]] = []
    replica, mark = replica_of(calls, keep_after=90), Mark(100, 1, 0, 0, 0)

    async def compact(oldest: int, needed: int) -> int:
        return 0

    replica.core.state.log, replica.machine = SimpleNamespace(snapshot=mark, first=1), SimpleNamespace(oldest=101)
    replica.disk.compact, replica.retention = compact, SimpleNamespace(policy=SimpleNamespace(is_on=False))
    await retention._delete_and_trim(replica)
    assert calls == []
    replica.syncer.has_space = False
    await retention._delete_and_trim(replica)
    assert calls == [("compact", (mark, 90))]


@pytest.mark.parametrize(
    ("in_core", "in_task", "saves"), [(None, None, True), ("coming", None, False), (None, "writing", False)]
)
def test_no_snapshot_is_saved_while_one_is_received(in_core: Any, in_task: Any, saves: bool) -> None:
    """Also between two pieces, when nothing is written: a save would take the disk's space and time for a state that
    the coming one replaces."""
    replica = replica_of([], keep_after=0, sending=())
    replica.core.state.receiving = in_core
    replica.snapshots = SimpleNamespace(index=40, saving=None, receiving=in_task)
    assert snapshots._may_save(replica) == saves
