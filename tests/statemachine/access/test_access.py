"""What users, roles and tokens allow at a request's place in the log, and how they change."""

from __future__ import annotations

import msgpack
import pytest

from raftlog.statemachine.access import table
from raftlog.statemachine.access.admission import (
    NODE_ADMISSION,
    Admission,
    CorruptAdmission,
    decode_admission,
    encode_admission,
)
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, Condition, decode_access, encode_access
from raftlog.statemachine.access.grants import Grant, Resource, Verb, parse_grant
from raftlog.statemachine.access.needs import hidden, sees_members, sees_segments
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.access.table import GRANTS_MAX, AccessReason
from raftlog.statemachine.answers import Answer, Reason
from raftlog.statemachine.commands import (
    GET_OPERATION,
    Command,
    Compare,
    CompareOperator,
    CompareTarget,
    MalformedCommand,
    Operation,
    RequestBlock,
    Result,
    Txn,
    TxnOperation,
    UnknownCommand,
)
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.sessions import ReceiptKind
from raftlog.statemachine.txn import encode_txn
from tests.statemachine.driver import Driver, appends, request, snapshot_bytes

HASH = b"h" * 32
CLAIM = encode_consumer(ConsumerCommand(ConsumerAction.CLAIM, 0, 0, b"host"))


class Cluster(Driver):
    """A log with access control: `root` is its admin."""

    def __init__(self) -> None:
        super().__init__()
        assert self.change(AccessAction.INIT, "root", token="t0", token_hash=HASH) is None

    def change(self, action: AccessAction, name: str = "", *, grants: tuple[str, ...] = (), **more: object) -> object:
        """A change by root; its reason if it was refused."""
        command = AccessCommand(action, name, grants=tuple(map(parse_grant, grants)), **more)  # type: ignore[arg-type]
        return self.sent("root", request(Operation.ACCESS, None, encode_access(command))).reason

    def user(self, name: str, *grants: str) -> None:
        """A user with these grants, by a role of its own."""
        assert self.change(AccessAction.SET_ROLE, f"of-{name}", grants=grants) is None
        assert self.change(AccessAction.SET_USER, name, roles=(f"of-{name}",)) is None

    def admission(self, name: str, roles: tuple[str, ...] = ()) -> bytes:
        """As the door makes it now."""
        return encode_admission(self.machine.access.admission(name, roles))

    def sent(self, name: str, one: RequestBlock) -> Answer:
        """Applies a request of that principal, admitted now."""
        return self.answer(one._replace(admission=self.admission(name)))

    def entry(self, *requests: RequestBlock, **more: object) -> object:  # type: ignore[override]
        """As ever; and the state survives a snapshot, byte for byte."""
        effects = super().entry(*requests, **more)  # type: ignore[arg-type]
        before = snapshot_bytes(self.machine)
        assert snapshot_bytes(StateMachine.restore([before])) == before
        return effects


def put(key: bytes, **session: int) -> RequestBlock:
    """A put of that key."""
    return request(Operation.PUT, key, b"v", **session)


def txn(*, compare: bytes = b"a1", then: bytes = b"a2", orelse: bytes = b"a3", read: bytes = b"a4") -> RequestBlock:
    """A transaction that names four keys."""
    return request(
        Operation.TXN,
        None,
        encode_txn(
            Txn(
                (Compare(compare, CompareTarget.VERSION, CompareOperator.EQUAL, 0),),
                (TxnOperation(Operation.PUT, then, b"v"), TxnOperation(GET_OPERATION, read)),
                (TxnOperation(Operation.DELETE_RANGE, orelse, None, orelse + b"\0"),),
            )
        ),
    )


