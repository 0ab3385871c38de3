"""Makes a data folder, and opens one: checks its owner, locks it, reads it and repairs it.

    identity.json           log id, node, incarnation, format version; locked while a process has the folder open
    shard-0/hard_state      shard-0/log/…      shard-0/snapshots/…      the same in shard-1, …: further groups

`raftlog format` makes it once; a node never does at start (docs/promises.md: made once). `raftlog.cluster.node.process`
opens it, and hands the result to the disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftlog.cluster.files.errors import (
    REPLACE,
    RESTORE,
    UNFORMATTED,
    FolderDamaged,
    FolderExists,
    FolderForeign,
    FolderLocked,
    FolderMissing,
    FormatUnknown,
    explain,
    foreign,
)
from raftlog.cluster.files.reserve import Reserve, ReserveFile
from raftlog.cluster.files.shard_files import ShardFiles, write_new
from raftlog.cluster.files.snapshot_files import RecoveredSnapshot
from raftlog.cluster.runtime.file_errors import PRIVATE_FOLDER, sync_folder
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.frame import SHARD_MAX
from raftlog.raft.configuration import Configuration
from raftlog.raft.hello import Start
from raftlog.raft.types import Entry, EntryKind, HardState, Mark, TermRun
from raftlog.raft.wal import opening
from raftlog.raft.wal.divergence import CannotRebuild
from raftlog.raft.wal.formats import FORMAT_VERSION, LOG_FOLDER, ForeignFile, LogIdentity
from raftlog.raft.wal.journal import SEGMENT_BYTES, Journal, check_segment_bytes
from raftlog.raft.wal.ledger import Ledger
from raftlog.raft.wal.opening import ShardDamaged, make_log, open_shard
from raftlog.raft.wal.recovery import HardStateDamaged
from raftlog.raft.wal.snapshot_files import SNAPSHOTS

IDENTITY: Final = "identity.json"
UNFINISHED: Final = f"{IDENTITY}.new"
"""Name of the identity while the rest of a new folder is made."""
LOST_AND_FOUND: Final = "lost+found"
"""What a new file system has in its root, which may be the data folder."""
FIRST_STATE: Final = HardState(term=1)
IDENTITY_BYTES_MAX: Final = 65_536
SHARD: Final = "shard-0"


def shard_folder(shard: int) -> str:
    """The folder of that Raft group in a data folder."""
    return f"shard-{shard}"


_HEX32: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    """Names the owner of a data folder. `raftlog format` makes it once; it never changes."""

    log_id: str  # 32 hex digits
    node: int
    incarnation: str  # 32 hex digits: this disk
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for name in ("log_id", "incarnation"):
            value = getattr(self, name)
            if type(value) is not str or not _HEX32.fullmatch(value):
                raise ValueError(f"{name} is {value!r}: it must be 32 lower-case hex digits")
        if type(self.node) is not int or not 1 <= self.node < 1 << 31:
            raise ValueError(f"node is {self.node!r}: it must be a whole number from 1 to 2147483647")


@dataclass(frozen=True, slots=True)
class RecoveredFolder:
    """The content of a folder when it was opened. All of it is durable and intact."""

    identity: DiskIdentity
    hard_state: HardState  # its boot counter counts this start
    first: int  # oldest index on disk
    base: Mark | None  # the mark before it, if known
    runs: tuple[TermRun, ...]
    last: Mark
    tail: tuple[Entry, ...]  # newest entries
    configuration: Configuration  # the newest in the log
    configuration_index: int
    earlier: tuple[tuple[int, Configuration], ...]  # earlier ones with indexes, back to the snapshot's
    snapshot: RecoveredSnapshot | None  # the newest intact one that the ledger reaches
    ledger_last: int  # newest entry with effects: replay makes those behind it
    committed: int  # newest entry that the disk shows to be committed
    notices: tuple[str, ...]  # what the start found and repaired
    kept: tuple[int, int]  # term and index of the newest entry up to which it kept its promises
    shard: int = 0  # the Raft group
    floor: int = 0  # if not 0: it lost entries, and has no vote until it holds one of that term or later

    def start(self, run: int) -> Start:
        """The facts about this start that the process `run` puts into its hellos."""
        last_term, last_index = self.kept
        return Start(run=run, last_index=last_index, last_term=last_term, term=self.hard_state.term, floor=self.floor)


def recovered_from(
    identity: DiskIdentity, opened: opening.OpenedShard, snapshot: RecoveredSnapshot | None, shard: int = 0
) -> RecoveredFolder:
    """What a start found, as the replica takes it."""
    log = opened.log
    return RecoveredFolder(
        identity,
        opened.hard_state,
        log.first,
        log.base,
        log.runs,
        log.last,
        log.tail,
        opened.configuration,
        opened.configuration_index,
        opened.earlier,
        snapshot,
        opened.ledger_last,
        opened.committed,
        opened.notices,
        opened.kept,
        shard,
        opened.floor,
    )


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    """The open files and objects of the disk. `lock` keeps other processes out; None: the lock of group 0 does."""

    recovered: RecoveredFolder
    lock: int | None
    shard: Path
    journal: Journal
    ledger: Ledger
    files: ShardFiles
    reserve: Reserve


def format_node(
    directory: Path | str,
    identity: DiskIdentity,
    entry: Entry,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    first: HardState = FIRST_STATE,
) -> None:
    """Makes the data folder of a node with its first segment, whose only entry is `entry`: the configuration, index 1.

    `first`: the hard state with which the disk begins; that given is for a log that no disk of this identity can have
    promised anything in. Raises as `make_folder`, or ValueError.
    """
    if (entry.index, entry.term, entry.kind) != (1, 1, EntryKind.CONFIGURATION):
        raise ValueError("the first entry of a log is its configuration, index 1 of term 1")
    check_segment_bytes(segment_bytes)

    def fill(files: ShardFiles, log: LogIdentity) -> None:
        files.execute(make_log(log, entry, first, segment_bytes))

    make_folder(directory, identity, fill)


def is_unmade(folder: Path) -> bool:
    """Whether no data folder is there: nothing, an empty folder, or one that a crash left half made."""
    if not folder.exists() or not folder.is_dir():
        return not folder.exists()
    names = {path.name for path in folder.iterdir()} - {LOST_AND_FOUND}
    return not names or (UNFINISHED in names and names <= {UNFINISHED, SHARD})


def make_folder(directory: Path | str, identity: DiskIdentity, fill: Callable[[ShardFiles, LogIdentity], None]) -> None:
    """Makes a data folder; `fill` writes its shard. Its identity has another name until all is durable, so that a
    folder which a crash left half made is known, and is made again.

    Raises FolderExists, NoSpace, FolderReadOnly, DiskError; nothing is left of it then.
    """
    begin_folder(directory, identity, fill)
    finish_folder(directory)


def begin_folder(
    directory: Path | str, identity: DiskIdentity, fill: Callable[[ShardFiles, LogIdentity], None]
) -> None:
    """Makes a data folder on which no node starts before `finish_folder`. Raises as `make_folder`."""
    folder = Path(directory)
    if not is_unmade(folder):
        raise FolderExists(
            f"{folder}: there is something already; name another folder, or remove it if it is not needed"
        )
    try:
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        drop_unfinished(folder)
        write_new(folder / UNFINISHED, encode_identity(identity))
        sync_folder(folder)
        shard = folder / SHARD
        _make_shard(shard)
        files = ShardFiles(shard)
        try:
            fill(files, LogIdentity(bytes.fromhex(identity.log_id)))
        finally:
            files.close()
        sync_folder(shard)
    except BaseException as error:
        drop_unfinished(folder)  # it may be tried again
        if isinstance(error, OSError):
            raise explain(folder, error) from error
        raise


def finish_folder(directory: Path | str) -> None:
    """Names the identity of a folder that `begin_folder` made. Raises DiskError."""
    folder = Path(directory)
    try:
        (folder / UNFINISHED).rename(folder / IDENTITY)
        sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise explain(folder, error) from error


def drop_unfinished(folder: Path) -> None:
    """Removes what `begin_folder` made."""
    shutil.rmtree(folder / SHARD, ignore_errors=True)
    with suppress(OSError):
        (folder / UNFINISHED).unlink()


def _make_shard(shard: Path) -> None:
    for path in (shard, shard / LOG_FOLDER, shard / SNAPSHOTS):
        path.mkdir(PRIVATE_FOLDER)


def format_shard(
    directory: Path | str, identity: DiskIdentity, shard: int, entry: Entry, *, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Makes the folder of a further Raft group in a data folder, with `entry` at index 1.

    Raises FolderExists, NoSpace, FolderReadOnly, DiskError or ValueError; nothing is left of it then.
    """
    if not 0 < shard <= SHARD_MAX:
        raise ValueError(f"shard {shard}: further groups are numbered 1 to {SHARD_MAX}")
    check_segment_bytes(segment_bytes)
    folder = Path(directory) / shard_folder(shard)
    if folder.exists():
        raise FolderExists(f"{folder}: that group is there already")
    aside = folder.with_name(f"{folder.name}.new")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # a crash left it
        _make_shard(aside)
        files = ShardFiles(aside)
        try:
            log = LogIdentity(bytes.fromhex(identity.log_id), shard)
            files.execute(make_log(log, entry, HardState(term=1), segment_bytes))
        finally:
            files.close()
        sync_folder(aside)
        aside.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise explain(folder, error) from error


