"""A restored state machine is the one that was saved, field by field, also where collections and texts are empty."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, settings, strategies as st

from raftlog.statemachine.access.admission import Admission, encode_admission
from raftlog.statemachine.access.commands import HASH_BYTES, AccessAction, AccessCommand, Condition, encode_access
from raftlog.statemachine.access.grants import Grant, Resource, Verb
from raftlog.statemachine.commands import Limits, Operation, RequestBlock, Txn, TxnOperation
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.txn import encode_txn
from tests.statemachine.comparing import NO_STATE, VIEWS, differences, names_of, plain
from tests.statemachine.driver import Driver, appends, request

NAMES = st.sampled_from(["a", "b", "of a", "~", "root"])
ROLES = st.lists(st.sampled_from(["r", "s", "reader", "admin"]), max_size=3, unique=True).map(tuple)
GRANTS = st.sampled_from(
    [
        Grant(Verb.READ, Resource.KEYS),
        Grant(Verb.WRITE, Resource.KEYS, b"a"),
        Grant(Verb.WRITE, Resource.KEYS, b"a", b"b"),
        Grant(Verb.READ, Resource.GROUPS, b"", b"g"),
        Grant(Verb.APPEND, Resource.LOG),
        Grant(Verb.ACCESS, Resource.CLUSTER),
    ]
)
KEYS = st.sampled_from([b"a", b"b", b"\0", b"\xff" * 3])
VALUES = st.sampled_from([b"", b"v", b"v" * 200])
SMALL = st.integers(0, 12)

ACCESS = st.builds(
    AccessCommand,
    st.sampled_from(AccessAction),
    NAMES,
    ROLES,
    st.lists(GRANTS, max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from(Condition),
    NAMES,
    st.just(b"h" * HASH_BYTES),
    SMALL,
    st.sampled_from(["", "for what"]),
).map(lambda command: request(Operation.ACCESS, None, encode_access(command)))
CONSUMER = st.builds(
    lambda name, command: request(Operation.CONSUMER, name, encode_consumer(command)),
    st.sampled_from([b"g", b"h", "ü".encode()]),
    st.builds(ConsumerCommand, st.sampled_from(ConsumerAction), st.just(0), SMALL, st.sampled_from([b"", b"host"])),
)
STORED = st.one_of(
    st.builds(lambda key, value: request(Operation.PUT, key, value), KEYS, VALUES),
    st.builds(lambda key: request(Operation.DELETE, key), KEYS),
    st.builds(lambda end: request(Operation.DELETE_RANGE, b"a", end), st.sampled_from([b"", b"b"])),
    st.builds(
        lambda key, other, value: request(
            Operation.TXN,
            None,
            encode_txn(Txn((), (TxnOperation(Operation.PUT, key, value), TxnOperation(Operation.DELETE, other)), ())),
        ),
        KEYS,
        KEYS,
        VALUES,
    ),
    st.builds(lambda at: request(Operation.COMPACT, argument=at), SMALL),
    st.builds(lambda at: request(Operation.TRIM, argument=at), SMALL),
    st.just(request(Operation.DIGEST_POINT)),
)
OPEN = st.integers(900, 3_000).map(lambda ttl: request(Operation.SESSION_OPEN, argument=ttl))
Step = Callable[[Driver], RequestBlock]


@st.composite
def of_sessions(draw: st.DrawFn) -> Step:
    """A request of a session that was opened, or its keep-alive, its end, or a void."""
    place, sequence, back = draw(SMALL), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    what, key, value = draw(st.sampled_from(["append", "put", "alive", "close", "void"])), draw(KEYS), draw(VALUES)

    def step(driver: Driver) -> RequestBlock:
        known = list(driver.machine._sessions._sessions) or [1]
        session, settled = known[place % len(known)], max(0, sequence - back)
        match what:
            case "append":
                return appends(session=session, sequence=sequence, settled=settled, payload_hash=back)
            case "put":
                return request(Operation.PUT, key, value, session=session, sequence=sequence, settled=settled)
            case "void":
                return request(Operation.VOID, argument=sequence, session=session, settled=settled)
        operation = Operation.SESSION_KEEPALIVE if what == "alive" else Operation.SESSION_CLOSE
        return request(operation, argument=session)

    return step


def same(one: RequestBlock) -> Step:
    """A request that is the same whatever the state is."""
    return lambda _: one


STEPS = st.lists(
    st.tuples(
        st.one_of(st.one_of(ACCESS, ACCESS, CONSUMER, STORED, STORED, OPEN).map(same), of_sessions(), of_sessions()),
        st.sampled_from(["root", "root", "a", "jwt:a"]),
        st.integers(0, 700),
    ),
    max_size=40,
)
LIMITS = Limits(
    history_revisions_max=6, sessions_max=4, session_window_max=3, digests_kept=5, session_answers_bytes_max=600
)
HASH = b"h" * HASH_BYTES
INIT = request(
    Operation.ACCESS, None, encode_access(AccessCommand(AccessAction.INIT, "root", token="t", token_hash=HASH))
)


def access(action: AccessAction, name: str, **more: object) -> Step:
    """A change of permissions."""
    return same(request(Operation.ACCESS, None, encode_access(AccessCommand(action, name, **more))))  # type: ignore[arg-type]


EMPTY: list[tuple[Step, str, int]] = [  # something empty of each kind, and a kept answer
    (same(INIT), "root", 0),
    (access(AccessAction.SET_ROLE, "r"), "root", 0),
    (access(AccessAction.SET_USER, "a"), "root", 0),
    (access(AccessAction.SET_USER, "b", roles=("r", "reader"), is_blocked=True), "root", 0),
    (access(AccessAction.ADD_TOKEN, "a", token="b", token_hash=HASH), "root", 0),
    (same(request(Operation.SESSION_OPEN, argument=2_000)), "jwt:a", 0),
    (lambda driver: appends(session=driver.machine.applied_index, sequence=1, payload_hash=1), "jwt:a", 0),
    (same(request(Operation.PUT, b"a", b"")), "root", 0),
    (same(request(Operation.CONSUMER, b"g", encode_consumer(ConsumerCommand(ConsumerAction.CLAIM)))), "root", 0),
]


def driven(steps: list[tuple[Step, str, int]], is_on: bool) -> Driver:
    """A driver that has applied these requests, each by that principal after so many ms."""
    driver = Driver(LIMITS)
    driver.entry(parameters=(("sessions_max", 3),))
    if is_on:
        driver.entry(INIT)
    for step, name, passed_ms in steps:
        driver.clock_ms += passed_ms
        one, table = step(driver), driver.machine.access
        if table.revision:
            roles = ("admin",) if name.startswith("jwt:") else ()
            one = one._replace(admission=encode_admission(Admission(name, table.revision, roles)))
        driver.entry(one)
    return driver


@settings(max_examples=300)
@given(STEPS, st.booleans())
@example(EMPTY, False)
def test_a_restored_state_is_the_saved_one_field_by_field(steps: list[tuple[Step, str, int]], is_on: bool) -> None:
    """Every field of the machine and of all its tables, with the types of all values: users, roles, tokens, groups,
    sessions with kept answers, keys with history, digests, limits. Then both go on alike."""
    driver = driven(steps, is_on)
    restored = StateMachine.restore(driver.machine.snapshot())
    assert not differences(restored, driver.machine)
    for entry in driver.entries[-3:]:
        index = restored.applied_index + entry.count
        again = entry._replace(index=index, clock_ms=driver.clock_ms + 900, time_ms=9_999)
        assert restored.apply(again) == driver.machine.apply(again)
    assert not differences(restored, driver.machine)


def test_every_exception_is_a_field_and_a_field_that_is_added_is_compared() -> None:
    """The fields that are not compared exist; a change of any other field of the machine or of a table is seen."""
    machine = driven(EMPTY, False).machine
    parts = [machine, machine._store, machine._sessions, machine._digests, machine.consumers, machine.access]
    named = {type(part).__name__: names_of(part) for part in parts}
    for kind, left_out in NO_STATE.items():
        assert set(left_out) <= set(named[kind]), kind
    assert all(name in named[kind] for kind, name in VIEWS)
    for part in parts:
        for name in named[type(part).__name__]:
            if name not in NO_STATE.get(type(part).__name__, {}) and type(getattr(part, name)) in (int, bool):
                before = plain(part)
                setattr(part, name, getattr(part, name) + 1)
                assert plain(part) != before, name
                setattr(part, name, getattr(part, name) - 1)