WRITES: list[tuple[RequestBlock, str]] = [
    (put(b"a"), "write on keys:a"),
    (request(Operation.DELETE, b"b"), "write on keys:b"),
    (request(Operation.DELETE_RANGE, b"a", b"c"), "write on keys:a..c"),
    (request(Operation.DELETE_RANGE, b"a", b""), "write on keys:a.."),
    (txn(), "read on keys:a1 write on keys:a2..a4 read on keys:a4"),
    (appends(2), "append on log"),
    (RequestBlock(2, (Command(1, b"a", b"v"), Command(1, b"b", b"v"))), "append on keys:a..b%00"),
    (RequestBlock(2, (Command(1, None, b"v"), Command(1, b"a", b"v"))), "append on log"),
    (request(Operation.CONSUMER, b"g", CLAIM), "write on groups:g"),
    (request(Operation.COMPACT, argument=1), "operate on cluster"),
    (request(Operation.TRIM, argument=1), "operate on cluster"),
    (request(Operation.SESSION_OPEN, argument=5_000), "write on keys:somewhere"),
    (request(Operation.ACCESS, None, encode_access(AccessCommand(AccessAction.SET_ROLE, "r"))), "access on cluster"),
]


@pytest.mark.parametrize(("one", "needed"), WRITES, ids=range(len(WRITES)))
def test_every_write_needs_its_grants_and_each_of_them(one: RequestBlock, needed: str) -> None:
    """With all of them it is applied; without any single one it is refused, and nothing changed."""
    words = needed.split()
    grants = [" ".join(words[place : place + 3]) for place in range(0, len(words), 3)]
    for left_out in (None, *grants):
        cluster = Cluster()
        cluster.user("ada", *(grant for grant in grants if grant != left_out), "read on log")
        before = cluster.machine.digest(), cluster.machine.session_count, cluster.machine.access.revision
        answer = cluster.sent("ada", one)
        if left_out is None:
            assert answer.result is Result.APPLIED
        else:
            assert (answer.result, answer.reason) == (Result.REFUSED, Reason.NOT_PERMITTED)
            assert (cluster.machine.digest(), cluster.machine.session_count, cluster.machine.access.revision) == before


@pytest.mark.parametrize(
    "one",
    [
        txn(compare=b"b"),
        txn(then=b"b"),
        txn(orelse=b"b"),
        txn(read=b"b"),
        request(Operation.DELETE_RANGE, b"a", b"b\0"),
    ],
)
def test_one_key_outside_refuses_the_whole_request(one: RequestBlock) -> None:
    """In a compare, in either branch, in a read, and at the end of a range."""
    cluster = Cluster()
    cluster.user("ada", "read on keys:a*", "write on keys:a*")
    assert cluster.sent("ada", one).reason is Reason.NOT_PERMITTED
    assert cluster.sent("ada", txn()).result is Result.APPLIED


def test_pitfall_87_a_permission_that_was_lost_on_the_way_refuses_the_write() -> None:
    """Admitted, then revoked, then in its place in the log: by a role that shrinks, a user that is blocked, deleted or
    made again, and a token that is revoked, though the user may still write."""
    for action, name, more in (
        (AccessAction.SET_ROLE, "of-ada", {"grants": ("write on keys:b*",)}),
        (AccessAction.SET_USER, "ada", {"roles": ()}),
        (AccessAction.SET_USER, "ada", {"roles": ("of-ada",), "is_blocked": True}),
        (AccessAction.DELETE_USER, "ada", {}),
        (AccessAction.DELETE_TOKEN, "", {"token": "t1"}),
    ):
        cluster = Cluster()
        cluster.user("ada", "write on keys:a*")
        assert cluster.change(AccessAction.ADD_TOKEN, "ada", token="t1", token_hash=HASH) is None
        admitted = cluster.admission("ada")
        assert cluster.answer(put(b"a")._replace(admission=admitted)).result is Result.APPLIED
        assert cluster.change(action, name, **more) is None
        revision = cluster.machine.revision
        assert cluster.answer(put(b"a")._replace(admission=admitted)).reason is Reason.NOT_PERMITTED
        assert cluster.machine.revision == revision
    assert cluster.sent("ada", put(b"a")).result is Result.APPLIED  # another credential of the user, admitted later


