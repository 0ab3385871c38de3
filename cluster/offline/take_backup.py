"""Takes a backup of a running cluster: the state into one file, or the state and the log into a folder or a store.

`raftlog backup` calls it. A backup grows with each run by the entries that are new, as the nodes have them on disk.
Every byte is checked before it is written, and each entry must follow the one before. The manifest is replaced last,
so a killed run leaves the backup as it was; a later run removes the files that no manifest names.
A new state is taken once the log behind the old one is larger than it. Files are written whole and never changed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgpack
import msgspec

from raftlog.cluster.client.answers import LogPage
from raftlog.cluster.client.backup import BackupCursor, BackupPiece
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.cursors import RawChunk
from raftlog.cluster.client.errors import Compacted
from raftlog.cluster.client.requests import Consistency
from raftlog.cluster.offline.backup_target import BackupRefused, Target, opened
from raftlog.cluster.records.backup_manifest import (
    BackupManifest,
    EndOfLog,
    LogFile,
    followed,
    state_name,
)
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.file_errors import create_private, naming
from raftlog.cluster.stores.object_place import StoragePlace
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.raw import encode_raw_header
from raftlog.raft.types import Mark
from raftlog.statemachine.snapshot import FRAME_SIZE, KEYS

FILE_BYTES: Final = 64 << 20
"""A file of the log ends with the chunk that makes it larger than this: a killed run fetches at most so much again."""

OnProgress = Callable[[int, int, str], None]
"""Called with the part that is done, the whole, and a few words for a bar."""


class Pace:
    """Slows a reader down to a number of bytes a second; 0: not at all."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = clock.monotonic()

    def took(self, size: int) -> None:
        """Waits as long as that many bytes may take."""
        if self._bytes_per_s:
            self._free_at = max(self._free_at, clock.monotonic()) + size / self._bytes_per_s
            threading.Event().wait(max(0.0, self._free_at - clock.monotonic()))


# ---------------------------------------------------------------------------------------------------------------
# The state, in one file.


def receive_state(
    client: SyncClient, aside: Path, consistency: Consistency, pace: Pace, progress: OnProgress
) -> BackupCursor:
    """Writes a backup of the state aside and syncs it. Every byte is checked before it is written."""
    cursor = BackupCursor(consistency)
    keys = size = 0
    with naming(aside), create_private(aside) as target, closing(client.stream(cursor)) as pieces:
        for piece in pieces:
            if piece.is_first:
                target.seek(0)
                target.truncate()
                keys = size = 0
            target.write(piece.data)
            size += len(piece.data)
            keys += keys_in(piece)
            head = cursor.head
            progress(keys, head.digest.count if head is not None else 0, f"{size / 1e6:,.1f} MB")
            pace.took(len(piece.data))
        target.flush()
        os.fsync(target.fileno())
    return cursor


def keys_in(piece: BackupPiece) -> int:
    """The estimated number of keys in these bytes: for a bar, not for a check."""
    count = 0
    for part in piece.parts:
        if len(part) > FRAME_SIZE and part[5] == KEYS:
            unpacker = msgpack.Unpacker()
            unpacker.feed(part[FRAME_SIZE:])
            with suppress(Exception):  # a part of an item that began in the frame before, or ends in the next
                while True:
                    unpacker.skip()
                    count += 1
    return count


# ---------------------------------------------------------------------------------------------------------------
# State and log, in a folder or a store.


def take_backup(
    place: StoragePlace, client: SyncClient, pace: Pace, progress: OnProgress
) -> tuple[int, BackupManifest]:
    """Takes a backup into a new folder or prefix of a store, or adds the new entries to one that is there.

    Returns the record with which the backup had ended, and its manifest. Raises BackupRefused, BackupDamaged for a
    damaged manifest, ObjectStoreError, ClientError, OSError.
    """
    with opened(place) as target:
        found = target.read()
        is_complete = False
        try:
            page = _first_page(place, client, found)
            manifest = found or BackupManifest(page.log, clock.wall_ms())
            if found is None:
                target.commit(manifest)
            manifest = _grown(target, client, manifest, page, pace, progress)
            is_complete = True
        except Compacted as error:
            oldest = error.problem.oldest if error.problem is not None else "a later one"
            raise BackupRefused(
                f"{place}: the backup lacks records that were trimmed: the log begins at {oldest}. Take the next "
                "backup into a new place; this one stays as it is. Take them more often than the log is trimmed"
            ) from error
        finally:
            target.drop_unnamed(is_complete=is_complete)
    return found.end.index if found and found.end else 0, manifest


