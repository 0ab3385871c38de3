"""Repeats the Raft paper, section by section, which the tests' names give (5.4 to 8: test_paper_safety.py)."""

from itertools import combinations
from random import Random

import pytest

from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, RequestVote, RequestVoteReply
from raftlog.raft.types import EntryKind
from tests.raft.lab import Lab, append, at, drain, extend, lead, make_core, reply, vote_request


@pytest.mark.parametrize("role", list(RoleName))
def test_section_5_1_a_higher_term_makes_a_follower_of_every_role(role: RoleName) -> None:
    """A node of any role that sees a larger term takes it and follows."""
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


def test_section_5_2_a_server_starts_as_a_follower_and_stays_one_while_it_hears_a_leader() -> None:
    """Each heartbeat puts the election off by a whole timeout; silence for that long ends it."""
    core = make_core(1, 3)
    assert core.status().role is RoleName.FOLLOWER
    for now_ms in range(200, 2_000, 200):
        append(core, prev=(1, 1), term=1, now_ms=now_ms)
        core.tick(at(now_ms + 199))
        assert core.status().role is RoleName.FOLLOWER
    core.tick(at(core.next_deadline_ms()))
    assert core.status().role is not RoleName.FOLLOWER


@pytest.mark.parametrize("start", [RoleName.FOLLOWER, RoleName.CANDIDATE])
def test_section_5_2_a_candidate_begins_a_term_votes_for_itself_and_asks_all(start: RoleName) -> None:
    """From a follower, and from a candidate whose election brought nothing; each time in a later term."""
    core = make_core(1, 3)
    term = 1
    for _ in range(1 if start is RoleName.FOLLOWER else 3):
        now_ms = core.next_deadline_ms()
        core.tick(at(now_ms))
        core.step(
            RequestVoteReply(sender=2, to=1, term=term, request_term=term + 1, granted=True, pre=True), at(now_ms)
        )
        term += 1
        out = drain(core, now_ms)
        assert (core.status().role, core.status().term, core.status().vote) == (RoleName.CANDIDATE, term, 1)
        requests = [message for message in out.after_sync if isinstance(message, RequestVote)]
        assert [(request.to, request.term) for request in requests] == [(2, term), (3, term)]


def test_section_5_2_timeouts_are_spread_so_that_most_elections_have_one_candidate() -> None:
    """Timeouts are drawn again each time from the whole interval. Of a thousand elections of five nodes, few have two
    nodes time out within one message delay (5 ms) of each other at the front.
    """
    random = Random(1)
    ties = 0
    for _ in range(1_000):
        cores = [make_core(node, 5, random=random.randint) for node in range(1, 6)]
        first, second, *_ = sorted(core.next_deadline_ms() for core in cores)
        assert first >= 300
        ties += second - first < 5
    assert ties < 150


def test_section_5_2_heartbeats_go_to_every_follower_in_time() -> None:
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
    """One vote a term, for the first candidate that asks; and a new one in the next term."""
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
        ([1, 1, 2, 2, 2, 3, 3, 3, 3, 3], "(f) two terms that no other node has"),
    ],
)
def test_section_5_3_figure_7_the_leader_makes_every_log_its_own(follower: list[int], case: str) -> None:
    """Raft paper figure 7: every follower ends up equal to the leader of term 8."""
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


def test_section_5_3_a_leader_commits_the_entries_of_a_majority() -> None:
    """Propose, append, AppendEntries to all, answers of a majority, commit, apply."""
    core = make_core(1, 3)
    lead(core)
    for sender in (2, 3):
        reply(core, sender, match=2)
    drain(core)
    proposed = core.propose(EntryKind.COMMANDS, 1, b"some", at(310))
    out = drain(core, 310)
    sent = [message for message in out.messages if isinstance(message, AppendEntries)]
    assert [(each.to, each.prev_index, each.prev_term, each.commit, len(each.entries)) for each in sent] == [
        (2, 2, 2, 2, 1),
        (3, 2, 2, 2, 1),
    ]
    assert out.committed == []
    reply(core, 3, match=proposed.last)
    out = drain(core, 310)
    assert [entry.data for entry in out.committed] == [b"some"]
    assert {message.commit for message in out.messages if isinstance(message, AppendEntries)} == {3}