def test_pitfall_87_a_copy_of_an_applied_request_keeps_its_answer_and_a_refused_one_its_refusal() -> None:
    """Under a session each copy is answered alike, whatever is revoked or granted in between."""
    cluster = Cluster()
    cluster.user("ada", "write on keys:a*")
    session = cluster.sent("ada", request(Operation.SESSION_OPEN, argument=60_000)).last
    first = cluster.sent("ada", put(b"a", session=session, sequence=1, settled=1))
    assert first.result is Result.APPLIED
    refused = cluster.sent("ada", put(b"b", session=session, sequence=2, settled=1))
    assert refused.reason is Reason.NOT_PERMITTED
    cluster.change(AccessAction.SET_ROLE, "of-ada", grants=("write on keys:b*",))
    assert cluster.sent("ada", put(b"a", session=session, sequence=1, settled=1)) == first
    assert cluster.sent("ada", put(b"b", session=session, sequence=2, settled=1)) == refused
    assert cluster.machine.get(b"b") is None
    assert cluster.sent("ada", put(b"b", session=session, sequence=3, settled=1)).result is Result.APPLIED


def test_a_session_belongs_to_its_principal() -> None:
    """To any other it is one that is not known, which says nothing about earlier copies: request, keepalive, close,
    void and receipt. So is a session from before access control. The end of a user ends its sessions."""
    cluster = Cluster.__new__(Cluster)
    Driver.__init__(cluster)
    older = cluster.open(60_000)
    assert cluster.change(AccessAction.INIT, "root") is None
    cluster.user("ada", "write on keys:*")
    cluster.user("bob", "write on keys:*")
    session = cluster.sent("ada", request(Operation.SESSION_OPEN, argument=60_000)).last
    assert cluster.sent("ada", put(b"a", session=session, sequence=1, settled=1)).result is Result.APPLIED
    for theirs in (session, older):
        for one in (
            put(b"a", session=theirs, sequence=1, settled=1),
            request(Operation.SESSION_KEEPALIVE, argument=theirs),
            request(Operation.SESSION_CLOSE, argument=theirs),
            request(Operation.VOID, argument=9, session=theirs, settled=1),
        ):
            assert cluster.sent("bob", one).result is Result.EXPIRED
        assert cluster.machine.receipt(theirs, 1, "bob").state is ReceiptKind.EXPIRED
    assert cluster.machine.receipt(session, 1, "ada").state is ReceiptKind.APPLIED
    assert cluster.sent("ada", request(Operation.SESSION_KEEPALIVE, argument=session)).result is Result.APPLIED
    assert cluster.change(AccessAction.DELETE_USER, "ada") is None
    assert cluster.machine.receipt(session, 1).state is ReceiptKind.EXPIRED
    assert cluster.machine.session_count == 1


def test_a_user_that_removes_itself_in_its_session_leaves_nothing_behind() -> None:
    """The answer is kept nowhere. Replicas that apply it and one that loads a later snapshot count alike."""
    cluster = Cluster()
    cluster.user("ada")
    cluster.change(AccessAction.SET_USER, "ada", roles=("admin",))
    session = cluster.sent("ada", request(Operation.SESSION_OPEN, argument=60_000)).last
    gone = Command(Operation.ACCESS, None, encode_access(AccessCommand(int(AccessAction.DELETE_USER), "ada")))
    block = RequestBlock(1, (gone,), session, 1, 1, 7)
    assert cluster.sent("ada", block).result is Result.APPLIED
    assert cluster.machine._sessions.answer_bytes == 0
    assert StateMachine.restore(cluster.machine.snapshot())._sessions.answer_bytes == 0


def test_nothing_without_a_principal_is_applied_but_what_nodes_do() -> None:
    """A request without admission, with a broken one, of an unknown name, or one that only sounds like a node's own."""
    cluster = Cluster()
    for admission in (b"", b"\xc1", cluster.admission("nobody"), cluster.admission("raftlog:node"), HASH):
        assert cluster.answer(put(b"a")._replace(admission=admission)).reason is Reason.NOT_PERMITTED
        assert cluster.answer(appends()._replace(admission=admission)).reason is Reason.NOT_PERMITTED
    assert cluster.answer(request(Operation.DIGEST_POINT)).result is Result.APPLIED
    trim = request(Operation.TRIM, argument=1)
    assert cluster.answer(trim).reason is Reason.NOT_PERMITTED
    assert cluster.answer(trim._replace(admission=NODE_ADMISSION)).result is Result.APPLIED
    assert cluster.answer(put(b"a")._replace(admission=NODE_ADMISSION)).reason is Reason.NOT_PERMITTED


