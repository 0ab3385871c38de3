"""What the writing and the reading thread of a shard do to each other, at a switch between any two bytecodes.

`Storage` says which calls may overlap. Only `finish_sealed` and reads run in the reader thread. A cut, a compaction, an
install and a segment that is put in front never overlap `finish_sealed`, or each other.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry
from raftlog.raft.wal import ledger
from raftlog.raft.wal.formats import index_name
from raftlog.raft.wal.journal import Segment
from raftlog.raft.wal.ledger import read_footer
from raftlog.raft.wal.operations import Sync
from raftlog.raft.wal.reading import RawSlice
from raftlog.raft.wal.snapshot_files import Pieces, read_piece
from tests.compiled import INTERPRETED_ONLY
from tests.raft.wal.interleaving import at_every_bytecode
from tests.raft.wal.journal_driver import LOG, make_entries
from tests.raft.wal.storage_lab import Shard, frame_of

pytestmark = INTERPRETED_ONLY


def rolled(segments: int, *, finished: bool = True) -> Shard:
    """A shard of so many segments, the newest with one entry; all is applied."""
    shard = Shard()
    while len(shard.journal.segments) < segments:
        shard.append(1_200)
    if finished:
        shard.run(shard.storage.finish_sealed(shard.files))
    return shard


def append(shard: Shard, *entries: Entry) -> None:
    """A batch, and what follows it."""
    shard.run(shard.storage.carry_out(SyncBatch(None, None, entries, ())))
    shard.run(shard.storage.finish())


def following(shard: Shard, *sizes: int) -> list[Entry]:
    """Entries that come next."""
    return make_entries(shard.entries[-1].mark, 1, sizes)


def finish_sealed(shard: Shard) -> None:
    """In the reading thread."""
    shard.run(shard.storage.finish_sealed(shard.files))


def check_footers(shard: Shard) -> None:
    """Each sealed segment has its effects and a footer behind them."""
    finish_sealed(shard)
    for segment in shard.journal.segments[:-1]:
        name = f"log/{segment.first:020d}.ledger"
        footer = read_footer(shard.files, name)
        assert footer is not None
        assert footer.last == segment.last.index
        start, end = shard.ledger.find(shard.files, segment, segment.first, segment.last.index)
        wanted = b"".join([frame_of(entry) for entry in shard.entries[segment.first - 1 : segment.last.index]])
        assert shard.files.read(name, start, end - start) == wanted
        assert footer.end == end


def test_due_footers_may_be_finished_during_the_question() -> None:
    """Guard: the copies in `is_finish_due` of raft/wal/storage.py."""
    start = rolled(3, finished=False)
    assert (
        at_every_bytecode(
            start, lambda shard: shard.storage.is_finish_due, finish_sealed, lambda shard, _: check_footers(shard)
        )
        > 10
    )


def test_late_effects_during_a_finish_keep_the_ledger_right() -> None:
    """The footer stands behind all of them. Guard: `end` before `last` in `Part.add` of raft/wal/ledger.py."""
    start = rolled(3, finished=False)
    new = following(start, 1_200, 1_200, 1_200)
    append(start, *new)
    start.entries += new
    start.storage.frames.extend((entry.index, frame_of(entry)) for entry in new)
    assert (
        at_every_bytecode(
            start, lambda shard: shard.run(shard.storage.finish()), finish_sealed, lambda shard, _: check_footers(shard)
        )
        > 100
    )


def test_a_snapshot_syncs_ledgers_while_another_one_begins() -> None:
    """The list of them is made while the writing thread notes one more: a node failed with "dictionary changed size
    during iteration". Guard: the copy in `unsynced` of raft/wal/ledger.py."""
    start = rolled(3, finished=False)
    new = following(start, 1_200, 1_200, 1_200)
    start.storage.frames.extend((entry.index, frame_of(entry)) for entry in new)

    def names(shard: Shard) -> set[str]:
        steps = [each for _, operations in shard.storage.sync_ledgers() for each in operations]
        return {each.name for each in steps if isinstance(each, Sync)}

    def check(shard: Shard, named: set[str]) -> None:
        assert named >= names(start)

    assert at_every_bytecode(start, names, lambda shard: append(shard, *new), check) > 10


