"""Tests the reserve file: its slices, the space that it says the disk lacks, how it becomes whole again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raftlog.cluster.files.reserve import RESERVE, SLICES, Reserve, ReserveFile
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.wal.operations import Allocate, Create, Sync, Write
from tests.cluster.disk.small_disk import SmallDisks

SEGMENT = 65_536
SLICE = SEGMENT // SLICES


def reserve_of(folder: Path) -> Reserve:
    """A whole one beside two snapshots of 100 bytes."""
    reserve = Reserve(ReserveFile(folder), SEGMENT)
    assert reserve.is_used
    reserve.keep(SEGMENT, 100, 100, may_fill=True)
    return reserve


def test_a_reserve_gives_what_is_needed_until_nothing_is_left(tmp_path: Path, small: SmallDisks) -> None:
    """At least a slice. A report between giving and the next measurement names the bytes that are missing."""
    reserve = reserve_of(tmp_path)
    assert (reserve.bytes, reserve.lacks_bytes, reserve.is_used) == (2 * SEGMENT + 100, 0, False)
    assert reserve.give(SEGMENT)
    assert (reserve.bytes, reserve.lacks_bytes, reserve.is_used) == (SEGMENT + 100, SEGMENT, True)
    assert reserve.give(1)
    assert reserve.bytes == (tmp_path / RESERVE).stat().st_size == SEGMENT + 100 - SLICE
    assert reserve.give(2 * SEGMENT)
    assert (reserve.bytes, reserve.lacks_bytes) == (0, 2 * SEGMENT + 100)
    assert not (tmp_path / RESERVE).exists()
    assert not reserve.give(1)
    small.room[tmp_path] = 2 * SEGMENT + 100
    reserve.keep(SEGMENT, 100, 100, may_fill=False)
    assert (reserve.bytes, reserve.lacks_bytes, reserve.is_used) == (0, 0, True), "measured: it fits"
    reserve.keep(SEGMENT, 100, 100, may_fill=True)
    assert (reserve.bytes, reserve.is_used) == (2 * SEGMENT + 100, False)


def test_a_reserve_is_whole_again_beside_work_where_as_much_stays_free(tmp_path: Path, small: SmallDisks) -> None:
    """A long save of a snapshot keeps no disk full that has space again: the node takes writes. What the work may need
    is at most as much as the reserve has."""
    reserve = reserve_of(tmp_path)
    whole = reserve.bytes
    assert reserve.give(SEGMENT)
    small.room[tmp_path] = 2 * whole - 1
    reserve.keep(SEGMENT, 100, 100, may_fill=False)
    assert (reserve.bytes, reserve.is_used) == (whole - SEGMENT, True)
    small.room[tmp_path] += 1
    reserve.keep(SEGMENT, 100, 100, may_fill=False)
    assert (reserve.bytes, reserve.is_used) == (whole, False)


def test_a_reserve_takes_back_what_it_lacks_of_what_was_freed(tmp_path: Path) -> None:
    """Never more than it lacks, nor more than was freed. It counts as used until the next `keep`; a whole one takes
    nothing."""
    reserve = reserve_of(tmp_path)
    whole = reserve.bytes
    reserve.take_back(SEGMENT, whole + SEGMENT)
    assert (reserve.bytes, reserve.is_used) == (whole, False)
    assert reserve.give(SEGMENT)
    reserve.take_back(SEGMENT - 1_000, whole)
    assert reserve.bytes == (tmp_path / RESERVE).stat().st_size == whole - 1_000
    reserve.take_back(SEGMENT, whole)
    assert (reserve.bytes, reserve.is_used) == (whole, True)


def test_a_process_that_starts_beside_a_reserve_that_was_needed_knows_it(tmp_path: Path, small: SmallDisks) -> None:
    """The file is smaller than it should be. A start may need its space before the node can make it whole."""
    reserve_of(tmp_path).give(SEGMENT)
    small.room[tmp_path] = 3 * SEGMENT
    again = Reserve(ReserveFile(tmp_path), SEGMENT)
    assert (again.bytes, again.is_used) == (SEGMENT + 100, True)
    again.keep(SEGMENT, 100, 100, may_fill=False)
    assert again.is_used
    assert again.give(SEGMENT)
    assert again.bytes == 100


class Failing(ShardFiles):
    """Files whose next operations find no disk space, or fail otherwise."""

    def __init__(self, root: Path, reserve: Reserve) -> None:
        super().__init__(root, give=reserve.give)
        self.errors: list[int] = []

    def _carry_out(self, operation: object) -> None:
        if self.errors:
            raise OSError(self.errors.pop(0), "the test says so")
        super()._carry_out(operation)  # type: ignore[arg-type]


def test_an_operation_without_space_is_tried_again_while_the_reserve_gives(tmp_path: Path) -> None:
    """Each try gets what the operation needs. Another error ends it, and so does a reserve without bytes."""
    reserve = reserve_of(tmp_path)
    files = Failing(tmp_path, reserve)
    files.errors = [errno.ENOSPC, errno.EDQUOT]
    files.execute([Create("one", bytes(1_000)), Write("one", 1_000, b"x")])
    assert (files.size("one"), reserve.bytes) == (1_001, 2 * SEGMENT + 100 - 2_000)
    files.errors = [errno.ENOSPC]
    files.execute([Allocate("two", SEGMENT)])
    assert (files.size("two"), reserve.bytes) == (SEGMENT, SEGMENT + 100 - 2_000)
    files.errors = [errno.ENOSPC, errno.EIO]
    with pytest.raises(OSError, match="says so") as failed:
        files.execute([Write("one", 0, b"y")])
    assert failed.value.errno == errno.EIO
    files.errors = [errno.ENOSPC] * 200
    with pytest.raises(OSError, match="says so") as failed:
        files.execute([Write("one", 0, b"y")])
    assert (failed.value.errno, reserve.bytes) == (errno.ENOSPC, 0)
    files.close()


def test_a_sync_without_space_is_not_tried_again(tmp_path: Path) -> None:
    """The kernel may have dropped the pages: a second sync would be a lie (fsyncgate)."""
    files = Failing(tmp_path, reserve_of(tmp_path))
    files.execute([Create("one", b"x")])
    files.errors = [errno.ENOSPC]
    with pytest.raises(OSError, match="says so"):
        files.execute([Sync("one")])
    files.close()
