"""Exactly-once as stories: sessions through the state machine, entry by entry."""

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from raftlog.statemachine.answers import Answer, Reason
from raftlog.statemachine.commands import Limits, LogEntry, Operation, RequestBlock, Result, Txn, TxnOperation
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.sessions import ReceiptKind, ReceiptState
from raftlog.statemachine.txn import encode_txn
from tests.statemachine.driver import Driver, appends, request, snapshot_bytes

PUT, VOID = Operation.PUT, Operation.VOID


def put(session: int, sequence: int, key: bytes = b"a", value: bytes = b"v", settled: int = 0) -> RequestBlock:
    """A put under a session; its payload hash is that of its bytes."""
    return request(
        PUT, key, value, session=session, sequence=sequence, settled=settled, payload_hash=len(key) * 1000 + len(value)
    )


def void(session: int, sequence: int | None) -> RequestBlock:
    """Makes a sequence void."""
    return request(VOID, argument=sequence, session=session)


def test_a_session_is_named_after_the_index_of_its_registration() -> None:
    """Its id is the index of the record that opened it, so no id is ever used twice."""
    driver = Driver()
    driver.entry(appends(5))
    assert driver.open() == 6
    assert driver.open() == 7
    assert driver.machine.session_count == 2


def test_pitfall_73_a_retry_is_not_applied_twice() -> None:
    """Guard: `SessionTable.admit` returns the kept answer of a sequence it knows, in another entry or in the same."""
    driver = Driver()
    session = driver.open()
    first = driver.answer(put(session, 1))
    effects = driver.entry(put(session, 1), put(session, 2, b"b"), put(session, 2, b"b"))
    assert [row.result for row in effects.requests] == [Result.REPEATED, Result.APPLIED, Result.REPEATED]
    assert effects.requests[0].first_answer_index == first.last == 2
    assert effects.requests[0].changes == ()
    assert effects.requests[2].first_answer_index == 4
    assert driver.machine.revision == 3
    version = driver.machine.get(b"a")
    assert version is not None
    assert version.version == 1


def test_a_repeated_append_is_not_applied_again_either() -> None:
    """Appends change no key, so their repetition shows only in the effects: it must be there, as a row."""
    driver = Driver()
    session = driver.open()
    once = appends(3, session=session, sequence=1, payload_hash=9)
    assert driver.entry(once).is_plain
    effects = driver.entry(once)
    assert not effects.is_plain
    assert (effects.requests[0].result, effects.requests[0].first_answer_index) == (Result.REPEATED, 4)
    assert driver.answer(once) == Answer(Result.APPLIED, 1, 2, 4)


def test_sequences_come_in_any_order() -> None:
    """A pipelined request that was overtaken is applied when it comes, not taken for a repetition."""
    driver = Driver()
    session = driver.open()
    for sequence in (5, 2, 4, 1, 3):
        assert driver.answer(put(session, sequence, b"k%d" % sequence)).result is Result.APPLIED
    assert driver.machine.revision == 6


def test_pitfall_76_the_answer_of_a_retry_is_the_original_one() -> None:
    """Guard: `SessionTable.keep` stores the answer's bytes, and snapshots carry them: a retry gets the first answer
    (also a failure), although a new decision would be another, on every replica, and after a restore."""
    driver = Driver()
    session = driver.open()
    driver.put(b"a", b"1")
    failed = request(PUT, b"a", b"2", 99, session=session, sequence=1, payload_hash=1)
    txn = encode_txn(Txn((), (TxnOperation(0, b"a"), TxnOperation(PUT, b"b", b"1")), ()))
    read = request(Operation.TXN, None, txn, session=session, sequence=2, payload_hash=2)
    refused = request(PUT, b"", b"2", session=session, sequence=3, payload_hash=3)
    gone = request(Operation.DELETE, b"a", session=session, sequence=4, payload_hash=4)
    originals = [driver.answer(one) for one in (failed, read, refused, gone)]
    assert [one.result for one in originals] == [
        Result.COMPARE_FAILED,
        Result.APPLIED,
        Result.REFUSED,
        Result.APPLIED,
    ]
    assert originals[0].current_mod == 2
    assert originals[1].responses[0].items[0][1].value == b"1"
    for _ in range(99):
        driver.put(b"a", b"later")

    restored = StateMachine.restore(driver.machine.snapshot())
    follower = StateMachine()
    driver.replay(follower)
    for machine in (driver.machine, restored, follower):
        other = Driver()
        other.machine = machine
        assert [other.answer(one) for one in (failed, read, refused, gone)] == originals
        assert machine.receipt(session, 2) == ReceiptState(ReceiptKind.APPLIED, originals[1])


