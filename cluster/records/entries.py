"""Turns an entry of the log into the values of the state machine.

The applier and the simulator call it. No other code joins raft's bytes to the state machine's values. The state machine
recognises a repeated sequence of a session by the hash of the block's body, so equal requests must have equal bytes.
"""

from __future__ import annotations

from typing import Final

import xxhash

from raftlog.raft.codec.block import BLOCK_PLAIN, BLOCK_SESSION, BLOCK_TIME, Block, decode_blocks, decode_records
from raftlog.raft.codec.block_fast import (
    ADMITTED_PLAIN_START,
    ADMITTED_START,
    SINGLE_START,
    Fields,
    admitted_records,
    plain_counts,
    single_records,
)
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.types import GENESIS, Entry, EntryKind
from raftlog.statemachine.commands import INTERNAL_FIRST, Command, LogEntry, RequestBlock, Result, UnknownCommand
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.entries import check_entry
from raftlog.statemachine.snapshot import UnknownSnapshot
from raftlog.statemachine.versions import UnknownClusterVersion

UNKNOWN: Final = (UnknownVersion, UnknownSnapshot, UnknownCommand, UnknownClusterVersion)
"""How an entry of a newer version is met here."""

_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor
_ADMITTED: Final = (ADMITTED_START, ADMITTED_PLAIN_START)
_OUTSIDE: Final = RequestBlock(1, ())[2:]  # the other fields of a request of one record without a session
_PLAIN: Final = RequestBlock(1, ())  # an append of one record without a session: one shared value


def log_entry(entry: Entry) -> LogEntry:
    """The entry for `StateMachine.apply`. Raises Corrupt or UnknownVersion: the node must then stop, never skip."""
    index, count = entry.index, entry.count
    if entry.kind is EntryKind.COMMANDS:
        data = entry.data
        if not data.startswith(SINGLE_START) and (counts := plain_counts(data)) is not None:
            total = sum(counts)
            requests = [_PLAIN if each == 1 else RequestBlock(each, ()) for each in counts]
        elif (singles := single_records(data)) is not None:
            total = len(singles)
            requests = [_new(RequestBlock, (1, (_new(Command, each),), *_OUTSIDE)) for each in singles]
        elif data.startswith(_ADMITTED) and (admitted := admitted_records(data)) is not None:
            total = len(admitted)
            requests = [_admitted(*each) for each in admitted]
        else:
            blocks = decode_blocks(data)
            total = sum([block.count for block in blocks])
            requests = [_request(block) for block in blocks]
        if total != count:
            raise Corrupt(f"entry {index} says {count} records, its blocks hold {total}")
        return LogEntry(index, entry.term, count, entry.time_ms, entry.clock_ms, tuple(requests))
    if entry.kind is not EntryKind.CONFIGURATION:
        return LogEntry(index, entry.term, count, entry.time_ms, entry.clock_ms)
    named = decode_configuration(entry.data)
    return LogEntry(index, entry.term, count, entry.time_ms, entry.clock_ms, (), named.parameters, named.version)


def check_blocks(data: bytes, count: int) -> None:
    """Raises Corrupt unless the state machine can apply these request blocks, of `count` records, as an entry. A leader
    asks before it takes blocks of a peer: every node would end at an entry that it cannot apply."""
    entry = Entry(count, 0, EntryKind.COMMANDS, count, 0, 0, b"", data, 0, 0, GENESIS, 0)
    try:
        check_entry(log_entry(entry), 0, 0, 0)
    except ValueError as error:
        raise Corrupt(f"forward that no node can apply: {error}") from error


def _request(block: Block) -> RequestBlock:
    flags, session = block.flags, (0, 0, 0, 0)
    commands = () if flags & BLOCK_PLAIN else tuple([_new(Command, record) for record in decode_records(block)])
    if flags & BLOCK_SESSION:
        session = (block.session, block.sequence, block.settled, xxhash.xxh64_intdigest(block.body))
    time_ms = block.time_ms if flags & BLOCK_TIME else None
    return RequestBlock(block.count, commands, *session, block.namespace, block.admission, time_ms)


def _admitted(admission: bytes, fields: Fields | None) -> RequestBlock:
    commands = () if fields is None else (_new(Command, fields),)
    return _new(RequestBlock, (1, commands, 0, 0, 0, 0, 0, admission, None))


_USER_RESULTS = (Result.APPLIED, Result.COMPARE_FAILED)


def last_user_index(entry: LogEntry, effects: Effects) -> int | None:
    """Index of the entry's newest user record, or None: a user operation that was applied or whose compare failed."""
    if effects.is_plain:
        return entry.index if entry.requests else None
    end = entry.index
    for request, effect in zip(reversed(entry.requests), reversed(effects.requests), strict=True):
        is_user = not request.commands or request.commands[-1].operation < INTERNAL_FIRST
        if is_user and effect.result in _USER_RESULTS:
            return end
        end -= request.count
    return None
