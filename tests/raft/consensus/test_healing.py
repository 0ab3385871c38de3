"""A node whose log was damaged: it follows and acknowledges, and neither votes nor campaigns until it has healed."""

from __future__ import annotations

import pytest

from raftlog.raft.consensus.core import CoreStart, RaftCore
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import Healed
from raftlog.raft.messages import RequestVoteReply, TimeoutNow
from raftlog.raft.options import Options
from raftlog.raft.types import NOBODY, Entry, HardState, LogStart
from tests.raft.lab import append, append_entries, at, configuration, drain, extend, log_of, log_start, vote_request

THREE = configuration(3)
FLOOR = 5


def damaged(log: LogStart) -> RaftCore:
    """Node 1 of three, whose start cut its log and left that much."""
    return RaftCore(
        1,
        Options(),
        CoreStart(
            hard_state=HardState(FLOOR),
            log=log,
            configuration=THREE,
            configuration_index=1,
            commit=1,
            applied=1,
            floor=FLOOR,
        ),
        random=lambda low, high: low,
        now=at(0),
    )


def halved() -> tuple[list[Entry], RaftCore]:
    """A log of three entries, and the core that has the first two."""
    entries = log_of(THREE, 2, 2)
    return entries, damaged(log_start(entries[:2]))


@pytest.mark.parametrize("pre", [False, True])
def test_pitfall_66_a_healing_node_grants_no_vote(pre: bool) -> None:
    """The candidate's log is as good as the rest of this one, but it may lack the entries that this one lost.

    Guard: `not state.recall.floor` in `may_grant` of raft/consensus/recall.py.
    """
    _, core = halved()
    core.step(vote_request(2, 1, FLOOR + 1, (2, 2), pre=pre), at(1_000))
    (answer,) = [each for each in drain(core, 1_000).to(2) if isinstance(each, RequestVoteReply)]
    assert not answer.granted
    assert core.state.vote == NOBODY


def test_a_healing_node_does_not_campaign() -> None:
    """Neither an election timeout nor a leader that hands over makes it campaign.

    Guard: `self.recall.floor` in `may_campaign` of raft/consensus/state.py.
    """
    _, core = halved()
    for ms in range(0, 5_000, 100):
        core.tick(at(ms))
    assert core.status().role is RoleName.FOLLOWER
    append(core, prev=(2, 2), term=FLOOR, now_ms=5_000)
    core.step(TimeoutNow(sender=2, to=1, term=FLOOR, last_index=2), at(5_001))
    assert not drain(core, 5_001).to(3)
    assert core.status().role is RoleName.FOLLOWER


def test_a_leader_that_counts_lost_entries_learns_of_a_new_term() -> None:
    """The leader trusts the acknowledgements from before the damage, and would never send those entries again. So it
    must step down, and the next leader begins to ask this node from nothing.

    Guard: `_enlighten` of raft/consensus/core.py.
    """
    _, core = halved()
    answer = append(core, prev=(3, 2), term=FLOOR - 1)
    assert (answer.success, answer.term) == (False, FLOOR)


def test_a_healing_node_votes_once_a_new_leaders_entry_is_durable() -> None:
    """Entries of older terms are not enough, be they all that it had; nor is a new one before it is synced.

    Guard: `may_lift` of raft/consensus/recall.py.
    """
    entries, core = halved()
    assert append(core, entries[2:], prev=(2, 2), term=FLOOR).success
    assert core.status().floor == FLOOR
    new = extend(entries[2].mark, FLOOR)
    message = append_entries(new, prev=(3, 2), term=FLOOR, commit=3)
    core.step(message, at(2))
    assert core.status().floor == FLOOR
    assert Healed(4) in drain(core, 2).events
    assert core.status().floor == 0
    core.step(vote_request(3, 1, FLOOR + 1, (4, FLOOR)), at(10_000))
    (answer,) = [each for each in drain(core, 10_000).to(3) if isinstance(each, RequestVoteReply)]
    assert answer.granted


def test_a_start_that_finds_the_floor_reached_votes_at_once() -> None:
    """The floor on disk goes with the next start; what the log says counts."""
    assert damaged(log_start(log_of(THREE, 2, FLOOR))).status().floor == 0
