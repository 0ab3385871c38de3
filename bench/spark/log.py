"""Makes the log that Spark reads in the bench: millions of records in entries of one or of a thousand, on a real node.

Over HTTP, a leader packs all waiting records into one entry and syncs each entry: millions of entries of one record
would take hours. So the server's own disk and state machine write the entries to a node's data folder, and then the
node starts on them as after any restart.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.records.entries import log_entry
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry, EntryKind, HardState, Mark
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import encode_effects
from raftlog.statemachine.machine import StateMachine

KEY = b"key-%07d"
"""11 bytes; with a value of 100, a client's time, and index, term and time of the log, a row has about 140."""
VALUES = 997
BATCH_BYTES = 8 << 20  # of entries in one trip to the disk
START_S = 1800.0


def start(folder: Path, records: int, per_entry: int) -> LocalCluster:
    """A cluster of one node that holds so many records; the caller stops it."""
    nodes = LocalCluster(folder, nodes=1)
    asyncio.run(_write(nodes.data(1), records, per_entry))
    nodes.restore(START_S)
    return nodes


async def _write(folder: Path, records: int, per_entry: int) -> None:
    disk, recovered = Disk.open(folder)
    machine = StateMachine()
    try:
        for entry in recovered.tail:
            await disk.write_effects([encode_effects(machine.apply(log_entry(entry)))])
        await disk.carry_out(SyncBatch(HardState(1, 0, recovered.hard_state.boot), None, (), ()))
        for entries in _batches(recovered.last, records, per_entry):
            await disk.carry_out(SyncBatch(None, None, entries, ()))
            await disk.write_effects([encode_effects(machine.apply(log_entry(entry))) for entry in entries])
        await disk.write_mark()
    finally:
        await disk.close()


def _batches(last: Mark, records: int, per_entry: int) -> Iterator[tuple[Entry, ...]]:
    chance = random.Random(5)
    values = [chance.randbytes(100) for _ in range(VALUES)]
    entries: list[Entry] = []
    size = 0
    for first in range(0, records, per_entry):
        count = min(per_entry, records - first)
        time_ms = last.time_ms + 1
        data = encode_block(
            [
                BlockRecord(Operation.APPEND, KEY % number, values[number % VALUES])
                for number in range(first, first + count)
            ],
            time_ms=time_ms,
            plain=True,
        )
        entry = seal_entry(
            last, term=1, kind=EntryKind.COMMANDS, count=count, time_ms=time_ms, clock_ms=last.clock_ms + 1, data=data
        )
        last = entry.mark
        entries.append(entry)
        size += len(data)
        if size >= BATCH_BYTES:
            yield tuple(entries)
            entries, size = [], 0
    if entries:
        yield tuple(entries)