def test_an_identity_providers_principal_brings_its_roles_and_can_be_blocked() -> None:
    """Its admission names roles. A user of the same name adds some, or blocks it. No other principal brings roles."""
    cluster = Cluster()
    cluster.user("jwt:eve", "write on keys:e*")
    for name, roles, key, allowed in (
        ("jwt:bob", ("writer",), b"a", True),
        ("jwt:bob", ("reader", "no-such-role"), b"a", False),
        ("jwt:eve", (), b"e", True),
        ("jwt:eve", ("writer",), b"a", True),
        ("root", (), b"a", True),
    ):
        answer = cluster.answer(put(key)._replace(admission=cluster.admission(name, roles)))
        assert (answer.result is Result.APPLIED) == allowed, (name, roles)
    for wrong in (Admission("root", 1, ("admin",)), Admission("root", -1)):
        with pytest.raises(CorruptAdmission):
            decode_admission(encode_admission(wrong))
    assert cluster.change(AccessAction.SET_USER, "jwt:bob", is_blocked=True) is None
    blocked = put(b"a")._replace(admission=cluster.admission("jwt:bob", ("writer",)))
    assert cluster.answer(blocked).reason is Reason.NOT_PERMITTED


def test_a_decision_names_the_missing_grant_and_nothing_of_the_store() -> None:
    """The same for a key that is there and for one that is not; off, everything is allowed."""
    cluster = Cluster()
    cluster.user("ada", "read on keys:a*")
    cluster.sent("root", put(b"b1"))
    known = cluster.machine.access
    for key in (b"b1", b"b2"):
        decision = known.decide(cluster.admission("ada"), Grant(Verb.READ, Resource.KEYS, key, key + b"\0"))
        assert (decision.is_allowed, decision.why, str(decision.missing)) == (
            False,
            AccessReason.MISSING,
            f"read on keys:{key.decode()}",
        )
    assert known.decide(cluster.admission("ada"), parse_grant("read on keys:a5")).is_allowed
    assert known.decide(cluster.admission("nobody"), parse_grant("read on log")).why is AccessReason.NO_USER
    assert cluster.change(AccessAction.DISABLE) is None
    assert known.decide(b"", parse_grant("access on cluster")) == (True, AccessReason.OFF, None, known.revision)
    assert cluster.put(b"a", b"v").result is Result.APPLIED
    assert cluster.change(AccessAction.ENABLE) is None
    assert cluster.put(b"a", b"v").reason is Reason.NOT_PERMITTED


