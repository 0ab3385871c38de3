"""Measures the machine during a run: its disk's fdatasync, its other load, and whether the disk is real.

A ratio is only worth printing beside the floor it was measured on, and only when nothing else used the machine.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec

BUSY_SHARE_MAX = 0.10
"""Share of the machine's time that others may use while it is quiet; above it a ratio is called noisy."""

_MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})


LAST = 19
"""The niceness of processes that may use only idle processor time."""


class NotADisk(Exception):
    """The folder is in memory: its fsync costs nothing and every figure would be wrong."""


class Disk(msgspec.Struct, frozen=True):
    """fdatasync of one 4 KiB write, in microseconds, on a preallocated file as raftlog's segments are."""

    filesystem: str
    samples: int
    p50_us: float
    p99_us: float


def filesystem_of(folder: Path) -> str:
    """The type of the filesystem that holds `folder` (Linux)."""
    best, kind = "", "unknown"
    target = str(folder.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split()
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def measure_disk(folder: Path, samples: int = 400) -> Disk:
    """Time fdatasync in `folder`. Raises NotADisk on a filesystem in memory."""
    kind = filesystem_of(folder)
    if kind in _MEMORY_FILESYSTEMS:
        raise NotADisk(f"{folder} is on {kind}, where fdatasync costs nothing: name a folder on a disk with --data")
    path = folder / "fdatasync.probe"
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
    block = b"\x55" * 4096
    taken: list[float] = []
    try:
        os.pwrite(file, bytes(4096 * samples), 0)
        os.fsync(file)
        for number in range(samples):
            os.pwrite(file, block, 4096 * number)
            start = time.perf_counter()
            os.fdatasync(file)
            taken.append((time.perf_counter() - start) * 1e6)
    finally:
        os.close(file)
        path.unlink()
    taken.sort()
    return Disk(kind, samples, round(median(taken), 1), round(taken[int(samples * 0.99)], 1))


def jiffies() -> tuple[int, int]:
    """(busy, all) jiffies of all processors since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    total = sum(fields[:8])
    return total - fields[3] - fields[4], total


def busy_share(seconds: float = 1.0) -> float:
    """The share of the processors' time in use over the next `seconds`, while the bench itself rests."""
    busy, total = jiffies()
    time.sleep(seconds)
    busy_after, total_after = jiffies()
    return (busy_after - busy) / max(1, total_after - total)


def cpu_seconds(pids: list[int]) -> float:
    """Processor time, user and system, that these processes have used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / ticks


def put_last(pid: int) -> None:
    """Gives a process nice 19, which its threads and children inherit, and gives its session the same.

    Where the kernel shares the processors between sessions first (`sched_autogroup_enabled`), a process's own niceness
    counts only within its session.
    """
    os.setpriority(os.PRIO_PROCESS, pid, LAST)
    with suppress(OSError):  # no such file: it does not
        Path(f"/proc/{pid}/autogroup").write_text(str(LAST))


def memory_mib(pids: list[int]) -> float:
    """Resident memory of these processes together, in MiB."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