def compact(shard: Shard) -> None:
    """All but the newest two segments go, their files at once."""
    shard.run(shard.storage.compact(shard.journal.segments[-3].last.index))


@pytest.mark.parametrize("finished", [True, False])
def test_a_reader_survives_a_compaction_at_any_bytecode(finished: bool) -> None:
    """A slice is whole or empty. The next snapshot does not sync notes of a removed ledger, which would fail for the
    missing file and end the node. Guards: the copy in `Journal.segment_of`, the order in `Journal.compact`, and
    `forget` in `Reader.refresh`.
    """
    start = rolled(5, finished=finished)
    start.ledger._parts.clear()  # as if many had been read since
    wanted = start.reader.raw(1, 3, 1 << 20)
    start.ledger._parts.clear()

    def check(shard: Shard, raw: RawSlice) -> None:
        assert raw in (wanted, RawSlice(b"", b"", b"", 0, 1, 1))
        shard.reader.refresh()
        assert min(shard.ledger._parts, default=shard.journal.first) >= shard.journal.first
        for _, operations in shard.storage.sync_ledgers():
            assert all(shard.files.size(each.name) > 0 for each in operations if isinstance(each, Sync))

    assert at_every_bytecode(start, lambda shard: shard.reader.raw(1, 3, 1 << 20), compact, check) > 100


def test_a_compaction_survives_a_reader_at_any_bytecode() -> None:
    """The other way round: at any moment of a compaction. Guard: the copy in `Ledger.forget`."""
    start = rolled(5)
    find = [segment.first for segment in start.journal.segments]
    for first in find[1:]:  # as if many had been read since
        del start.ledger._parts[first]

    def read(shard: Shard) -> None:
        for first in find:
            assert shard.reader.raw(first, first, 1).first == first

    def check(shard: Shard, _: None) -> None:
        shard.reader.refresh()
        assert min(shard.ledger._parts, default=shard.journal.first) >= shard.journal.first
        assert len(shard.journal.segments) == 2

    assert at_every_bytecode(start, compact, read, check) > 100


def test_a_time_is_looked_up_while_segments_go() -> None:
    """What stays is found where it is: neither the segment behind it nor the end of the log.

    Guards: the copy and the second search in `find_time` of raft/wal/reading.py.
    """
    start = rolled(5)
    wanted = start.journal.segments[-2].first
    time_ms = start.entries[wanted - 1].time_ms

    def check(shard: Shard, found: int) -> None:
        assert found == wanted

    assert at_every_bytecode(start, lambda shard: shard.reader.find_time(time_ms), compact, check) > 100


def test_a_trimmed_time_is_not_the_end_of_the_log() -> None:
    """The segment that it was in went: the oldest record that is left follows, and nothing is skipped."""
    start = rolled(5)
    time_ms = start.entries[start.journal.segments[1].first - 1].time_ms

    def check(shard: Shard, found: int) -> None:
        assert found <= shard.journal.first

    assert at_every_bytecode(start, lambda shard: shard.reader.find_time(time_ms), compact, check) > 100


def in_front(shard: Shard) -> None:
    """As a segment that was fetched from a peer is: in the reading thread."""
    first = shard.journal.segments[0]
    shard.journal.segments.insert(0, Segment(first.previous, 4_096, first.previous))
    shard.journal.cuts += 1


def test_a_segment_comes_in_front_while_one_is_looked_for() -> None:
    """Guard: the copy in `segment_of` of raft/wal/journal.py."""
    start = rolled(5)
    index = start.journal.segments[2].first

    def check(_: Shard, found: Segment) -> None:
        assert found.first == index

    assert at_every_bytecode(start, lambda shard: shard.journal.segment_of(index), in_front, check) > 10