def _grown(
    target: Target, client: SyncClient, manifest: BackupManifest, page: LogPage, pace: Pace, progress: OnProgress
) -> BackupManifest:
    """The manifest after a run: it takes the log, then perhaps a state, and the log that reaches that."""
    manifest = _with_log(target, client, manifest, page.oldest, page.committed, pace, progress)
    if _is_state_due(target.place, manifest):
        cursor = receive_state(client, target.part, "linearizable", pace, progress)
        assert cursor.head is not None
        if cursor.head.log_id != manifest.log:
            raise _other_log(target.place, manifest, cursor.head.log_id)
        state = cursor.head.index
        target.finish(state_name(state, target.writer))
        manifest = _with_log(target, client, manifest, page.oldest, state, pace, progress)
        files = tuple(file for file in manifest.files if file.last >= page.oldest)
        manifest = msgspec.structs.replace(manifest, state=state, state_writer=target.writer, files=files)
    manifest = msgspec.structs.replace(manifest, made_ms=clock.wall_ms())
    target.commit(manifest)
    return manifest


def _first_page(place: StoragePlace, client: SyncClient, manifest: BackupManifest | None) -> LogPage:
    """The log where the backup ends: its id, its oldest index, and how far it is committed. Raises BackupRefused."""
    end = None if manifest is None else manifest.end
    start = 1 if end is None else end.index + 1
    try:
        page = client.log_page(start, to=start + 1)
    except Compacted as error:
        oldest = error.problem.oldest if error.problem is not None else None
        if end is not None or oldest is None:
            raise
        page = client.log_page(oldest, to=oldest + 1)
    if manifest is not None and page.log != manifest.log:
        raise _other_log(place, manifest, page.log)
    if end is not None and page.committed < end.index:
        raise BackupRefused(
            f"{place}: the backup ends with record {end.index}, and the log of the cluster with {page.committed}: the "
            "cluster has lost records that the backup has. Take the next one into a new place, and keep this one"
        )
    return page


def _other_log(place: StoragePlace, manifest: BackupManifest, log: str) -> BackupRefused:
    return BackupRefused(
        f"{place}: it is a backup of log {manifest.log}, and the cluster has log {log}; name another folder or "
        "prefix, or another cluster"
    )


def _is_state_due(place: StoragePlace, manifest: BackupManifest) -> bool:
    """Whether the log behind the newest state is larger than that state, or there is none."""
    if (state := manifest.state) is None:
        return True
    try:
        with (place / state_name(state, manifest.state_writer)).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return True
    return sum(each.size for each in manifest.files if each.first > state) > size


def _with_log(
    target: Target,
    client: SyncClient,
    manifest: BackupManifest,
    oldest: int,
    to: int,
    pace: Pace,
    progress: OnProgress,
) -> BackupManifest:
    """The manifest with the entries up to that which ends with `to`; committed after each file."""
    end = None if manifest.end is None else Mark(manifest.end.index, manifest.end.term, manifest.end.header_crc)
    first = begin = oldest if end is None else end.index + 1
    taken = 0
    with closing(client.log_raw(first, to + 1, min_index=to)) as chunks:
        while first <= to:
            crc = size = 0
            last = first - 1
            with naming(target.part), create_private(target.part) as file:
                while size < FILE_BYTES and last < to and (chunk := next(chunks, None)) is not None:
                    if not chunk.header.rows:
                        continue
                    if size == 0:
                        first = chunk.header.first  # the first entry of all may begin before the oldest index
                    end = _checked(target.place, chunk, end)
                    data = b"".join((encode_raw_header(chunk.header), chunk.rows, chunk.segment, chunk.ledger))
                    file.write(data)
                    crc, size, last = crc32c(data, crc), size + len(data), end.index
                    taken += len(data)
                    progress(last + 1 - begin, to + 1 - begin, f"{taken / 1e6:,.1f} MB")
                    pace.took(len(data))
                file.flush()
                os.fsync(file.fileno())
            assert end is not None, "the stream ends with `to` alone"
            added = LogFile(first, last, size, crc, target.writer)
            target.finish(added.name)
            manifest = msgspec.structs.replace(
                manifest, files=(*manifest.files, added), end=EndOfLog(end.index, end.term, end.header_crc)
            )
            target.commit(manifest)
            first = last + 1
    return manifest


def _checked(place: StoragePlace, chunk: RawChunk, end: Mark | None) -> Mark:
    """The end of a chunk whose entries follow `end`. Raises BackupRefused."""
    if chunk.header.is_blanked:
        refused = BackupRefused(
            "the node hides records from this user, and a backup needs all: take it as a user with the role admin, or "
            "with `operate on cluster`, `access on cluster`, `read on log`, `read on keys:*` and `read on groups:*`"
        )
        refused.exit_code = 9  # not permitted
        raise refused
    try:
        for entry, _ in followed(chunk.segment, chunk.ledger, end):
            end = entry.mark
    except (Corrupt, UnknownVersion) as error:
        raise BackupRefused(
            f"{place}: the log that a node gave does not go on where the backup ends: {error}. Run it again; if the "
            "cluster was restored or made again meanwhile, take the backup into a new place"
        ) from error
    assert end is not None, "a chunk with rows has entries"
    return end
