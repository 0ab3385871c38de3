"""The Raft thesis where it goes beyond the paper, section by section (the paper: test_paper.py)."""

import pytest

from raft.events import BecameFollower, MessageIgnored, TransferEnded
from raft.messages import AppendEntries, AppendEntriesReply, RequestVote, RequestVoteReply, TimeoutNow
from raft.options import Options
from raft.refusals import NotLeader, TransferInProgress
from raft.roles import RoleName
from raft.types import NOBODY, EntryKind
from tests.raft.lab import Lab, append, at, drain, lead, make_core, reply, vote_request


def test_section_3_8_term_and_vote_are_written_before_any_answer_that_rests_on_them() -> None:
    """A grant and a campaign wait for the sync that carries them; so does an acknowledgement in a new term."""
    core = make_core(1, 3)
    core.step(vote_request(2, 1, 2, (1, 1)), at(0))
    out = drain(core, sync=False)
    assert (out.hard_state is not None, out.messages, len(out.after_sync)) == (True, [], 1)
    core = make_core(1, 3)
    core.step(AppendEntries(sender=2, to=1, term=2, prev_index=1, prev_term=1, commit=1, round=0), at(0))
    out = drain(core, sync=False)
    assert (out.hard_state is not None, out.messages, len(out.after_sync)) == (True, [], 1)
    core = make_core(1, 3)
    core.tick(at(300))
    core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    out = drain(core, 300, sync=False)
    assert out.hard_state is not None
    assert [(message.to, message.term) for message in out.after_sync] == [(2, 2), (3, 2)]


def test_section_3_8_what_is_not_kept_is_found_again() -> None:
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


def test_section_3_10_step_1_no_new_requests_are_taken() -> None:
    """While leadership moves, a new entry would keep the target from ever catching up."""
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    core.transfer(2, at(310))
    with pytest.raises(TransferInProgress):
        core.propose(EntryKind.COMMANDS, 1, b"x", at(310))


def test_section_3_10_step_2_the_target_is_brought_up_to_date_first() -> None:
    """TimeoutNow leaves when it has all, not before."""
    core = make_core(1, 3)
    lead(core)
    core.transfer(2, at(310))
    assert not [message for message in drain(core, 310).messages if isinstance(message, TimeoutNow)]
    reply(core, 2, match=2)
    (told,) = [message for message in drain(core, 310).messages if isinstance(message, TimeoutNow)]
    assert (told.to, told.last_index) == (2, 2)


def test_section_3_10_step_3_the_target_campaigns_at_once() -> None:
    """As if its election timer had run out: a new term, no pre-vote, and the mark that overrides stickiness."""
    core = make_core(2, 3)
    append(core, prev=(1, 1), term=2, sender=1)
    core.step(TimeoutNow(sender=1, to=2, term=2, last_index=1), at(10))
    requests = [message for message in drain(core, 10).after_sync if isinstance(message, RequestVote)]
    assert [(request.to, request.term, request.pre, request.transfer) for request in requests] == [
        (1, 3, False, True),
        (3, 3, False, True),
    ]


def test_section_3_10_a_transfer_that_takes_an_election_timeout_is_given_up() -> None:
    """Then the old leader takes requests again."""
    core = make_core(1, 3, options=Options(transfer_timeout_ms=150))
    lead(core, now_ms=300)
    reply(core, 2, match=2, now_ms=300)
    core.transfer(2, at(300))
    while core.next_deadline_ms() < 450:
        core.tick(at(core.next_deadline_ms()))
        reply(core, 2, match=2, now_ms=core.state.now.monotonic_ms)
    core.tick(at(450))
    assert [event for event in drain(core, 450).events if isinstance(event, TransferEnded)]
    core.propose(EntryKind.COMMANDS, 1, b"x", at(450))


