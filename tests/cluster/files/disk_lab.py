"""Makes data folders and entries for tests of the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.folder import DiskIdentity, RecoveredFolder, format_node
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry, HardState
from raftlog.statemachine.effects import Effects, decode_effects, decode_effects_header, encode_effects
from tests.raft.wal.journal_driver import FIRST

IDENTITY = DiskIdentity("00" * 8 + "ab" * 8, 1, "cd" * 16)
SEGMENT_BYTES = 8_192
OPENED: list[Disk] = []
"""The disks of the running test; the fixture in tests/cluster/disk closes them."""


def make_folder(tmp_path: Path, identity: DiskIdentity = IDENTITY, segment_bytes: int = SEGMENT_BYTES) -> Path:
    """A data folder as `raftlog format` makes it, with small segments."""
    folder = tmp_path / "node-1"
    format_node(folder, identity, FIRST, segment_bytes=segment_bytes)
    return folder


def open_disk(folder: Path, segment_bytes: int = SEGMENT_BYTES) -> tuple[Disk, RecoveredFolder]:
    """The folder opened, with small segments."""
    disk, recovered = Disk.open(folder, segment_bytes=segment_bytes)
    OPENED.append(disk)
    return disk, recovered


def batch(*entries: Entry, hard_state: HardState | None = None, cut_after: int | None = None) -> SyncBatch:
    """A batch without messages."""
    return SyncBatch(hard_state, cut_after, entries, ())


def effects_of(entries: Sequence[Entry]) -> list[bytes]:
    """Effects of plain entries."""
    return [encode_effects(Effects(entry.index, 1, (), True)) for entry in entries]


def frames_of(ledger: bytes) -> list[int]:
    """The entries whose effects lie in some ledger bytes."""
    indexes = []
    while ledger:
        indexes.append(decode_effects(ledger).index)
        ledger = ledger[40 + decode_effects_header(ledger).payload_bytes :]
    return indexes


async def read_all(disk: Disk, last: int, bytes_max: int = 3_000) -> list[Entry]:
    """Every entry up to `last`, piece by piece."""
    entries: list[Entry] = []
    while (after := entries[-1].index if entries else 0) < last:
        piece = await disk.read_entries(after, last, bytes_max)
        assert piece, f"nothing after {after}"
        entries += piece
    return entries
