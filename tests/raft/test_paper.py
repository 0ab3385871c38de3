"""The Raft paper and thesis, section by section: each test is named after what it repeats."""

import pytest

from raft.messages import AppendEntries, AppendEntriesReply, RequestVote, RequestVoteReply
from raft.roles import RoleName
from raft.types import NOBODY
from tests.raft.lab import Lab, append, at, drain, lead, make_core, reply, vote_request


def test_figure_3_7_and_3_8_an_old_entry_on_a_majority_is_lost_or_saved_by_a_later_term() -> None:
    """Thesis figure 3.7 (paper figure 8), the whole schedule on five nodes.

    (a) S1 leads term 2 and replicates index 2 to S2 only. (b) S5 leads term 3 and takes index 2 for itself. (c) S1
    leads term 4 and brings its term 2 entry to S3: a majority holds it, and it is not committed. (d) S5 may still win
    and overwrite it; (e) had S1 committed an entry of term 4 on a majority first, S5 could not win.
    """
    old: list[int | tuple[int, int]] = [2]
    newer: list[int | tuple[int, int]] = [3]
    lab = Lab(5, {1: old, 2: old, 5: newer})
    lab.hard_states = {node: type(state)(3) for node, state in lab.hard_states.items()}
    for node in lab.members.voters:
        lab.start(node)
    # (c) S1 wins term 4 with S2 and S3; its own no-op reaches nobody.
    lab.isolate(4, 5)
    core = lab.cores[1]
    lab.elect(1)
    assert core.status().term == 4
    lab.stop(1)
    for node in (1, 2, 3):  # take back the no-op of term 4 from everyone but S1, as if it had been lost on the way
        kept = 3 if node == 1 else 2
        lab.disks[node] = lab.disks[node][:kept]
    lab.start(1)
    for node in (2, 3):
        lab.start(node)
    assert [lab.terms(node)[1:] for node in (1, 2, 3)] == [[2, 4], [2], [2]]
    assert [core.status().commit for core in lab.cores.values()] == [1] * 5
    # (d) S5 wins with S2, S3 and S4, whose last entries are of term 2 or none, and overwrites the entry of term 2.
    lab.heal()
    lab.isolate(1)
    lab.now_ms = lab.cores[5].next_deadline_ms()
    lab.cores[5].tick(at(lab.now_ms))  # from a refused pre-vote it learns of term 4
    lab.settle()
    lab.elect(5)
    lab.run(200)
    assert [lab.terms(node)[1:] for node in (2, 3, 4, 5)] == [[3, 5]] * 4
    lab.heal()
    lab.run(500)
    assert lab.terms(1)[1:] == [3, 5]
    # (e) Once an entry of the own term is on a majority, a node without it cannot win.
    lab = Lab(5, {1: [2, 4], 2: [2, 4], 3: [2, 4], 5: [3]})
    lab.cores[5].tick(at(lab.cores[5].next_deadline_ms()))
    lab.settle()
    assert lab.cores[5].status().role is not RoleName.LEADER
    lab.elect(1)
    lab.run(300)
    assert [lab.terms(node)[1:4] for node in (1, 2, 3, 4, 5)] == [[2, 4, 5]] * 5


@pytest.mark.parametrize("role", list(RoleName))
def test_section_5_1_a_higher_term_makes_a_follower_of_every_role(role: RoleName) -> None:
    """Whoever sees a larger term takes it and follows."""
    core = make_core(1, 3)
    if role is not RoleName.FOLLOWER:
        core.tick(at(300))
    if role is RoleName.CANDIDATE or role is RoleName.LEADER:
        core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    if role is RoleName.LEADER:
        core.step(RequestVoteReply(sender=2, to=1, term=2, request_term=2, granted=True), at(300))
    assert core.status().role is role
    core.step(AppendEntries(sender=2, to=1, term=7, prev_index=1, prev_term=1, commit=1, round=0), at(300))
    assert (core.status().role, core.status().term, core.status().leader) == (RoleName.FOLLOWER, 7, 2)


def test_section_5_1_a_request_of_an_old_term_is_rejected_with_the_current_one() -> None:
    """AppendEntries and RequestVote are answered, so that their sender learns it; replies are dropped."""
    core = make_core(1, 3, term=5)
    core.step(AppendEntries(sender=2, to=1, term=3, prev_index=1, prev_term=1, commit=1, round=4), at(0))
    core.step(vote_request(3, 1, 4, (9, 4)), at(0))
    core.step(RequestVoteReply(sender=2, to=1, term=3, request_term=3, granted=True), at(0))
    refused, vote = drain(core).messages
    assert isinstance(refused, AppendEntriesReply)
    assert (refused.success, refused.term, refused.round) == (False, 5, 4)
    assert isinstance(vote, RequestVoteReply)
    assert (vote.granted, vote.term, vote.request_term) == (False, 5, 4)


def test_section_5_2_heartbeats_go_to_everyone_in_time() -> None:
    """Every heartbeat interval, without anything new to say."""
    core = make_core(1, 5)
    lead(core, now_ms=300)
    for sender in (2, 3, 4, 5):
        reply(core, sender, match=2)
    drain(core)
    for now_ms in (360, 420):
        assert core.next_deadline_ms() == now_ms
        core.tick(at(now_ms))
        beats = drain(core).messages
        assert [message.to for message in beats] == [2, 3, 4, 5]
        assert all(isinstance(message, AppendEntries) and not message.entries for message in beats)


