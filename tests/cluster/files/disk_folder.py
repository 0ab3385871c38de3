"""Makes a stopped node's folder with everything in it: several segments, effects, two snapshots; one for all tests."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.folder import DiskIdentity, format_node
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import HardState
from tests.cluster.files.disk_lab import batch, effects_of
from tests.raft.wal.journal_driver import first_entry, make_entries

IDENTITY = DiskIdentity("00" * 8 + "ab" * 8, 1, "cd" * 16)
CONFIGURATION = Configuration((Member(1, IDENTITY.incarnation, "127.0.0.1:7001", "http://127.0.0.1:8001"),), (1,))
FIRST = first_entry(CONFIGURATION)
SEGMENT_BYTES = 4_096
ENTRIES = 40
SNAPSHOTS = (9, 27)  # after so many entries behind the first


def make_full_folder(folder: Path, *, records: int = 2, is_clean: bool = True) -> int:
    """A node that wrote `ENTRIES` entries and took two snapshots; returns its last index. `is_clean`: was stopped."""
    return asyncio.run(_make(folder, records, is_clean=is_clean))


async def _make(folder: Path, records: int, *, is_clean: bool) -> int:
    format_node(folder, IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
    disk, _ = Disk.open(folder, segment_bytes=SEGMENT_BYTES)
    last = FIRST.mark
    await disk.write_effects(effects_of([FIRST]))
    await disk.carry_out(batch(hard_state=HardState(2, 1)))
    for number in range(ENTRIES):
        term = 1 if number < ENTRIES // 2 else 2
        (entry,) = make_entries(last, term, (200 + number,), records)
        await disk.carry_out(batch(entry))
        await disk.write_effects(effects_of([entry]))
        last = entry.mark
        if number in SNAPSHOTS:
            chunks = [bytes([number]) * 300, b"more" * 20]
            await disk.save_snapshot(last, CONFIGURATION, chunks, 1)
    if is_clean:
        await disk.close()
    else:
        await disk.read_entries(0, last.index, 1)  # rows and effects are in their files
        await kill(disk)
    return last.index


async def kill(disk: Disk) -> None:
    """Lets go of the folder without a mark, as a process that is killed."""
    disk._writer.fence = RuntimeError("killed")  # type: ignore[assignment]
    await disk.close()


# ---------------------------------------------------------------------------------------------------------------
# What tests do with it.

LOG = Path("shard-0/log")


def template(folder: Path) -> Path:
    """Such a folder, made once in that place: copy it."""
    if not folder.exists():
        make_full_folder(folder)
    return folder


def copy_of(folder: Path, to: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(folder, to))


def segment(folder: Path, number: int, ending: str = ".seg") -> Path:
    """The n-th segment, or the file beside it."""
    return sorted((folder / LOG).glob(f"*{ending}"))[number]


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """Changes bits of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def start(folder: Path) -> tuple[str, ...]:
    """Opens and closes the folder as a node does; its notices. Raises what that raises."""

    async def run() -> tuple[str, ...]:
        disk, recovered = Disk.open(folder, segment_bytes=SEGMENT_BYTES)
        await disk.close()
        return recovered.notices

    return asyncio.run(run())
