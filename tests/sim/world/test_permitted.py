"""The naive twin of users and permissions: the smallest breach of each of its rules, beside the right case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.chaos.sim.invariants.clients.exactly_once import ExactlyOnce
from raftlog.chaos.sim.invariants.clients.permitted import PermissionTwin
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import GENESIS, EntryKind
from raftlog.statemachine.access.admission import Admission, encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, encode_access
from raftlog.statemachine.access.grants import parse_grant
from raftlog.statemachine.answers import Answer, Reason, encode_answer
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.effects import Effects, RequestEffect
from tests.sim.world.property_lab import sealed

PUT = BlockRecord(Operation.PUT, b"a", b"v")
OPEN = BlockRecord(Operation.SESSION_OPEN, argument=60_000)
LOST = encode_answer(Answer(Result.REFUSED, 1, 1, 1, reason=Reason.NOT_PERMITTED))
NOW = 9


class Log:
    """Entries of one request each, as the twins of permissions and of sessions see them."""

    def __init__(self) -> None:
        self.permitted, self.once, self.mark = PermissionTwin(), ExactlyOnce(), GENESIS
        self.change(AccessAction.INIT, "root")
        self.change(AccessAction.SET_ROLE, "r", "write on keys:a", "read on log")
        self.change(AccessAction.SET_USER, "ada", roles=("r",))
        self.change(AccessAction.SET_USER, "bob", roles=("r",))

    def change(self, action: AccessAction, name: str = "", *grants: str, roles: tuple[str, ...] = ()) -> None:
        """A change by root."""
        command = AccessCommand(action, name, roles=roles, grants=tuple(map(parse_grant, grants)))
        self.did("root", BlockRecord(Operation.ACCESS, None, encode_access(command)))

    def did(
        self,
        name: str,
        record: BlockRecord,
        result: Result = Result.APPLIED,
        answer: bytes = b"",
        *,
        revision: int = NOW,
        session: int = 0,
        sequence: int = 0,
    ) -> None:
        """A request of that principal, and what became of it. Raises InvariantBroken."""
        admission = encode_admission(Admission(name, revision)) if name else b""
        block = encode_block([record], admission=admission, session=session, sequence=sequence)
        entry = sealed(self.mark, 1, kind=EntryKind.COMMANDS, data=block)
        self.mark = entry.mark
        effects = Effects(entry.index, 1, (RequestEffect(result, 1, answer=answer),))
        self.once.applied(1, entry, effects, self.permitted.applied(1, entry, effects))

    def lost(self, name: str, record: BlockRecord, **more: int) -> None:
        """The same of a request that was refused as not permitted."""
        self.did(name, record, Result.REFUSED, LOST, **more)

    def open(self, name: str) -> int:
        """A session of that principal."""
        self.did(name, OPEN)
        return self.mark.index

    def read(self, key: bytes, *, is_allowed: bool) -> None:
        """A read by ada."""
        self.permitted.read(1, self.mark.index, _ada(), key, is_allowed=is_allowed)

    def shown(self, key: bytes, *, is_shown: bool) -> None:
        """A put of that key in a page for ada."""
        record = BlockRecord(Operation.PUT, key, b"v")
        self.permitted.shown(1, self.mark.index, _ada(), record, is_shown=is_shown)


def _ada() -> bytes:
    return encode_admission(Admission("ada", NOW))


Steps = Callable[[Log], object]


def deleted(log: Log) -> Log:
    """The same log, in which ada is deleted."""
    log.change(AccessAction.DELETE_USER, "ada")
    return log


OTHER = BlockRecord(Operation.PUT, b"a\0", b"v")
BRANCH = BlockRecord(Operation.DELETE_RANGE, b"a", b"b")
CASES: dict[str, tuple[Steps, Steps]] = {
    "applied without the grant": (lambda log: log.did("ada", PUT), lambda log: log.did("ada", OTHER)),
    "refused in spite of the grant": (lambda log: log.lost("ada", OTHER), lambda log: log.lost("ada", PUT)),
    "a range beyond the grant": (lambda log: log.did("root", BRANCH), lambda log: log.did("ada", BRANCH)),
    "an append without the grant": (
        lambda log: log.did("root", BlockRecord(Operation.APPEND, None, b"v")),
        lambda log: log.did("ada", BlockRecord(Operation.APPEND, None, b"v")),
    ),
    "without a principal": (lambda log: log.lost("", PUT), lambda log: log.did("", PUT)),
    "an outdated admission": (lambda log: log.did("ada", PUT), lambda log: log.did("ada", PUT, revision=2)),
    "a blocked user": (
        lambda log: log.did("ada", PUT),
        lambda log: deleted(log).did("ada", PUT),
    ),
    "a read": (lambda log: log.read(b"a", is_allowed=False), lambda log: log.read(b"a", is_allowed=True)),
    "a page": (lambda log: log.shown(b"a", is_shown=False), lambda log: log.shown(b"a", is_shown=True)),
    "a session of somebody else": (
        lambda log: log.did("bob", PUT, Result.EXPIRED, session=log.open("ada"), sequence=1),
        lambda log: log.did("bob", PUT, session=log.open("ada"), sequence=1),
    ),
    "a refused copy of an applied write": (lambda log: twice(log, applied_first=False), lambda log: twice(log)),
}


def twice(log: Log, *, applied_first: bool = True) -> None:
    """A write under a session, its permission taken away, and its copy."""
    session = log.open("ada")
    if applied_first:
        log.did("ada", PUT, session=session, sequence=1)
    log.change(AccessAction.SET_ROLE, "r", "write on keys:b")
    log.lost("ada", PUT, session=session, sequence=1)


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_breach_is_found_and_the_right_case_passes(name: str) -> None:
    """Of each rule."""
    right, wrong = CASES[name]
    right(Log())
    with pytest.raises(InvariantBroken):
        wrong(Log())


def test_a_write_that_was_refused_is_never_applied_later() -> None:
    """The answer was not_applied, so a late copy must be refused as well, although it is permitted by then."""
    log = Log()
    session = log.open("ada")
    log.lost("ada", OTHER, session=session, sequence=1)
    log.change(AccessAction.SET_ROLE, "r", "write on keys:*")
    with pytest.raises(InvariantBroken, match="was decided at"):
        log.did("ada", OTHER, session=session, sequence=1)
