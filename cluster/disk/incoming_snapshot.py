"""Receives a snapshot from a leader into the data folder: writes pieces aside, checks them, and reads them back.

`raftlog.cluster.disk.disk` calls it in the reading thread. Nothing here touches the log:
`raftlog.cluster.disk.writer` installs the checked snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raftlog.cluster.files.errors import StoredSnapshotDamaged
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.ready import SnapshotWrite
from raftlog.raft.wal import snapshot_files
from raftlog.raft.wal.formats import ForeignFile, LogIdentity
from raftlog.raft.wal.operations import DeleteFolder
from raftlog.raft.wal.snapshot_files import Pieces, StoredSnapshot, read_chunks


class IncomingSnapshot:
    """Holds at most one snapshot at a time: a piece of a new one removes the pieces of another."""

    __slots__ = ("_files", "_log", "_received", "aside")

    def __init__(self, files: ShardFiles, log: LogIdentity) -> None:
        self._files, self._log = files, log
        self._received: Pieces | None = None
        self.aside = ""  # folder of the snapshot being received; "" if none

    def write(self, writes: Sequence[SnapshotWrite]) -> None:
        """Writes pieces in order. Raises StoredSnapshotDamaged or OSError."""
        for each in writes:
            self._write(each.index, each.offset, each.data)

    def _write(self, index: int, offset: int, data: bytes) -> None:
        """Writes bytes of the snapshot of `index` from `offset` on; 0 begins again.

        Raises StoredSnapshotDamaged, OSError.
        """
        if offset == 0:
            self.drop()
            self._received = received = Pieces(self._log, index)
            begin = received.begin()
            assert isinstance(begin[0], DeleteFolder), begin
            self.aside = begin[0].name
            self._files.execute(begin)
        received = self._get(index)
        if received.size != offset:
            raise StoredSnapshotDamaged(f"bytes from {offset} of the snapshot of {index} came after {received.size}")
        try:
            self._files.execute(received.add(data))
        except snapshot_files.SnapshotDamaged as error:
            raise StoredSnapshotDamaged(str(error)) from error

    def check(self, index: int) -> tuple[Pieces, StoredSnapshot]:
        """Reads and checks all written pieces. Raises StoredSnapshotDamaged or OSError."""
        received = self._get(index)
        try:
            return received, received.check(self._files)
        except (snapshot_files.SnapshotDamaged, UnknownVersion, ForeignFile) as error:
            raise StoredSnapshotDamaged(str(error)) from error

    def chunks(self, stored: StoredSnapshot) -> Iterator[bytes]:
        """The chunks in order, checked again. Raises StoredSnapshotDamaged or OSError."""
        try:
            yield from read_chunks(self._files, stored.folder)
        except snapshot_files.SnapshotDamaged as error:
            raise StoredSnapshotDamaged(str(error)) from error

    def installed(self) -> None:
        """The snapshot has its own name now; nothing is left aside."""
        self._files.close()
        self._received, self.aside = None, ""

    def drop(self) -> None:
        """Removes the written pieces. Raises OSError."""
        if self.aside:
            self._files.execute([DeleteFolder(self.aside)])
        self._received, self.aside = None, ""

    def _get(self, index: int) -> Pieces:
        received = self._received
        if received is None or received.folder != snapshot_files.snapshot_folder(index):
            raise StoredSnapshotDamaged(f"no snapshot of {index} was begun")
        return received
