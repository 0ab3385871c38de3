"""Transactions by etcd's rules: compares first, one revision, no key twice; their bytes; their limits."""

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import (
    GET_OPERATION,
    Compare,
    CompareOperator,
    CompareTarget,
    Limits,
    MalformedCommand,
    Operation,
    Result,
    Txn,
    TxnOperation,
    UnknownCommand,
)
from raftlog.statemachine.txn import decode_txn, encode_txn
from tests.statemachine.driver import Driver, keys_of, request

PUT, DELETE, DELETE_RANGE, GET = Operation.PUT, Operation.DELETE, Operation.DELETE_RANGE, GET_OPERATION
VALUE, VERSION, CREATE, MOD = CompareTarget
EQUAL, NOT_EQUAL, LESS, GREATER = CompareOperator


def then(*steps: TxnOperation) -> Txn:
    """A transaction without compares."""
    return Txn((), steps, ())


def put(key: bytes, value: bytes = b"v") -> TxnOperation:
    """A put as a step."""
    return TxnOperation(PUT, key, value)


operations = st.builds(
    TxnOperation,
    st.sampled_from([int(PUT), int(DELETE), int(DELETE_RANGE), GET]),
    st.binary(max_size=4),
    st.one_of(st.none(), st.binary(max_size=4)),
    st.one_of(st.none(), st.binary(max_size=4)),
    st.integers(0, 9),
)
compares = st.one_of(
    st.builds(
        Compare,
        st.binary(max_size=4),
        st.sampled_from([VERSION, CREATE, MOD]),
        st.sampled_from(CompareOperator),
        st.integers(0, 2**53),
        st.one_of(st.none(), st.binary(max_size=4)),
    ),
    st.builds(
        Compare,
        st.binary(max_size=4),
        st.just(VALUE),
        st.sampled_from(CompareOperator),
        st.binary(max_size=4),
        st.one_of(st.none(), st.binary(max_size=4)),
    ),
)
txns = st.builds(
    Txn,
    st.lists(compares, max_size=3).map(tuple),
    st.lists(operations, max_size=3).map(tuple),
    st.lists(operations, max_size=3).map(tuple),
)


@settings(max_examples=60)
@given(txns)
def test_any_transaction_comes_back(txn: Txn) -> None:
    """Encoding and decoding is the identity."""
    assert decode_txn(encode_txn(txn)) == txn


cuts = st.tuples(txns, st.integers(0, 40)).map(lambda drawn: encode_txn(drawn[0])[: drawn[1]])


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=60), cuts))
def test_noise_is_malformed_or_applies_and_nothing_else(noise: bytes) -> None:
    """Whatever the bytes: they are malformed, unknown, or a transaction, which a machine takes."""
    try:
        txn = decode_txn(noise)
    except (MalformedCommand, UnknownCommand):
        return
    assert Driver().txn(txn).result in (Result.APPLIED, Result.REFUSED)


@settings(max_examples=150)
@given(txns)
def test_any_transaction_is_applied_or_refused_whole(txn: Txn) -> None:
    """Applied: at most one revision more, all changes under it. Refused: nothing changed, as the digest shows."""
    driver = Driver()
    for key in (b"", b"a", b"\x00", b"b", b"\x00\x00"):
        driver.put(key, b"v")
    before = (driver.machine.revision, driver.machine.digest())
    answer = driver.txn(txn)
    if answer.result is Result.REFUSED:
        assert answer.reason is not None
        assert (driver.machine.revision, driver.machine.digest()) == before
    else:
        assert driver.machine.revision - before[0] in (0, 1)
        assert (driver.machine.digest() == before[1]) == (driver.machine.revision == before[0])


