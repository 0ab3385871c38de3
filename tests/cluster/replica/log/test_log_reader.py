"""What one node gives of its log, and where it looks for the rest."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.cluster.replica.log.log_reader import LogReader
from raftlog.raft.wal.reading import RawSlice


def reader_of(*, disk_oldest: int = 1, elsewhere: Any = None) -> tuple[LogReader, Any, list[tuple[int, int]]]:
    """A reader of a node that has applied 7 and written the effects of 5; its applier; what its disk is asked for."""
    asked: list[tuple[int, int]] = []

    async def read_raw(first: int, last: int, bytes_max: int) -> RawSlice:
        asked.append((first, last))
        return RawSlice(b"", b"", b"", 0, first, last + 1)

    applier: Any = SimpleNamespace(applied=7, ledger=SimpleNamespace(written=5), machine=SimpleNamespace(oldest=1))
    disk: Any = SimpleNamespace(oldest=disk_oldest, read_raw=read_raw)
    return LogReader(1, disk, applier, lambda damage: None, elsewhere), applier, asked


@pytest.mark.parametrize("read", ["own", "raw"])
async def test_the_disk_serves_applied_entries_with_effects(read: str) -> None:
    """For a reader or a peer: no entry beyond the applied ones, and none whose effects are still being written."""
    reader, applier, asked = reader_of()
    await getattr(reader, read)(2, 9, 1_000)
    applier.ledger.written = 9
    await getattr(reader, read)(2, 9, 1_000)
    assert asked == [(2, 5), (2, 7)]


async def test_records_trimmed_during_a_peer_read_are_gone() -> None:
    """The record was readable when the read began; the answer is compacted, and not an empty slice."""

    class Elsewhere:
        async def read(self, first: int, last: int, bytes_max: int, is_wanted: Callable[[], bool]) -> RawSlice | None:
            assert is_wanted()
            applier.machine.oldest = 6
            assert not is_wanted()
            return None

        async def find_time(self, time_ms: int, is_wanted: Callable[[], bool]) -> int | None:
            raise NotImplementedError

    reader, applier, asked = reader_of(disk_oldest=6, elsewhere=Elsewhere())
    with pytest.raises(ApiError) as gone:
        await reader.raw(3, 5, 1_000)
    assert (gone.value.code, asked) == (Code.COMPACTED, [])


async def test_a_time_after_all_entries_is_the_index_behind_the_last_applied_one() -> None:
    """The disk has entries that are not applied yet, or none of that time: a reader continues behind the applied
    ones.
    """
    reader, _, _ = reader_of()

    async def find_time(time_ms: int) -> int:
        return 12

    reader._disk.find_time = find_time  # type: ignore[method-assign]
    assert await reader.find_time(5) == 8


async def test_a_search_for_a_time_that_an_installed_snapshot_overtakes_finds_the_oldest_entry() -> None:
    """The snapshot brings another state machine, and only peers have the log before 9. Record 8 may have that time: a
    reader that begins at 9 would miss it.
    """
    asked: list[int] = []

    class Elsewhere:
        async def find_time(self, time_ms: int, is_wanted: Callable[[], bool]) -> int | None:
            asked.append(time_ms)
            if len(asked) == 1:
                applier.machine, applier.applied, disk.oldest = SimpleNamespace(oldest=8), 10, 9
            return 1 if is_wanted() and len(asked) == 2 else None

    reader, applier, _ = reader_of(disk_oldest=6, elsewhere=Elsewhere())
    disk: Any = reader._disk

    async def find_time(time_ms: int) -> int:
        return int(disk.oldest)

    disk.find_time = find_time
    assert await reader.find_time(5) == 8
    assert asked == [5, 5]


async def test_older_segments_that_come_back_during_a_search_for_a_time_are_searched_too() -> None:
    """The disk had none of them when it answered. Afterwards no older record is away, so no peer would be asked."""
    reader, _, _ = reader_of(disk_oldest=6)
    disk: Any = reader._disk

    async def find_time(time_ms: int) -> int:
        found, disk.oldest = max(3, int(disk.oldest)), 1
        return found

    disk.find_time = find_time
    assert await reader.find_time(5) == 3


@pytest.mark.parametrize(
    ("error", "code"), [(NoSpace("the disk is full"), Code.DISK_FULL), (DiskFenced("a write failed"), Code.FENCED)]
)
@pytest.mark.parametrize("read", ["raw", "find_time"])
async def test_a_disk_that_cannot_write_effects_refuses_a_reader_by_its_code(
    error: Exception, code: Code, read: str
) -> None:
    """The disk writes rows and effects before it reads them. If that fails, the reader's answer names the reason, not a
    defect of this node."""
    reader, _, _ = reader_of()

    async def fails(*_: int) -> Any:
        raise error

    disk: Any = reader._disk
    disk.read_raw = disk.find_time = fails
    with pytest.raises(ApiError) as refused:
        await (reader.raw(2, 5, 1_000) if read == "raw" else reader.find_time(1))
    assert refused.value.code is code
