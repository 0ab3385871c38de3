"""Tests damaged, large and many ledgers: effects are the right ones, built again, or refused."""

from __future__ import annotations

import pytest

from raftlog.cluster.replica.log.log_reader import decode_slice
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry
from raftlog.raft.wal import ledger
from raftlog.raft.wal.formats import FRAME_HEADER_SIZE, SIDE_HEADER_SIZE, ledger_name, peek_frame
from raftlog.raft.wal.recovery import Damaged
from raftlog.statemachine.effects import CorruptEffects, Effects, UnknownEffects, encode_effects
from tests.raft.wal import storage_lab
from tests.raft.wal.storage_lab import Shard, frame_of

LEDGER = ledger_name(1)


def frames(shard: Shard, first: int, last: int) -> bytes:
    """The effects that are found for entries that end from `first` to `last`, in one segment."""
    segment = shard.journal.segment_of(first)
    start, end = shard.ledger.find(shard.files, segment, first, last)
    return shard.files.read(ledger_name(segment.first), start, end - start)


def test_frames_across_the_window_of_a_start_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads a ledger piece by piece. A frame that ends behind a piece, or is larger than one, is not taken for
    the end of the intact part.

    Guard: the second read in `_load` of raft/wal/ledger.py.
    """
    shard = Shard()
    shard.append(*[60] * 6)
    size = len(frame_of(shard.entries[0]))
    whole = shard.files.content()[LEDGER]
    shard.save_snapshot(shard.entries[-1])  # up to it effects count as synced
    for window in (FRAME_HEADER_SIZE, size - 1, size, size + FRAME_HEADER_SIZE, 3 * size - 7, 1 << 20):
        monkeypatch.setattr(ledger, "WINDOW", window)
        opened = shard.open()
        assert (opened.ledger_last, opened.notices) == (7, ()), window
        assert shard.files.content()[LEDGER] == whole
        assert frames(shard, 3, 5) == b"".join([frame_of(entry) for entry in shard.entries[2:5]])


@pytest.mark.parametrize("what", ["head", "payload", "cut short", "index too high", "index again"])
def test_effects_that_are_not_intact_are_cut_with_all_behind_them(what: str) -> None:
    """The rest is right and has no gap; replay builds the cut effects again, and the file is then as before.

    Guard: the checks of a frame in `_load` of raft/wal/ledger.py.
    """
    shard = Shard()
    shard.append(*[60] * 4)
    whole = shard.files.content()[LEDGER]
    size = len(frame_of(shard.entries[0]))
    third = SIDE_HEADER_SIZE + 2 * size
    shard.save_snapshot(shard.entries[-1])
    match what:
        case "head":
            shard.damage(LEDGER, third + 2)
        case "payload":
            shard.damage(LEDGER, third + FRAME_HEADER_SIZE + 3)
        case "cut short":
            shard.cut_short(LEDGER, third + size - 1)
        case "index too high":
            stranger = Shard()
            stranger.append(*[60] * 8)
            shard.damage(LEDGER, third, frame_of(stranger.entries[-1]))
        case _:
            shard.damage(LEDGER, third, frame_of(shard.entries[1]))
    opened = shard.open()
    assert opened.ledger_last == 2
    assert any("behind index 2 are made again by replay" in notice for notice in opened.notices)
    assert shard.files.content()[LEDGER] == whole[:third]
    shard.apply(shard.entries)
    assert shard.files.content()[LEDGER] == whole


def test_a_ledger_without_valid_header_is_rebuilt() -> None:
    """Its header is damaged: nothing in it is believed, and replay from the start of the log makes the same file.

    Guard: `check_side_header` in `_load` of raft/wal/ledger.py.
    """
    shard = Shard()
    shard.append(*[60] * 4)
    whole = shard.files.content()[LEDGER]
    shard.save_snapshot(shard.entries[-1])
    shard.damage(LEDGER, 9)
    opened = shard.open()
    assert (opened.ledger_last, opened.snapshot) == (0, None)
    assert shard.files.content()[LEDGER] == whole[:SIDE_HEADER_SIZE]
    shard.apply(shard.entries)
    assert shard.files.content()[LEDGER] == whole


@pytest.mark.parametrize("parts_max", [2, 3, 64])
def test_ledgers_that_are_forgotten_are_found_again(parts_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a limited number of ledgers is in memory. The footer of a complete one has its samples again, in any order
    of asking. Incomplete ones are kept, because no file records how far they go.

    Guard: `is_closed` in `_trim` of raft/wal/ledger.py.
    """
    monkeypatch.setattr(ledger, "PARTS_MAX", parts_max)
    shard = Shard()
    for _ in range(4):
        shard.roll()
    segments = shard.journal.segments
    assert len(segments) == 5
    known = shard.ledger._parts
    assert len(known) == min(parts_max, 5)
    asked = [1, 3, 0, 2, 4, 0]
    for number in asked:
        first, last = segments[number].first, segments[number].last.index
        wanted = b"".join([frame_of(entry) for entry in shard.entries[first - 1 : last]])
        assert frames(shard, first, last) == wanted
        assert segments[-1].first in known
    shard.save_snapshot(shard.entries[-1])
    opened = shard.open()
    assert (opened.ledger_last, opened.notices) == (shard.entries[-1].index, ())


