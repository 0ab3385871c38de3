"""Checks an entry before any of it is applied: that it follows the one before, and that this code knows all of it."""

from __future__ import annotations

from typing import Final

from raftlog.statemachine import consumers, versions
from raftlog.statemachine.access import commands as access_commands
from raftlog.statemachine.commands import LogEntry, Operation
from raftlog.statemachine.txn import check_known

_KNOWN: Final = frozenset(int(operation) for operation in Operation)
_TXN: Final = int(Operation.TXN)
_CONSUMER: Final = int(Operation.CONSUMER)
_ACCESS: Final = int(Operation.ACCESS)


class OutOfOrder(ValueError):
    """An entry that does not follow the one applied last: neither a gap nor a repetition is ever passed over."""


class BadEntry(ValueError):
    """An entry whose requests contradict its header."""


class UnknownOperation(ValueError):
    """An operation that this code does not know: upgrade before going on."""


def check_entry(entry: LogEntry, applied_index: int, applied_term: int, applied_clock_ms: int) -> bool:
    """Whether every request is plain and without session. Raises OutOfOrder, BadEntry, UnknownOperation, UnknownTxn,
    UnknownConsumer, UnknownAccess or UnknownClusterVersion."""
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
                    raise UnknownOperation(
                        f"entry {index} has operation {operation}, unknown to this version: upgrade it"
                    )
                if operation == _TXN and command[2]:
                    check_known(command[2])
                elif operation == _CONSUMER and command[2]:
                    consumers.check_known(command[2])
                elif operation == _ACCESS and command[2]:
                    access_commands.check_known(command[2])
        elif request[2]:
            is_plain = False
    if total != count and requests:
        raise BadEntry(f"entry {index} names {count} records, its requests hold {total}")
    return is_plain
