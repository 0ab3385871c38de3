"""A voter that is alone: it leads at once, but says nothing of its term before its own vote is durable."""

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.messages import AppendEntries
from tests.raft.lab import at, configuration, drain, make_core


def alone_with_a_learner() -> RaftCore:
    """Node 1 votes, node 2 learns; its election timeout has passed."""
    core = make_core(members=configuration(2, learners=(2,)))
    core.tick(at(core.next_deadline_ms()))
    return core


def test_a_leader_by_its_own_vote_waits_for_the_sync() -> None:
    """After a crash before the sync it could lead the same term again with other entries. Then a learner would hold
    entries of equal index and term that differ (figure 3, election safety and log matching).
    """
    core = alone_with_a_learner()
    assert isinstance(core.state.role, Leader)
    ready = core.ready()
    assert ready is not None
    assert ready.hard_state is not None
    assert ready.messages == ()
    assert [type(message) for message in ready.messages_after_sync] == [AppendEntries]


def test_a_leader_sends_before_its_sync_once_its_term_is_durable() -> None:
    """From the first durable entry of its term on, entries leave at once (thesis 10.2.1)."""
    core = alone_with_a_learner()
    drain(core)
    core.tick(at(core.next_deadline_ms()))
    out = drain(core)
    assert out.after_sync == []
    assert AppendEntries in {type(message) for message in out.messages}