@pytest.mark.parametrize(
    ("nodes", "grants", "role"),
    [
        (3, 1, RoleName.LEADER),
        (3, 0, RoleName.CANDIDATE),
        (5, 2, RoleName.LEADER),
        (5, 1, RoleName.CANDIDATE),
        (4, 1, RoleName.CANDIDATE),
        (4, 2, RoleName.LEADER),
    ],
)
def test_section_5_2_a_majority_of_votes_makes_a_leader(nodes: int, grants: int, role: RoleName) -> None:
    """With its own vote counted."""
    core = make_core(1, nodes)
    core.tick(at(300))
    for sender in range(2, nodes + 1):
        core.step(RequestVoteReply(sender=sender, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    for sender in range(2, 2 + grants):
        core.step(RequestVoteReply(sender=sender, to=1, term=2, request_term=2, granted=True), at(300))
    assert core.status().role is role


def test_section_5_2_first_come_first_served_within_a_term() -> None:
    """One vote a term, whoever asks first; and a fresh one in the next term."""
    core = make_core(1, 3)
    for sender, term, expected in ((2, 2, True), (3, 2, False), (3, 3, True), (2, 3, False)):
        core.step(vote_request(sender, 1, term, (1, 1)), at(0))
        (answer,) = drain(core).after_sync
        assert isinstance(answer, RequestVoteReply)
        assert answer.granted is expected


def test_section_5_2_a_candidate_yields_to_the_leader_of_its_term() -> None:
    """Another won the election; the candidate follows it, in the same term."""
    core = make_core(1, 3)
    core.tick(at(300))
    core.step(RequestVoteReply(sender=2, to=1, term=1, request_term=2, granted=True, pre=True), at(300))
    append(core, prev=(1, 1), term=2, sender=3)
    assert (core.status().role, core.status().term, core.status().leader) == (RoleName.FOLLOWER, 2, 3)


@pytest.mark.parametrize(
    ("follower", "case"),
    [
        ([1, 1, 4, 4, 5, 5, 6, 6], "(a) lacks one entry"),
        ([1, 1, 4], "(b) lacks six entries"),
        ([1, 1, 4, 4, 5, 5, 6, 6, 6, 6], "(c) one uncommitted entry more"),
        ([1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7], "(d) two entries of a later term"),
        ([1, 1, 4, 4, 4, 4], "(e) lacks and has others"),
        ([1, 1, 2, 2, 2, 3, 3, 3, 3, 3], "(f) two terms that nobody else has"),
    ],
)
def test_section_5_3_figure_7_the_leader_makes_every_log_its_own(follower: list[int], case: str) -> None:
    """Raft paper figure 7: whatever a follower has, it ends up equal to the leader of term 8."""
    mine: list[int | tuple[int, int]] = [1, 1, 4, 4, 5, 5, 6, 6, 6]
    theirs: list[int | tuple[int, int]] = [*follower]
    lab = Lab(3, {1: mine, 2: theirs, 3: mine})
    lab.isolate(2)
    for node in (1, 3):
        lab.hard_states[node] = type(lab.hard_states[node])(7)
        lab.start(node)
    core = lab.elect(1)
    assert core.status().term == 8
    lab.heal()
    lab.run(500)
    assert lab.terms(2) == lab.terms(1) == [1, *mine, 8], case
    assert lab.applied[2] == lab.applied[1]


def test_section_5_3_a_leader_never_changes_its_own_log() -> None:
    """Leader Append-Only: nothing that arrives makes it shorter."""
    core = make_core(1, 3, 1, 1)
    lead(core)
    before = list(core.state.log.entries)
    reply(core, 2, match=0, success=False, prev=3, hint=(1, 1))
    core.step(AppendEntries(sender=3, to=1, term=1, prev_index=1, prev_term=1, commit=1, round=0), at(400))
    drain(core)
    assert core.state.log.entries == before


def test_section_5_4_1_a_committed_entry_is_in_every_later_leader() -> None:
    """Leader Completeness: the node without it cannot win, however often it tries."""
    lab = Lab(3)
    lab.elect(1)
    lab.run(100)
    lab.isolate(3)
    index = lab.propose(1)
    lab.run(100)
    assert lab.cores[1].status().commit == index
    lab.stop(1)
    lab.heal()
    lab.run(10_000)
    assert lab.leaders() == [2]
    assert lab.cores[3].state.log.term_at(index) == 2


def test_section_5_5_requests_are_idempotent() -> None:
    """The same AppendEntries twice: the same answer, one append."""
    core = make_core(1, 3)
    entries = make_core(2, 3, 2, 2).state.log.entries[1:]
    first = append(core, entries, prev=(1, 1), term=2)
    second = append(core, entries, prev=(1, 1), term=2)
    assert first == second
    assert core.state.log.last.index == 3


def test_thesis_9_6_a_pre_vote_is_refused_by_whoever_hears_the_leader() -> None:
    """And granted once it was silent for the least election timeout."""
    core = make_core(1, 3)
    append(core, prev=(1, 1), term=1, sender=2, now_ms=100)
    for now_ms, expected in ((399, False), (400, True)):
        core.step(vote_request(3, 1, 2, (1, 1), pre=True), at(now_ms))
        (answer,) = drain(core).messages
        assert isinstance(answer, RequestVoteReply)
        assert answer.granted is expected
    assert core.status().vote == NOBODY


def test_thesis_3_10_1_every_voter_is_asked_with_the_logs_end() -> None:
    """RequestVote carries index and term of the last entry, to voters only."""
    core = make_core(2, 3, (1, 4), (1, 2))
    core.tick(at(core.next_deadline_ms()))
    requests = [message for message in drain(core).messages if isinstance(message, RequestVote)]
    assert [(request.to, request.last_index, request.last_term, request.term) for request in requests] == [
        (1, 7, 1, 2),
        (3, 7, 1, 2),
    ]