def test_the_same_sequence_with_other_bytes_is_refused() -> None:
    """A sequence is bound to the bytes of its first request; the first answer stays."""
    driver = Driver()
    session = driver.open()
    driver.answer(put(session, 1, b"a", b"v"))
    answer = driver.answer(put(session, 1, b"a", b"other"))
    assert (answer.result, answer.reason) == (Result.REFUSED, Reason.PAYLOAD_DIFFERS)
    assert driver.machine.revision == 2
    effects = driver.entry(put(session, 1, b"a", b"v"))
    assert effects.requests[0].result is Result.REPEATED


def test_settled_answers_are_forgotten_and_refused() -> None:
    """What the client says it has goes; a late copy of it is refused, never applied; the mark never goes back."""
    driver = Driver()
    session = driver.open()
    for sequence in range(1, 6):
        driver.answer(put(session, sequence, b"k%d" % sequence))
    driver.answer(put(session, 6, settled=5))
    assert driver.machine.receipt(session, 4).state is ReceiptKind.SETTLED
    assert driver.machine.receipt(session, 5).state is ReceiptKind.APPLIED
    late = driver.answer(put(session, 4, b"k4"))
    assert (late.result, late.reason) == (Result.REFUSED, Reason.SEQUENCE_SETTLED)
    driver.answer(put(session, 7, settled=2))
    assert driver.machine.receipt(session, 4).state is ReceiptKind.SETTLED


def test_a_settled_mark_far_ahead_costs_no_more_than_the_kept_answers() -> None:
    """A jump of the mark over 2**52 sequences that were never used drops the few that were."""
    driver = Driver()
    session = driver.open()
    for sequence in (1, 2, 3):
        driver.answer(put(session, sequence))
    answer = driver.answer(put(session, 2**52 + 1, b"b", settled=2**52))
    assert answer.result is Result.APPLIED
    assert driver.machine.receipt(session, 3).state is ReceiptKind.SETTLED
    assert driver.machine.receipt(session, 2**52).state is ReceiptKind.NOT_SEEN


@pytest.mark.parametrize(("sequence", "settled"), [(0, 0), (3, 4), (0, 5)])
def test_senseless_sequences_are_malformed(sequence: int, settled: int) -> None:
    """Sequences start at 1. A client cannot have the answer of a request that it is only sending; such a request
    settles nothing.
    """
    driver = Driver()
    session = driver.open()
    driver.answer(put(session, 1))
    answer = driver.answer(put(session, sequence, settled=settled))
    assert (answer.result, answer.reason) == (Result.REFUSED, Reason.MALFORMED)
    assert driver.machine.receipt(session, 1).state is ReceiptKind.APPLIED


def test_a_full_window_refuses_new_sequences_until_some_are_settled() -> None:
    """The window is bounded; the refused sequence is not used up, and repetitions still get their answer."""
    driver = Driver(Limits(session_window_max=3))
    session = driver.open()
    for sequence in (1, 2, 3):
        driver.answer(put(session, sequence, b"k%d" % sequence))
    full = driver.answer(put(session, 4, b"k4"))
    assert (full.result, full.reason) == (Result.REFUSED, Reason.WINDOW_FULL)
    assert driver.answer(put(session, 2, b"k2")).result is Result.APPLIED
    assert driver.answer(void(session, 9)).reason is Reason.WINDOW_FULL
    assert driver.machine.receipt(session, 4).state is ReceiptKind.NOT_SEEN
    assert driver.answer(put(session, 4, b"k4", settled=2)).result is Result.APPLIED


