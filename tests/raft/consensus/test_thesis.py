"""The Raft thesis where it goes beyond the paper, section by section (the paper: test_paper.py).

Sections 3.8 (term and vote before answers), 3.10, 6.4 (step 1, and old rounds) and 10.2.1 stand with their pitfalls in
test_election.py, test_transfer.py, test_reads.py and test_replication.py.
"""

import pytest

from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import BecameFollower, MessageIgnored
from raftlog.raft.messages import AppendEntries, RequestVoteReply
from raftlog.raft.refusals import NotLeader
from raftlog.raft.types import NOBODY, EntryKind
from tests.raft.lab import Lab, append, at, drain, lead, make_core, reply, vote_request


def test_section_3_8_volatile_state_is_learned_again_after_a_restart() -> None:
    """Commit index, leader and progress are volatile: a restarted node learns them from the leader, a restarted leader
    from its followers."""
    lab = Lab(3)
    lab.elect(1)
    lab.propose(1)
    lab.run(200)
    lab.stop(1)
    core = lab.start(1)
    assert (core.status().commit, core.status().leader, core.status().role) == (1, NOBODY, RoleName.FOLLOWER)
    lab.run(2_000)
    assert core.status().commit == lab.cores[2].status().commit >= 4


@pytest.mark.parametrize(
    ("silent_ms", "transfer", "term", "is_bound"),
    [(0, False, 9, True), (299, False, 3, True), (300, False, 9, False), (0, True, 3, False), (0, True, 9, True)],
)
def test_section_4_2_3_within_a_minimum_election_timeout_of_hearing_a_leader_no_vote_is_given(
    silent_ms: int, transfer: bool, term: int, is_bound: bool
) -> None:
    """The request neither raises the term nor gets a vote; the flag of a transfer overrides, in the next term alone."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=2, sender=2, now_ms=100)
    core.step(vote_request(3, 1, term, (5, 2), transfer=transfer), at(100 + silent_ms))
    assert core.status().term == (2 if is_bound else term)
    assert core.status().vote == (NOBODY if is_bound else 3)
    assert bool([event for event in drain(core).events if isinstance(event, MessageIgnored)]) is is_bound


def test_section_6_2_a_leader_without_a_majority_of_answers_steps_down() -> None:
    """After an election timeout, so that its clients turn to another; in its own term, without a vote lost."""
    core = make_core(1, 5)
    lead(core, now_ms=300)
    stepped: list[int] = []
    while not stepped:
        now_ms = core.next_deadline_ms()
        core.tick(at(now_ms))
        reply(core, 2, match=2, now_ms=now_ms)
        stepped += [now_ms for event in drain(core, now_ms).events if isinstance(event, BecameFollower)]
    assert 300 + 600 < stepped[0] <= 300 + 600 + 60
    assert (core.status().term, core.status().vote) == (2, 1)
    with pytest.raises(NotLeader):
        core.propose(EntryKind.COMMANDS, 1, b"x", at(stepped[0]))


def test_section_6_4_step_2_and_3_the_read_index_is_the_commit_of_the_moment_the_round_opened() -> None:
    """Entries committed while the round is under way need not be seen, and a majority confirms the round."""
    core = make_core(1, 5)
    lead(core)
    reply(core, 2, match=2)
    reply(core, 3, match=2)
    core.read(7, at(310))
    drain(core, 310)
    core.propose(EntryKind.COMMANDS, 1, b"x", at(311))
    drain(core, 311)
    reply(core, 2, match=3, round=1)
    assert drain(core, 311).reads == []
    reply(core, 3, match=3, round=1)
    out = drain(core, 311)
    assert core.status().commit == 3
    assert [(read.context, read.index) for read in out.reads] == [(7, 2)]


@pytest.mark.parametrize(
    ("term", "last", "silent_ms", "granted"),
    [(2, (1, 1), 300, True), (2, (1, 1), 299, False), (1, (1, 1), 300, False), (2, (0, 0), 300, False)],
)
def test_section_9_6_a_pre_vote_is_granted_if_a_vote_would_be(
    term: int, last: tuple[int, int], silent_ms: int, granted: bool
) -> None:
    """A later term, a log as good as the own one, and no leader heard for a minimum election timeout; asking changes
    neither term nor vote."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2, now_ms=100)
    core.step(vote_request(3, 1, term, last, pre=True), at(100 + silent_ms))
    (answer,) = drain(core).messages
    assert isinstance(answer, RequestVoteReply)
    assert (answer.granted, answer.pre) == (granted, True)
    assert (core.status().term, core.status().vote) == (1, NOBODY)


def test_section_9_6_the_term_rises_only_after_a_majority_would_vote() -> None:
    """However often the timeout passes."""
    core = make_core(1, 5)
    for _ in range(20):
        now_ms = core.next_deadline_ms()
        core.tick(at(now_ms))
        core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(now_ms))
        assert drain(core, now_ms).hard_state is None
    assert core.status().term == 1
    core.step(RequestVoteReply(sender=3, to=1, term=1, request_term=2, granted=True, pre=True), at(now_ms))
    assert core.status().term == 2


def test_section_10_2_2_batches_and_pipelines() -> None:
    """Entries of one turn travel as one message, and the next does not wait for the answer to the one before."""
    core = make_core(1, 3)
    lead(core)
    for sender in (2, 3):
        reply(core, sender, match=2)
    drain(core)
    for count in (5, 2):
        for _ in range(count):
            core.propose(EntryKind.COMMANDS, 3, b"x", at(310))
        sent = [each for each in drain(core, 310).messages if isinstance(each, AppendEntries) and each.entries]
        assert [(message.to, len(message.entries)) for message in sent] == [(2, count), (3, count)]
