"""Drives a state machine in tests: makes the entries, checks that their effects survive the ledger, keeps them all."""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.statemachine.answers import Answer, answer_of
from raftlog.statemachine.commands import Command, Limits, LogEntry, Operation, RequestBlock, Txn
from raftlog.statemachine.effects import Effects, decode_effects, encode_effects
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.txn import encode_txn


def request(
    operation: int,
    key: bytes | None = None,
    value: bytes | None = None,
    argument: int | None = None,
    *,
    session: int = 0,
    sequence: int = 0,
    settled: int = 0,
    payload_hash: int = 0,
) -> RequestBlock:
    """A request of one command."""
    command = Command(operation, key, value, None, argument)
    return RequestBlock(1, (command,), session, sequence, settled, payload_hash)


def appends(
    count: int = 1, *, session: int = 0, sequence: int = 0, settled: int = 0, payload_hash: int = 0
) -> RequestBlock:
    """A plain request: nothing but appends."""
    return RequestBlock(count, (), session, sequence, settled, payload_hash)


class Driver:
    """A log and the state machine that applies it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.machine = StateMachine(limits)
        self.entries: list[LogEntry] = []
        self.clock_ms = 0

    def entry(
        self, *requests: RequestBlock, parameters: tuple[tuple[str, int], ...] | None = None, version: int = 0
    ) -> Effects:
        """Applies one entry (without requests: a no-op) at the clock of the driver."""
        count = sum(one.count for one in requests) or 1
        entry = LogEntry(
            self.machine.applied_index + count,
            1,
            count,
            1_000 + self.clock_ms,
            self.clock_ms,
            requests,
            parameters,
            version,
        )
        effects = self.machine.apply(entry)
        self.entries.append(entry)
        decoded = decode_effects(encode_effects(effects))
        assert decoded.is_plain == effects.is_plain
        assert [(row.result, row.revision, row.succeeded, len(row.changes)) for row in decoded.requests] == [
            (row.result, row.revision, row.succeeded, len(row.changes)) for row in effects.requests
        ]
        return effects

    def answer(self, one: RequestBlock) -> Answer:
        """Applies one request in an entry of its own; returns the client's answer (for a repetition: the first
        answer).
        """
        effects = self.entry(one)
        last = effects.index
        effect = effects.requests[0] if effects.requests else None
        return answer_of(effect, effects.revision, last - one.count + 1, last)

    def put(self, key: bytes, value: bytes, argument: int | None = None) -> Answer:
        """A put without session."""
        return self.answer(request(Operation.PUT, key, value, argument))

    def delete(self, key: bytes, argument: int | None = None) -> Answer:
        """A delete without session."""
        return self.answer(request(Operation.DELETE, key, None, argument))

    def delete_range(self, start: bytes, end: bytes) -> Answer:
        """A range delete without session."""
        return self.answer(request(Operation.DELETE_RANGE, start, end))

    def txn(self, txn: Txn) -> Answer:
        """A transaction without session."""
        return self.answer(request(Operation.TXN, None, encode_txn(txn)))

    def compact(self, revision: int) -> Answer:
        """A compaction."""
        return self.answer(request(Operation.COMPACT, argument=revision))

    def trim(self, before: int) -> Answer:
        """A trim of the log."""
        return self.answer(request(Operation.TRIM, argument=before))

    def open(self, ttl_ms: int = 10_000) -> int:
        """Opens a session, which must succeed; its id."""
        answer = self.answer(request(Operation.SESSION_OPEN, argument=ttl_ms))
        assert answer.reason is None
        return answer.last

    def replay(self, machine: StateMachine) -> list[Effects]:
        """The effects of all entries on another machine."""
        return [machine.apply(entry) for entry in self.entries]


def snapshot_bytes(machine: StateMachine) -> bytes:
    """All of a snapshot."""
    return b"".join(machine.snapshot())


def keys_of(items: Sequence[tuple[bytes, object]]) -> list[bytes]:
    """The keys of a range."""
    return [key for key, _ in items]