def test_kept_answers_are_bounded_in_bytes() -> None:
    """One session's answers, and those of all, have a limit; what goes out of the window makes room."""
    big = Txn((), (TxnOperation(0, b"big"),), ())

    def read(session: int, sequence: int, settled: int = 0) -> RequestBlock:
        return request(Operation.TXN, None, encode_txn(big), session=session, sequence=sequence, settled=settled)

    driver = Driver(Limits(answer_bytes_max=2_000, session_answers_bytes_max=3_000))
    driver.put(b"big", b"v" * 1_100)
    first, second = driver.open(), driver.open()
    assert driver.answer(read(first, 1)).result is Result.APPLIED
    assert driver.answer(read(first, 2)).result is Result.APPLIED
    assert driver.answer(read(first, 3)).reason is Reason.ANSWERS_FULL
    assert driver.answer(read(second, 1)).result is Result.APPLIED
    assert driver.answer(put(second, 2)).reason is Reason.ANSWERS_FULL
    assert driver.answer(read(first, 3, settled=3)).result is Result.APPLIED
    driver.answer(request(Operation.SESSION_CLOSE, argument=first))
    assert driver.answer(put(second, 2)).result is Result.APPLIED


def test_a_full_table_refuses_new_sessions_and_never_evicts_a_live_one() -> None:
    """The oldest session is as safe as the newest; a place comes free by closing or by time."""
    driver = Driver(Limits(sessions_max=2))
    oldest, other = driver.open(5_000), driver.open(60_000)
    for _ in range(3):
        answer = driver.answer(request(Operation.SESSION_OPEN, argument=5_000))
        assert (answer.result, answer.reason) == (Result.REFUSED, Reason.SESSIONS_FULL)
    assert driver.answer(put(oldest, 1)).result is Result.APPLIED
    driver.answer(request(Operation.SESSION_CLOSE, argument=other))
    assert driver.open(60_000) > other
    driver.clock_ms = 5_000
    assert driver.open() > other
    assert driver.answer(put(oldest, 2)).result is Result.EXPIRED


@pytest.mark.parametrize("ttl_ms", [None, 0, 999, 604_800_001, -5])
def test_a_time_to_live_out_of_range_is_refused(ttl_ms: int | None) -> None:
    """It is neither raised nor lowered silently."""
    driver = Driver()
    answer = driver.answer(request(Operation.SESSION_OPEN, argument=ttl_ms))
    assert (answer.result, answer.reason) == (Result.REFUSED, Reason.BAD_TTL)
    assert driver.machine.session_count == 0


def test_pitfall_74_sessions_expire_by_the_clock_of_the_entries_alone() -> None:
    """Guard: `StateMachine.apply` expires by `entry.clock_ms` before anything else of the entry. The wall clock may
    jump by years; replicas that apply the same entries agree at every index, however their own time passes."""
    driver = Driver()
    session = driver.open(10_000)
    machine, replica = driver.machine, StateMachine()
    driver.replay(replica)
    year_ms = 365 * 24 * 3_600_000
    for clock_ms, time_ms in ((9_999, year_ms), (10_000 + 9_998, 0)):
        index = machine.applied_index + 1
        entry = LogEntry(index, 1, 1, time_ms, clock_ms, (put(session, index),))
        effects = machine.apply(entry)
        assert effects.requests[0].result is Result.APPLIED
        assert replica.apply(entry) == effects
    assert machine.next_expiry_ms == 29_998
    index = machine.applied_index + 1
    at_the_time = LogEntry(index, 1, 1, 0, 29_998, (put(session, index),))
    assert machine.apply(at_the_time).requests[0].result is Result.EXPIRED
    assert machine.session_count == 0
    assert replica.apply(at_the_time).requests[0].result is Result.EXPIRED
    assert snapshot_bytes(machine) == snapshot_bytes(replica)


