"""Snapshots: whole, canonical, as of their start while writes go on, and believed only when every check holds."""

import gc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from raftlog.statemachine import snapshot
from raftlog.statemachine.commands import Limits, Operation
from raftlog.statemachine.digest import SetDigest
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.sessions import ReceiptKind
from raftlog.statemachine.snapshot import (
    CHUNK_BYTES_MAX,
    FRAME_SIZE,
    CorruptSnapshot,
    Restorer,
    UnknownSnapshot,
)
from raftlog.statemachine.store_walk import SLICE_BYTES, walk
from tests.statemachine import mixture
from tests.statemachine.driver import Driver, appends, request, snapshot_bytes


def test_pitfall_58_everything_that_apply_looks_at_is_in_the_snapshot() -> None:
    """Guard: the SESSIONS, DIGESTS and HEAD frames of `SnapshotWalk`. Sessions with windows, voids, kept answers and
    expiry, history, limits, clocks and remembered digests come back. Later commands have the same effects and end in
    the same bytes.
    """
    driver = mixture.driven(150)
    restored = StateMachine.restore(driver.machine.snapshot())
    assert snapshot_bytes(restored) == snapshot_bytes(driver.machine)
    assert restored.next_expiry_ms == driver.machine.next_expiry_ms
    assert restored.session_count == driver.machine.session_count > 0
    assert restored.limits == driver.machine.limits
    for index in range(restored.applied_index + 1):
        assert remembered(restored, index) == remembered(driver.machine, index)
    assert remembered(restored, restored.applied_index) == driver.machine.digest()
    longer = mixture.driven(300)
    assert longer.entries[: len(driver.entries)] == driver.entries
    for entry in longer.entries[len(driver.entries) :]:
        assert restored.apply(entry) == driver.machine.apply(entry)
    assert snapshot_bytes(restored) == snapshot_bytes(driver.machine) == snapshot_bytes(longer.machine)


def remembered(machine: StateMachine, index: int) -> SetDigest | str:
    """The digest remembered at an index, or why there is none."""
    try:
        return machine.digest_at(index)
    except LookupError as error:
        return str(error)


def test_equal_states_have_equal_bytes_whatever_way_they_came_about() -> None:
    """One machine was restored again and again, one compacted and not swept, one walked all the time: same bytes."""
    log = mixture.driven(120)
    plain, restored, walked = StateMachine(mixture.LIMITS), StateMachine(mixture.LIMITS), StateMachine(mixture.LIMITS)
    with walked.snapshot() as walk:
        next(walk)
        for place, entry in enumerate(log.entries):
            plain.apply(entry)
            restored.apply(entry)
            walked.apply(entry)
            if place % 10 == 0:
                restored = StateMachine.restore(restored.snapshot())
        assert snapshot_bytes(plain) == snapshot_bytes(restored) == snapshot_bytes(walked)


def test_a_walk_stays_as_of_its_start_while_writes_go_on() -> None:
    """Whatever is applied between two chunks (puts, deletes, new keys, compaction, sessions that move, open, close and
    expire), the chunks are those that would have come at once."""
    limits = Limits(history_revisions_max=2_000, digests_kept=50)
    driver = Driver(limits)
    sessions = [driver.open(50_000) for _ in range(3)]
    for number in range(3_000):
        driver.put(b"k%04d" % (number % 1_500), b"v" * 200)
    for number in range(0, 1_500, 7):
        driver.delete(b"k%04d" % number)
    for sequence in range(1, 40):
        for session in sessions:
            driver.entry(appends(session=session, sequence=sequence, payload_hash=1))
    at_once = list(driver.machine.snapshot())
    assert len(at_once) > 5
    walk = driver.machine.snapshot()
    slices = []
    for number, chunk in enumerate(walk):
        slices.append(chunk)
        driver.clock_ms += 20_000
        for place in range(0, 1_500, 3):
            driver.put(b"k%04d" % place, b"later %d" % number)
        driver.put(b"k0700+%d" % number, b"new")
        driver.delete_range(b"k1400", b"")
        driver.compact(driver.machine.revision - 3)
        driver.entry(request(Operation.SESSION_KEEPALIVE, argument=sessions[1]))
        driver.entry(appends(session=sessions[1], sequence=41, settled=20, payload_hash=1))
        driver.entry(request(Operation.SESSION_OPEN, argument=5_000))
    assert [chunk for chunk in slices if chunk] == at_once
    assert driver.machine.receipt(sessions[0], 1).state is ReceiptKind.EXPIRED
    restored = StateMachine.restore(slices)
    assert restored.receipt(sessions[0], 39).state is ReceiptKind.APPLIED
    assert restored.revision == restored.compacted_revision + 2_000


def test_chunks_are_bounded_and_a_large_value_has_several() -> None:
    """No chunk is longer than CHUNK_BYTES_MAX, also where one value is; cut in any way they give the same state."""
    driver = Driver()
    driver.put(b"large", b"v" * 1_000_000)
    driver.put(b"small", b"v")
    chunks = list(driver.machine.snapshot())
    assert len(chunks) > 8
    assert max(map(len, chunks)) == CHUNK_BYTES_MAX
    data = b"".join(chunks)
    for size in (7_777, len(data)):
        restored = StateMachine.restore(data[place : place + size] for place in range(0, len(data), size))
        assert snapshot_bytes(restored) == data
    restorer = Restorer()
    for chunk in chunks:
        restorer.feed(chunk)
    assert StateMachine.of(restorer.finish()).get(b"large") == driver.machine.get(b"large")


