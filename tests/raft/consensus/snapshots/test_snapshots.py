"""Compaction, and snapshots over the wire (raft paper section 7, thesis chapter 5; pitfalls, E)."""

import pytest

from raftlog.raft.changes import Remove
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.events import Event, SnapshotInstalled, SnapshotSent, SnapshotStarted
from raftlog.raft.messages import InstallSnapshot, InstallSnapshotReply
from raftlog.raft.options import Options
from raftlog.raft.types import EntryKind, Mark, NodeId
from tests.raft.consensus.members.growing_lab import GrowingLab
from tests.raft.lab import (
    append,
    at,
    configuration,
    drain,
    extend,
    lead,
    make_core,
    progress,
    reply,
)

SMALL = Options(snapshot_chunk_bytes=200)


def compacted(*, kept: int = 0, entries: int = 10, behind: NodeId = 3) -> GrowingLab:
    """Node 1 leads, and `behind` lacks entries that were compacted away."""
    lab = GrowingLab(3, options=SMALL)
    lab.elect(1)
    lab.run(100)
    lab.cut_off(behind)
    for _ in range(entries):
        lab.propose(1)
        lab.settle()
    lab.snapshot(1, kept=kept)
    return lab


def seen(lab: GrowingLab, node: NodeId, kind: type) -> list[Event]:
    """The events of that kind at that node."""
    return [event for event in lab.events[node] if isinstance(event, kind)]


def same(lab: GrowingLab) -> bool:
    """Whether every node has the same state."""
    states = list(lab.applied.values())
    return all(state == states[0] for state in states)


# -- compaction ------------------------------------------------------------------------------------------------


def test_compaction_moves_the_first_index_and_keeps_slow_followers_entries() -> None:
    """The driver says how much stays; terms, ends and hints are right at the edge."""
    core = make_core(1, 3, 1, 1, 2, 2, 2, 3, term=3)
    append(core, prev=(7, 3), term=3, commit=7)
    log = core.state.log
    core.compact(Mark(6, 2), 4)
    assert (log.first, log.snapshot.index) == (5, 6)
    assert [log.term_at(index) for index in range(9)] == [0, None, None, None, 2, 2, 2, 3, None]
    assert log.last_end(3, 9) == (4, True)
    assert log.last_sure_end(6, 2) == 6
    assert log.is_end(4)
    drain(core)
    core.compact(Mark(6, 2), 3)  # nothing comes back
    assert log.first == 5
    core.compact(Mark(7, 3), 7)
    assert (log.first, log.last.index, log.term_at(7), log.term_at(6)) == (8, 7, 3, None)
    assert not log.tail.entries
    drain(core)
    append(core, extend(log.last, 3), prev=(7, 3), term=3)
    assert [log.term_at(index) for index in (7, 8)] == [3, 3]


def test_a_snapshot_that_a_newer_one_has_overtaken_is_no_news() -> None:
    """A node saved its state while it was sent a newer one, which took the place of its log meanwhile (found by the
    simulator)."""
    core = make_core(1, 3, 1, 1, 2, term=3)
    append(core, prev=(4, 2), term=3, commit=4)
    core.compact(Mark(4, 2), 4)
    core.compact(Mark(3, 1), 3)
    log = core.state.log
    assert (log.first, log.snapshot.index, log.term_at(4)) == (5, 4, 2)


def test_pitfall_57_the_log_is_not_given_up_beyond_the_snapshot() -> None:
    """Nor inside an entry: the node halts first.

    Guard: the asserts of `Log.compact` in raft/consensus/log.py.
    """
    core = make_core(1, 3, (1, 3), 1, 1)
    append(core, prev=(6, 1), term=1, commit=6)
    with pytest.raises(AssertionError, match="no snapshot covers"):
        core.compact(Mark(5, 1), 6)
    with pytest.raises(AssertionError, match="not the end"):
        core.compact(Mark(5, 1), 3)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_follower_within_the_kept_log_needs_no_snapshot(kept: int) -> None:
    """One entry more than it lacks is not needed: its last one may be the one before the log."""
    lab = compacted(kept=kept, entries=max(kept, 1))
    lab.heal()
    lab.run(200)
    assert same(lab)
    assert bool(seen(lab, 1, SnapshotStarted)) is (kept == 0)


