"""Elections: votes, pre-votes, terms (items 1 to 8 and 11 to 13 of the pitfalls)."""

from dataclasses import replace

import pytest

from raftlog.raft.consensus.roles import PreCandidate, RoleName
from raftlog.raft.events import BecameFollower, MessageIgnored
from raftlog.raft.messages import AppendEntriesReply, RequestVote, RequestVoteReply
from raftlog.raft.ready import SyncQueue
from raftlog.raft.types import NOBODY, HardState
from tests.raft.lab import (
    Lab,
    append,
    append_entries,
    at,
    configuration,
    drain,
    extend,
    granted,
    lead,
    make_core,
    vote_request,
)


def test_pitfall_01_vote_is_durable_before_the_reply_and_binds_after_a_restart() -> None:
    """A grant waits for the sync of its hard state, and a restarted voter refuses a second candidate of that term.

    Guard: `on_request_vote` in raft/consensus/election.py puts the reply into `after_sync` and sets `out.hard_state`.
    """
    core = make_core(1, 3)
    core.step(vote_request(2, 1, 2, (1, 1)), at(0))
    out = drain(core)
    assert out.hard_state == HardState(2, 2, 1)
    assert out.messages == []
    assert [message.to for message in out.after_sync] == [2]
    again = make_core(1, 3, term=2, vote=2)
    assert not granted(again, vote_request(3, 1, 2, (1, 1)))
    in_its_term = make_core(1, 3, term=2)
    in_its_term.step(vote_request(2, 1, 2, (1, 1)), at(0))
    assert drain(in_its_term).hard_state == HardState(2, 2, 1)


def test_pitfall_01_own_campaign_is_durable_before_it_is_announced() -> None:
    """A candidate's requests wait for its own term and vote; a pre-candidate's promise nothing and leave at once.

    Guard: `_ask` in raft/consensus/election.py chooses `after_sync` for real requests.
    """
    core = make_core(1, 3)
    core.tick(at(core.next_deadline_ms()))
    out = drain(core)
    assert [type(message) for message in out.messages] == [RequestVote, RequestVote]
    core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    out = drain(core)
    assert out.hard_state == HardState(2, 1, 1)
    assert out.messages == []
    assert [message.to for message in out.after_sync] == [2, 3]


def test_pitfall_02_an_entry_never_reaches_the_disk_before_its_term() -> None:
    """The batch that holds the first entry of a term holds the term too, and a log ahead of its hard state is refused.

    Guard: `SyncQueue.add` in raft/ready.py keeps the hard state beside the entries; the assert in `RaftCore.__init__`.
    """
    core = make_core(1, 3)
    entries = extend(core.state.log.last, 5)
    core.step(append_entries(entries, prev=(1, 1), term=5), at(0))
    queue = SyncQueue()
    while (ready := core.ready()) is not None:
        queue.add(ready)
    batch = queue.take()
    assert batch.entries == tuple(entries)
    assert batch.hard_state == HardState(5, NOBODY, 1)
    with pytest.raises(AssertionError, match="pitfall 2:"):
        make_core(1, 3, 5, term=4)


def test_pitfall_03_vote_survives_every_role_change_within_its_term() -> None:
    """A candidate that falls back to follower in its own term still refuses another candidate of that term.

    Guard: `become_follower` in raft/consensus/state.py forgets the vote only when the term rises.
    """
    core = make_core(1, 3)
    core.tick(at(300))
    core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    drain(core, 300)
    assert core.status().role is RoleName.CANDIDATE
    append(core, prev=(1, 1), term=2, sender=2)
    assert core.status().role is RoleName.FOLLOWER
    assert core.status().vote == 1
    assert not granted(core, vote_request(3, 1, 2, (1, 1), transfer=True))