def test_rows_of_a_key_with_large_versions_are_bounded_by_their_bytes() -> None:
    """One step of a walk is work of a moment, and one item is loaded in a moment, however large the versions are."""
    driver = Driver()
    for number in range(20):
        driver.put(b"large", bytes([number]) * SLICE_BYTES)
    rows = [row for rows in walk(driver.machine._store, 1, driver.machine.revision) for row in rows]
    assert [len(records) for _, records in rows] == [1] * 20
    assert StateMachine.restore(driver.machine.snapshot()).get(b"large", 5) == driver.machine.get(b"large", 5)


def test_an_unfinished_walk_lets_go_when_it_is_closed_or_dropped() -> None:
    """It frees its memory after close, at the end, and when no object refers to it any more."""
    driver = Driver(Limits(history_revisions_max=5))

    def held() -> int:
        for _ in range(100):
            driver.put(b"k", b"v")
        return sum(step is not None for step in driver.machine._store.steps)

    assert held() <= 10
    walk = driver.machine.snapshot()
    next(walk)
    assert held() > 100
    walk.close()
    assert held() <= 10
    with pytest.raises(StopIteration):
        next(walk)
    for chunk in driver.machine.snapshot():
        assert chunk
    assert held() <= 10
    driver.machine.snapshot()
    gc.collect()  # walk and generator hold each other
    assert held() <= 10


def test_pitfall_59_the_applied_index_comes_with_the_state() -> None:
    """Guard: HEAD carries the applied index, term and clocks in the same bytes as the state; a restored machine goes on
    exactly behind it."""
    driver = mixture.driven(50)
    walk = driver.machine.snapshot()
    assert (walk.index, walk.term) == (driver.machine.applied_index, 1)
    chunks = [next(walk)]
    driver.entry(appends(100))
    chunks += walk
    restored = StateMachine.restore(chunks)
    assert restored.applied_index == walk.index == driver.machine.applied_index - 100
    restored.apply(driver.entries[-1])
    assert snapshot_bytes(restored) == snapshot_bytes(driver.machine)


SMALL = mixture.driven(40).machine


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_snapshot_raises_and_nothing_else(data: st.DataObject) -> None:
    """One flipped bit anywhere, or a cut, a doubled or a missing frame: CorruptSnapshot or UnknownSnapshot."""
    frames = list(SMALL.snapshot())
    match data.draw(st.sampled_from(["flip", "cut", "double", "drop", "swap"])):
        case "flip":
            place = data.draw(st.integers(0, len(frames) - 1))
            flipped = bytearray(frames[place])
            bit = data.draw(st.integers(0, 8 * len(flipped) - 1))
            flipped[bit // 8] ^= 1 << bit % 8
            frames[place] = bytes(flipped)
        case "cut":
            whole = b"".join(frames)
            frames = [whole[: data.draw(st.integers(0, len(whole) - 1))]]
        case "double":
            place = data.draw(st.integers(0, len(frames) - 1))
            frames.insert(place, frames[place])
        case "drop":
            del frames[data.draw(st.integers(0, len(frames) - 1))]
        case _:
            place = data.draw(st.integers(1, len(frames) - 1))
            frames[place - 1], frames[place] = frames[place], frames[place - 1]
    with pytest.raises((CorruptSnapshot, UnknownSnapshot)):
        StateMachine.restore(frames)


def test_another_version_or_limit_is_unknown_and_named() -> None:
    """A snapshot of a later version is distinguished from damage, with the fix."""
    frames = list(SMALL.snapshot())
    with pytest.raises(UnknownSnapshot, match="version 2: this code knows 1, upgrade"):
        StateMachine.restore([frames[0][:4] + b"\x02" + frames[0][5:]])


def test_bytes_after_the_end_are_refused() -> None:
    """A snapshot ends where it says."""
    with pytest.raises(CorruptSnapshot):
        StateMachine.restore([*SMALL.snapshot(), b"x" * FRAME_SIZE])
    with pytest.raises(CorruptSnapshot, match="cut short"):
        StateMachine.restore([*SMALL.snapshot(), b"x"])


@given(
    st.lists(st.integers(0, 40), max_size=40),
    st.lists(st.integers(0, 12), max_size=10),
)
def test_frames_do_not_depend_on_how_their_items_are_sliced(sizes: list[int], slices: list[int]) -> None:
    """One call packs a slice for which the frame has room, and other slices are packed item by item: the frames are
    those of a walk that gives one item at a time. Limits are small, so that items are longer than a frame, too."""
    rows = [[bytes(size)] for size in sizes]
    sliced, rest = list[list[Any]](), list[Any](rows)
    for length in slices:
        sliced.append(rest[:length])
        rest = rest[length:]
    sliced.append(rest)
    pack = msgpack.Packer(use_bin_type=True).pack
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "PAYLOAD_BYTES_MAX", 32)
        patch.setattr(snapshot, "FRAME_ITEMS_MAX", 5)
        one_by_one = list(snapshot._framed(pack, snapshot.KEYS, ([row] for row in rows)))
        frames = [frame for frame in snapshot._framed(pack, snapshot.KEYS, sliced) if frame]
    assert frames == one_by_one