def test_pitfall_51_prev_at_or_below_the_snapshot_is_no_conflict() -> None:
    """A follower that compacted its log still answers questions about that part.

    Guard: `prev > log.committed` in `on_append` of raft/consensus/replication.py.
    """
    core = make_core(1, 3, 1, 1, 1)
    entries = list(core.state.log.tail.entries)
    append(core, prev=(4, 1), term=1, commit=4)
    core.compact(Mark(4, 1), 4)
    for prev in (0, 1, 2, 3, 4):
        answer = append(core, entries[prev:], prev=(prev, min(prev, 1)), term=1, commit=4)
        assert (answer.success, answer.match) == (True, 4)


def test_pitfall_52_a_heartbeat_reaches_a_follower_whose_last_entry_is_compacted() -> None:
    """Its entries are in flight, and its proved end is not in the log any more: it must hear its leader.

    Guard: prev 0 in `_send` of raft/consensus/replication.py.
    """
    core = make_core(1, 3)
    lead(core, now_ms=300)
    reply(core, 2, match=2)
    for _ in range(3):
        core.propose(EntryKind.COMMANDS, 1, b"x", at(310))
    drain(core)
    reply(core, 3, match=2)
    reply(core, 2, match=5)
    drain(core)
    core.compact(core.state.log.last, 5)
    core.tick(at(400))
    sent = drain(core, 400).to(3)
    assert [(message.prev_index, message.prev_term) for message in sent] == [(0, 0)]  # type: ignore[union-attr]
    reply(core, 3, match=5)
    assert progress(core, 3).match == 5


# -- the whole way ---------------------------------------------------------------------------------------------


def test_a_follower_below_the_log_gets_the_snapshot_and_then_the_log() -> None:
    """Chunk by chunk; afterwards it is streamed to again (pitfall: etcd #10308, stuck in probing)."""
    lab = compacted()
    lab.heal()
    lab.run(200)
    assert same(lab)
    assert seen(lab, 3, SnapshotInstalled) == [SnapshotInstalled(12, 2)]
    assert seen(lab, 1, SnapshotSent) == [SnapshotSent(3, 12)]
    assert progress(lab.cores[1], 3).mode is Mode.REPLICATE
    lab.propose(1)
    lab.settle()
    assert same(lab)
    assert lab.cores[3].status().first == 13
    lab.stop(3)
    lab.start(3)
    lab.run(500)
    assert same(lab)


def test_pitfall_55_lost_chunks_and_answers_leave_again() -> None:
    """Every third message about the snapshot is lost, and it arrives without a new beginning.

    Guard: `snapshot_retry_ms` in `feed` of raft/consensus/snapshots.py.
    """
    lab = compacted()
    lab.heal()
    about = offsets = 0
    while not seen(lab, 3, SnapshotInstalled):
        assert lab.now_ms < 60_000
        for node in list(lab.cores):
            lab.work(node)
        if lab.wire and isinstance(lab.wire[0], InstallSnapshot | InstallSnapshotReply):
            about += 1
            if about % 3 == 0:
                offsets += isinstance(lab.wire.pop(0), InstallSnapshot)
                continue
            assert not isinstance(lab.wire[0], InstallSnapshotReply) or lab.wire[0].accepted
        step_one(lab)
    assert offsets > 0
    lab.run(200)
    assert same(lab)


def test_etcd_18055_two_snapshots_in_quick_succession() -> None:
    """While one is being sent the next is taken, and the first cannot be read any more: the second is sent."""
    lab = compacted()
    lab.heal()
    lab.is_slow = True
    lab.run(200)
    assert 3 in lab.installs
    for _ in range(3):
        lab.propose(1)
        lab.settle()
    lab.snapshot(1)
    lab.install(3)
    lab.is_slow = False
    lab.run(300)
    assert same(lab)
    assert seen(lab, 3, SnapshotInstalled) == [SnapshotInstalled(12, 2), SnapshotInstalled(15, 2)]
    assert progress(lab.cores[1], 3).mode is Mode.REPLICATE


def test_a_snapshot_that_disappears_while_it_is_sent_gives_way_to_the_newest() -> None:
    """Half of it is there when the leader's disk has only the next one."""
    lab = compacted(entries=30)
    lab.heal()
    for _ in range(200):
        if lab.parts.get(3):
            break
        step_one(lab)
    assert lab.parts[3]
    lab.cut_off(3)
    lab.wire.clear()
    lab.propose(1)
    lab.settle()
    lab.snapshot(1)
    lab.heal()
    lab.run(3_000)
    assert same(lab)
    assert seen(lab, 3, SnapshotInstalled) == [SnapshotInstalled(33, 2)]