def test_a_change_that_cannot_be_made_is_refused_with_its_reason_and_changes_nothing() -> None:
    """Conditions, names that are not there, built-in roles, roles in use, limits, and the last admin."""
    assert Driver().answer(_change(AccessAction.SET_USER, "ada")).reason is Reason.ACCESS_NOT_SET_UP
    cluster = Cluster()
    cluster.user("ada", "write on keys:*")
    cluster.change(AccessAction.ADD_TOKEN, "ada", token="t1", token_hash=HASH)
    many = tuple(f"read on keys:{number}" for number in range(GRANTS_MAX + 1))
    before = cluster.machine.access.rows()
    for reason, action, name, more in (
        (Reason.ACCESS_SET_UP, AccessAction.INIT, "eve", {}),
        (Reason.USER_EXISTS, AccessAction.SET_USER, "ada", {"condition": Condition.IS_NEW}),
        (Reason.NO_USER, AccessAction.SET_USER, "eve", {"condition": Condition.EXISTS}),
        (Reason.NO_ROLE, AccessAction.SET_USER, "ada", {"roles": ("no-such-role",)}),
        (Reason.NO_USER, AccessAction.DELETE_USER, "eve", {}),
        (Reason.LAST_ADMIN, AccessAction.DELETE_USER, "root", {}),
        (Reason.LAST_ADMIN, AccessAction.SET_USER, "root", {"roles": ("writer",)}),
        (Reason.LAST_ADMIN, AccessAction.SET_USER, "root", {"roles": ("admin",), "is_blocked": True}),
        (Reason.BUILT_IN_ROLE, AccessAction.SET_ROLE, "admin", {}),
        (Reason.BUILT_IN_ROLE, AccessAction.DELETE_ROLE, "reader", {}),
        (Reason.ROLE_EXISTS, AccessAction.SET_ROLE, "of-ada", {"condition": Condition.IS_NEW}),
        (Reason.NO_ROLE, AccessAction.SET_ROLE, "other", {"condition": Condition.EXISTS}),
        (Reason.NO_ROLE, AccessAction.DELETE_ROLE, "other", {}),
        (Reason.NO_ROLE, AccessAction.GRANT_ROLE, "other", {"grants": ("read on log",)}),
        (Reason.NO_ROLE, AccessAction.UNGRANT_ROLE, "other", {"grants": ("read on log",)}),
        (Reason.BUILT_IN_ROLE, AccessAction.GRANT_ROLE, "reader", {"grants": ("append on log",)}),
        (Reason.BUILT_IN_ROLE, AccessAction.UNGRANT_ROLE, "reader", {"grants": ("read on log",)}),
        (Reason.ACCESS_FULL, AccessAction.GRANT_ROLE, "of-ada", {"grants": many}),
        (Reason.STILL_GRANTED, AccessAction.UNGRANT_ROLE, "of-ada", {"grants": ("write on keys:a",)}),
        (Reason.ROLE_IN_USE, AccessAction.DELETE_ROLE, "of-ada", {}),
        (Reason.ACCESS_FULL, AccessAction.SET_ROLE, "other", {"grants": many}),
        (Reason.TOKEN_EXISTS, AccessAction.ADD_TOKEN, "ada", {"token": "t1", "token_hash": HASH}),
        (Reason.NO_USER, AccessAction.ADD_TOKEN, "eve", {"token": "t2", "token_hash": HASH}),
        (Reason.NO_TOKEN, AccessAction.DELETE_TOKEN, "", {"token": "t2"}),
        (Reason.MALFORMED, AccessAction.ADD_TOKEN, "ada", {"token": "t2", "token_hash": b"short"}),
        (Reason.MALFORMED, AccessAction.ADD_TOKEN, "ada", {"token": "", "token_hash": HASH}),
        (Reason.MALFORMED, AccessAction.ADD_TOKEN, "ada", {"token": "t2", "token_hash": HASH, "label": "a\nb"}),
        (Reason.MALFORMED, AccessAction.SET_USER, "", {}),
        (Reason.MALFORMED, AccessAction.SET_USER, " ada", {}),
        (Reason.MALFORMED, AccessAction.SET_USER, "a\nb", {}),
        (Reason.MALFORMED, AccessAction.SET_USER, "x" * 256, {}),
        (Reason.MALFORMED, AccessAction.SET_USER, "Zoë", {}),
        (Reason.MALFORMED, AccessAction.SET_USER, "raftlog:node", {}),
        (Reason.MALFORMED, AccessAction.SET_USER, "eve", {"roles": ("reader", "reader")}),
    ):
        assert cluster.change(action, name, **more) is reason, (action, name)
        assert cluster.machine.access.rows() == before


