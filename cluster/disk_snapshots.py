"""Snapshots on disk: executes what `raft.storage_snapshots` decides, and reads one back for a start."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.disk_errors import SnapshotDamaged
from cluster.disk_files import ShardFiles
from raft import storage_snapshots
from raft.codec import UnknownVersion
from raft.configuration import Configuration
from raft.formats import ForeignFile, Log
from raft.operations import DeleteFolder
from raft.storage_snapshots import SnapshotPlan, StoredSnapshot, drop_old, open_snapshot, read_chunks
from raft.types import Mark

Chunks = AsyncIterable[bytes] | Iterable[bytes]
"""Of a snapshot to be written, in order; whoever makes them may take time between two."""


async def each(chunks: Chunks) -> AsyncIterator[bytes]:
    """One after the other, whichever they are."""
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
        """Who was a member then."""
        return self.stored.configuration

    @property
    def configuration_index(self) -> int:
        """The entry that said so."""
        return self.stored.configuration_index

    def chunks(self) -> Iterator[bytes]:
        """Its chunks in order, checked again. Raises SnapshotDamaged."""
        files = ShardFiles(self.shard, read_only=True)
        try:
            yield from read_chunks(files, self.stored.folder)
        except storage_snapshots.SnapshotDamaged as error:
            raise SnapshotDamaged(f"{self.shard}: {error}") from error
        finally:
            files.close()


def check_snapshot(shard: Path, log: Log, index: int) -> None:
    """Reads a snapshot whole. Raises SnapshotDamaged, also where there is none, or OSError."""
    files = ShardFiles(shard, read_only=True)
    try:
        open_snapshot(files, log, index)
    except (storage_snapshots.SnapshotDamaged, UnknownVersion, ForeignFile) as error:
        raise SnapshotDamaged(f"{shard}: {error}") from error
    finally:
        files.close()


class SnapshotWriter:
    """Writes one snapshot; nobody sees it before `finish`. Belongs to the thread of `files`."""

    __slots__ = ("_files", "_plan", "size")

    def __init__(self, files: ShardFiles, log: Log, index: int) -> None:
        self._files, self._plan = files, SnapshotPlan(log, index)
        self.size = 0  # bytes of its chunks

    def begin(self) -> None:
        """Makes its folder, aside. Raises OSError."""
        self._files.execute(self._plan.begin())

    def add(self, chunk: bytes) -> None:
        """Writes one chunk. Raises OSError, or ValueError for one that is too large."""
        self.size += len(chunk)
        self._files.execute(self._plan.add(chunk))

    def finish(self, mark: Mark, configuration: Configuration, configuration_index: int, keep: str) -> None:
        """Syncs it, gives it its name, and removes older ones, but not the folder `keep`. Raises OSError."""
        self._files.execute(self._plan.finish(mark, configuration, configuration_index))
        self._files.execute([each for each in drop_old(self._files) if each != DeleteFolder(keep)])

    def abandon(self) -> None:
        """Removes what was written; nothing to do after `finish`."""
        with suppress(OSError):  # the next start removes it, and what went wrong before is told
            self._files.execute(self._plan.abandon())
