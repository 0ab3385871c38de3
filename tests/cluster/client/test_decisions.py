"""What a client does next, answer by answer: outcomes, retries, hints, back-off and the end."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.api.errors import ERRORS, Code, Outcome, Problem
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.client import decisions as core
from raftlog.cluster.client.decisions import Attempt, ClientCall, Failure, GiveUp, Policy, Routes, Safety, Step
from raftlog.cluster.client.errors import (
    CompareFailed,
    ConsumerFenced,
    ConsumerNotFound,
    Forbidden,
    KeyNotFound,
    NotApplied,
    OutcomeUnknown,
    SequenceSettled,
    SessionExpired,
    Unauthorized,
    Unavailable,
)

A, B, C = (f"http://127.0.0.1:{port}" for port in (7001, 7002, 7003))
POLICY = Policy()
DEADLINE = 10_000


def low(least: int, _: int) -> int:
    """Chance that always draws the least."""
    return least


def problem(code: Code, leader: str | None = None, term: int | None = None, node: int = 1) -> Problem:
    """An answer with that code, as the table of errors has it."""
    row = ERRORS[code]
    hint = None if leader is None else LeaderHint(9, leader)
    return Problem(code, f"why {code}", row.status, row.outcome, row.retryable, "r1", node, hint, term=term)


class Story:
    """One request, event by event; `step` is always the newest step."""

    def __init__(self, safety: Safety = Safety.ONCE, urls: tuple[str, ...] = (A, B, C), **routes: object) -> None:
        self.routes = Routes(urls, **routes)  # type: ignore[arg-type]
        self.now = 0
        self.call, self.step = core.begin(self.routes, POLICY, safety, now_ms=0, deadline_ms=DEADLINE, random=low)

    @property
    def attempt(self) -> Attempt:
        assert isinstance(self.step, Attempt), self.step
        return self.step

    @property
    def error(self) -> Exception:
        assert isinstance(self.step, GiveUp), self.step
        return self.step.error

    def refuse(self, code: Code, leader: str | None = None, term: int | None = None) -> Step:
        self.now += self.attempt.wait_ms
        told = problem(code, leader, term)
        self.call, self.step = core.refused(self.routes, POLICY, self.call, told, now_ms=self.now, random=low)
        return self.step

    def fail(self, failure: Failure) -> Step:
        self.now += self.attempt.wait_ms
        self.call, self.step = core.failed(
            self.routes, POLICY, self.call, failure, f"why {failure}", now_ms=self.now, random=low
        )
        return self.step


BY_END: dict[type[Exception] | None, tuple[Code, ...]] = {
    Forbidden: (Code.FORBIDDEN, Code.PERMISSION_LOST),
    Unauthorized: (Code.UNAUTHORIZED,),
    NotApplied: (
        Code.BAD_REQUEST,
        Code.TOO_LARGE,
        Code.NOT_FOUND,
        Code.FOREIGN_LOG,
        Code.UNSUPPORTED,
        Code.SEQUENCE_REUSED,
        Code.SEQUENCE_VOIDED,
        Code.REFUSED,
        Code.INSIDE_ENTRY,
        Code.MEMBERS_REFUSED,
        Code.CONSUMERS_FULL,
    ),
    CompareFailed: (Code.COMPARE_FAILED,),
    KeyNotFound: (Code.KEY_NOT_FOUND,),
    ConsumerNotFound: (Code.CONSUMER_NOT_FOUND,),
    ConsumerFenced: (Code.CONSUMER_FENCED,),
    SessionExpired: (Code.SESSION_EXPIRED,),
    SequenceSettled: (Code.SEQUENCE_SETTLED,),
    None: (
        Code.BUSY,
        Code.OVER_QUOTA,
        Code.NO_LEADER,
        Code.OVERWRITTEN,
        Code.SHUTTING_DOWN,
        Code.FENCED,
        Code.DEADLINE,
        Code.WINDOW_FULL,
        Code.MEMBERS_CHANGING,
        Code.STATES_DIFFER,
        Code.DISK_FULL,
    ),
    OutcomeUnknown: (Code.LEADER_LOST, Code.TIMEOUT, Code.INTERNAL),  # of a plain write; other requests go on
}
"""The end of a request by the code of its only answer. None: it goes on."""
ENDS = [
    (code, safety, None if end is OutcomeUnknown and safety is not Safety.PLAIN else end)
    for end, codes in BY_END.items()
    for code in codes
    for safety in Safety
]


@pytest.mark.parametrize(("code", "safety", "end"), ENDS)
def test_each_code_ends_the_request_or_leads_to_another_attempt(
    code: Code, safety: Safety, end: type[Exception] | None
) -> None:
    """Every code leads, for every kind of request, to the end its outcome allows, or to another attempt."""
    story = Story(safety)
    story.refuse(code)
    if end is None:
        assert isinstance(story.step, Attempt)
    else:
        assert type(story.error) is end


def test_a_code_of_a_later_version_ends_the_request_with_the_message_of_the_node() -> None:
    """It is read as `internal`. A write may have happened, and is not repeated if the node says that this is of no use.
    Guard: `Code._missing_`; without it the answer counts as none, and the request goes on until its deadline."""
    row = msgspec.structs.replace(problem(Code.REFUSED), message="the key is kept for the node")
    told = msgspec.json.decode(msgspec.json.encode(row).replace(b'"refused"', b'"reserved_key"'), type=Problem)
    assert (told.code, told.status, told.retryable) == (Code.INTERNAL, row.status, False)
    story = Story(Safety.ONCE)
    _, story.step = core.refused(story.routes, POLICY, story.call, told, now_ms=0, random=low)
    assert isinstance(story.error, OutcomeUnknown)
    assert "the key is kept for the node" in str(story.error)


def test_every_code_is_in_the_table_of_ends() -> None:
    """A new code cannot be forgotten here, save for those that differ only in their name from one that is there."""
    alike = {
        Code.BAD_HOST,
        Code.METHOD_NOT_ALLOWED,
        Code.NOT_ACCEPTABLE,
        Code.COMPACTED,
        Code.UNSUPPORTED_MEDIA_TYPE,
        Code.FUTURE_INDEX,
        Code.SESSIONS_FULL,
    }
    assert {code for code, _, _ in ENDS} | alike == set(Code)


def test_plain_write_goes_on_while_nothing_was_sent() -> None:
    """A refused connection leaves a plain write certain: the next node gets it."""
    story = Story(Safety.PLAIN)
    story.fail(Failure.NOT_SENT)
    assert story.attempt.url != A
    assert story.attempt.timeout_ms > DEADLINE, "its only real try gets all the time there is"


@pytest.mark.parametrize(
    "code",
    [Code.BAD_REQUEST, Code.TOO_LARGE, Code.SESSION_EXPIRED, Code.SEQUENCE_REUSED, Code.KEY_NOT_FOUND, Code.FORBIDDEN],
)
def test_after_a_lost_answer_a_refusal_does_not_say_not_applied(code: Code) -> None:
    """The first attempt may have been applied; guard: `ClientCall.maybe`. A session that expired since says nothing."""
    story = Story()
    story.fail(Failure.BROKEN)
    story.refuse(code)
    assert isinstance(story.error, OutcomeUnknown)
    assert story.error.code is code


@pytest.mark.parametrize("code", [Code.COMPARE_FAILED, Code.REFUSED, Code.SEQUENCE_VOIDED])
def test_after_a_lost_answer_the_state_machine_still_settles(code: Code) -> None:
    """Its answer to a session and sequence is the first one, so it is the truth about all attempts."""
    story = Story()
    story.fail(Failure.TIMED_OUT)
    story.refuse(code)
    assert isinstance(story.error, NotApplied)


@pytest.mark.parametrize("code", [Code.SESSION_EXPIRED, Code.SEQUENCE_SETTLED])
def test_pitfall_75_a_write_is_never_sent_again_under_a_new_session(code: Code) -> None:
    """A proxy may have sent an earlier copy, of which neither the client nor the node knows any more: the request ends,
    with outcome unknown. Guard: the rows of both codes in `ERRORS`."""
    story = Story()
    story.refuse(code)
    assert isinstance(story.error, OutcomeUnknown)


@pytest.mark.parametrize("code", [Code.BUSY, Code.NO_LEADER, Code.TOO_LARGE, Code.BAD_HOST, Code.FENCED])
def test_a_refusal_of_a_sequence_that_may_have_been_sent_before_is_unknown(code: Code) -> None:
    """The caller's own session and sequence (an import that was killed): only the state machine knows what became of
    the first copy. Guard: `maybe` of `begin`."""
    routes = Routes((A,))
    call, step = core.begin(
        routes,
        POLICY,
        Safety.ONCE,
        now_ms=0,
        deadline_ms=DEADLINE,
        random=low,
        maybe=True,
    )
    now = 0
    while isinstance(step, Attempt):
        now += step.wait_ms
        call, step = core.refused(routes, POLICY, call, problem(code), now_ms=now, random=low)
        now += 100
    assert isinstance(step, GiveUp)
    assert isinstance(step.error, OutcomeUnknown)


def test_a_nodes_answer_about_earlier_copies_settles_the_write() -> None:
    """A node says `unknown` of a busy answer to a request with a session, because it does not know of earlier copies.
    The client does: there was none, so the request ends as not applied."""
    story = Story(urls=(A,))
    while isinstance(story.step, Attempt):
        story.refuse(Code.BUSY)
        story.now += 100
    assert isinstance(story.error, NotApplied)


def test_hint_is_followed_at_once() -> None:
    """A node that names the leader costs no wait."""
    story = Story()
    story.refuse(Code.NO_LEADER, leader=C, term=3)
    assert (story.attempt.url, story.attempt.wait_ms) == (C, 0)
    assert story.routes.leader == C


def test_pitfall_83_two_nodes_that_name_each_other_make_no_loop() -> None:
    """Pitfall 83: in one round each is asked once; then time passes. Guard: `ClientCall.visited`."""
    story = Story(urls=(A, B))
    first = story.attempt.url
    other = B if first == A else A
    story.refuse(Code.NO_LEADER, leader=other)
    assert (story.attempt.url, story.attempt.wait_ms) == (other, 0)
    story.refuse(Code.NO_LEADER, leader=first)
    assert story.attempt.wait_ms > 0


def test_pitfall_83_a_chain_of_new_hints_ends() -> None:
    """Nodes that each name a new one lead on only a few times, then time passes. Guard: HINTS_MAX."""
    story = Story(urls=(A,))
    tried = 1
    while story.attempt.wait_ms == 0 and tried < 20:
        story.refuse(Code.NO_LEADER, leader=f"http://127.0.0.1:{8000 + tried}")
        tried += 1
    assert tried == core.HINTS_MAX + 2


def test_pitfall_83_each_round_follows_hints_again() -> None:
    """After the wait an election may have moved the leader once more: the next round leads on as far as the first."""
    story = Story(urls=(A,))
    followed = []
    for number in range(20):
        if story.attempt.wait_ms:
            followed.append(number)
        story.refuse(Code.NO_LEADER, leader=f"http://127.0.0.1:{8000 + number}")
    assert followed == [
        core.HINTS_MAX + 1,
        2 * (core.HINTS_MAX + 1),
        3 * (core.HINTS_MAX + 1),
        4 * (core.HINTS_MAX + 1),
    ]


def test_a_node_that_answers_is_asked_next_whatever_it_did_before() -> None:
    """It was tried last for a while, because it had failed. Now it is known to work."""
    story = Story(urls=(A, B))
    first = story.attempt.url
    story.fail(Failure.BROKEN)
    other = story.attempt.url
    story.fail(Failure.BROKEN)
    assert (story.attempt.url, story.attempt.wait_ms > 0) == (first, True)
    core.answered(story.routes, story.call)
    assert story.routes.preferred == first
    story.routes.penalised[other] = 0
    _, step = core.begin(story.routes, POLICY, Safety.FREE, now_ms=1, deadline_ms=DEADLINE, random=lambda _, most: most)
    assert isinstance(step, Attempt)
    assert step.url == first


def test_hint_of_an_older_term_is_not_believed() -> None:
    """A node that has not heard of the election does not lead back to the old leader."""
    routes = Routes((A, B, C))
    assert core.learn_leader(routes, LeaderHint(3, C), 7) == C
    assert core.learn_leader(routes, LeaderHint(2, B), 6) is None
    assert routes.leader == C


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.none() | st.integers(0, 5)), min_size=1, max_size=12))
def test_the_leader_is_that_of_the_last_hint_without_a_term_or_of_the_newest(
    told: list[tuple[str, int | None]],
) -> None:
    """For any row of hints: one without a term is believed, and lets no older term in behind it."""
    routes = Routes((A, B, C))
    newest, leader = 0, None
    for url, term in told:
        is_believed = term is None or term >= newest
        assert core.learn_leader(routes, LeaderHint(9, url), term) == (url if is_believed else None)
        if is_believed:
            newest, leader = max(newest, term or 0), url
        assert routes.leader == leader


def test_pitfall_83_a_hint_to_a_removed_leader_is_forgotten() -> None:
    """A learned URL without a listener is dropped, the configured ones stay. Guard: `failed` removes it."""
    gone = "http://127.0.0.1:9999"
    story = Story(urls=(A, B))
    story.refuse(Code.NO_LEADER, leader=gone)
    assert story.attempt.url == gone
    story.fail(Failure.NOT_SENT)
    assert gone not in story.routes.urls
    assert story.routes.leader is None
    assert story.attempt.url in (A, B)


def test_dial_override_stands_in_for_the_hint() -> None:
    """A proxy stays in the path through leader hints."""
    proxy = "http://127.0.0.1:6009"
    story = Story(dial={9: proxy})
    story.refuse(Code.NO_LEADER, leader=C)
    assert story.attempt.url == proxy


def test_crowded_node_is_asked_again_after_a_while() -> None:
    """A full queue is the leader's: asking the others at once would only add to it."""
    story = Story()
    url = story.attempt.url
    story.refuse(Code.BUSY)
    assert (story.attempt.url, story.attempt.wait_ms > 0) == (url, True)


