"""Draws the requests of simulated clients, encodes them, and interprets their answers in a history.

Values and records are unique, so that each value that is read names the write that made it. There are few
keys, so that clients write to the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from raftlog.cluster.api.errors import ApiError, Code, Problem, make_problem
from raftlog.cluster.protocol.request import RequestResult, code_of
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.answers import Answer, StepAnswer, answer_of
from raftlog.statemachine.commands import (
    GET_OPERATION,
    Compare,
    CompareOperator,
    CompareTarget,
    Operation,
    Result,
    Txn,
    TxnOperation,
)
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.txn import encode_txn

KEYS: Final = ("a", "b", "c")
PREFIX: Final = "@"
"""What every value and record of these clients begins with; others may append too."""

READ: Final = "read"  # linearizable
STALE: Final = "stale"  # of what one node has, at least up to the highest index that the client has seen
WRITE: Final = "write"
CAS: Final = "cas"
APPEND: Final = "append"
CONSUMER: Final = "consumer"

GROUPS: Final = ("g", "h")
"""Consumer groups, few for the same reason. Only some worlds have them: `Tasks.has_groups`."""

_WEIGHTS: Final = (
    (READ, 26),
    (STALE, 8),
    (WRITE, 24),
    ("delete", 3),
    (CAS, 9),
    ("put if", 8),
    ("txn", 6),
    (APPEND, 20),
)
_DRAW: Final = tuple(what for what, weight in _WEIGHTS for _ in range(weight))


@dataclass(frozen=True, slots=True)
class Task:
    """One request of a client. `parts` are its operations in the history: (f, key, value) each."""

    what: str
    parts: tuple[tuple[str, str | None, Any], ...]
    records: tuple[BlockRecord, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether it is answered from a node's state, and not through the log."""
        return not self.records

    def block(self, session: int, sequence: int, settled: int) -> bytes:
        """The request block; equal for equal requests, however often it is sent."""
        return encode_block(
            self.records, session=session, sequence=sequence, settled=settled, plain=self.what == APPEND
        )


class Tasks:
    """Draws what one client does next; remembers what it last saw of each key, for compare and set."""

    def __init__(self, number: int, random: Random, *, has_groups: bool = False) -> None:
        self._name = f"{PREFIX}{number}"
        self._random = random
        self._count = 0
        self.seen: dict[str, tuple[str | None, int]] = {}  # key -> value and mod revision (0: there was none)
        self.has_groups = has_groups
        self.owned: dict[str, tuple[int, int]] = {}  # group -> generation and position in the newest answer
        self.index = 1  # the highest index in any answer

    def _fresh(self) -> str:
        self._count += 1
        return f"{self._name}.{self._count}"

    def draw(self) -> Task:
        random = self._random
        if self.has_groups and random.randrange(6) == 0:
            return self._consume()
        what = _DRAW[random.randrange(len(_DRAW))]
        key = KEYS[random.randrange(len(KEYS))]
        name = key.encode()
        if what in (READ, STALE):
            return Task(what, ((what, key, None),))
        if what == APPEND:
            records = [self._fresh() for _ in range(random.choice((1, 1, 1, 2, 5)))]
            filler = bytes(random.choice((0, 0, 20, 120)))
            rows = tuple(BlockRecord(Operation.APPEND, None, record.encode() + b" " + filler) for record in records)
            return Task(what, ((APPEND, None, records),), rows)
        if what == "delete":
            return Task(what, ((WRITE, key, None),), (BlockRecord(Operation.DELETE, name),))
        value = self._fresh()
        put = BlockRecord(Operation.PUT, name, value.encode())
        before, mod = self.seen.get(key, (None, 0))
        if what == "put if":
            return Task(what, ((CAS, key, [before, value]),), (put._replace(argument=mod),))
        step = TxnOperation(Operation.PUT, name, value.encode())
        if what == CAS and before is not None:
            compare = Compare(name, CompareTarget.VALUE, CompareOperator.EQUAL, before.encode())
            return Task(what, ((CAS, key, [before, value]),), (_txn(Txn((compare,), (step,), ())),))
        if what == "txn":
            other = KEYS[(KEYS.index(key) + 1 + random.randrange(2)) % 3]
            txn = Txn((), (step, TxnOperation(GET_OPERATION, other.encode())), ())
            return Task(what, ((WRITE, key, value), (READ, other, None)), (_txn(txn),))
        return Task(WRITE, ((WRITE, key, value),), (put,))

    def _consume(self) -> Task:
        """Claims a group, or moves one that it claimed before; another client may have fenced it since."""
        random = self._random
        group = GROUPS[random.randrange(len(GROUPS))]
        generation, position = self.owned.get(group, (0, 1))
        somewhere = random.randint(1, self.index)
        what = random.randrange(20)
        if what == 0:
            command = ConsumerCommand(ConsumerAction.DELETE, generation)
        elif what < 3:
            command = ConsumerCommand(ConsumerAction.RESET, generation, somewhere)
        elif what < 6 or not generation:
            command = ConsumerCommand(ConsumerAction.CLAIM, 0, somewhere)
        else:
            ahead = random.randint(position, max(position, self.index)) if what < 18 else somewhere
            command = ConsumerCommand(ConsumerAction.COMMIT, generation, ahead)
        record = BlockRecord(Operation.CONSUMER, group.encode(), None, None, None)
        part = (CONSUMER, group, list(command[:3]))
        return Task(CONSUMER, (part,), (record._replace(value=encode_consumer(command)),))


