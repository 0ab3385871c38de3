"""A snapshot that a leader sends, on its way into the data folder: written aside piece by piece, checked, read back.

Nothing here touches the log: `cluster.disk_write` installs what was checked. Everything belongs to the reading thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.disk_errors import SnapshotDamaged
from cluster.disk_files import ShardFiles
from raft import storage_snapshots
from raft.codec import UnknownVersion
from raft.formats import ForeignFile, Log
from raft.operations import DeleteFolder
from raft.ready import SnapshotWrite
from raft.storage_snapshots import Received, StoredSnapshot, read_chunks


class Incoming:
    """At most one snapshot at a time: the pieces of a new one remove what was written of another."""

    __slots__ = ("_files", "_log", "_received", "aside")

    def __init__(self, files: ShardFiles, log: Log) -> None:
        self._files, self._log = files, log
        self._received: Received | None = None
        self.aside = ""  # the folder that is written; "" while there is none

    def write(self, writes: Sequence[SnapshotWrite]) -> None:
        """Pieces in order. Raises SnapshotDamaged or OSError."""
        for each in writes:
            self._write(each.index, each.offset, each.data)

    def _write(self, index: int, offset: int, data: bytes) -> None:
        """The bytes of the snapshot of `index` from `offset` on; 0 begins anew. Raises SnapshotDamaged or OSError."""
        if offset == 0:
            self.drop()
            self._received = received = Received(self._log, index)
            begin = received.begin()
            assert isinstance(begin[0], DeleteFolder), begin
            self.aside = begin[0].name
            self._files.execute(begin)
        received = self._get(index)
        if received.size != offset:
            raise SnapshotDamaged(f"bytes from {offset} of the snapshot of {index} came after {received.size}")
        try:
            self._files.execute(received.add(data))
        except storage_snapshots.SnapshotDamaged as error:
            raise SnapshotDamaged(str(error)) from error

    def check(self, index: int) -> tuple[Received, StoredSnapshot]:
        """Reads all that was written. Raises SnapshotDamaged or OSError."""
        received = self._get(index)
        try:
            return received, received.check(self._files)
        except (storage_snapshots.SnapshotDamaged, UnknownVersion, ForeignFile) as error:
            raise SnapshotDamaged(str(error)) from error

    def chunks(self, stored: StoredSnapshot) -> Iterator[bytes]:
        """Its chunks in order, checked again. Raises SnapshotDamaged or OSError."""
        try:
            yield from read_chunks(self._files, stored.folder)
        except storage_snapshots.SnapshotDamaged as error:
            raise SnapshotDamaged(str(error)) from error

    def installed(self) -> None:
        """It has its own name now."""
        self._files.close()
        self._received, self.aside = None, ""

    def drop(self) -> None:
        """Removes what was written. Raises OSError."""
        if self.aside:
            self._files.execute([DeleteFolder(self.aside)])
        self._received, self.aside = None, ""

    def _get(self, index: int) -> Received:
        received = self._received
        if received is None or received.folder != storage_snapshots.snapshot_folder(index):
            raise SnapshotDamaged(f"no snapshot of {index} was begun")
        return received