@pytest.mark.parametrize(
    ("silent_ms", "transfer", "is_bound"), [(0, False, True), (299, False, True), (300, False, False), (0, True, False)]
)
def test_section_4_2_3_within_a_minimum_election_timeout_of_hearing_a_leader_no_vote_is_given(
    silent_ms: int, transfer: bool, is_bound: bool
) -> None:
    """The request neither raises the term nor gets a vote; the flag of a transfer overrides."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=2, sender=2, now_ms=100)
    core.step(vote_request(3, 1, 9, (5, 2), transfer=transfer), at(100 + silent_ms))
    assert core.status().term == (2 if is_bound else 9)
    assert core.status().vote == (NOBODY if is_bound else 3)
    assert bool([event for event in drain(core).events if isinstance(event, MessageIgnored)]) is is_bound


def test_section_4_2_3_a_leader_is_not_unseated_by_whoever_left() -> None:
    """A server that gets no heartbeats campaigns with ever higher terms; the leader goes on in its term."""
    lab = Lab(3)
    lab.elect(1)
    lab.run(200)
    for term in range(3, 30):
        for to in (1, 2):
            lab.cores[to].step(vote_request(3, to, term, (99, term - 1)), at(lab.now_ms))
        lab.run(100)
    assert lab.leaders() == [1]
    assert lab.cores[1].status().term == 2


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


def test_section_6_4_step_1_a_read_waits_for_the_terms_first_commit() -> None:
    """No round is opened before it, and one is as soon as it is there."""
    core = make_core(1, 3, 1, 1)
    lead(core)
    core.read(7, at(310))
    assert not drain(core, 310).messages
    reply(core, 2, match=4)
    out = drain(core, 310)
    assert {message.round for message in out.messages if isinstance(message, AppendEntries)} >= {1}
    assert out.reads == []


def test_section_6_4_step_2_and_3_the_read_index_is_the_commit_of_the_moment_the_round_opened() -> None:
    """What is committed while the round is under way need not be seen, and the round is confirmed by a majority."""
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


def test_section_6_4_an_answer_to_an_earlier_round_confirms_nothing() -> None:
    """It was sent before the read came, so the leader may have been deposed since."""
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    core.read(1, at(310))
    drain(core, 310)
    core.read(2, at(311))
    drain(core, 311)
    reply(core, 3, match=0, round=1)
    assert [read.context for read in drain(core, 311).reads] == [1]
    reply(core, 3, match=0, round=2)
    assert [read.context for read in drain(core, 311).reads] == [2]


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


def test_section_10_2_1_the_leader_writes_to_its_disk_while_it_replicates() -> None:
    """AppendEntries leave before its own write is done; it may even commit before, by followers alone; what it has not
    written itself it does not count."""
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    reply(core, 3, match=2)
    drain(core)
    core.propose(EntryKind.COMMANDS, 1, b"x", at(310))
    out = drain(core, 310, sync=False)
    assert [message.to for message in out.messages if isinstance(message, AppendEntries)] == [2, 3]
    reply(core, 2, match=3)
    assert core.status().commit == 2
    reply(core, 3, match=3)
    assert core.status().commit == 3
    assert drain(core, 310, sync=False).committed == []
    core.persisted(2, 3, at(311))
    assert [entry.index for entry in drain(core, 311).committed] == [3]


def test_section_10_2_1_a_followers_answer_waits_for_its_disk() -> None:
    """Its acknowledgement is a promise that survives a crash."""
    core = make_core(1, 3, term=2)
    append(core, prev=(1, 1), term=2)
    entries = make_core(2, 3, 2).state.log.entries[1:]
    message = AppendEntries(
        sender=2, to=1, term=2, prev_index=1, prev_term=1, commit=1, round=0, entries=tuple(entries)
    )
    core.step(message, at(0))
    out = drain(core, sync=False)
    assert not [each for each in out.messages if isinstance(each, AppendEntriesReply)]
    assert [each.match for each in out.after_sync if isinstance(each, AppendEntriesReply)] == [2]


def test_section_10_2_2_batches_and_pipelines() -> None:
    """Entries of one turn travel as one message, and the next does not wait for the answer to the one before."""
    core = make_core(1, 3)
    lead(core)
    reply(core, 2, match=2)
    drain(core)
    sizes = []
    for count in (3, 2):
        for _ in range(count):
            core.propose(EntryKind.COMMANDS, 1, b"x", at(310))
        sent = [each for each in drain(core, 310).to(2) if isinstance(each, AppendEntries) and each.entries]
        sizes += [len(message.entries) for message in sent]
    assert sizes == [3, 2]
