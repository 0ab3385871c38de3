"""Tests the steps that a leader takes by itself while its members change (thesis 4.2.2; pitfalls, D)."""

from dataclasses import replace

from raftlog.raft.changes import AddLearners, Remove, Replace
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.roles import Leader, RoleName
from raftlog.raft.events import BecameFollower, TransferEnded, TransferStarted
from raftlog.raft.messages import AppendEntriesReply
from tests.raft.consensus.members.growing_lab import GrowingLab, member
from tests.raft.lab import at, drain, lead, make_core, reply


def leaving() -> RaftCore:
    """Leader 1 of three that has just committed, at 400 ms, the configuration without itself."""
    core = make_core(1, 3)
    lead(core, now_ms=300)
    reply(core, 2, match=2, now_ms=300)
    joint = core.propose_configuration(Remove((1,)), at(400))
    for index in (joint, joint + 1):
        drain(core, 400)
        for node in (2, 3):
            reply(core, node, match=index, now_ms=400)
    assert core.state.configuration.voters == (2, 3)
    assert core.status().commit == joint + 1
    return core


def test_a_removed_leader_without_answers_steps_down_at_once() -> None:
    """It handed over to 2, whose link closed. By then neither 2 nor 3 has answered for an election timeout, so no voter
    can take over. The leader goes at once, long before the end of the time for a hand-over, and raises nothing.

    Guard: `except CannotTransfer` in `_take_leave` of raft/consensus/reconfiguration.py.
    """
    core = leaving()
    assert [event for event in drain(core, 400).events if isinstance(event, TransferStarted)] == [TransferStarted(2)]
    core.link_closed(2, at(710))
    events = drain(core, 710).events
    assert [type(event) for event in events if isinstance(event, TransferStarted | TransferEnded)] == [TransferEnded]
    assert [event.reason for event in events if isinstance(event, BecameFollower)] == [
        "this node is no member any more"
    ]
    assert core.status().role is RoleName.FOLLOWER
    assert 400 + core.state.options.transfer_timeout_ms > 710


def test_a_removed_leader_whose_transfer_breaks_off_tries_the_next_one() -> None:
    """The link to 2 closed while 3 answers: it hands over again, and only then would it go without a successor."""
    core = leaving()
    drain(core, 400)
    reply(core, 3, match=core.state.log.last.index, now_ms=700)
    core.link_closed(2, at(710))
    started = [event for event in drain(core, 710).events if isinstance(event, TransferStarted)]
    assert started == [TransferStarted(3)]
    assert core.status().role is RoleName.LEADER


def test_a_removed_leader_whose_successor_does_not_take_over_goes_when_its_time_is_over() -> None:
    """2 and 3 answer all the time, and 2 never campaigns: a leader that is no member must not stay for that.

    Guard: `farewell_ms` in `_take_leave` of raft/consensus/reconfiguration.py.
    """
    core = leaving()
    drain(core, 400)
    events: list[object] = []
    while core.status().role is RoleName.LEADER:
        now_ms = core.next_deadline_ms()
        for node in (2, 3):
            reply(core, node, match=core.state.log.last.index, now_ms=now_ms)
        core.tick(at(now_ms))
        events += drain(core, now_ms).events
    assert now_ms == 400 + core.state.options.transfer_timeout_ms
    assert [type(event) for event in events] == [TransferEnded, BecameFollower]


def replacing() -> RaftCore:
    """Leader 1 of three, 2 and 3 streamed to, that has just given node 3 a new disk: it is a learner by now."""
    core = make_core(1, 3)
    lead(core, now_ms=300)
    for node in (2, 3):
        reply(core, node, match=2, now_ms=300)
    core.propose_configuration(Replace(3, member(3, disk=33)), at(400))
    for node in (2, 3, 2, 3):
        drain(core, 400)
        reply(core, node, match=core.state.log.last.index, now_ms=400)
    drain(core, 400)
    assert core.state.configuration.learners == (3,)
    assert core.state.configuration.member(3) == member(3, disk=33)
    return core


def test_pitfall_20_a_new_disk_under_the_old_number_begins_with_nothing_proved() -> None:
    """The farewell of the old disk is not over when the new disk of its number comes in. The old disk's entries must
    not count for the new one, nor may a late answer of the old one.

    Guard: `fresh` in `_align` of raft/consensus/membership.py.
    """
    core = replacing()
    role = core.state.role
    assert isinstance(role, Leader)
    progress = role.progress[3]
    assert (progress.match, progress.mode, progress.inflight) == (0, Mode.PROBE, type(progress.inflight)())
    assert role.progress[2].match > 0
    late = AppendEntriesReply(
        sender=3, to=1, term=core.state.term, success=True, match=core.state.log.last.index, prev_index=0, round=0
    )
    core.step(late, at(410))
    assert role.progress[3].match == 0
    core.tick(at(core.next_deadline_ms()))
    drain(core, 460)
    assert core.state.configuration.learners == (3,)
    core.step(replace(late, round=role.round), at(470))
    assert role.progress[3].match == late.match


def test_a_node_is_removed_once_its_removal_is_applied_and_after_a_snapshot_too() -> None:
    """Until then the entry may be cut. The names of removed disks are part of the configuration, so a snapshot, a
    restart and a node that joins later have them. A number that a new disk gets is that disk's at once."""
    lab = GrowingLab(3)
    core, disk = lab.elect(1), member(3).incarnation
    lab.connect()
    lab.run(500)
    core.propose_configuration(Remove((3,)), at(lab.now_ms))
    assert not core.state.has_removed(3, disk)
    lab.settle()
    lab.run(500)
    assert [lab.cores[node].state.has_removed(3, disk) for node in (1, 2)] == [True, True]
    lab.snapshot(1)
    core = lab.start(1)
    assert core.state.has_removed(3, disk)
    assert core.state.has_removed(3, "another disk")
    assert not core.state.has_removed(4, "another disk")
    lab.run(5_000)
    (leader,) = lab.leaders()
    lab.join(3, disk=7)
    lab.change(leader, AddLearners((member(3, disk=7),), promote=False))
    assert [lab.cores[leader].state.has_removed(3, member(3, disk=each).incarnation) for each in (7, 3)] == [
        False,
        True,
    ]