def test_a_cut_forgets_the_ledgers_of_dropped_segments() -> None:
    """Other segments come in their place, which may begin elsewhere. Guard: the assertion in `Shard.run`."""
    shard = Shard()
    for _ in range(14):
        shard.append(900, applied=False)
    shard.open()
    assert len(shard.ledger._parts) == len(shard.journal.segments) > 3
    shard.run(shard.storage.carry_out(SyncBatch(None, 2, (), ())))
    assert len(shard.journal.segments) == 1


def test_ledgers_that_are_not_complete_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments were sealed and their effects not written yet: however many there are, each goes on where it was.

    Guard: `is_closed` in `_trim` of raft/wal/ledger.py.
    """
    monkeypatch.setattr(ledger, "PARTS_MAX", 1)
    shard = Shard()
    for _ in range(14):
        shard.append(900, applied=False)
    segments = shard.journal.segments
    assert len(segments) > 3
    shard.apply(shard.entries[:-1])
    assert len(shard.ledger._parts) == len(segments)
    shard.apply(shard.entries)
    shard.run(shard.storage.finish_sealed(shard.files))
    for segment in segments:
        wanted = b"".join([frame_of(entry) for entry in shard.entries[segment.first - 1 : segment.last.index]])
        assert frames(shard, segment.first, segment.last.index) == wanted
    shard.save_snapshot(shard.entries[-1])
    assert shard.open().ledger_last == shard.entries[-1].index


def test_complete_ledgers_go_although_an_older_one_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Incomplete ledgers are kept without a limit, but must not keep complete ones behind them in memory. Ledgers that
    become complete one by one do not stay either.

    Guard: `_trim` of raft/wal/ledger.py.
    """
    monkeypatch.setattr(ledger, "PARTS_MAX", 2)
    shard = Shard()
    while len(shard.journal.segments) < 7:
        shard.append(900)
    segments, known = shard.journal.segments, shard.ledger._parts
    assert len(known) == 7
    for segment in segments[1:-1]:
        operations = shard.ledger.close(shard.files, segment)
        assert operations
        shard.files.execute(operations)
        shard.ledger.closed(shard.files, segment)
    assert sorted(known) == [segments[0].first, segments[-1].first]
    shard.run(shard.storage.finish_sealed(shard.files))
    assert len(known) == 2
    for segment in segments[:-1]:
        wanted = b"".join([frame_of(entry) for entry in shard.entries[segment.first - 1 : segment.last.index]])
        assert frames(shard, segment.first, segment.last.index) == wanted
        assert len(known) == 2