@pytest.mark.parametrize(
    ("nodes", "answering", "is_committed"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 1, True),
        (3, 0, False),
        (3, 1, True),
        (4, 1, False),
        (4, 2, True),
        (5, 1, False),
        (5, 2, True),
        (6, 2, False),
        (6, 3, True),
        (7, 2, False),
        (7, 3, True),
    ],
)
def test_section_5_3_an_entry_is_committed_once_a_majority_has_it(
    nodes: int, answering: int, is_committed: bool
) -> None:
    """Whichever followers answer, the leader's own copy counted."""
    for group in combinations(range(2, nodes + 1), answering):
        core = make_core(1, nodes)
        lead(core)
        for sender in group:
            reply(core, sender, match=2)
        assert (core.status().commit == 2) is is_committed, group


@pytest.mark.parametrize("older", [[], [2], [1, 2], [1]])
def test_section_5_3_committing_an_entry_commits_all_before_it(older: list[int]) -> None:
    """Also those of earlier leaders, and in order."""
    core = make_core(1, 3, *older, term=2)
    lead(core)
    reply(core, 2, match=core.status().last.index)
    assert [entry.term for entry in drain(core).committed] == [*older, 3]


@pytest.mark.parametrize(("commit", "applied"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 3, 4])])
def test_section_5_3_a_follower_applies_entries_the_leader_committed(commit: int, applied: list[int]) -> None:
    """As soon as it learns of it, in the order of the log."""
    core = make_core(1, 3)
    entries = make_core(2, 3, 2, 2, 2).state.log.entries[1:]
    message = AppendEntries(
        sender=2, to=1, term=2, prev_index=1, prev_term=1, commit=commit, round=0, entries=tuple(entries)
    )
    core.step(message, at(0))
    assert [entry.index for entry in drain(core).committed] == applied


@pytest.mark.parametrize(
    ("prev", "answer"),
    [
        ((0, 0), (True, 0, (0, 0))),
        ((1, 1), (True, 1, (0, 0))),
        ((2, 2), (True, 2, (0, 0))),
        ((2, 3), (False, 0, (2, 2))),
        ((3, 3), (False, 0, (2, 2))),
    ],
)
def test_section_5_3_the_consistency_check(prev: tuple[int, int], answer: tuple[bool, int, tuple[int, int]]) -> None:
    """A follower takes entries only where it has the one before them, by index and term; else it names its last."""
    core = make_core(1, 3, 2)
    said = append(core, prev=prev, term=3)
    assert (said.success, said.match, (said.hint_index, said.hint_term)) == answer


@pytest.mark.parametrize(
    ("prev", "terms", "log", "unstable"),
    [
        ((3, 2), [3], [1, 1, 2, 3], [3]),
        ((2, 1), [3, 4], [1, 1, 3, 4], [3, 4]),
        ((1, 1), [1], [1, 1, 2], []),
        ((1, 1), [3], [1, 3], [3]),
        ((1, 1), [1, 2], [1, 1, 2], []),
    ],
)
def test_section_5_3_conflicts_go_and_new_entries_stay(
    prev: tuple[int, int], terms: list[int], log: list[int], unstable: list[int]
) -> None:
    """Figure 2, AppendEntries 3 and 4: from the first conflict on everything is cut, and missing entries are appended.

    Entries that are there already are neither cut nor written again.
    """
    core = make_core(1, 3, 1, 2)
    before = make_core(1, 3, 1, 2).state.log
    mark = before.mark_at(prev[0])
    assert mark is not None
    message = AppendEntries(
        sender=2,
        to=1,
        term=4,
        prev_index=prev[0],
        prev_term=prev[1],
        commit=1,
        round=0,
        entries=tuple(extend(mark, *terms)),
    )
    core.step(message, at(0))
    out = drain(core)
    assert [entry.term for entry in core.state.log.entries] == log
    assert [entry.term for entry in out.entries] == unstable


def test_section_5_3_a_leader_never_changes_its_own_log() -> None:
    """Leader Append-Only: nothing that arrives makes it shorter."""
    core = make_core(1, 3, 1, 1)
    lead(core)
    before = list(core.state.log.entries)
    reply(core, 2, match=0, success=False, prev=3, hint=(1, 1))
    core.step(AppendEntries(sender=3, to=1, term=1, prev_index=1, prev_term=1, commit=1, round=0), at(400))
    drain(core)
    assert core.state.log.entries == before
