"""Permissions: no write is applied that was not permitted at its place in the log, and none is refused that was.

A naive twin of users, roles and tokens looks at each entry when it is applied for the first time. It reads the bytes of
commands and admissions by itself, and asks one grant after the other. It keeps its state after each change, so that a
read or a page of the log can be judged as of the index from which a node answered it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack

from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.raft.codec.block import BLOCK_PLAIN, Block, BlockRecord, decode_records
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import Entry, NodeId
from raftlog.statemachine.answers import Reason, decode_answer
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.effects import Effects, RequestEffect
from raftlog.statemachine.txn import decode_txn

PROPERTY = "no write is applied that was not permitted at its place in the log"
SECTION = "decision 23"

READ, WRITE, APPEND, OPERATE, MEMBERS, ACCESS = range(1, 7)
KEYS, LOG, GROUPS, CLUSTER = range(1, 5)
Grant = tuple[int, int, bytes, bytes]
_EVERYTHING: Final[tuple[Grant, ...]] = (
    *((verb, KEYS, b"", b"") for verb in (READ, WRITE, APPEND)),
    *((verb, LOG, b"", b"") for verb in (READ, APPEND)),
    *((verb, GROUPS, b"", b"") for verb in (READ, WRITE)),
    *((verb, CLUSTER, b"", b"") for verb in (OPERATE, MEMBERS, ACCESS)),
)
_BUILT_IN: Final[dict[str, tuple[Grant, ...]]] = {
    "admin": _EVERYTHING,
    "reader": ((READ, KEYS, b"", b""), (READ, LOG, b"", b""), (READ, GROUPS, b"", b"")),
}


@dataclass(frozen=True, slots=True)
class AccessTwin:
    """Users, roles and tokens after some entry; never changed, only replaced."""

    is_on: bool
    revision: int
    users: dict[str, tuple[tuple[str, ...], int, bool]]  # roles, since which revision admissions count, is blocked
    roles: dict[str, tuple[Grant, ...]]
    tokens: dict[str, str]  # public part -> user

    def grants(self, admission: bytes) -> tuple[Grant, ...] | None:
        """Those of the principal; None: it may do nothing."""
        if not admission:
            return None
        revision, name, *roles = msgpack.unpackb(admission)
        if (revision, name) == (0, "raftlog:node"):
            return ((OPERATE, CLUSTER, b"", b""),)
        if name not in self.users:
            return None
        held, since, is_blocked = self.users[name]
        if is_blocked or revision < since:
            return None
        return tuple(grant for role in (*held, *roles) for grant in _BUILT_IN.get(role, ()) + self.roles.get(role, ()))

    def allows(self, admission: bytes, verb: int, resource: int, start: bytes = b"", end: bytes = b"") -> bool:
        """Whether the principal may do this to everything from `start` to below `end`."""
        granted = self.grants(admission)
        if not self.is_on:
            return True
        if granted is None:
            return False
        parts = [(begin, stop) for verb_, resource_, begin, stop in granted if (verb_, resource_) == (verb, resource)]
        if resource in (LOG, CLUSTER):
            return bool(parts)
        at = start
        while True:
            reach = [stop for begin, stop in parts if begin <= at and (not stop or at < stop)]
            if not reach:
                return False
            if b"" in reach or (end and max(reach) >= end):
                return True
            at = max(reach)

    def may_write(self, admission: bytes) -> bool:
        return any(verb in (WRITE, APPEND) for verb, *_ in self.grants(admission) or ())


class PermissionTwin:
    """The twin, as of each change, and the judgement of what nodes did."""

    def __init__(self) -> None:
        self._indexes = [0]
        self._twins = [AccessTwin(False, 0, {}, {}, {})]
        self.gone: dict[str, int] = {}  # token -> index at which it was deleted, or its user
        self.judged = 0  # writes that were permitted or refused while access control was on

    @property
    def now(self) -> AccessTwin:
        return self._twins[-1]

    def at(self, index: int) -> AccessTwin:
        return self._twins[bisect_right(self._indexes, index) - 1]

    def applied(self, node: NodeId, entry: Entry, effects: Effects) -> list[str | None]:
        """An entry was applied for the first time. Returns the principal's name for each request, None while access
        control is off. Raises InvariantBroken."""
        principals: list[str | None] = []
        for last, block, effect in requests_of(entry, effects):
            principals.append(_name(block.admission) if self.now.is_on else None)
            records = tuple(decode_records(block))
            self._judge(node, block, records, last, effect)
            if effect is not None and effect.result is Result.APPLIED and records[0].operation == Operation.ACCESS:
                self._change(last, records[0])
        return principals

    def _judge(
        self, node: NodeId, block: Block, records: tuple[BlockRecord, ...], last: int, effect: RequestEffect | None
    ) -> None:
        result = Result.APPLIED if effect is None else effect.result
        is_refused = result is Result.REFUSED and reason_of(effect) is Reason.NOT_PERMITTED
        if not self.now.is_on:
            is_permitted = True
        elif is_refused or result in (Result.APPLIED, Result.COMPARE_FAILED):
            self.judged += 1
            is_permitted = self._permits(block, records)
        else:
            return  # the session decided it: an answer that is repeated, a session of somebody else
        if is_permitted == is_refused:
            name = _name(block.admission) or "nobody"
            what = ", ".join(f"{Operation(each.operation).name.lower()} {each.key!r}" for each in records)
            does = "refused" if is_refused else result.name.lower()
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what} of {name} at index {last} is {does}: {self.now}")

    def _permits(self, block: Block, records: tuple[BlockRecord, ...]) -> bool:
        twin, admission = self.now, block.admission
        if records[0].operation in (Operation.DIGEST_POINT, Operation.VOID):
            return True  # changes nothing; of its session's owner, as `exactly_once` has it
        if twin.grants(admission) is None:
            return False
        if records[0].operation == Operation.SESSION_OPEN:
            return twin.may_write(admission)
        if twin.allows(admission, APPEND, LOG) and all(each.operation == Operation.APPEND for each in records):
            return True
        if block.flags & BLOCK_PLAIN:
            return False
        return all(twin.allows(admission, *need) for record in records for need in _needs(record))

    def _change(self, last: int, record: BlockRecord) -> None:
        _, action, name, roles, rows, is_blocked, _, token, *_ = msgpack.unpackb(record.value or b"", use_list=False)
        twin = self.now
        revision = twin.revision + 1
        users, tokens, held = dict(twin.users), dict(twin.tokens), dict(twin.roles)
        is_on = twin.is_on
        match action:
            case 1:
                users[name], is_on = (("admin",), revision, False), True
                if token:
                    tokens[token] = name
            case 2 | 3:
                is_on = action == 2
            case 4:
                before = users.get(name)
                is_cut = before is None or (is_blocked and not before[2])
                users[name] = (roles, revision if is_cut or before is None else before[1], is_blocked)
            case 5:
                del users[name]
                self.gone.update({each: last for each, user in tokens.items() if user == name})
                tokens = {each: user for each, user in tokens.items() if user != name}
            case 6:
                held[name] = rows
            case 7:
                del held[name]
            case 8:
                tokens[token] = name
            case _:
                user = tokens.pop(token)
                self.gone[token] = last
                users[user] = (users[user][0], revision, users[user][2])
        self._indexes.append(last)
        self._twins.append(replace(twin, is_on=is_on, revision=revision, users=users, tokens=tokens, roles=held))

    # -- reads -------------------------------------------------------------------------------------------------

    def read(self, node: NodeId, index: int, admission: bytes, key: bytes, *, is_allowed: bool) -> None:
        """A node decided about a linearizable read as of that index. Raises InvariantBroken."""
        if self.at(index).allows(admission, READ, KEYS, key, key + b"\0") != is_allowed:
            what = f"a read of {key!r} by {_name(admission)} is {'allowed' if is_allowed else 'refused'} as of {index}"
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what}: {self.at(index)}")

    def shown(self, node: NodeId, index: int, admission: bytes, record: BlockRecord, *, is_shown: bool) -> None:
        """A node, as of that index, showed a reader of the log a record, or left it out. Raises InvariantBroken."""
        twin = self.at(index)
        needs = [(ACCESS if need[0] == ACCESS else READ, *need[1:]) for need in _needs(record) if need[1] != LOG]
        if record.operation in (Operation.TRIM, Operation.COMPACT):
            needs = []
        elif record.operation == Operation.CONSUMER and twin.allows(admission, OPERATE, CLUSTER):
            needs = []  # status and metrics show an operator all groups
        if all(twin.allows(admission, *need) for need in needs) != is_shown:
            what = f"{Operation(record.operation).name.lower()} {record.key!r}"
            does = "shown to" if is_shown else "hidden from"
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what} is {does} {_name(admission)} as of {index}: {twin}")


def reason_of(effect: RequestEffect | None) -> Reason | None:
    """Why a request was refused, by its answer."""
    return None if effect is None or not effect.answer else decode_answer(effect.answer).reason


def deleted_user(record: BlockRecord) -> str | None:
    """The name of the user that an ACCESS record deletes; None if it does something else."""
    _, action, name, *_ = msgpack.unpackb(record.value or b"")
    return str(name) if action == 5 else None


def _name(admission: bytes) -> str:
    return str(msgpack.unpackb(admission)[1]) if admission else ""


def _needs(record: BlockRecord) -> Iterator[tuple[Any, ...]]:
    key, value = record.key or b"", record.value or b""
    match record.operation:
        case Operation.APPEND:
            yield (APPEND, LOG) if record.key is None else (APPEND, KEYS, key, key + b"\0")
        case Operation.PUT | Operation.DELETE:
            yield (WRITE, KEYS, key, key + b"\0")
        case Operation.DELETE_RANGE:
            yield (WRITE, KEYS, key, value)
        case Operation.TXN:
            txn = decode_txn(value)
            for compare in txn.compare:
                yield (READ, KEYS, compare.key, compare.key + b"\0" if compare.end is None else compare.end)
            for step in (*txn.then, *txn.orelse):
                verb = WRITE if step.operation else READ
                yield (verb, KEYS, step.key, step.key + b"\0" if step.end is None else step.end)
        case Operation.CONSUMER:
            yield (WRITE, GROUPS, key, key + b"\0")
        case Operation.ACCESS:
            yield (ACCESS, CLUSTER)
        case Operation.COMPACT | Operation.TRIM:
            yield (OPERATE, CLUSTER)