@pytest.mark.parametrize("every", [0, 1, 2, 3, 7, 19, 64])
def test_frames_without_a_payload_are_passed_over_together(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects of plain appends are heads alone, side by side. Wherever frames with a payload stand among them, the
    requested frame is found, and a long run of heads costs a few reads and not one for each.

    Guard: `_bare` of raft/wal/ledger.py, and that its skipped run ends where a payload begins.
    """

    def frame(entry: Entry) -> bytes:
        has_payload = bool(every) and entry.index % every == 0
        return frame_of(entry) if has_payload else encode_effects(Effects(entry.index, 1, (), True))

    monkeypatch.setattr(storage_lab, "frame_of", frame)
    monkeypatch.setattr(storage_lab, "SEGMENT_BYTES", 1 << 20)
    shard = Shard()
    shard.append(*[1] * 50)
    shard.append(*[1] * 90)
    entries = shard.entries
    looks = 0

    def counted(buffer: bytes, offset: int) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return peek_frame(buffer, offset)

    monkeypatch.setattr(ledger, "peek_frame", counted)
    for segment in shard.journal.segments:
        for first in range(segment.first, segment.last.index + 1, 11):
            for last in range(first, segment.last.index + 1):
                assert frames(shard, first, last) == b"".join([frame(entry) for entry in entries[first - 1 : last]])
    length = segment.last.index - segment.first + 1
    looks = 0
    frames(shard, segment.last.index, segment.last.index)
    assert length > 60
    assert every or looks < 80


def test_effects_of_another_entry_are_not_given_for_those_asked() -> None:
    """The head of the frame of entry 3 was damaged to another index: the frame behind it is not the requested one.

    Guard: the index in `find` of raft/wal/ledger.py.
    """
    shard = Shard()
    shard.append(60, 60, 60)
    third = SIDE_HEADER_SIZE + 2 * len(frame_of(shard.entries[0]))
    place = shard.files.content()[LEDGER].index((3).to_bytes(8, "little"), third)
    shard.damage(LEDGER, place + 1, b"\x01")
    with pytest.raises(Damaged, match="no effects of entry 3, but of 259"):
        shard.reader.raw(2, 3, 1 << 20)
    assert shard.reader.raw(2, 2, 1).next == 3


@pytest.mark.parametrize("what", ["magic", "cut short", "zeros"])
def test_effects_that_cannot_be_found_are_an_error_and_no_guess(what: str) -> None:
    """A ledger that lost its end, or whose frames have no valid borders any more, under a running node.

    Guard: the sizes in `_walk` of raft/wal/ledger.py.
    """
    shard = Shard()
    shard.append(60, 60, 60)
    size = len(frame_of(shard.entries[0]))
    third = SIDE_HEADER_SIZE + 2 * size
    match what:
        case "magic":
            shard.damage(LEDGER, third)
        case "cut short":
            shard.cut_short(LEDGER, third + 9)
        case _:
            shard.damage(LEDGER, third, bytes(2 * size))
    with pytest.raises(Corrupt, match=f"no effects of entry 4 at byte {third}"):
        frames(shard, 2, 4)
    with pytest.raises(Damaged, match="no effects of entry 4"):
        shard.reader.raw(2, 4, 1 << 20)
    assert frames(shard, 1, 2) == frame_of(shard.entries[0]) + frame_of(shard.entries[1])


def test_effects_that_are_not_written_yet_are_not_there() -> None:
    """The entry is in the log and its effects are not: that is an error of the caller, never an older entry's
    effects.
    """
    shard = Shard()
    shard.append(60, 60)
    shard.append(60, applied=False)
    with pytest.raises(Corrupt, match="no effects of entry 4"):
        frames(shard, 3, 4)
    assert shard.reader.raw(3, 4, 1 << 20).next == 4


def test_a_flip_in_a_sealed_ledger_is_refused_by_its_reader() -> None:
    """A start believes the footer and does not read the effects. When any of their bytes flips, a slice with them is
    refused by the node or by its reader. No wrong effects are ever served, and neighbouring slices still are.

    Guard: the CRCs in `decode_effects` of statemachine/effects.py, which `decode_slice` asks for; the sizes in `_walk`.
    """
    shard = Shard()
    shard.append(60, 60)
    shard.roll()
    shard.save_snapshot(shard.entries[-1])
    whole = shard.files.content()[LEDGER]
    size = len(frame_of(shard.entries[0]))
    second = SIDE_HEADER_SIZE + size
    wanted = decode_slice(shard.reader.raw(2, 2, 1))
    refused = 0
    for position in range(second, second + size):
        for mask in (0x01, 0xFF):
            shard.damage(LEDGER, position, bytes((whole[position] ^ mask,)))
            if mask == 0xFF:
                assert shard.open().notices == ()
            for last in (2, 3):
                with pytest.raises((Damaged, CorruptEffects, UnknownEffects)):
                    decode_slice(shard.reader.raw(2, last, 1 << 20))
                refused += 1
            assert decode_slice(shard.reader.raw(1, 1, 1))[0][1].index == 1
            shard.damage(LEDGER, position, whole[position : position + 1])
    assert refused == 4 * size
    assert decode_slice(shard.reader.raw(2, 2, 1)) == wanted


def test_a_ledger_that_has_its_footer_gets_no_other_one_after_a_restart() -> None:
    """It is sealed, complete and covered by the snapshot. A start believes the footer, and finishing sealed segments
    ends at once, without a write.

    Guard: `is_closed` in `close` of raft/wal/ledger.py.
    """
    shard = Shard()
    shard.roll()
    shard.save_snapshot(shard.entries[-1])
    shard.open()
    assert shard.storage.is_finish_due
    before = shard.files.content()
    assert list(shard.storage.finish_sealed(shard.files)) == []
    assert shard.files.content() == before
    assert not shard.storage.is_finish_due