def test_pitfall_75_an_expired_session_is_never_recreated() -> None:
    """Guard: `SessionTable.admit` answers EXPIRED for every id it does not know, and ids are indexes, so a request of
    a dead session finds neither its own place again nor that of another. Closed and invented ones are the same."""
    driver = Driver()
    session = driver.open(5_000)
    driver.answer(put(session, 1))
    driver.clock_ms = 5_000
    assert driver.answer(put(session, 1)).result is Result.EXPIRED
    assert driver.answer(put(session, 2)).result is Result.EXPIRED
    assert driver.answer(request(Operation.SESSION_KEEPALIVE, argument=session)).result is Result.EXPIRED
    assert driver.answer(void(session, 3)).result is Result.EXPIRED
    later = driver.open()
    driver.answer(request(Operation.SESSION_CLOSE, argument=later))
    assert driver.answer(put(later, 1)).result is Result.EXPIRED
    assert driver.answer(request(Operation.SESSION_CLOSE, argument=later)).result is Result.EXPIRED
    assert driver.answer(put(10**9, 1)).result is Result.EXPIRED
    assert driver.machine.session_count == 0
    assert driver.machine.revision == 2
    assert driver.machine.receipt(session, 1) == ReceiptState(ReceiptKind.EXPIRED)


def test_any_use_of_a_session_keeps_it_alive() -> None:
    """A keepalive, a request, a repetition and a void each restart the time."""
    driver = Driver()
    session = driver.open(10_000)
    calls = [request(Operation.SESSION_KEEPALIVE, argument=session), put(session, 1), put(session, 1), void(session, 2)]
    for place, call in enumerate(calls):
        driver.clock_ms = 9_000 * (place + 1)
        driver.entry(call)
        assert driver.machine.next_expiry_ms == driver.clock_ms + 10_000
    driver.clock_ms += 10_000
    driver.entry()
    assert driver.machine.session_count == 0
    assert driver.machine.next_expiry_ms is None


def test_the_next_expiry_is_the_earliest_of_all() -> None:
    """A session is used, closed or opened: the next due clock is the least of the live ones."""
    driver = Driver()
    early, late = driver.open(5_000), driver.open(50_000)
    assert driver.machine.next_expiry_ms == 5_000
    driver.clock_ms = 4_000
    driver.entry(request(Operation.SESSION_KEEPALIVE, argument=early))
    assert driver.machine.next_expiry_ms == 9_000
    driver.entry(request(Operation.SESSION_CLOSE, argument=early))
    assert driver.machine.next_expiry_ms == 50_000
    for _ in range(200):
        driver.entry(request(Operation.SESSION_CLOSE, argument=driver.open(20_000)))
    assert driver.machine.next_expiry_ms == 50_000
    driver.entry(request(Operation.SESSION_CLOSE, argument=late))
    assert driver.machine.next_expiry_ms is None


def test_void_makes_not_seen_final() -> None:
    """A sequence made void is never applied when it comes late; an applied sequence cannot be made void."""
    driver = Driver()
    session = driver.open()
    driver.answer(put(session, 1))
    assert driver.machine.receipt(session, 2).state is ReceiptKind.NOT_SEEN
    assert driver.answer(void(session, 2)).result is Result.APPLIED
    assert driver.machine.receipt(session, 2) == ReceiptState(ReceiptKind.VOIDED)
    assert driver.answer(put(session, 2, b"b")).result is Result.VOIDED
    assert driver.answer(void(session, 2)).result is Result.APPLIED
    applied = driver.answer(void(session, 1))
    assert (applied.result, applied.reason) == (Result.REFUSED, Reason.SEQUENCE_APPLIED)
    assert driver.machine.get(b"b") is None
    assert driver.answer(put(session, 3, b"c", settled=3)).result is Result.APPLIED
    assert driver.answer(void(session, 2)).reason is Reason.SEQUENCE_SETTLED


