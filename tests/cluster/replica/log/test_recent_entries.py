"""The newest applied entries in memory: what they are counted for is what they take."""

import gc
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from raftlog.cluster.node.process import GC_THRESHOLDS
from raftlog.cluster.records.entries import log_entry
from raftlog.cluster.replica.log.applier import Recent
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import GENESIS, EntryKind, Mark
from raftlog.statemachine.commands import Limits, Operation, Txn, TxnOperation
from raftlog.statemachine.effects import encode_effects
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.txn import encode_txn

BYTES_MAX = 1 << 20


def puts(number: int) -> Sequence[bytes]:
    """Forty requests in one entry, each a put."""
    return [encode_block([BlockRecord(Operation.PUT, b"key-%08d" % number, b"v" * 32)]) for _ in range(40)]


def transaction(number: int) -> Sequence[bytes]:
    """One request that puts a hundred keys."""
    steps = [TxnOperation(Operation.PUT, b"key-%03d" % place, b"%032d" % number, None, 0) for place in range(100)]
    return [encode_block([BlockRecord(Operation.TXN, None, encode_txn(Txn((), tuple(steps), ())))])]


def applied(machine: StateMachine, recent: Recent, previous: Mark, made: Sequence[bytes]) -> Mark:
    """One entry with these blocks, as a node applies it."""
    entry = seal_entry(
        previous, term=1, kind=EntryKind.COMMANDS, count=len(made), time_ms=1, clock_ms=1, data=b"".join(made)
    )
    effects = machine.apply(log_entry(entry))
    recent.add(entry, effects, len(encode_effects(effects)), entry.index)
    return entry.mark


@pytest.mark.parametrize("blocks", [puts, transaction])
def test_no_collection_of_young_objects_is_long(blocks: Callable[[int], Sequence[bytes]]) -> None:
    """With the thresholds of a node, while a snapshot keeps what else would be given back: a collection walks some
    thousands of objects, a millisecond, though hundreds of thousands come and go."""
    machine, recent, mark = StateMachine(), Recent(8 << 20), GENESIS
    thresholds, walked = gc.get_threshold(), list[int]()

    def look(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            walked.append(len(gc.get_objects(generation=0)))

    gc.collect()
    gc.callbacks.append(look)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with machine.snapshot() as walk:
            next(walk)
            for number in range(1_500):
                mark = applied(machine, recent, mark, blocks(number))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(look)
    assert len(walked) > 5
    assert max(walked) < 20_000


@pytest.mark.parametrize("blocks", [puts, transaction])
def test_recent_entries_take_about_their_counted_bytes(blocks: Callable[[int], Sequence[bytes]]) -> None:
    """Small writes leave far more objects than bytes, so objects are counted too. The bound then holds (within a half:
    for lists and strings), and no collection of young objects walks hundreds of thousands of them.
    """
    machine, recent = StateMachine(Limits(history_revisions_max=1)), Recent(BYTES_MAX)
    mark = GENESIS
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(100):
            mark = applied(machine, recent, mark, blocks(number))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert BYTES_MAX // 2 < recent.bytes <= BYTES_MAX
    assert held < 1.5 * BYTES_MAX


def run_of(count: int, *, keep_after: int, bytes_max: int = 1 << 20) -> Recent:
    """Entries of ten records each, whose effects the disk has up to `keep_after`."""
    machine, recent, mark = StateMachine(), Recent(bytes_max), GENESIS
    for _ in range(count):
        block = encode_block([BlockRecord(Operation.APPEND, None, b"v")] * 10, plain=True)
        entry = seal_entry(mark, term=1, kind=EntryKind.COMMANDS, count=10, time_ms=1, clock_ms=1, data=block)
        recent.add(entry, machine.apply(log_entry(entry)), 10, keep_after)
        mark = entry.mark
    return recent


def test_entries_that_the_disk_does_not_have_stay_in_memory() -> None:
    """The effects up to 30 are on disk, and memory is full many times over: a reader from 31 on finds every entry, and
    one from 30 on is sent to the disk."""
    recent = run_of(20, keep_after=30, bytes_max=1)
    found = recent.read(31, 1_000, 1 << 20)
    assert found is not None
    assert [entry.index for entry, _ in found] == list(range(40, 201, 10))
    assert recent.read(30, 1_000, 1 << 20) is None


@pytest.mark.parametrize("missing", [1, 2, 10])
def test_a_reader_of_a_record_that_is_not_in_memory_is_sent_to_the_disk(missing: int) -> None:
    """Memory begins with record 31. However close before it a reader begins, it is not given the entry of 31."""
    recent = run_of(20, keep_after=30, bytes_max=1)
    assert recent.read(31 - missing, 1_000, 1 << 20) is None
