"""Checks an entry before any of it is applied: that it follows the one before, and that this code knows all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.statemachine import versions
from raftlog.statemachine.access.commands import decode_access
from raftlog.statemachine.commands import LogEntry, MalformedCommand, Operation, Txn, UnknownCommand
from raftlog.statemachine.consumers import decode_consumer
from raftlog.statemachine.txn import decode_txn, encode_txn

_KNOWN: Final = frozenset(int(operation) for operation in Operation)
_DECODERS: Final[dict[int, Callable[[bytes], object]]] = {
    int(Operation.TXN): decode_txn,
    int(Operation.CONSUMER): decode_consumer,
    int(Operation.ACCESS): decode_access,
}
_KNOWN_TXN: Final = encode_txn(Txn((), (), ()))[:2]
"""So begins a transaction of a known version, which is not decoded twice. No other command begins so."""


class OutOfOrder(ValueError):
    """An entry that does not follow the one applied last: neither a gap nor a repetition is ever passed over."""


class BadEntry(ValueError):
    """An entry whose requests contradict its header."""


def check_entry(entry: LogEntry, applied_index: int, applied_term: int, applied_clock_ms: int) -> bool:
    """Whether every request is plain and without session. Raises OutOfOrder, BadEntry, UnknownCommand or
    UnknownClusterVersion."""
    index, term, count, _, clock_ms, requests, _, version = entry
    if version:
        versions.check(version, index)
    if index - count != applied_index or count < 1:
        raise OutOfOrder(f"entry {index} of {count} records cannot be applied after index {applied_index}")
    if clock_ms < applied_clock_ms or term < applied_term:
        raise OutOfOrder(
            f"entry {index} has clock {clock_ms} and term {term}, the one before {applied_clock_ms} and {applied_term}"
        )
    total, is_plain = 0, True
    for request in requests:
        records, commands = request[0], request[1]
        total += records
        if commands:
            is_plain = False
            if len(commands) != records:
                raise BadEntry(f"entry {index}: a request of {records} records has {len(commands)} commands")
            for command in commands:
                operation = command[0]
                if operation not in _KNOWN:
                    raise UnknownCommand(
                        f"entry {index} has operation {operation}, unknown to this version: upgrade it"
                    )
                if operation in _DECODERS and command[2] and command[2][:2] != _KNOWN_TXN:
                    try:
                        _DECODERS[operation](command[2])
                    except MalformedCommand:
                        pass  # it is refused when its turn comes
        elif request[2]:
            is_plain = False
    if total != count and requests:
        raise BadEntry(f"entry {index} names {count} records, its requests hold {total}")
    return is_plain
