"""Writes and reads snapshots on disk, as `raftlog.raft.wal.snapshot_files` decides.

The disk saves them; a start reads the newest one back.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raftlog.cluster.files.errors import StoredSnapshotDamaged
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.raft.wal import snapshot_files
from raftlog.raft.wal.formats import ForeignFile, LogIdentity
from raftlog.raft.wal.operations import DeleteFolder
from raftlog.raft.wal.snapshot_files import SnapshotPlan, StoredSnapshot, drop_old, open_snapshot, read_chunks

Chunks = AsyncIterable[bytes] | Iterable[bytes]
"""The chunks of a snapshot to be written, in order. Their maker may take time between two."""


async def each(chunks: Chunks) -> AsyncIterator[bytes]:
    """Each chunk, from a plain or an asynchronous iterator."""
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk


@dataclass(frozen=True, slots=True)
class RecoveredSnapshot:
    """A snapshot that passed every check when the folder was opened: the state after the entry of `mark`."""

    shard: Path
    stored: StoredSnapshot

    @property
    def mark(self) -> Mark:
        """The end of the newest entry in it."""
        return self.stored.mark

    @property
    def configuration(self) -> Configuration:
        """The members at that mark."""
        return self.stored.configuration

    @property
    def configuration_index(self) -> int:
        """The index of that configuration."""
        return self.stored.configuration_index

    def chunks(self) -> Iterator[bytes]:
        """The chunks in order, checked again. Raises StoredSnapshotDamaged."""
        files = ShardFiles(self.shard, read_only=True)
        try:
            yield from read_chunks(files, self.stored.folder)
        except snapshot_files.SnapshotDamaged as error:
            raise StoredSnapshotDamaged(f"{self.shard}: {error}") from error
        finally:
            files.close()


def check_snapshot(shard: Path, log: LogIdentity, index: int) -> None:
    """Reads a whole snapshot. Raises StoredSnapshotDamaged, also if there is none, or OSError."""
    files = ShardFiles(shard, read_only=True)
    try:
        open_snapshot(files, log, index)
    except (snapshot_files.SnapshotDamaged, UnknownVersion, ForeignFile) as error:
        raise StoredSnapshotDamaged(f"{shard}: {error}") from error
    finally:
        files.close()


class SnapshotWriter:
    """Writes one snapshot, which no reader sees before `finish`. Belongs to the thread of `files`."""

    __slots__ = ("_files", "_plan", "size")

    def __init__(self, files: ShardFiles, log: LogIdentity, index: int) -> None:
        self._files, self._plan = files, SnapshotPlan(log, index)
        self.size = 0  # bytes of its chunks

    def begin(self) -> None:
        """Makes the folder of the unfinished snapshot. Raises OSError."""
        self._files.execute(self._plan.begin())

    def add(self, chunk: bytes) -> None:
        """Writes one chunk. Raises OSError, or ValueError for one that is too large."""
        self.size += len(chunk)
        self._files.execute(self._plan.add(chunk))

    def finish(self, mark: Mark, configuration: Configuration, configuration_index: int, keep: str) -> None:
        """Syncs it, gives it its name, and removes older ones except the folder `keep`. Raises OSError."""
        self._files.execute(self._plan.finish(mark, configuration, configuration_index))
        self._files.execute([each for each in drop_old(self._files) if each != DeleteFolder(keep)])

    def abandon(self) -> None:
        """Removes the written files. Does nothing after `finish`."""
        with suppress(OSError):  # the next start removes it; the first error is the one to report
            self._files.execute(self._plan.abandon())
