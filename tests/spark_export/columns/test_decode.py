"""Decoding all rows at once gives what reading them one by one gives."""

import subprocess
import sys
from itertools import pairwise

import pytest

from raftlog.raft.codec.block import (
    BLOCK_SIZE,
    RECORD_SIZE,
    BlockRecord,
    decode_blocks,
    encode_headers,
    record_positions,
)
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import EntryKind
from raftlog.spark_export.columns.decode import decode, user_records
from raftlog.spark_export.columns.frames import locate
from raftlog.spark_export.columns.records import is_user
from raftlog.spark_export.columns.schema import ARROW, COLUMNS
from raftlog.spark_export.columns.slab import join
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
from tests.spark_export.logs import Log
from tests.support import HANG_S

pytestmark = pytest.mark.usefixtures("shortest_run")


def decoded(*chunks: bytes) -> list[logs.Row]:
    """The rows of chunks that follow one another."""
    rows: list[logs.Row] = decode(locate(join([logs.split(chunk) for chunk in chunks]))).to_pylist()
    return rows


@pytest.mark.parametrize("records_max", [1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_decode_equals_reading_record_by_record(seed: int, records_max: int) -> None:
    """Every kind of entry, operation, flag and effect in random order, with durable marks between the entries and
    without: column-wise and naive reading agree, and null differs from empty.
    """
    log = logs.mixed(seed, 60, records_max=records_max)
    expected = list(logs.naive_rows(log.entries, log.effects))
    assert decoded(log.chunk(marks=seed % 2 == 0, base=seed * 1000)) == expected
    assert [row["index"] for row in expected] == list(range(1, log.last.index + 1))


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_decode_of_entries_of_one_record(seed: int, is_plain: bool) -> None:
    """The same where every entry has one record, which is decoded with the three headers of each taken at once: with
    marks between them and without, from one chunk and from several."""
    log = logs.singles(seed, 50, is_plain=is_plain)
    expected = list(logs.naive_rows(log.entries, log.effects))
    assert decoded(log.chunk(marks=seed % 2 == 0, base=seed * 1000)) == expected
    parts = [log.chunk(a, b, base=77 * b, marks=seed % 3 == 0) for a, b in pairwise([0, 1, 20, 50])]
    assert decoded(*parts) == expected


@pytest.mark.parametrize("seed", range(10))
def test_decode_with_brief_effects(seed: int) -> None:
    """If each entry has one record and no effects have a payload, the first and last effects of a chunk imply all
    others. The result is the same, for one chunk and several, with an entry among them that holds no command, and for
    any kind of block.
    """
    log = logs.singles(seed, 30, is_plain=True)
    log.add(EntryKind.NOOP, b"")
    for number in range(30):
        log.plain([BlockRecord(Operation.APPEND, b"k%02d" % number, b"of one length")], time_ms=logs.START_MS)
    expected = list(logs.naive_rows(log.entries, log.effects))
    assert decoded(log.chunk(brief=True, marks=seed % 2 == 0)) == expected
    parts = [log.chunk(a, b, base=77 * b, brief=True) for a, b in pairwise([0, 3, 20, 31, 61])]
    assert decoded(*parts) == expected
    assert expected[30]["revision"] == 1


def _altered(log: Log, number: int, position: int, bit: int) -> Log:
    """The log with one bit of that entry's data changed, and all sums and the chain right again: a sender that lies."""
    lying = Log(effects=log.effects)
    for place, entry in enumerate(log.entries):
        data = bytearray(entry.data)
        if place == number:
            data[position] ^= 1 << bit
        sealed = seal_entry(
            lying.last,
            term=entry.term,
            kind=entry.kind,
            count=entry.count,
            time_ms=entry.time_ms,
            clock_ms=entry.clock_ms,
            data=bytes(data),
        )
        lying.last = sealed.mark
        lying.entries.append(sealed)
    return lying


@pytest.mark.parametrize("records", [1, 3])
def test_headers_that_lie_are_judged_as_one_by_one(records: int) -> None:
    """Any bit of the block's and the records' headers changed by a sender whose sums are right: the rows are those that
    reading one by one gives, or both refuse."""
    log = Log()
    block = [
        BlockRecord(Operation.APPEND, b"key", b"value %d" % i, encode_headers([("a", b"b")])) for i in range(records)
    ]
    for _ in range(3):
        log.plain(block, session=3, sequence=4, settled=2, time_ms=logs.START_MS)
    body = decode_blocks(log.entries[1].data)[0]
    headers = [BLOCK_SIZE + at + byte for at in record_positions(body) for byte in range(RECORD_SIZE - 4)]
    wide = {
        31,
        39,
        *range(52, 56),
    }  # the upper bytes of 64-bit numbers and times, which Python and Arrow show differently
    refused = 0
    for position in [byte for byte in range(BLOCK_SIZE) if byte not in wide] + headers:
        for bit in range(8):
            lying = _altered(log, 1, position, bit)
            places = logs.split(log.chunk())[1]  # as before: where the sender says that everything is
            segment = b"".join(entry.header + entry.data for entry in lying.entries)
            chunk = logs.raw_chunk(places, segment, b"".join(log.effects), 0, 1, log.last.index + 1)
            try:
                expected = list(logs.naive_rows(lying.entries, lying.effects))
            except ValueError:  # Corrupt, UnknownVersion, and an operation that is none
                refused += 1
                with pytest.raises((Corrupt, UnknownVersion)):
                    decoded(chunk)
                continue
            assert decoded(chunk) == expected, f"bit {bit} of byte {position}"
    assert refused > 100 * records


@pytest.mark.parametrize("per_entry", [1, 1000])
def test_decode_of_plain_appends(per_entry: int) -> None:
    """The common case, with one record per entry and with a thousand."""
    log = logs.appends(3000 // per_entry, per_entry)
    assert decoded(log.chunk()) == list(logs.naive_rows(log.entries, log.effects))


@pytest.mark.parametrize("per_entry", [1, 7])
@pytest.mark.parametrize("odd", [None, 0, 9, 27])
@pytest.mark.parametrize(("key", "value"), [(5, 30), (5, 0), (0, 30), (1, 1)])
def test_decode_of_keys_and_values_of_one_length(key: int, value: int, odd: int | None, per_entry: int) -> None:
    """All of one length, which are copied out another way, and all but one key or value, which are not; the last one
    ends with the segment."""
    log = Log()
    records = [
        BlockRecord(
            Operation.APPEND,
            bytes([number + 1]) * (key + (number == odd)),
            bytes([number + 101]) * (value + (number in (odd, 14))),
        )
        for number in range(28)
    ]
    for begin in range(0, len(records), per_entry):
        log.plain(records[begin : begin + per_entry])
    expected = list(logs.naive_rows(log.entries, log.effects))
    assert decoded(log.chunk()) == expected
    assert decoded(log.chunk(0, 14 // per_entry), log.chunk(14 // per_entry, 28 // per_entry, base=99)) == expected
    first = 15 // per_entry + 1  # behind the odd value
    assert decoded(log.chunk(first)) == expected[first * per_entry :]


@pytest.mark.parametrize("kind", [EntryKind.NOOP, EntryKind.CONFIGURATION, EntryKind.CLOCK])
def test_decode_of_an_entry_without_commands(kind: EntryKind) -> None:
    """A chunk may hold nothing but a no-op, a configuration or a clock entry."""
    log = Log()
    log.add(kind, b"configuration" if kind is EntryKind.CONFIGURATION else b"")
    assert decoded(log.chunk()) == list(logs.naive_rows(log.entries, log.effects))


def test_chunks_are_joined_whatever_their_base() -> None:
    """Chunks of several segments decode as one, positions moved, and each chunk may begin anywhere in its segment."""
    log = logs.mixed(3, 40, records_max=3)
    cuts = [0, 1, 7, 8, 30, 41]
    chunks = [log.chunk(a, b, base=4096 * a, marks=True) for a, b in pairwise(cuts)]
    assert decoded(*chunks) == list(logs.naive_rows(log.entries, log.effects))


def test_only_requested_columns_are_decoded() -> None:
    """A projection gives these columns in this order, of the schema's types."""
    log = logs.mixed(4, 30)
    frames = locate(join([logs.split(log.chunk())]))
    batch = decode(frames, ("changes", "key", "index"))
    assert batch.schema.names == ["changes", "key", "index"]
    assert all(field.equals(ARROW.field(field.name)) for field in batch.schema)
    for name in COLUMNS:
        batch = decode(frames, (name,))
        batch.validate(full=True)
        assert batch.column(0).to_pylist() == [row[name] for row in logs.naive_rows(log.entries, log.effects)]


@pytest.mark.parametrize("seed", range(4))
def test_event_time_is_the_clients_time_or_else_the_leaders(seed: int) -> None:
    """A time of the block, a time of the record, and none; in logs where each of them occurs."""
    log = logs.mixed(seed, 80, records_max=2)
    rows = [logs.shown(row) for row in logs.naive_rows(log.entries, log.effects)]
    batch = decode(locate(join([logs.split(log.chunk())])), ("event_time", "client_time"))
    assert batch.column(0).to_pylist() == [row["event_time"] for row in rows]
    assert 0 < batch.column(1).null_count < len(rows)


@pytest.mark.parametrize("seed", range(4))
def test_user_records_are_distinguished_from_internal_ones(seed: int) -> None:
    """Only a user's operation that was applied, or whose comparison failed, is a user record."""
    log = logs.mixed(seed, 80, records_max=2)
    expected = [logs.is_user(row) for row in logs.naive_rows(log.entries, log.effects)]
    frames = locate(join([logs.split(log.chunk())]))
    assert user_records(frames).tolist() == expected
    assert is_user(decode(frames)).to_pylist() == expected
    assert any(expected)
    assert not all(expected)


def test_decoding_does_without_pandas() -> None:
    """A reading process does not import pandas, which costs half a second and 40 MB in each of Spark's processes. No
    column of appends without headers needs it, nor does leaving internal records out.
    """
    script = """
import sys
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import EntryKind
from raftlog.spark_export.columns.decode import decode
from raftlog.spark_export.columns.frames import locate
from raftlog.spark_export.fetch.selection import Selection, filtered, selected
from raftlog.spark_export.columns.slab import join
from raftlog.statemachine.commands import Operation
from tests.spark_export import logs
log = logs.appends(50, 1)
for number in range(50):
    key = None if number % 3 else b"k"
    records = [BlockRecord(Operation.APPEND, key, b"v" * number), BlockRecord(Operation.APPEND, b"", None)]
    log.plain(records, session=number % 5)
log.add(EntryKind.NOOP, b"")
frames = locate(join([logs.split(log.chunk())]))
batch = filtered(decode(frames), selected(frames, Selection(with_internal=False)))
assert 0 < len(batch) < frames.count
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)


def test_values_that_look_like_frames() -> None:
    """Values that hold the magic of entries, marks and effects at every alignment are read as values."""
    log = Log()
    for shift in range(9):
        bait = b"x" * shift + b"RLFX" * 12 + b"RLEN" * 12 + b"RLMK" * 12
        log.plain([BlockRecord(Operation.APPEND, bait, bait)])
    mixed = logs.mixed(11, 50)
    assert decoded(log.chunk()) == list(logs.naive_rows(log.entries, log.effects))
    assert decoded(mixed.chunk()) == list(logs.naive_rows(mixed.entries, mixed.effects))