def step_one(lab: GrowingLab) -> None:
    """Deliver one message, or let 10 ms pass."""
    for node in list(lab.cores):
        lab.work(node)
    if lab.wire:
        message = lab.wire.pop(0)
        if message.to in lab.cores:
            lab.cores[message.to].step(message, at(lab.now_ms))
        return
    lab.now_ms += 10
    for core in lab.cores.values():
        core.tick(at(lab.now_ms))


@pytest.mark.parametrize("dies", [1, 3])
def test_pitfall_55_a_crash_of_either_side_at_any_chunk(dies: NodeId) -> None:
    """The new leader begins again, the restarted follower too; in the end all have the same.

    Guard: `_belongs` and the offset in `on_install` of raft/consensus/snapshots.py.
    """
    for steps in range(0, 90, 7):
        lab = compacted()
        lab.snapshot(2)
        lab.heal()
        lab.run(60)
        for _ in range(steps):
            step_one(lab)
        lab.stop(dies)
        lab.run(1_500)
        lab.start(dies)
        lab.run(2_000)
        assert same(lab), steps
        (leader,) = lab.leaders()
        assert all(each.mode == "replicate" for each in lab.cores[leader].status().followers)


def test_pitfall_42_the_configuration_in_the_snapshot_takes_effect() -> None:
    """The follower slept through a change of all members but itself; a stale one would let it vote with the others.

    Guard: `state.configurations` in `on_installed` of raft/consensus/snapshots.py.
    """
    lab = GrowingLab(5, options=SMALL)
    lab.elect(1)
    lab.run(100)
    lab.cut_off(3)
    lab.change(1, Remove((4, 5)))
    lab.run(200)
    assert lab.in_force(3) == configuration(5)
    lab.snapshot(1)
    for node in (4, 5):
        lab.stop(node)
    lab.heal()
    lab.run(300)
    assert lab.voters(3) == (1, 2, 3)
    assert lab.cores[3].state.configurations == lab.cores[1].state.configurations
    lab.stop(3)
    lab.start(3)
    assert lab.voters(3) == (1, 2, 3)


def test_pitfall_43_the_configuration_survives_compactions() -> None:
    """The entry is long gone, and a restarted node still knows it."""
    lab = GrowingLab(3, options=SMALL)
    lab.elect(1)
    for _ in range(3):
        lab.propose(1)
        lab.settle()
        lab.snapshot(1)
    lab.stop(1)
    lab.start(1)
    assert lab.voters(1) == (1, 2, 3)
    lab.run(1_000)
    assert same(lab)


def test_a_snapshot_finds_the_configuration_that_was_applied() -> None:
    """Not a newer one that is committed but not applied, let alone an uncommitted one (pitfall 41: a configuration that
    outlives its cut entry).

    Guard: `forget` of raft/consensus/membership.py keeps the configuration in force at `applied`.
    """
    core = make_core(1, 4)
    lead(core)
    reply(core, 2, match=2)
    reply(core, 3, match=2)
    drain(core)
    joint = core.propose_configuration(Remove((4,)), at(400))
    ready = core.ready()
    assert ready is not None
    core.persisted(2, joint, at(400))
    reply(core, 2, match=joint)
    reply(core, 3, match=joint)
    ready = core.ready()
    assert ready is not None
    assert ready.committed[-1].index == joint
    found = [pair for pair in core.state.configurations if pair[0] <= core.status().applied]
    assert found == [(1, configuration(4))]
    core.applied(joint)
    assert [pair[0] for pair in core.state.configurations] == [joint, joint + 1]


def test_pitfall_54_a_failed_snapshot_leaves_everything_as_it_was() -> None:
    """The leader is asked to begin again; it does with the next heartbeat."""
    lab = compacted()
    lab.is_slow = True
    lab.heal()
    lab.run(200)
    before = lab.applied[3].copy()
    del lab.installs[3]
    lab.cores[3].snapshot_failed(at(lab.now_ms))
    assert lab.applied[3] == before
    lab.is_slow = False
    lab.run(300)
    assert same(lab)