def test_every_table_of_permissions_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full table refuses new ones, and goes on to alter those that are there."""
    for limit in ("USERS_MAX", "ROLES_MAX", "TOKENS_MAX", "GRANTS_MAX", "ROLES_OF_USER_MAX"):
        monkeypatch.setattr(table, limit, 2)
    cluster = Cluster()
    cluster.user("ada", "read on log")
    assert cluster.change(AccessAction.SET_USER, "bob") is Reason.ACCESS_FULL
    assert cluster.change(AccessAction.SET_USER, "ada", roles=("reader", "writer", "of-ada")) is Reason.MALFORMED
    assert cluster.change(AccessAction.SET_USER, "ada", roles=("reader", "writer")) is None
    assert (
        cluster.change(AccessAction.SET_ROLE, "r2", grants=("read on keys:a", "read on keys:b")) is Reason.ACCESS_FULL
    )
    assert cluster.change(AccessAction.SET_ROLE, "r2", grants=("read on keys:a",)) is None
    assert cluster.change(AccessAction.SET_ROLE, "r3") is Reason.ACCESS_FULL
    assert cluster.change(AccessAction.SET_ROLE, "r2", grants=("read on keys:b",)) is None
    assert cluster.change(AccessAction.DELETE_ROLE, "r2") is None
    assert cluster.change(AccessAction.SET_ROLE, "r3") is None
    assert cluster.change(AccessAction.ADD_TOKEN, "ada", token="t1", token_hash=HASH) is None
    assert cluster.change(AccessAction.ADD_TOKEN, "ada", token="t2", token_hash=HASH) is Reason.ACCESS_FULL


def test_compiled_permissions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Principals with the same roles share them; beyond the bounds they are compiled again, and say the same."""
    monkeypatch.setattr(table, "COMPILED_MAX", 3)
    monkeypatch.setattr(table, "COMPILED_GRANTS_MAX", 7)
    cluster = Cluster()
    known = cluster.machine.access
    grant = parse_grant("read on keys:a")
    found = [known.principal(cluster.admission(f"jwt:{number}", ("reader",))).permissions for number in range(3)]
    assert found[0] is found[1] is found[2]
    for number in range(20):
        roles = ("reader",) * (number % 3) + ("none",) * number
        assert known.decide(cluster.admission(f"jwt:{number}", roles), grant).is_allowed == bool(number % 3)


def _change(action: AccessAction, name: str = "") -> RequestBlock:
    return request(Operation.ACCESS, None, encode_access(AccessCommand(action, name)))


# ---------------------------------------------------------------------------------------------------------------
# What a reader of the log may see.


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        (Command(1, None, b"v"), None),
        (Command(1, b"a", b"v"), None),
        (Command(1, b"b", b"v"), "read on keys:b"),
        (Command(2, b"a/", b"v"), None),
        (Command(2, b"b", b"v"), "read on keys:b"),
        (Command(3, b"b"), "read on keys:b"),
        (Command(4, b"a", b"b"), None),
        (Command(4, b"a", b"b\0"), "read on keys:a..b%00"),
        (txn().commands[0], None),
        (txn(then=b"b").commands[0], "read on keys:b"),
        (txn(orelse=b"b").commands[0], "read on keys:b"),
        (Command(5, None, b"\xc1"), "read on keys:*"),
        (Command(42, b"g1", CLAIM), None),
        (Command(42, b"h", CLAIM), "read on groups:h"),
        (_change(AccessAction.SET_ROLE, "r").commands[0], "access on cluster"),
        (Command(33, argument=5_000), None),
    ],
)
def test_a_record_is_hidden_from_those_who_may_not_read_all_that_it_names(command: Command, lacks: str | None) -> None:
    """The log holds the values of keys: a reader of the log sees of them only what it may read."""
    cluster = Cluster()
    cluster.user("ada", "read on log", "read on keys:a*", "read on groups:g*")
    permissions = cluster.machine.access.principal(cluster.admission("ada")).permissions
    assert permissions is not None
    missing = hidden(permissions, command)
    assert (None if missing is None else str(missing)) == lacks


def test_operators_see_members_and_those_who_also_change_permissions_see_segments() -> None:
    """A segment holds entries as they are, with configurations and changes of permissions."""
    grants = [parse_grant("operate on cluster"), parse_grant("access on cluster")]
    operator, other, both = map(Permissions, (grants[:1], grants[1:], grants))
    assert [sees_members(each) for each in (operator, other, both)] == [True, False, True]
    assert [sees_segments(each) for each in (operator, other, both)] == [False, False, True]


