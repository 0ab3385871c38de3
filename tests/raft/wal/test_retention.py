"""Which records a policy lets go of, which files a node may delete, and power cuts while it deletes them."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.raft.types import Entry
from raftlog.raft.wal.formats import index_name, ledger_name, segment_name
from raftlog.raft.wal.operations import FileOperation
from raftlog.raft.wal.retention import RetentionPolicy, SegmentFiles, may_go, piece_of, trailing_end, trim_before
from tests.raft.wal.journal_driver import after_kill, after_power_cut
from tests.raft.wal.storage_lab import Shard

SIZE = 100
PIECES = [SegmentFiles(last=10 * number, time_ms=1_000 * number, size=SIZE) for number in range(1, 6)]


def trimmed(policy: RetentionPolicy, *, oldest: int = 1, now_ms: int = 5_000, wanted: int | None = None) -> int | None:
    """What that policy says of the five pieces, with one file of the same size made ahead."""
    return trim_before(policy, PIECES, oldest, now_ms, SIZE, wanted)


@pytest.mark.parametrize(
    ("policy", "before"),
    [
        (RetentionPolicy(), None),
        (
            RetentionPolicy(bytes=685),
            None,
        ),  # five and the one made ahead are 600: with an eighth left, exactly as much as may be
        (RetentionPolicy(bytes=684), 11),
        (RetentionPolicy(bytes=457), 21),
        (RetentionPolicy(bytes=1), 41),  # the newest always stays
        (RetentionPolicy(age_ms=4_000), None),  # exactly that old
        (RetentionPolicy(age_ms=3_999), 11),
        (RetentionPolicy(age_ms=1), 41),
        (RetentionPolicy(bytes=571, age_ms=2_500), 21),  # whichever lets more go
        (RetentionPolicy(bytes=342, age_ms=3_500), 31),
    ],
)
def test_a_policy_trims_at_ends_of_segments(policy: RetentionPolicy, before: int | None) -> None:
    """By bytes and by age, always to the end of an entry + 1; without a policy nothing goes."""
    assert trimmed(policy) == before
    assert policy.is_on == (policy != RetentionPolicy())


def test_trimmed_segments_count_no_more() -> None:
    """Segments below the oldest index are as good as deleted: the same policy asks for nothing twice."""
    assert trimmed(RetentionPolicy(bytes=457), oldest=21) is None
    assert trimmed(RetentionPolicy(bytes=342), oldest=21) == 31
    assert trimmed(RetentionPolicy(bytes=342), oldest=15) == 31, "a piece that holds the oldest index counts whole"


def test_a_group_holds_unread_records_back_up_to_a_budget() -> None:
    """Bytes and age both wait for the lowest position, until the files take more than the budget."""
    for policy in (RetentionPolicy(bytes=200, held_bytes=600), RetentionPolicy(age_ms=1, held_bytes=600)):
        assert trimmed(policy, wanted=15) == 11
        assert trimmed(policy, wanted=11) == 11
        assert trimmed(policy, wanted=20) == 11, "record 20 ends the second segment"
        assert trimmed(policy, wanted=10) is None
        assert trimmed(policy, wanted=5) is None
        assert trimmed(policy) == 41
    assert trimmed(RetentionPolicy(bytes=200, held_bytes=500), wanted=5) == 11, "over the budget"
    assert trimmed(RetentionPolicy(bytes=200), wanted=5) == 41, "no budget, nothing is held"


def test_deletable_segments_are_trimmed_unneeded_and_twice_covered() -> None:
    """Pitfall 57: below the cluster's oldest index, what Raft may still ask, and the older of two snapshots."""
    assert may_go(21, 31, [50, 40]) == 20
    assert may_go(21, 11, [50, 40]) == 10
    assert may_go(41, 51, [50, 30]) == 30
    assert may_go(41, 51, [50]) == may_go(41, 51, []) == 0


@pytest.mark.parametrize(
    ("index", "bytes_kept", "end"),
    [
        (50, 0, 40),  # the segment under way stays
        (50, 100, 40),
        (50, 101, 30),
        (50, 301, 10),
        (50, 401, 7),  # all of it
        (50, 9_999, 7),
        (40, 0, 40),
        (39, 0, 30),  # never behind that index
        (9, 0, 7),
    ],
)
def test_the_trailing_log_ends_between_two_pieces(index: int, bytes_kept: int, end: int) -> None:
    """At least so many bytes of files behind it, `.idx` and `.ledger` among them, at most at that index; with less
    than that it is the end before the log."""
    assert trailing_end(PIECES, 7, index, bytes_kept) == end


def grown() -> tuple[Shard, int]:
    """A log of six segments whose first four may go, with two snapshots behind them; and the end of the fourth."""
    shard = Shard()
    for _ in range(5):
        shard.roll()
    for entry in shard.entries[-2:]:
        shard.save_snapshot(entry)
    return shard, shard.journal.segments[3].last.index


def read(shard: Shard) -> list[Entry]:
    """Every entry of the log."""
    found: list[Entry] = []
    after, last = shard.journal.first - 1, shard.journal.last.index
    while after < last:
        found += shard.reader.entries(after, last, 1 << 20)
        after = found[-1].index
    return found


def test_pieces_have_the_sizes_of_their_files() -> None:
    """A segment counts with its .idx and .ledger, as they are on disk."""
    shard, _ = grown()
    segment = shard.journal.segments[1]
    names = [make(segment.first) for make in (segment_name, index_name, ledger_name)]
    size = sum(len(shard.files.content()[name]) for name in names)
    assert piece_of(shard.files, segment) == SegmentFiles(segment.last.index, segment.last.time_ms, size)
    assert size > segment.size


def test_pitfall_57_a_crash_between_any_two_deletions_is_no_damage() -> None:
    """After a kill or a power cut before any operation, the next start opens. Its log begins at one of the segments,
    not behind the end that was to be kept, with every entry from there on. Remaining files go at the next try.

    Guard: oldest first, a segment's entries first, the folder synced in between (`drop_segment` of
    raft/wal/journal.py).
    """
    shard, keep_after = grown()
    operations: list[FileOperation] = [each for _, step in shard.storage.compact(keep_after) for each in step]
    assert len(operations) == 4 * 4
    assert shard.journal.first == keep_after + 1, "forgotten with the first step, whenever it is carried out"
    firsts = set()
    for done in range(len(operations) + 1):
        images = [after_kill(shard.files), *(after_power_cut(shard.files, Random(seed)) for seed in range(6))]
        for files in images:
            again = Shard(files)
            first = again.journal.first
            firsts.add(first)
            assert first <= keep_after + 1
            assert again.opened.log.last == shard.opened.journal.last
            assert read(again) == [entry for entry in shard.entries if entry.index >= first]
            again.run(again.storage.compact(keep_after))
            assert Shard(files).journal.first == keep_after + 1
            assert not [name for name in files.names("log") if name.startswith(f"{1:020d}.")]
        if done < len(operations):
            shard.files.execute([operations[done]])
    assert len(firsts) == 5, "each of the five beginnings was found"