def test_a_segment_comes_in_front_while_the_log_rolls() -> None:
    """Only the segment that was just sealed gets its footers.

    Guard: `sealed` in `_append` of raft/wal/storage.py.
    """
    start = rolled(3)
    new = following(start, 1_200, 1_200, 1_200, 1_200)

    def check(shard: Shard, _: None) -> None:
        sealed = [segment for segment in shard.journal.segments[:-1] if segment.first >= newest]
        assert len(sealed) > 1
        assert shard.storage.unsealed == shard.storage.unclosed == sealed

    newest = start.journal.active.first
    assert at_every_bytecode(start, lambda shard: append(shard, *new), in_front, check, ("raft/wal/storage.py",)) > 100


def uncommitted() -> tuple[Shard, list[Entry]]:
    """A shard of some segments whose newest entries, from the second segment on, are not applied; and those."""
    shard = rolled(2)
    return shard, shard.append(*[1_200] * 6, applied=False)


def cut(shard: Shard, kept: Entry, new: Sequence[Entry]) -> None:
    """Another leader's entries replace those behind `kept`."""
    shard.run(shard.storage.carry_out(SyncBatch(None, kept.index, tuple(new), ())))
    shard.run(shard.storage.finish())


def test_a_log_is_read_while_it_is_cut() -> None:
    """At any moment of a cut, a read gives the old log or the new one, and removed entries are no damage: a node that
    sees damage may end for it. Guard: the order in `Journal.cut` of raft/wal/journal.py.
    """
    start, old = uncommitted()
    kept = old[1]  # in the middle of a segment, with others behind it
    new = make_entries(kept.mark, 2, [900, 900])
    logs = (start.entries, [*start.entries[: kept.index], *new])

    def read(shard: Shard) -> None:
        for after in (kept.before, kept.index, old[-2].index):
            found = list(shard.reader.entries(after, old[-1].index, 1 << 20))
            assert any(found == log[after : after + len(found)] for log in logs)
        assert shard.reader.find_time(old[-3].time_ms) > kept.index

    def check(shard: Shard, _: None) -> None:
        assert shard.reader.entries(kept.index, new[-1].index, 1 << 20)

    files = ("raft/wal/journal.py",)
    assert at_every_bytecode(start, lambda shard: cut(shard, kept, new), read, check, files) > 300


@pytest.mark.parametrize("behind", [0, 2])
def test_a_log_is_cut_while_it_is_read(behind: int) -> None:
    """The requested range may begin right behind the new end, or beyond it: then less than no bytes were asked for.

    Guards: `cuts` in `_damaged`, and `size` in `entries`, of raft/wal/reading.py.
    """
    start = rolled(2)
    old = start.append(*[300] * 4, applied=False)
    kept, after = old[0], old[behind].index
    new = make_entries(kept.mark, 2, [] if behind else [900] * 6)
    logs = (start.entries, [*start.entries[: kept.index], *new])

    def read(shard: Shard) -> tuple[Entry, ...]:
        return shard.reader.entries(after, old[-1].index, 1 << 20)

    def check(_: Shard, found: tuple[Entry, ...]) -> None:
        assert any(list(found) == log[after : after + len(found)] for log in logs)

    assert at_every_bytecode(start, read, lambda shard: cut(shard, kept, new), check) > 100


def test_a_ledger_is_opened_again_while_it_is_read() -> None:
    """All entries behind a sealed segment are cut, whose ledger was forgotten. Both threads read its footer. The writer
    thread's result counts: it has none now. Guard: `setdefault` in `_remember`.
    """
    start = Shard()
    while len(start.journal.segments) < 2:
        start.append(1_200, applied=False)
    kept = start.entries[start.segment.last.index - 1]
    start.apply(start.entries[: kept.index])
    finish_sealed(start)
    start.ledger._parts.clear()

    def check(shard: Shard, _: RawSlice) -> None:
        assert not shard.ledger._parts[1].is_closed

    assert (
        at_every_bytecode(
            start, lambda shard: shard.reader.raw(1, 2, 1 << 20), lambda shard: cut(shard, kept, ()), check
        )
        > 100
    )