def test_waits_grow_and_stay_bounded_until_the_deadline() -> None:
    """Rounds are spaced further and further apart, never beyond the limit, and the deadline ends them."""
    story = Story(urls=(A,))
    waits = []
    while isinstance(story.step, Attempt):
        waits.append(story.attempt.wait_ms)
        story.refuse(Code.NO_LEADER)
    assert waits[1:] == sorted(waits[1:])
    assert max(waits) <= POLICY.back_off_max_ms
    assert story.now <= DEADLINE
    error = story.error
    assert isinstance(error, Unavailable)
    assert error.code is Code.NO_LEADER
    assert A in str(error)


def test_unreachable_cluster_names_every_url_tried() -> None:
    """The message says where it looked and what it found."""
    routes = Routes((A, B))
    policy = Policy(unreachable_ms=300)
    call, step = core.begin(routes, policy, Safety.ONCE, now_ms=0, deadline_ms=DEADLINE, random=low)
    now = 0
    while isinstance(step, Attempt):
        now += step.wait_ms
        call, step = core.failed(routes, policy, call, Failure.NOT_SENT, "refused", now_ms=now, random=low)
    assert isinstance(step, GiveUp)
    assert isinstance(step.error, Unavailable)
    assert now < 400
    assert set(step.error.tried) == {A, B}
    assert A in str(step.error)
    assert B in str(step.error)