def _txn(txn: Txn) -> BlockRecord:
    return BlockRecord(Operation.TXN, None, encode_txn(txn))


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """An answer as the history records it: per part of the task value and result; `mod` where it is known."""

    parts: tuple[tuple[Any, Any], ...]
    index: int
    term: int | None
    mod: int | None = None


def answer_to_client(task: Task, applied: RequestResult, node: int, *, has_session: bool) -> ClientAnswer | Problem:
    """What a node's application of the request means to its client (as cluster/http/exchange/outcomes.py has it)."""
    effect = applied.effect
    if effect.result is Result.EXPIRED:
        return problem(Code.SESSION_EXPIRED, node, applied)
    if effect.result is Result.VOIDED:
        return problem(Code.SEQUENCE_VOIDED, node, applied)
    answer = answer_of(effect, effect.revision, applied.first, applied.last)
    if answer.result is Result.COMPARE_FAILED:
        code = Code.COMPARE_FAILED if answer.consumer is None else Code.CONSUMER_FENCED
        return problem(code, node, applied, answer.last)
    if answer.result is not Result.APPLIED:
        return problem(code_of(answer.reason), node, applied, has_session=has_session)
    # the answer to a repetition has the first index and the present term: that term says nothing about the index
    term = None if effect.result is Result.REPEATED else applied.term
    return ClientAnswer(_parts(task, answer), answer.last, term, answer.revision)


def answer_in_receipt(task: Task, answer: Answer) -> ClientAnswer | None:
    """The same from a receipt: what the request was answered, although its client did not hear it. None: it was
    refused."""
    if answer.result is Result.COMPARE_FAILED and answer.consumer is None:
        return ClientAnswer(((None, False),), answer.last, None)
    if answer.result is not Result.APPLIED:
        return None
    return ClientAnswer(_parts(task, answer), answer.last, None, answer.revision)


def _parts(task: Task, answer: Answer) -> tuple[tuple[Any, Any], ...]:
    if task.what == CAS:
        return ((None, answer.succeeded),)
    if task.what == "put if":
        return ((None, True),)
    if task.what == CONSUMER:
        group = answer.consumer
        return ((None if group is None else [group.generation, group.next], None),)
    if task.what == "txn" and len(answer.responses) == 2:
        return ((None, None), (_value_of(answer.responses[1]), None))
    return ((None, None),)


def _value_of(response: StepAnswer) -> str | None:
    return response.items[0][1].value.decode() if response.items else None


def problem(
    code: Code, node: int, applied: RequestResult, index: int | None = None, *, has_session: bool = False
) -> Problem:
    """A problem that the machine's answer stands for; `index` is where it was decided."""
    return make_problem(
        ApiError(code, str(code)),
        node=node,
        request_id="",
        leader=None,
        index=applied.last if index is None else index,
        term=applied.term,
        has_session=has_session,
    )