# ---------------------------------------------------------------------------------------------------------------
# Bytes that are wrong.


@pytest.mark.parametrize(
    ("place", "value", "error", "said"),
    [
        (1, -1, MalformedCommand, "action, condition and expiry are"),
        (1, 99, UnknownCommand, "access command with action 99"),
        (6, 9, UnknownCommand, "condition 9: upgrade"),
        (2, 5, MalformedCommand, "names, roles and labels are text"),
        (8, "hash", MalformedCommand, "a hash is bytes"),
        (5, 1, MalformedCommand, "neither true nor false"),
        (4, [[1, 1]], MalformedCommand, "not an access command"),
        (4, [["1", 1, b"", b""]], MalformedCommand, "verbs and resources are numbers"),
        (4, [[1, 1, "a", b""]], MalformedCommand, "a range is bytes"),
        (4, [[99, 1, b"", b""]], UnknownCommand, "a grant of verb 99 on resource 1: upgrade"),
        (4, [[1, 2, b"a", b""]], MalformedCommand, "log has no parts: write read on log"),
    ],
)
def test_each_field_of_a_change_of_permissions_is_checked(
    place: int, value: object, error: type[Exception], said: str
) -> None:
    """What no version writes is malformed, and refused; what a later one may write is unknown, and the node stops."""
    fields = [1, 6, "r", [], [[1, 1, b"a", b"b"]], False, 0, "", b"", 0, "why"]
    assert decode_access(msgpack.packb(fields)).grants == (parse_grant("read on keys:a..b"),)
    fields[place] = value
    with pytest.raises(error, match=said):
        decode_access(msgpack.packb(fields))


def test_a_transaction_that_cannot_be_read_is_refused_for_that() -> None:
    """It needs no grant: its bytes name no key."""
    cluster = Cluster()
    cluster.user("ada")
    assert cluster.sent("ada", request(Operation.TXN, None, b"\xc1")).reason is Reason.MALFORMED


HEAD = [0, True, 1]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0, True, 0]], "never set up"),
        ([HEAD, HEAD], "its head comes first, and once"),
        ([[1, "r", []]], "its head comes first, and once"),
        ([HEAD, [2, "a\nb", [], 1, False]], "is no name"),
        ([HEAD, [3, "t", "eve", HASH, 0, 0, ""]], "token 't' of 'eve'"),
        ([HEAD, [9]], "a row of kind 9"),
    ],
)
def test_rows_of_a_snapshot_that_no_table_gives_are_not_loaded(rows: list[list[object]], said: str) -> None:
    """A replica with other permissions than the others would answer otherwise."""
    loaded = table.AccessTable()
    with pytest.raises((ValueError, TypeError), match=said):
        list(map(loaded.load, rows))


# ---------------------------------------------------------------------------------------------------------------
# Digests, snapshots, and clusters without access control.


def test_replicas_that_differ_in_permissions_are_found_at_the_next_digest_point() -> None:
    """In a role, a user, a token, whether it is on, and in the owner of a session."""
    values = []
    for other in ({}, {"grants": ("read on keys:b*",)}, {"grants": ("write on keys:a*",)}):
        cluster = Cluster()
        cluster.change(AccessAction.SET_ROLE, "r", **other)
        cluster.answer(request(Operation.DIGEST_POINT))
        values.append(cluster.machine.point)
    cluster = Cluster()
    for one in (
        _change(AccessAction.SET_USER, "eve"),
        _change(AccessAction.DISABLE),
        _change(AccessAction.ENABLE),
        request(Operation.SESSION_OPEN, argument=60_000),
    ):
        cluster.sent("root", one)
        cluster.answer(request(Operation.DIGEST_POINT))
        values.append(cluster.machine.point)
    told = [value[1] for value in values if value is not None]
    assert len(dict.fromkeys(told)) == len(values)