def test_silent_node_costs_one_attempt_not_the_deadline() -> None:
    """A paused leader: the node gets less than the whole deadline, and the next attempt goes elsewhere."""
    story = Story()
    first = story.attempt
    assert first.node_ms == POLICY.attempt_ms
    story.now = first.timeout_ms
    story.fail(Failure.TIMED_OUT)
    assert story.attempt.url != first.url
    assert story.attempt.wait_ms == 0


@pytest.mark.parametrize(
    ("given_url", "normal"),
    [
        ("127.0.0.1:7001", A),
        (" http://127.0.0.1:7001/ ", A),
        ("http://[::1]:7001", "http://[::1]:7001"),
        ("http://h:07001", "http://h:7001"),
    ],
)
def test_urls_are_taken_as_people_write_them(given_url: str, normal: str) -> None:
    """The scheme may be left out, a slash may follow."""
    assert core.normal_url(given_url) == normal


@pytest.mark.parametrize(
    "url", ["", "localhost", "http://localhost", "ftp://a:1", "http://a:0", "a:70000", "a:1/x", "a:x"]
)
def test_an_invalid_url_is_refused_by_name(url: str) -> None:
    """The error repeats the given text."""
    with pytest.raises(ValueError, match=url or "''"):
        core.normal_url(url)