def test_compares_see_the_state_before_any_write() -> None:
    """A compare never sees what the same transaction writes."""
    driver = Driver()
    driver.put(b"a", b"1")
    answer = driver.txn(Txn((Compare(b"a", VALUE, EQUAL, b"1"),), (put(b"a", b"2"),), (put(b"a", b"3"),)))
    assert answer.succeeded
    answer = driver.txn(Txn((Compare(b"a", VALUE, EQUAL, b"1"),), (put(b"a", b"4"),), (put(b"a", b"5"),)))
    assert (answer.result, answer.succeeded) == (Result.APPLIED, False)
    version = driver.machine.get(b"a")
    assert version is not None
    assert version.value == b"5"


def test_all_changes_share_one_revision_and_no_change_is_none() -> None:
    """Puts and deletes of a transaction have one mod; one that only reads or deletes nothing makes no revision."""
    driver = Driver()
    driver.put(b"c", b"1")
    answer = driver.txn(then(put(b"a"), put(b"b"), TxnOperation(DELETE, b"c")))
    assert (answer.revision, driver.machine.revision) == (3, 3)
    assert [version.mod for _, version in driver.machine.range(b"", None, 9)[0]] == [3, 3]
    answer = driver.txn(
        then(TxnOperation(GET, b"a"), TxnOperation(DELETE, b"zz"), TxnOperation(DELETE_RANGE, b"x", None, b""))
    )
    assert (answer.revision, driver.machine.revision) == (3, 3)
    assert driver.txn(then()).succeeded


@pytest.mark.parametrize(("target", "operand"), [(VERSION, 0), (CREATE, 0), (MOD, 0)])
def test_a_missing_key_has_version_0(target: CompareTarget, operand: int) -> None:
    """Version, create and mod of a missing key are 0: how "must not exist" is said."""
    driver = Driver()
    assert driver.txn(Txn((Compare(b"a", target, EQUAL, operand),), (), ())).succeeded
    assert driver.txn(Txn((Compare(b"a", target, LESS, 1),), (), ())).succeeded
    driver.put(b"a", b"1")
    assert not driver.txn(Txn((Compare(b"a", target, EQUAL, operand),), (), ())).succeeded
    driver.delete(b"a")
    assert driver.txn(Txn((Compare(b"a", target, EQUAL, operand),), (), ())).succeeded


@pytest.mark.parametrize("operator", CompareOperator)
def test_comparing_the_value_of_a_missing_key_fails_whatever_the_operator(operator: CompareOperator) -> None:
    """etcd's applyCompare: a missing key has no value to compare, so even != is false; the same for an empty range."""
    driver = Driver()
    assert not driver.txn(Txn((Compare(b"a", VALUE, operator, b""),), (), ())).succeeded
    assert not driver.txn(Txn((Compare(b"a", VALUE, operator, b"", b"b"),), (), ())).succeeded


@pytest.mark.parametrize(
    ("operator", "operand", "holds"),
    [
        (EQUAL, b"m", True),
        (NOT_EQUAL, b"m", False),
        (LESS, b"m", False),
        (GREATER, b"m", False),
        (LESS, b"n", True),
        (GREATER, b"l\xff", True),
        (NOT_EQUAL, b"", True),
    ],
)
def test_values_compare_as_bytes(operator: CompareOperator, operand: bytes, holds: bool) -> None:
    """Values are compared byte by byte."""
    driver = Driver()
    driver.put(b"a", b"m")
    assert driver.txn(Txn((Compare(b"a", VALUE, operator, operand),), (), ())).succeeded is holds


def test_a_range_compare_must_hold_for_every_key() -> None:
    """One key that fails is enough; an empty range compares as a missing key."""
    driver = Driver()
    for key in (b"a", b"b", b"c"):
        driver.put(key, b"1")
    driver.put(b"b", b"2")
    assert driver.txn(Txn((Compare(b"a", VERSION, GREATER, 0, b""),), (), ())).succeeded
    assert not driver.txn(Txn((Compare(b"a", VERSION, EQUAL, 1, b""),), (), ())).succeeded
    assert driver.txn(Txn((Compare(b"c", VERSION, EQUAL, 1, b""),), (), ())).succeeded
    assert driver.txn(Txn((Compare(b"x", VERSION, EQUAL, 0, b"y"),), (), ())).succeeded


