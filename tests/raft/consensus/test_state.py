"""Tests which actions a node may take by its own state: `State` of raft/consensus/state.py."""

from dataclasses import replace

from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import CoreStart, RaftCore
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import BecamePreCandidate
from raftlog.raft.options import Options
from raftlog.raft.types import HardState
from tests.raft.lab import at, configuration, drain, log_of, log_start


def restarted(node: int, *known: tuple[int, Configuration]) -> RaftCore:
    """A node that starts with these configurations in a log of five entries, and no snapshot: so it does not know that
    any of them is committed."""
    (*earlier, (index, newest)) = known
    return RaftCore(
        node,
        Options(),
        CoreStart(
            hard_state=HardState(1, 0, 2),
            log=log_start(log_of(configuration(3), 1, 1, 1, 1)),
            configuration=newest,
            configuration_index=index,
            earlier=tuple(earlier),
            commit=0,
            applied=0,
        ),
        random=lambda low, high: low,
        now=at(0),
    )


def test_a_restarted_node_that_no_configuration_of_its_log_lets_vote_never_campaigns() -> None:
    """Node 4 joined as a learner and starts again. It does not know that any of its configurations is committed. So it
    looks through all of them, and none gives it a vote.

    Guard: the end of `may_campaign` of raft/consensus/state.py.
    """
    three, learning = configuration(3), configuration(4, learners=[4])
    core = restarted(4, (1, three), (3, learning))
    assert not core.state.may_campaign
    for _ in range(3):
        now_ms = core.next_deadline_ms()
        core.tick(at(now_ms))
        assert not [event for event in drain(core, now_ms).events if isinstance(event, BecamePreCandidate)]
    assert core.status().role is RoleName.FOLLOWER
    assert restarted(3, (1, three), (3, learning)).state.may_campaign


def test_a_restarted_node_takes_a_removal_for_one_if_every_configuration_that_it_has_names_it() -> None:
    """It does not know that any of them is committed."""
    removed = replace(configuration(3), removed=((4, "disk"),))
    assert restarted(3, (1, removed), (3, removed)).state.has_removed(4, "disk")
    assert not restarted(3, (1, configuration(3)), (3, removed)).state.has_removed(4, "disk")


def test_a_restarted_voter_that_a_change_would_leave_out_may_still_be_needed() -> None:
    """The configuration without it is not known to be committed: the one before it gives it a vote (thesis 4.2.2)."""
    core = restarted(3, (1, configuration(3)), (3, configuration(2)))
    assert core.state.may_campaign
    core.tick(at(core.next_deadline_ms()))
    assert [event for event in drain(core, 300).events if isinstance(event, BecamePreCandidate)]