codes = st.sampled_from(
    [
        Code.NO_LEADER,
        Code.BUSY,
        Code.LEADER_LOST,
        Code.TIMEOUT,
        Code.OVERWRITTEN,
        Code.DEADLINE,
        Code.INTERNAL,
        Code.FENCED,
        Code.FUTURE_INDEX,
    ]
)
hints = st.sampled_from([None, A, B, C, "http://127.0.0.1:7777", "nonsense", "http://127.0.0.1:8888"])
answers = st.tuples(codes, hints, st.none() | st.integers(0, 5))
Event = tuple[Code, str | None, int | None] | Failure
events: st.SearchStrategy[list[Event]] = st.lists(answers | st.sampled_from(Failure), min_size=1, max_size=60)


@given(events, st.sampled_from(Safety), st.booleans(), st.data())
def test_any_row_of_answers_keeps_the_retry_rules(
    happened: list[Event], safety: Safety, bound: bool, data: st.DataObject
) -> None:
    """For any row of answers: no URL twice in a round, each round after the first begins with a wait, no plain write is
    sent after a doubt, the end says unknown exactly when there was a doubt, and it comes by the deadline."""
    draw: Callable[[int, int], int] = lambda least, most: data.draw(st.integers(least, most))  # noqa: E731
    routes = Routes((A, B), bound=bound)
    call, step = core.begin(routes, POLICY, safety, now_ms=0, deadline_ms=2_000, random=draw)
    now, doubt, round_urls = 0, False, list[str]()
    for event in happened:
        if not isinstance(step, Attempt):
            break
        assert not (safety is Safety.PLAIN and doubt)
        if step.wait_ms:
            round_urls = []
        assert step.url not in round_urls
        round_urls.append(step.url)
        assert not bound or step.url in (A, B)
        now += step.wait_ms
        assert now < 2_000
        if isinstance(event, Failure):
            doubt |= safety is not Safety.FREE and not event.is_unseen
            call, step = core.failed(routes, POLICY, call, event, "why", now_ms=now, random=draw)
        else:
            code, leader, term = event
            doubt |= safety is not Safety.FREE and ERRORS[code].outcome is Outcome.UNKNOWN
            told = problem(code, leader, term)
            call, step = core.refused(routes, POLICY, call, told, now_ms=now, random=draw)
    if isinstance(step, GiveUp):
        assert step.error.outcome is (Outcome.UNKNOWN if doubt else Outcome.NOT_APPLIED)
    assert len(routes.urls) <= 2 + core.URLS_LEARNED_MAX
    assert isinstance(call, ClientCall)