@pytest.mark.parametrize(
    "steps",
    [
        (put(b"a"), put(b"a")),
        (put(b"a"), TxnOperation(DELETE, b"a")),
        (TxnOperation(DELETE, b"a"), put(b"a")),
        (TxnOperation(DELETE_RANGE, b"", None, b""), put(b"a")),
        (put(b"b"), TxnOperation(DELETE_RANGE, b"a", None, b"c")),
        (put(b"a"), put(b"x"), TxnOperation(DELETE_RANGE, b"w", None, b"")),
    ],
)
def test_a_key_twice_in_a_branch_is_refused(steps: tuple[TxnOperation, ...]) -> None:
    """Put twice, or put and deleted, in either order: refused in whichever branch, taken or not, nothing changed."""
    driver = Driver()
    driver.put(b"a", b"1")
    for txn in (Txn((), steps, ()), Txn((), (), steps)):
        answer = driver.txn(txn)
        assert (answer.result, answer.reason) == (Result.REFUSED, Reason.DUPLICATE_KEY)
    assert driver.machine.revision == 2


@pytest.mark.parametrize(
    "steps",
    [
        (TxnOperation(DELETE, b"a"), TxnOperation(DELETE, b"a")),
        (TxnOperation(DELETE_RANGE, b"", None, b""), TxnOperation(DELETE, b"a")),
        (put(b"c"), TxnOperation(DELETE_RANGE, b"a", None, b"c")),
        (TxnOperation(DELETE_RANGE, b"c\x00", None, b""), put(b"c")),
    ],
)
def test_deletes_may_overlap_and_touch(steps: tuple[TxnOperation, ...]) -> None:
    """As in etcd deletes may overlap each other (the first one counts), and a range ends before its end."""
    driver = Driver()
    driver.put(b"a", b"1")
    answer = driver.txn(then(*steps))
    assert answer.result is Result.APPLIED
    assert sum(step.deleted for step in answer.responses) <= 1


def test_reads_of_a_branch_see_its_own_writes() -> None:
    """A get after a put or delete of the same branch sees it, with its revision to come; one before does not."""
    driver = Driver()
    driver.put(b"a", b"1")
    driver.put(b"b", b"1")
    answer = driver.txn(
        then(
            TxnOperation(GET, b"a"),
            put(b"a", b"2"),
            put(b"c", b"3"),
            TxnOperation(DELETE, b"b"),
            TxnOperation(GET, b"", None, b""),
            TxnOperation(GET, b"b"),
            TxnOperation(GET, b"", None, b"", 1),
        )
    )
    before, _, _, deleted, whole, missing, limited = answer.responses
    assert before.items[0][1].value == b"1"
    assert deleted.deleted == 1
    assert whole.count == 2
    assert whole.items == tuple(driver.machine.range(b"", None, 9)[0])
    assert (missing.count, missing.items) == (0, ())
    assert (limited.count, keys_of(limited.items)) == (2, [b"a"])


def test_effects_carry_every_change_explicitly() -> None:
    """Changes of a transaction are in its effects with key and value, in the order of the steps."""
    driver = Driver()
    driver.put(b"x", b"1")
    effects = driver.entry(
        request(
            Operation.TXN,
            None,
            encode_txn(then(put(b"b", b"2"), TxnOperation(DELETE_RANGE, b"x", None, b""), put(b"a", b"3"))),
        )
    )
    changes = effects.requests[0].changes
    assert [(one.key, one.value, one.prior_index, one.is_delete, one.is_explicit) for one in changes] == [
        (b"b", b"2", 0, False, True),
        (b"x", None, 1, True, True),
        (b"a", b"3", 0, False, True),
    ]