def test_a_ledger_is_opened_again_while_complete_ones_are_forgotten() -> None:
    """The reader thread has counted the newest complete ledger among those to forget, and stands still. The writer
    thread cuts all entries behind it and opens it again. If it were forgotten then, it would be taken for empty, and
    the next effects would be written over its first ones.

    Guard: `part.last < self.last` in `_trim` of raft/wal/ledger.py.
    """
    start = Shard()
    while len(start.journal.segments) < 3:
        start.append(1_000, applied=False)
    segment = start.journal.segments[1]
    start.apply(start.entries[: segment.last.index])
    finish_sealed(start)
    start.ledger.forget([segment])  # the reader has to read the footer of the oldest, and forgets another for it
    kept = start.entries[segment.last.index - 1]
    (new,) = make_entries(kept.mark, 2, [20])

    def check(shard: Shard, _: RawSlice) -> None:
        append(shard, new)
        assert shard.journal.active.first == segment.first, "it fits behind the others"
        shard.entries = [*start.entries[: kept.index], new]
        shard.apply(shard.entries)
        start_at, end_at = shard.ledger.find(shard.files, shard.journal.active, segment.first, new.index)
        wanted = b"".join([frame_of(entry) for entry in shard.entries[segment.first - 1 :]])
        assert shard.files.read(f"log/{segment.first:020d}.ledger", start_at, end_at - start_at) == wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "PARTS_MAX", 1)
        assert (
            at_every_bytecode(
                start, lambda shard: shard.reader.raw(1, 2, 1 << 20), lambda shard: cut(shard, kept, ()), check
            )
            > 100
        )


def received(shard: Shard) -> tuple[Shard, Pieces]:
    """A follower whose log ends before the snapshot of `shard`, which it has written aside."""
    shard.save_snapshot(shard.entries[-1])
    follower, coming = Shard(), Pieces(LOG, shard.entries[-1].index)
    follower.append(1_200, 1_200, 1_200, 1_200)
    follower.files.execute(coming.begin())
    _, data = read_piece(shard.files, LOG, shard.entries[-1].index, 1, 0, 1 << 20)
    follower.files.execute(coming.add(data))
    return follower, coming


def test_a_log_is_read_while_a_snapshot_takes_its_place() -> None:
    """Guard: the order in `Journal.restart` of raft/wal/journal.py."""
    start, coming = received(rolled(4))
    wanted = start.reader.raw(2, 2, 1)

    def read(shard: Shard) -> None:
        assert shard.reader.raw(2, 2, 1) in (wanted, RawSlice(b"", b"", b"", 0, 2, 2))
        assert shard.reader.entries(1, 2, 1) in ((start.entries[1],), ())

    def check(shard: Shard, _: None) -> None:
        assert shard.files.size(index_name(1)) < 0
        shard.reader.refresh()
        assert min(shard.ledger._parts, default=shard.journal.first) >= shard.journal.first

    def install(shard: Shard) -> None:
        shard.run(shard.storage.install(coming))

    assert at_every_bytecode(start, install, read, check, ("raft/wal/journal.py",)) > 50
    assert at_every_bytecode(start, read, install, check) > 100


@pytest.mark.parametrize("how", ["cut", "compact", "restart"])
def test_a_reader_that_saw_the_compaction_meets_no_dropped_segment(how: str) -> None:
    """A reader that began with the new count, and with what goes a moment later, would take that for damage.

    Guard: where `cuts` is raised in raft/wal/journal.py.
    """
    start, old = uncommitted()
    kept = old[0]
    _, end = start.reader.mark(kept.index)

    def go(shard: Shard) -> None:
        journal = shard.journal
        match how:
            case "cut":
                assert list(journal.cut(kept.mark, end))
            case "compact":
                assert list(journal.compact(shard.segment.last.index))
            case _:
                assert journal.restart(old[-1].mark)

    def seen(shard: Shard) -> tuple[int, int, int]:
        return shard.journal.first, shard.journal.last.index, shard.journal.indexed

    gone = copy.deepcopy(start)
    go(gone)
    assert seen(gone) != seen(start)

    def look(shard: Shard) -> None:
        assert shard.journal.cuts == start.journal.cuts or seen(shard) == seen(gone)

    assert at_every_bytecode(start, go, look, lambda shard, _: None) > 20