# Sessions.


@given(st.lists(st.tuples(st.sampled_from(["take", "answer", "give up"]), st.integers(0, 30)), max_size=80))
def test_the_book_settles_exactly_the_answered_sequences(moves: list[tuple[str, int]]) -> None:
    """`settled` is the lowest sequence not answered, whatever the order, and the window is never exceeded."""
    book = core.SessionBook(5, window_max=8)
    out: list[int] = []
    done: set[int] = set()
    for move, choice in moves:
        if move == "take":
            if book.has_room:
                out.append(book.take())
            else:
                with pytest.raises(ValueError, match="8 sequences"):
                    book.take()
        elif out:
            sequence = out.pop(choice % len(out))
            if move == "answer":
                book.answer(sequence)
                done.add(sequence)
            else:
                book.give_up(sequence)
        expected = next(number for number in range(1, book.next + 1) if number not in done)
        assert book.settled == expected
        assert book.next - book.settled <= 8
        assert book.is_idle == (not out)


def test_book_stuck_behind_a_doubt_asks_for_a_new_session() -> None:
    """A sequence of unknown outcome keeps its receipt; only when the window is used up does the client move on."""
    book = core.SessionBook(5, window_max=3)
    lost = book.take()
    book.give_up(lost)
    for _ in range(2):
        assert not book.is_stuck
        book.answer(book.take())
    assert book.is_stuck
    book.answer(lost)
    assert (book.is_stuck, book.settled) == (False, 4)