def test_pitfall_04_votes_are_counted_by_voter_not_by_reply() -> None:
    """In a cluster of five, one grant delivered three times is one grant.

    Guard: `role.votes[message.sender] = …` in `on_vote_reply` of raft/consensus/election.py.
    """
    core = make_core(1, 5)
    core.tick(at(300))
    for sender in (2, 3):
        core.step(RequestVoteReply(sender=sender, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    assert core.status().role is RoleName.CANDIDATE
    for _ in range(3):
        core.step(RequestVoteReply(sender=2, to=1, term=2, request_term=2, granted=True), at(300))
    assert core.status().role is RoleName.CANDIDATE
    core.step(RequestVoteReply(sender=5, to=1, term=2, request_term=2, granted=True), at(300))
    assert core.status().role is RoleName.LEADER


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize(
    ("last", "expected"),
    [((9, 2), False), ((3, 3), True), ((2, 3), False), ((2, 4), True), ((100, 2), False), ((4, 3), True)],
)
def test_pitfall_05_up_to_date_is_by_term_then_index(pre: bool, last: tuple[int, int], expected: bool) -> None:
    """A longer log with an older last term loses; the same last term is decided by the index.

    Guard: the tuple comparison in `Log.is_up_to_date` of raft/consensus/log.py.
    """
    core = make_core(1, 3, 2, 3, term=4)
    assert granted(core, vote_request(2, 1, 5, last, pre=pre)) is expected


def test_pitfall_06_a_repeated_request_gets_the_same_grant() -> None:
    """The candidate whose answer was lost asks again and is granted again; another is still refused.

    Guard: `state.vote == message.sender` in `on_request_vote` of raft/consensus/election.py.
    """
    core = make_core(1, 3)
    assert granted(core, vote_request(2, 1, 2, (1, 1)))
    assert granted(core, vote_request(2, 1, 2, (1, 1)))
    assert not granted(core, vote_request(3, 1, 2, (1, 1)))


def test_pitfall_07_a_flood_of_pre_votes_changes_nothing() -> None:
    """Neither term nor vote, role, leader, timer nor disk moves, whether pre-votes are granted or refused.

    Guard: the early return for pre-votes in `_meet_term` of raft/consensus/core.py and in `on_request_vote` of
    raft/consensus/election.py.
    """
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    for now_ms in (10, 320):  # bound to its leader, and no longer
        before, deadline = core.status(), core.next_deadline_ms()
        answers = [granted(core, vote_request(3, 1, 9, (5, 5), pre=True), now_ms) for _ in range(50)]
        assert answers == [now_ms == 320] * 50
        assert (core.status(), core.next_deadline_ms()) == (before, deadline)
        core.step(vote_request(3, 1, 9, (5, 5), pre=True), at(now_ms))
        assert drain(core).hard_state is None


def test_pitfall_08_a_pre_candidate_has_no_leader() -> None:
    """Two followers of a dead leader, both pre-candidates, grant each other: neither is bound to the old leader.

    Guard: `PreCandidate` in raft/consensus/roles.py has no leader field, so `is_bound` of raft/consensus/election.py
    sees no stale one.
    """
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2)
    core.tick(at(core.next_deadline_ms()))
    assert core.status().role is RoleName.PRE_CANDIDATE
    assert core.status().leader == NOBODY
    assert granted(core, vote_request(3, 1, 2, (1, 1), pre=True), now_ms=301)


def test_pitfall_08_a_pre_vote_reply_names_the_term_it_answers_and_the_voters_own() -> None:
    """A pre-candidate of an old term learns the current one from a refusal, and counts no answers to old questions.

    Guard: `request_term` in `_reply`, and its check in `on_vote_reply`, of raft/consensus/election.py.
    """
    voter = make_core(1, 3, term=7)
    voter.step(vote_request(2, 1, 3, (1, 1), pre=True), at(0))
    (answer,) = drain(voter).messages
    assert isinstance(answer, RequestVoteReply)
    assert (answer.term, answer.request_term, answer.granted) == (7, 3, False)

    asking = make_core(2, 3, term=2)
    asking.tick(at(300))
    drain(asking)
    asking.step(RequestVoteReply(sender=3, to=2, term=2, request_term=2, granted=True, pre=True), at(300))
    assert isinstance(asking.state.role, PreCandidate)
    asking.step(answer, at(300))
    assert (asking.status().term, asking.status().role) == (7, RoleName.FOLLOWER)


def test_pitfall_08_a_pre_vote_of_a_voter_that_is_behind_counts() -> None:
    """The voter's term is older than the pre-candidate's, but its answer to this very question is no old message. A
    voter that takes itself for a learner never campaigns, so it would never catch up, and no node could win.

    Guard: pre-vote replies of an older term pass `_meet_term` of raft/consensus/core.py.
    """
    asking, voter = make_core(1, 2, term=7), make_core(2, 2, term=3)
    asking.tick(at(300))
    (question,) = drain(asking).messages
    voter.step(question, at(300))
    (answer,) = drain(voter).messages
    assert answer.term == 3
    asking.step(answer, at(300))
    assert (asking.status().term, asking.status().role) == (8, RoleName.CANDIDATE)


def test_pitfall_08_a_candidate_stuck_above_the_leaders_term_is_freed() -> None:
    """Voters bound to their leader ignore a candidate of a higher term; the leader hears of that term and gives way.

    Guard: `_enlighten` in raft/consensus/core.py answers AppendEntries of an old term.
    """
    lab = Lab(3)
    lab.elect(1)
    stuck = lab.cores[3]
    lab.hard_states[3] = HardState(9, 3, 1)
    stuck = lab.start(3)
    assert stuck.status().term == 9
    lab.run(1_500)
    assert len(lab.leaders()) == 1
    assert lab.cores[lab.leaders()[0]].status().term > 9


def test_pitfall_11_a_learner_votes_when_it_is_asked() -> None:
    """A node promoted on the others only does not know it yet; it votes all the same, and only never campaigns itself.

    Guard: `on_request_vote` in raft/consensus/election.py looks at no configuration; `tick` there does.
    """
    core = make_core(3, 3, members=configuration(3, learners=[3]))
    assert granted(core, vote_request(1, 3, 2, (1, 1), pre=True))
    assert granted(core, vote_request(1, 3, 2, (1, 1)))
    for _ in range(5):
        core.tick(at(core.next_deadline_ms()))
    assert core.status().role is RoleName.FOLLOWER


def test_pitfall_12_every_timeout_is_drawn_again_within_its_bounds() -> None:
    """Each campaign that fails draws again, so that a tie cannot last.

    Guard: `draw_timeout` is called in every `become_…` of raft/consensus/state.py that sets a deadline.
    """
    drawn = iter([310, 450, 333, 580, 600])
    bounds: list[tuple[int, int]] = []

    def random(low: int, high: int) -> int:
        bounds.append((low, high))
        return next(drawn)

    core = make_core(1, 3, random=random)
    deadlines = [core.next_deadline_ms()]
    for _ in range(3):
        core.tick(at(deadlines[-1]))
        deadlines.append(core.next_deadline_ms())
    assert deadlines == [310, 310 + 450, 310 + 450 + 333, 310 + 450 + 333 + 580]
    assert bounds == [(300, 600)] * 4


def test_pitfall_13_a_whole_cluster_restart_elects_again_in_a_later_term() -> None:
    """All three nodes are killed and started: their terms continue from the durable ones, and a leader is elected.

    One of them had campaigned in a term of which no log knows. Guard: `RaftCore.__init__` in raft/consensus/core.py
    takes the term from the hard state.
    """
    lab = Lab(3)
    lab.elect(1)
    index = lab.propose(1)
    lab.settle()
    lab.hard_states = {node: HardState(6, 2, 1) for node in (1, 2, 3)}
    for node in (1, 2, 3):
        lab.start(node)
    assert lab.leaders() == []
    lab.run(1_000)
    (leader,) = lab.leaders()
    assert lab.cores[leader].status().term == 7
    assert lab.cores[leader].status().commit > index


def test_pitfall_13_a_single_node_elects_itself_and_never_assumes_it_leads() -> None:
    """Alone it wins its own election, commits when its own disk is done, and campaigns again after a restart.

    Guard: `_count` is called by `pre_campaign` and `campaign` themselves in raft/consensus/election.py.
    """
    lab = Lab(1)
    assert lab.leaders() == []
    lab.elect(1)
    assert lab.cores[1].status().commit == 2
    lab.start(1)
    assert lab.leaders() == []
    lab.run(400)
    assert lab.leaders() == [1]
    assert lab.cores[1].status().term == 3


def test_a_voter_that_knows_this_terms_leader_refuses_others() -> None:
    """A vote not yet given is not given to a rival of the leader that was already elected in this term."""
    core = make_core(1, 5, term=4)
    append(core, prev=(1, 1), term=4, sender=2)
    assert core.status().vote == NOBODY
    assert not granted(core, vote_request(3, 1, 4, (9, 4)))


def test_a_second_leader_of_one_term_is_refused() -> None:
    """Of the leader's own term, and at a follower: a member that lies ends no node (figure 3).

    Guard: `_meet_term` of raft/consensus/core.py.
    """
    for sender in (0, 3):
        core = make_core(1, 3)
        if sender:
            append(core, prev=(1, 1), term=2, sender=sender)
        else:
            lead(core)
        status = core.status()
        core.step(append_entries(prev=(1, 1), term=2), at(300))
        assert [event.reason for event in drain(core).events if isinstance(event, MessageIgnored)] == [
            f"impossible: node {status.leader} leads that term"
        ]
        assert core.status() == status


@pytest.mark.parametrize("role", list(RoleName))
def test_section_5_1_a_higher_term_makes_a_follower_of_every_role(role: RoleName) -> None:
    """Without a leader, unless its leader spoke."""
    for message, leader in (
        (append_entries(prev=(1, 1), term=7), 2),
        (RequestVoteReply(sender=2, to=1, term=7, request_term=2, granted=False), NOBODY),
    ):
        core = make_core(1, 3)
        if role is not RoleName.FOLLOWER:
            core.tick(at(300))
        if role is RoleName.CANDIDATE or role is RoleName.LEADER:
            core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
        if role is RoleName.LEADER:
            core.step(RequestVoteReply(sender=2, to=1, term=2, request_term=2, granted=True), at(300))
        assert core.status().role is role
        core.step(message, at(300))
        assert (core.status().role, core.status().term, core.status().leader) == (RoleName.FOLLOWER, 7, leader)
        assert drain(core).hard_state == HardState(7, NOBODY, 1)


def test_section_5_1_a_request_of_an_old_term_is_rejected_with_the_current_one() -> None:
    """AppendEntries and RequestVote are answered, so that their sender learns it; replies are dropped."""
    core = make_core(1, 3, term=5)
    core.step(append_entries(prev=(1, 1), term=3, round=4), at(0))
    core.step(vote_request(3, 1, 4, (9, 4)), at(0))
    core.step(RequestVoteReply(sender=2, to=1, term=3, request_term=3, granted=True), at(0))
    refused, vote = drain(core).messages
    assert isinstance(refused, AppendEntriesReply)
    assert (refused.success, refused.term, refused.round) == (False, 5, 4)
    assert isinstance(vote, RequestVoteReply)
    assert (vote.granted, vote.term, vote.request_term) == (False, 5, 4)


def test_pitfall_28_swapped_addresses_are_noticed() -> None:
    """A message for another node or shard is dropped and shown; the peer hello checks ids before that.

    Guard: the first check of `RaftCore.step` in raft/consensus/core.py.
    """
    core = make_core(1, 3)
    message = vote_request(2, 3, 9, (1, 1))
    core.step(message, at(0))
    core.step(replace(message, to=1, shard=4), at(0))
    assert [type(event) for event in drain(core).events] == [BecameFollower, MessageIgnored, MessageIgnored]
    assert core.status().term == 1
