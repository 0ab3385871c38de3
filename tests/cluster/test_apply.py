"""What an entry is to the state machine: the same whichever way its blocks are read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import apply
from raft.codec import Corrupt, Record, encode_block, encode_single, seal_entry
from raft.types import GENESIS, Entry, EntryKind
from statemachine.commands import Command, Operation, Request

PUTS = [Record(Operation.PUT, b"key", b"value"), Record(Operation.DELETE, b"key", None, b"headers", -1)]


def entry(data: bytes, count: int) -> Entry:
    """An entry of that data."""
    return seal_entry(GENESIS, term=1, kind=EntryKind.COMMANDS, count=count, time_ms=5, clock_ms=6, data=data)


def test_single_records_are_requests_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way for blocks of one record each gives what blocks and records one after the other give."""
    made = entry(b"".join([encode_block([record]) for record in PUTS]), 2)
    quick = apply.log_entry(made)
    assert quick.requests == (Request(1, (Command(*PUTS[0]),)), Request(1, (Command(*PUTS[1]),)))
    assert [type(request) for request in quick.requests] == [Request, Request]
    assert [type(request.commands[0]) for request in quick.requests] == [Command, Command]
    monkeypatch.setattr(apply, "single_records", lambda data: None)
    assert apply.log_entry(made) == quick


def test_an_entry_that_names_another_count_is_refused() -> None:
    """Single puts, appends and whatever else: the node must stop, never skip."""
    for block in (
        encode_block([PUTS[0]]), encode_block([Record(1)], plain=True), encode_block([PUTS[0]], session=1, sequence=1)
    ):  # fmt: skip
        with pytest.raises(Corrupt, match="says 2 records, its blocks hold 1"):
            apply.log_entry(entry(block, 2))


@given(key=st.none() | st.binary(max_size=40), value=st.binary(max_size=40), plain=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_single_record_makes_the_block_that_it_always_made(key: bytes | None, value: bytes, plain: bool) -> None:
    """Nobody can tell from the bytes which way an append or a put came."""
    assert encode_single(2, key, value, plain=plain) == encode_block([Record(2, key, value)], plain=plain)
