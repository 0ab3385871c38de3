"""Makes a data folder, and opens one: whose it is, that nobody else has it, what is in it, what had to be mended.

    identity.json           log id, node, incarnation, format version; locked while a process has the folder open
    shard-0/hard_state      shard-0/log/…      shard-0/snapshots/…

`raftlog format` makes it once; a node never does at start (promise 8).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.disk_errors import (
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
from cluster.disk_files import ShardFiles, sync_folder, write_new
from cluster.disk_snapshots import RecoveredSnapshot
from raft import storage_open
from raft.codec import Corrupt, UnknownVersion, crc32c
from raft.configuration import Configuration
from raft.divergence import CannotRebuild
from raft.formats import FORMAT_VERSION, ForeignFile, Log
from raft.hello import Start
from raft.journal import LOG_FOLDER, SEGMENT_BYTES, Journal, check_segment_bytes, make_log
from raft.recovery import HardStateDamaged
from raft.storage_ledger import Ledger
from raft.storage_open import ShardDamaged, open_shard
from raft.storage_snapshots import SNAPSHOTS
from raft.types import Entry, EntryKind, HardState, Mark, TermRun

IDENTITY: Final = "identity.json"
IDENTITY_BYTES_MAX: Final = 65_536
SHARD: Final = "shard-0"
_HEX32: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose data folder it is; made once by `raftlog format`, never at start, never changed."""

    log_id: str  # 32 hex digits
    node: int
    incarnation: str  # 32 hex digits: this very disk
    format: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for name in ("log_id", "incarnation"):
            value = getattr(self, name)
            if type(value) is not str or not _HEX32.fullmatch(value):
                raise ValueError(f"{name} is {value!r}: it must be 32 lower-case hex digits")
        if type(self.node) is not int or not 1 <= self.node < 1 << 31:
            raise ValueError(f"node is {self.node!r}: it must be a whole number from 1 to 2147483647")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a folder held when it was opened; all of it is durable and intact."""

    identity: Identity
    hard_state: HardState  # the boot counter is that of this start
    first: int  # oldest index on disk
    base: Mark | None  # the end before it, where known
    runs: tuple[TermRun, ...]
    last: Mark
    tail: tuple[Entry, ...]  # newest entries
    configuration: Configuration  # the newest in the log
    configuration_index: int
    earlier: tuple[tuple[int, Configuration], ...]  # those before it and their indexes, back to the snapshot's
    snapshot: RecoveredSnapshot | None  # the newest intact one that the ledger reaches
    ledger_last: int  # newest entry with effects: replay makes those behind it
    notices: tuple[str, ...]  # what was found and mended
    floor: int = 0  # not 0: it lost entries to damage, and has no vote before it holds one of that term or a later one

    def start(self, run: int) -> Start:
        """What a process with that run says of it in its hellos."""
        return Start(
            run=run, last_index=self.last.index, last_term=self.last.term, term=self.hard_state.term, floor=self.floor
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """What the disk works with. `lock` is the open descriptor that keeps others out."""

    recovered: Recovered
    lock: int
    shard: Path
    journal: Journal
    ledger: Ledger
    files: ShardFiles


def format_node(directory: Path | str, identity: Identity, entry: Entry, *, segment_bytes: int = SEGMENT_BYTES) -> None:
    """Makes the data folder of a node with its first segment, whose only entry is `entry`: the configuration, index 1.

    Raises as `make_folder`, or ValueError.
    """
    if (entry.index, entry.term, entry.kind) != (1, 1, EntryKind.CONFIGURATION):
        raise ValueError("the first entry of a log is its configuration, index 1 of term 1")
    check_segment_bytes(segment_bytes)

    def fill(files: ShardFiles, log: Log) -> None:
        files.execute(make_log(log, entry, HardState(term=1), segment_bytes))

    make_folder(directory, identity, fill)


def make_folder(directory: Path | str, identity: Identity, fill: Callable[[ShardFiles, Log], None]) -> None:
    """Makes a data folder; `fill` writes its shard. identity.json comes last: a folder without it is unfinished.

    Raises FolderExists, NoSpace, FolderReadOnly, DiskError; then nothing is left of it.
    """
    folder = Path(directory)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderExists(
            f"{folder}: there is something already; name another folder, or remove it if it is not needed"
        )
    shard = folder / SHARD
    try:
        for path in (shard / LOG_FOLDER, shard / SNAPSHOTS):
            path.mkdir(parents=True)
        files = ShardFiles(shard)
        try:
            fill(files, Log(bytes.fromhex(identity.log_id)))
        finally:
            files.close()
        sync_folder(shard)
        aside = folder / f"{IDENTITY}.new"
        write_new(aside, encode_identity(identity))
        aside.rename(folder / IDENTITY)
        sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(shard, ignore_errors=True)  # unfinished: it may be tried again
        raise explain(folder, error) from error


def open_node(
    directory: Path | str, *, log_id: str | None, node: int | None, segment_bytes: int, tail_bytes_max: int
) -> Opened:
    """Locks the folder, reads it, mends what may be mended, and counts this start in the hard state.

    A damaged log is cut, and heals from the other nodes; where they cannot heal it, and where the identity or the hard
    state is damaged, nothing is written. Raises the errors of `cluster.disk_errors`.
    """
    folder = Path(directory)
    check_segment_bytes(segment_bytes)
    lock = _lock(folder)
    try:
        identity = _read_identity(folder, lock)
        if log_id is not None and log_id != identity.log_id:
            raise FolderForeign(f"{folder}: it belongs to log {identity.log_id}, this node serves log {log_id}; {_OWN}")
        if node is not None and node != identity.node:
            raise FolderForeign(f"{folder}: it belongs to node {identity.node}, this is node {node}; {_OWN}")
        return _open_shard(folder, identity, lock, segment_bytes, tail_bytes_max)
    except BaseException as error:
        os.close(lock)
        match error:
            case ForeignFile():
                raise foreign(folder, error) from error
            case UnknownVersion():
                raise FormatUnknown(f"{folder}: {error}; start a version of raftlog that knows it") from error
            case HardStateDamaged():
                raise FolderDamaged(
                    f"{folder}: {error}; term and vote are lost, so this node may not vote again; {RESTORE}"
                ) from error
            case CannotRebuild():
                raise FolderDamaged(f"{folder}: {error}; {REPLACE}") from error
            case ShardDamaged():
                raise FolderDamaged(f"{folder}: {error}; {_LOST}", error.damage) from error
            case OSError():
                raise explain(folder, error) from error
        raise


_OWN: Final = "name this node's own folder"
_LOST: Final = f"what this node had acknowledged is not all there; {RESTORE}"


def _open_shard(folder: Path, identity: Identity, lock: int, segment_bytes: int, tail_bytes_max: int) -> Opened:
    shard = folder / SHARD
    log = Log(bytes.fromhex(identity.log_id))
    files = ShardFiles(shard)
    steps = open_shard(
        log, files, files.close, identity.node, segment_bytes=segment_bytes, tail_bytes_max=tail_bytes_max
    )
    while True:
        try:
            files.execute(next(steps))
        except StopIteration as stop:
            opened: storage_open.Opened = stop.value
            break
    snapshot = None if opened.snapshot is None else RecoveredSnapshot(shard, opened.snapshot)
    start = opened.log
    recovered = Recovered(
        identity, opened.hard_state, start.first, start.base, start.runs, start.last, start.tail, opened.configuration,
        opened.configuration_index, opened.earlier, snapshot, opened.ledger_last, opened.notices,
        opened.floor,
    )  # fmt: skip
    return Opened(recovered, lock, shard, opened.journal, opened.ledger, files)


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
"""In identity.json the CRC comes last; it is that of all bytes before this."""


def encode_identity(identity: Identity) -> bytes:
    """The bytes of identity.json."""
    fields = {
        "format": identity.format,
        "log": identity.log_id,
        "node": identity.node,
        "incarnation": identity.incarnation,
        "crc": "",
    }
    before, _, _ = json.dumps(fields, indent=2).encode().partition(_CRC_KEY)
    return before + _identity_end(before)


def _identity_end(before: bytes) -> bytes:
    return _CRC_KEY + f'"{crc32c(before):08x}"\n}}\n'.encode()


def parse_identity(data: bytes) -> Identity:
    """What identity.json says; one that was made before it had a CRC has none. Raises Corrupt, or UnknownVersion for
    the format of a newer raftlog."""
    try:
        fields = json.loads(data)
        if "crc" in fields:
            before, _, _ = data.partition(_CRC_KEY)
            if data != before + _identity_end(before):
                raise Corrupt("it fails its CRC")
            del fields["crc"]
        version = fields["format"]
        if type(version) is int and version > FORMAT_VERSION:
            raise UnknownVersion(f"format {version}: this code knows {FORMAT_VERSION}")
        if sorted(fields) != ["format", "incarnation", "log", "node"] or version != FORMAT_VERSION:
            raise Corrupt(f"it has the keys {sorted(fields)} and format {version!r}")
        return Identity(fields["log"], fields["node"], fields["incarnation"])
    except (Corrupt, UnknownVersion):
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"it cannot be read: {error}") from error


def _read_identity(folder: Path, lock: int) -> Identity:
    path = folder / IDENTITY
    try:
        return parse_identity(os.pread(lock, IDENTITY_BYTES_MAX, 0))
    except UnknownVersion as error:
        raise FormatUnknown(f"{path}: {error}; start a newer raftlog") from error
    except Corrupt as error:
        raise FolderDamaged(
            f"{path}: {error}; restore it from a copy: what it names was fixed by `raftlog format`"
        ) from error
