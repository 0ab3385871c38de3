"""Measures the rows a second that one core decodes to Arrow columns: entries of one record, and of a thousand.

    python -m bench.spark.decode [--rows N] [--repeat N] [--profile]

Needs neither Spark nor a node nor a socket: chunks made in memory are joined, checked and decoded as a task does it.
The fastest repetition counts, because other load on the machine only adds time.
"""

import argparse
import cProfile
import pstats
import time
from typing import Final

from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.raw import RawHeader
from raftlog.raft.types import Mark
from raftlog.spark_export.columns.decode import decode
from raftlog.spark_export.columns.frames import locate
from raftlog.spark_export.columns.slab import join
from raftlog.spark_export.fetch.reader import SLAB_BYTES
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import Effects, encode_effects

SHAPES: Final = (1, 1000)
CHUNK_BYTES: Final = 1 << 20  # what a node sends at once
VALUE_BYTES: Final = 100

Chunk = tuple[RawHeader, bytes, bytes, bytes]


def chunks_of(rows: int, per_entry: int) -> list[list[Chunk]]:
    """Plain appends of an 11-byte key and a 100-byte value, in chunks, gathered as the reader does it."""
    from raftlog.raft.types import EntryKind

    last = Mark(0, 0, 0)
    gathered: list[list[Chunk]] = [[]]
    rows_bytes, segment, ledger = bytearray(), bytearray(), bytearray()
    first = size = 0
    for number in range(0, rows, per_entry):
        records = [
            BlockRecord(Operation.APPEND, b"key-%07d" % ((number + i) % 9973), bytes([65 + i % 26]) * VALUE_BYTES)
            for i in range(per_entry)
        ]
        data = encode_block(records, plain=True, time_ms=1_700_000_000_000 + number)
        entry = seal_entry(
            last,
            term=1,
            kind=EntryKind.COMMANDS,
            count=per_entry,
            time_ms=1_700_000_000_000 + number,
            clock_ms=number,
            data=data,
        )
        last = entry.mark
        first = first or entry.first
        rows_bytes += index_rows(entry, len(segment))
        segment += entry.header + entry.data
        ledger += encode_effects(Effects(entry.index, 1, (), True))
        if len(segment) >= CHUNK_BYTES or number + per_entry >= rows:
            head = RawHeader(
                len(rows_bytes) // IDX_ROW.size,
                len(segment),
                len(ledger),
                crc32c(bytes(rows_bytes)),
                0,
                first,
                entry.index + 1,
                1,
                rows,
                rows,
            )
            gathered[-1].append((head, bytes(rows_bytes), bytes(segment), bytes(ledger)))
            size += len(segment) + len(ledger)
            if size >= SLAB_BYTES:
                gathered.append([])
                size = 0
            rows_bytes, segment, ledger, first = bytearray(), bytearray(), bytearray(), 0
    return [each for each in gathered if each]


def decoded(slabs: list[list[Chunk]]) -> int:
    """Joins, checks and decodes everything; how many rows came out."""
    rows = 0
    previous: tuple[int, int] | None = None
    for chunks in slabs:
        slab = join(chunks)
        frames = locate(slab, previous)
        previous = (slab.next - 1, int(frames.entry["crc"][-1]))
        rows += decode(frames).num_rows
    return rows


def main() -> None:
    """Prints a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="where the time goes, function by function")
    asked = parser.parse_args()
    for per_entry in SHAPES:
        slabs = chunks_of(asked.rows, per_entry)
        size = sum(len(part) for slab in slabs for chunk in slab for part in chunk[1:])
        spent = []
        for _ in range(asked.repeat):
            began = time.process_time()
            assert decoded(slabs) == asked.rows
            spent.append(time.process_time() - began)
        rate = asked.rows / min(spent)
        print(f"{per_entry:>5} records an entry: {rate / 1e6:5.2f} M rows/s, {size / asked.rows:.0f} bytes a row")
        if asked.profile:
            profile = cProfile.Profile()
            profile.runcall(decoded, slabs)
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
