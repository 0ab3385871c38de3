"""Handing leadership over (item 82 of the pitfalls; thesis section 3.10)."""

import pytest

from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import MessageIgnored, TransferEnded
from raftlog.raft.messages import TimeoutNow
from raftlog.raft.options import Options
from raftlog.raft.refusals import CannotTransfer, NotLeader, TransferInProgress
from raftlog.raft.types import NOBODY, EntryKind
from tests.raft.lab import append, at, configuration, drain, lead, make_core, reply


def test_pitfall_82_timeout_now_leaves_only_when_the_target_has_everything() -> None:
    """The target first gets its missing entries; while one message is missing, no TimeoutNow is sent.

    Guard: the comparison with `log.last.index` in `advance_transfer` of raft/consensus/election.py.
    """
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    core.propose(EntryKind.COMMANDS, 1, b"x", at(400))
    assert core.transfer(2, at(400)) == 2
    assert not [message for message in drain(core).messages if isinstance(message, TimeoutNow)]
    reply(core, 2, match=3)
    (message,) = [message for message in drain(core).messages if isinstance(message, TimeoutNow)]
    assert (message.to, message.last_index) == (2, 3)


def test_pitfall_82_no_new_writes_enter_while_leadership_is_handed_over() -> None:
    """Else the target never catches up; reads go on.

    Guard: the transfer check in `RaftCore.propose` of raft/consensus/core.py.
    """
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    core.transfer(2, at(400))
    with pytest.raises(TransferInProgress):
        core.propose(EntryKind.COMMANDS, 1, b"x", at(400))
    core.read(1, at(400))
    drain(core)
    reply(core, 3, match=2, round=1)
    assert [read.context for read in drain(core).reads] == [1]


def test_pitfall_82_a_hand_over_that_fails_is_given_up_and_leaves_no_trace() -> None:
    """After its time-out the leader takes writes again, and the transfer is over for good.

    Guard: `role.transfer.deadline_ms` in `_tick_leader` of raft/consensus/election.py.
    """
    core = make_core(1, 3, options=Options(transfer_timeout_ms=200))
    lead(core, now_ms=300)
    core.transfer(3, at(300))
    assert core.status().transfer_to == 3
    drain(core)
    core.tick(at(500))
    assert [event for event in drain(core).events if isinstance(event, TransferEnded)] == [
        TransferEnded(3, "gave up: it did not take over in time")
    ]
    assert core.status().transfer_to == NOBODY
    core.propose(EntryKind.COMMANDS, 1, b"x", at(500))
    reply(core, 3, match=3)
    assert not [message for message in drain(core).messages if isinstance(message, TimeoutNow)]


def test_pitfall_82_a_node_that_is_behind_or_follows_another_does_not_campaign() -> None:
    """TimeoutNow from a stranger, or naming an index that this node lacks, is ignored.

    Guard: both checks of `on_timeout_now` in raft/consensus/election.py.
    """
    core = make_core(1, 3, 1)
    core.step(TimeoutNow(sender=2, to=1, term=1, last_index=2), at(0))
    append(core, prev=(2, 1), term=1, sender=2)
    core.step(TimeoutNow(sender=3, to=1, term=1, last_index=2), at(0))
    core.step(TimeoutNow(sender=2, to=1, term=1, last_index=9), at(0))
    assert [type(event) for event in drain(core).events] == [MessageIgnored, MessageIgnored]
    assert core.status().role is RoleName.FOLLOWER


def test_the_most_caught_up_voter_that_answers_is_chosen() -> None:
    """Neither a learner, nor a voter that was silent for an election timeout, however long its log."""
    core = make_core(1, 4, members=configuration(4, learners=[4]))
    lead(core, now_ms=300)
    core.propose(EntryKind.COMMANDS, 1, b"x", at(310))
    drain(core)
    reply(core, 3, match=3, now_ms=320)
    for now_ms in (320, 640, 700):
        reply(core, 2, match=2, now_ms=now_ms)
        reply(core, 4, match=3, now_ms=now_ms)
    assert core.transfer(NOBODY, at(700)) == 2


def test_an_impossible_transfer_is_refused() -> None:
    """To itself, to a stranger, by a follower, alone, to a second one: each says why."""
    core = make_core(1, 3)
    with pytest.raises(NotLeader):
        core.transfer(2, at(0))
    lead(core)
    for wrong in (1, 9):
        with pytest.raises(CannotTransfer, match="not another voter"):
            core.transfer(wrong, at(400))
    core.transfer(2, at(400))
    assert core.transfer(NOBODY, at(400)) == 2
    with pytest.raises(TransferInProgress):
        core.transfer(3, at(400))
    alone = make_core(1, 1)
    lead(alone)
    with pytest.raises(CannotTransfer, match="no other voter"):
        alone.transfer(NOBODY, at(400))