@pytest.mark.parametrize(
    ("txn", "reason"),
    [
        (Txn((), (put(b"a"), put(b"b"), put(b"c"), put(b"d")), ()), Reason.TOO_MANY_OPERATIONS),
        (Txn((), (), (put(b"a"), put(b"b"), put(b"c"), put(b"d"))), Reason.TOO_MANY_OPERATIONS),
        (Txn((Compare(b"a", MOD, EQUAL, 0),) * 4, (), ()), Reason.TOO_MANY_OPERATIONS),
        (Txn((Compare(b"", VERSION, GREATER, 0, b""),), (), ()), Reason.TOO_MANY_KEYS),
        (then(TxnOperation(DELETE_RANGE, b"", None, b"")), Reason.TOO_MANY_KEYS),
        (then(put(b"a"), TxnOperation(GET, b"", None, b"")), Reason.ANSWER_TOO_LARGE),
        (then(put(b"")), Reason.MALFORMED),
        (then(put(b"k" * 4097)), Reason.MALFORMED),
        (then(TxnOperation(PUT, b"a")), Reason.MALFORMED),
        (then(TxnOperation(DELETE, b"a", b"v")), Reason.MALFORMED),
        (then(TxnOperation(DELETE_RANGE, b"a")), Reason.MALFORMED),
        (then(TxnOperation(GET, b"")), Reason.MALFORMED),
        (Txn((Compare(b"", MOD, EQUAL, 0),), (), ()), Reason.MALFORMED),
    ],
)
def test_limits_refuse_by_name_and_change_nothing(txn: Txn, reason: Reason) -> None:
    """Each limit of a transaction has its reason; whatever part had been staged is not there."""
    driver = Driver(Limits(txn_operations_max=3, request_keys_max=4, answer_bytes_max=400))
    for number in range(5):
        driver.put(b"k%d" % number, b"v" * 50)
    before = (driver.machine.revision, driver.machine.digest())
    answer = driver.txn(txn)
    assert (answer.result, answer.reason) == (Result.REFUSED, reason)
    assert (driver.machine.revision, driver.machine.digest()) == before


def test_a_transaction_of_a_later_version_is_not_malformed_but_unknown() -> None:
    """Unknown versions stop the node; only bytes that are no transaction of any version are refused."""
    for later in (b"\x94\x02\x90\x90\x90", b"\x95\x02\x90\x90\x90\x01", b"\xdc\x00\x01\x07"):
        with pytest.raises(UnknownCommand, match="version"):
            decode_txn(later)


@pytest.mark.parametrize(
    "parts",
    [
        7,
        [],
        ["1", [], [], []],
        [1, [], []],
        [1, [[b"a", 9, 1, 1, None]], [], []],
        [1, [[b"a", 1, 9, 1, None]], [], []],
        [1, [["a", 2, 1, 1, None]], [], []],
        [1, [[b"a", 1, 1, 1, None]], [], []],
        [1, [[b"a", 2, 1, b"x", None]], [], []],
        [1, [[b"a", 2, 1, -1, None]], [], []],
        [1, [[b"a", 2, 1, 1, "b"]], [], []],
        [1, [], [[1, b"a", None, None, 0]], []],
        [1, [], [[2, "a", b"v", None, 0]], []],
        [1, [], [[2, b"a", "v", None, 0]], []],
        [1, [], [[2, b"a", b"v", "z", 0]], []],
        [1, [], [], [[2, b"a", b"v", None, -1]]],
    ],
)
def test_other_shapes_and_types_are_malformed(parts: object) -> None:
    """Refused as a whole, and a machine that gets them changes nothing."""
    data = msgpack.packb(parts, use_bin_type=True)
    with pytest.raises(MalformedCommand):
        decode_txn(data)
    driver = Driver()
    answer = driver.answer(request(Operation.TXN, None, data))
    assert (answer.result, answer.reason, driver.machine.revision) == (Result.REFUSED, Reason.MALFORMED, 1)
