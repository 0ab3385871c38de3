"""What an entry is to the state machine: the same whichever way its blocks are read."""

from __future__ import annotations

import pytest

from raftlog.cluster.records import entries
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import GENESIS, Entry, EntryKind
from raftlog.statemachine.commands import Command, Operation, RequestBlock

PUTS = [BlockRecord(Operation.PUT, b"key", b"value"), BlockRecord(Operation.DELETE, b"key", None, b"headers", -1)]


def entry(data: bytes, count: int) -> Entry:
    """An entry of that data."""
    return seal_entry(GENESIS, term=1, kind=EntryKind.COMMANDS, count=count, time_ms=5, clock_ms=6, data=data)


def test_single_records_are_requests_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way for blocks of one record each gives what blocks and records one after the other give."""
    made = entry(b"".join([encode_block([record]) for record in PUTS]), 2)
    quick = entries.log_entry(made)
    assert quick.requests == (RequestBlock(1, (Command(*PUTS[0]),)), RequestBlock(1, (Command(*PUTS[1]),)))
    assert [type(request) for request in quick.requests] == [RequestBlock, RequestBlock]
    assert [type(request.commands[0]) for request in quick.requests] == [Command, Command]
    monkeypatch.setattr(entries, "single_records", lambda data: None)
    assert entries.log_entry(made) == quick


def test_an_entry_that_names_another_count_is_refused() -> None:
    """Single puts, appends and whatever else: the node must stop, never skip."""
    for block in (
        encode_block([PUTS[0]]),
        encode_block([BlockRecord(1)], plain=True),
        encode_block([PUTS[0]], session=1, sequence=1),
    ):
        with pytest.raises(Corrupt, match="says 2 records, its blocks hold 1"):
            entries.log_entry(entry(block, 2))