def open_further(
    directory: Path | str,
    identity: DiskIdentity,
    shard: int,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    tail_bytes_max: int = opening.TAIL_BYTES_MAX,
) -> OpenedFolder:
    """Opens the folder of a further Raft group, for a `raftlog.cluster.disk.disk.Disk` of its own.

    `open_node` must keep the data folder locked meanwhile: close the disk of group 0 last. Raises as that does.
    """
    folder = Path(directory)
    if not (folder / shard_folder(shard)).is_dir():
        raise FolderMissing(f"{folder / shard_folder(shard)}: there is no such folder: make the group first")
    with _explained(folder):
        return _open_shard(folder, identity, None, segment_bytes, tail_bytes_max, shard)


def open_node(
    directory: Path | str, *, log_id: str | None, node: int | None, segment_bytes: int, tail_bytes_max: int
) -> OpenedFolder:
    """Locks the folder, reads it, repairs its files if possible, and counts this start in the hard state.

    A damaged log is cut, and the other nodes send the lost entries again. If they cannot, or if the identity or the
    hard state is damaged, nothing is written. Raises the errors of `raftlog.cluster.files.errors`.
    """
    folder = Path(directory)
    check_segment_bytes(segment_bytes)
    lock = _lock(folder)
    try:
        with _explained(folder):
            identity = _read_identity(folder, lock)
            if log_id is not None and log_id != identity.log_id:
                reason = f"it belongs to log {identity.log_id}, this node serves log {log_id}"
                raise FolderForeign(f"{folder}: {reason}; {_OWN}")
            if node is not None and node != identity.node:
                raise FolderForeign(f"{folder}: it belongs to node {identity.node}, this is node {node}; {_OWN}")
            return _open_shard(folder, identity, lock, segment_bytes, tail_bytes_max, 0)
    except BaseException:
        os.close(lock)
        raise


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raises errors with the files of a folder as one of `raftlog.cluster.files.errors`."""
    try:
        yield
    except ForeignFile as error:
        raise foreign(folder, error) from error
    except UnknownVersion as error:
        raise FormatUnknown(f"{folder}: {error}; start a version of raftlog that knows it") from error
    except HardStateDamaged as error:
        raise FolderDamaged(
            f"{folder}: {error}; term and vote are lost, so this node may not vote again; {RESTORE}"
        ) from error
    except CannotRebuild as error:
        raise FolderDamaged(f"{folder}: {error}; {REPLACE}") from error
    except ShardDamaged as error:
        raise FolderDamaged(f"{folder}: {error}; {_LOST}", error.damage) from error
    except OSError as error:
        raise explain(folder, error) from error


_OWN: Final = "name this node's own folder"
_LOST: Final = f"what this node had acknowledged is not all there; {RESTORE}"


def _open_shard(
    folder: Path, identity: DiskIdentity, lock: int | None, segment_bytes: int, tail_bytes_max: int, number: int
) -> OpenedFolder:
    shard = folder / shard_folder(number)
    log = LogIdentity(bytes.fromhex(identity.log_id), number)
    reserve = Reserve(ReserveFile(shard if lock is None else folder), segment_bytes)
    files = ShardFiles(shard, give=reserve.give)
    steps = open_shard(
        log, files, files.close, identity.node, segment_bytes=segment_bytes, tail_bytes_max=tail_bytes_max
    )
    while True:
        try:
            files.execute(next(steps))
        except StopIteration as stop:
            opened: opening.OpenedShard = stop.value
            break
    snapshot = None if opened.snapshot is None else RecoveredSnapshot(shard, opened.snapshot)
    recovered = recovered_from(identity, opened, snapshot, number)
    return OpenedFolder(recovered, lock, shard, opened.journal, opened.ledger, files, reserve)


# ---------------------------------------------------------------------------------------------------------------
# Identity and lock


def _lock(folder: Path) -> int:
    """The open, locked identity file. Raises FolderMissing, FolderLocked or FolderReadOnly."""
    path = folder / IDENTITY
    if not folder.is_dir():
        raise FolderMissing(f"{folder}: there is no such folder; {UNFORMATTED}")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FolderMissing(
            f"{folder}: it has no {IDENTITY}, so it is no (finished) data folder; {UNFORMATTED}"
        ) from error
    except OSError as error:
        raise explain(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise FolderLocked(f"{folder}: another process has it open; stop that one first") from error
    return lock


_CRC_KEY: Final = b'"crc": '
"""The CRC comes last in identity.json and covers all bytes before this."""


def encode_identity(identity: DiskIdentity) -> bytes:
    """The bytes of identity.json."""
    fields = {
        "version": identity.version,
        "log": identity.log_id,
        "node": identity.node,
        "incarnation": identity.incarnation,
        "crc": "",
    }
    before, _, _ = json.dumps(fields, indent=2).encode().partition(_CRC_KEY)
    return before + _identity_end(before)


def _identity_end(before: bytes) -> bytes:
    return _CRC_KEY + f'"{crc32c(before):08x}"\n}}\n'.encode()


def parse_identity(data: bytes) -> DiskIdentity:
    """The content of identity.json. Raises Corrupt, or UnknownVersion for the folder of another version."""
    try:
        fields = json.loads(data)
        if "format" in fields:
            raise UnknownVersion("a raftlog from before 0.1.0 made it, and only that one opens it: format a new folder")
        before, _, _ = data.partition(_CRC_KEY)
        if data != before + _identity_end(before):
            raise Corrupt("it fails its CRC")
        version = fields["version"]
        if type(version) is int and version > FORMAT_VERSION:
            raise UnknownVersion(f"version {version}: this code knows {FORMAT_VERSION}; start a newer raftlog")
        if sorted(fields) != ["crc", "incarnation", "log", "node", "version"] or version != FORMAT_VERSION:
            raise Corrupt(f"it has the keys {sorted(fields)} and version {version!r}")
        return DiskIdentity(fields["log"], fields["node"], fields["incarnation"])
    except (Corrupt, UnknownVersion):
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"it cannot be read: {error}") from error


def _read_identity(folder: Path, lock: int) -> DiskIdentity:
    path = folder / IDENTITY
    try:
        return parse_identity(os.pread(lock, IDENTITY_BYTES_MAX, 0))
    except UnknownVersion as error:
        raise FormatUnknown(f"{path}: {error}") from error
    except Corrupt as error:
        raise FolderDamaged(
            f"{path}: {error}; restore it from a copy: `raftlog format` fixed its content for good"
        ) from error
