"""Leaders that stay, and that go in time: stickiness, check-quorum, stalls (pitfalls.md, section A)."""

import pytest

from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import MessageIgnored
from raftlog.raft.types import NOBODY
from tests.raft.lab import (
    Lab,
    append,
    at,
    drain,
    granted,
    lead,
    make_core,
    vote_request,
)


def test_pitfall_09_cloudflare_triangle_keeps_a_stable_leader() -> None:
    """Leader 1 and node 2 cannot talk, node 3 sees both: node 2 finds no majority for a pre-vote, and nothing changes.

    Guard: `is_bound` in raft/consensus/election.py (vote stickiness in pre-votes).
    """
    lab = Lab(3)
    lab.elect(1)
    lab.run(200)
    lab.cuts = {(1, 2): True, (2, 1): True}
    lab.run(5_000)
    assert lab.leaders() == [1]
    assert {core.status().term for core in lab.cores.values()} == {2}
    lab.propose(1)
    lab.run(200)
    assert lab.cores[3].status().commit == 3


def test_pitfall_09_partial_connectivity_of_five_ends_with_one_stable_leader() -> None:
    """Leader 4 sees only node 2, and 5 sees no node. Node 2 must not be bound to 4 for ever, or 1, 2 and 3 never elect
    a leader.

    Guard: check-quorum in `_tick_leader` of raft/consensus/election.py.
    """
    lab = Lab(5)
    lab.elect(4)
    seen = {(4, 2), (2, 4), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)}
    lab.cuts = {(a, b): True for a in range(1, 6) for b in range(1, 6) if a != b and (a, b) not in seen}
    lab.run(4_000)
    (leader,) = lab.leaders()
    term = lab.cores[leader].status().term
    assert leader in {1, 2, 3}
    lab.run(5_000)
    assert lab.leaders() == [leader]
    assert lab.cores[leader].status().term == term


def test_pitfall_10_a_cut_off_node_neither_raises_its_term_nor_disturbs_when_it_returns() -> None:
    """Isolated for ten seconds, a node stays in its term; back again, it follows at once.

    Guard: `pre_campaign` in raft/consensus/election.py comes before `campaign`.
    """
    lab = Lab(3)
    lab.elect(1)
    lab.isolate(3)
    lab.run(10_000)
    assert lab.cores[3].status().term == 2
    lab.heal()
    lab.run(100)
    assert lab.leaders() == [1]
    assert lab.cores[1].status().term == 2
    assert lab.cores[3].status().leader == 1


def test_pitfall_10_a_real_vote_request_does_not_move_a_bound_follower() -> None:
    """A higher term in a RequestVote is ignored while the leader is heard, unless the leader itself asked for it.

    Guard: the `is_bound` branch of `_meet_term` in raft/consensus/core.py, and `message.transfer` in `is_bound`.
    """
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    core.step(vote_request(3, 1, 8, (1, 1)), at(100))
    out = drain(core)
    assert [type(event) for event in out.events] == [MessageIgnored]
    assert core.status().term == 1
    assert granted(core, vote_request(3, 1, 2, (1, 1), transfer=True), now_ms=100)
    assert core.status().term == 2


def test_pitfall_14_a_stalled_follower_reads_its_messages_before_it_campaigns() -> None:
    """After two blocked seconds a late tick re-arms the timer: what the leader sent may lie unread.

    Guard: the lateness branch of `tick` in raft/consensus/election.py.
    """
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    core.tick(at(2_300))
    assert core.status().role is RoleName.FOLLOWER
    assert core.status().leader == 2
    assert core.next_deadline_ms() == 2_600
    core.tick(at(2_600))
    assert core.status().role is RoleName.PRE_CANDIDATE


def test_pitfall_14_messages_processed_after_a_stall_count_as_heard_now() -> None:
    """The driver steps the waiting heartbeat first, then ticks: nothing fires.

    Guard: `on_append` in raft/consensus/replication.py moves the deadline from the time of processing.
    """
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    append(core, prev=(1, 1), term=1, sender=2, now_ms=420)
    core.tick(at(420))
    assert core.status().role is RoleName.FOLLOWER
    assert core.next_deadline_ms() == 720


def test_pitfall_14_a_stalled_leader_looks_again_before_it_steps_down() -> None:
    """A leader that stood still for two seconds received nothing in that time, which proves nothing about the others.

    Guard: `quorum_since_ms` is moved when a heartbeat comes late, in `_tick_leader` of raft/consensus/election.py.
    """
    core = make_core(1, 3)
    lead(core)
    core.tick(at(2_500))
    assert core.status().role is RoleName.LEADER
    for now_ms in range(2_560, 3_101, 60):
        core.tick(at(now_ms))
    assert core.status().role is RoleName.LEADER
    core.tick(at(3_160))
    assert core.status().role is RoleName.FOLLOWER


@pytest.mark.parametrize(
    ("silent_ms", "transfer", "term", "is_bound"),
    [(0, False, 9, True), (299, False, 3, True), (300, False, 9, False), (0, True, 3, False), (0, True, 9, True)],
)
def test_thesis_4_2_3_within_a_minimum_election_timeout_of_hearing_a_leader_no_vote_is_given(
    silent_ms: int, transfer: bool, term: int, is_bound: bool
) -> None:
    """The request neither raises the term nor gets a vote; the flag of a transfer overrides, in the next term alone."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=2, sender=2, now_ms=100)
    core.step(vote_request(3, 1, term, (5, 2), transfer=transfer), at(100 + silent_ms))
    assert core.status().term == (2 if is_bound else term)
    assert core.status().vote == (NOBODY if is_bound else 3)
    assert bool([event for event in drain(core).events if isinstance(event, MessageIgnored)]) is is_bound


@pytest.mark.parametrize(
    ("term", "last", "silent_ms", "is_granted"),
    [(2, (1, 1), 300, True), (2, (1, 1), 299, False), (1, (1, 1), 300, False), (2, (0, 0), 300, False)],
)
def test_thesis_9_6_a_pre_vote_is_granted_if_a_vote_would_be(
    term: int, last: tuple[int, int], silent_ms: int, is_granted: bool
) -> None:
    """A later term, a log as good as the own one, and no leader heard for a minimum election timeout; asking changes
    neither term nor vote."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2, now_ms=100)
    assert granted(core, vote_request(3, 1, term, last, pre=True), 100 + silent_ms) is is_granted
    assert (core.status().term, core.status().vote) == (1, NOBODY)