@pytest.mark.parametrize(
    "one",
    [
        request(VOID, argument=1),
        request(VOID, argument=0, session=1),
        request(VOID, argument=None, session=1),
        request(VOID, argument=2, session=1, sequence=1),
        request(Operation.SESSION_OPEN, argument=5_000, session=1, sequence=1),
        request(Operation.SESSION_CLOSE, argument=1, session=1, sequence=1),
        request(Operation.SESSION_KEEPALIVE),
        request(Operation.SESSION_CLOSE),
    ],
)
def test_misplaced_session_requests_are_malformed(one: RequestBlock) -> None:
    """A void needs a session and no sequence; open, keepalive and close need no session but name it."""
    driver = Driver()
    assert driver.open() == 1
    answer = driver.answer(one)
    assert (answer.result, answer.reason) == (Result.REFUSED, Reason.MALFORMED)
    assert driver.machine.session_count == 1


class Retries(RuleBasedStateMachine):
    """Clients that lose answers, repeat, overtake themselves and settle: each sequence is applied at most once."""

    @initialize()
    def start(self) -> None:
        """Two sessions, a small window."""
        self.driver = Driver(Limits(session_window_max=6))
        self.sessions = [self.driver.open(), self.driver.open()]
        self.answers: dict[tuple[int, int], Answer] = {}
        self.settled = dict.fromkeys(self.sessions, 1)
        self.voided: list[tuple[int, int]] = []
        self.applied = 0

    @rule(which=st.integers(0, 1), sequence=st.integers(1, 12), ahead=st.integers(0, 2))
    def ask(self, which: int, sequence: int, ahead: int) -> None:
        """A request, new or repeated, with a settled mark at or below it."""
        session = self.sessions[which]
        settled = max(0, sequence - 3 * ahead) if ahead else 0
        effects = self.driver.entry(put(session, sequence, b"k%d-%d" % (session, sequence), settled=settled))
        self.settled[session] = max(self.settled[session], settled)
        effect, place = effects.requests[0], (session, sequence)
        if sequence < self.settled[session]:
            assert effect.result is Result.REFUSED
        elif place in self.voided:
            assert effect.result is Result.VOIDED
        elif place in self.answers:
            assert effect.result is Result.REPEATED
            assert effect.first_answer_index == self.answers[place].last
        elif effect.result is Result.APPLIED:
            self.answers[place] = Answer(Result.APPLIED, effects.revision, effects.index, effects.index)
            self.applied += 1
        else:
            assert effect.result is Result.REFUSED
            assert self.open_of(session) >= 6
        assert self.driver.machine.revision == 1 + self.applied

    def open_of(self, session: int) -> int:
        """Sequences that count against the window."""
        places = [*self.answers, *self.voided]
        return sum(one == session and sequence >= self.settled[session] for one, sequence in places)

    @rule(which=st.integers(0, 1), sequence=st.integers(1, 12))
    def void(self, which: int, sequence: int) -> None:
        """A void of any sequence."""
        session = self.sessions[which]
        result = self.driver.answer(void(session, sequence)).result
        place = (session, sequence)
        if sequence < self.settled[session] or place in self.answers:
            assert result is Result.REFUSED
        elif place not in self.voided:
            assert (result is Result.APPLIED) == (self.open_of(session) < 6)
            if result is Result.APPLIED:
                self.voided.append(place)

    @rule()
    def restore(self) -> None:
        """Failover to a node built from a snapshot."""
        self.driver.machine = StateMachine.restore(self.driver.machine.snapshot())


TestRetries = Retries.TestCase
TestRetries.settings = settings(max_examples=100, stateful_step_count=40)
