"""Checks whether the machine is fit for measurements, before a run and during it; one answer for all benches."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from bench.instruments import machine
from raftlog.cluster.runtime import build, interpreter


class Conditions(msgspec.Struct, frozen=True):
    """The floor of the disk, what others used of the processors before the run, and what ran."""

    disk: machine.Disk
    busy_before: float
    python: str = ""
    is_optimised: bool = True  # the interpreter, as most users have it
    modules: str = ""  # "compiled" or "interpreted"

    @property
    def is_quiet(self) -> bool:
        """Whether a ratio of this run may be quoted, as far as could be seen before it."""
        return self.busy_before <= machine.BUSY_SHARE_MAX

    @property
    def unfit(self) -> str:
        """Why no goal can be judged by this run; "" if it can."""
        if not self.is_quiet:
            return "the machine was busy"
        return "" if self.is_optimised else "Python was built without PGO"


def look(folder: Path, console: Console, room: int = 0) -> Conditions:
    """Measures and says both. Ends the program with 2 where `folder` is in memory, or has no room for so many bytes."""
    if (free := shutil.disk_usage(folder).free) < room:
        console.print(
            f"[red]{folder}: {free / 1e9:.0f} GB are free, the data of a run takes up to {room / 1e9:.0f} GB[/]"
        )
        console.print("make room, or name a folder on another disk with --data")
        raise typer.Exit(2)
    try:
        disk = machine.measure_disk(folder)
    except machine.NotADisk as refusal:
        console.print(f"[red]{refusal}[/]")
        raise typer.Exit(2) from refusal
    found = Conditions(
        disk, round(machine.busy_share(), 3), interpreter.describe(), interpreter.is_optimised(), build.modules()
    )
    slow = "" if found.is_optimised else "; [red]no goal will be judged: users have faster builds[/]"
    console.print(f"raftlog's {found.modules} modules on {found.python}{slow}", highlight=False)
    console.print(
        f"fdatasync p50 {disk.p50_us:.0f} µs, p99 {disk.p99_us:.0f} µs ({disk.filesystem}); "
        f"machine {found.busy_before:.0%} busy before" + ("" if found.is_quiet else "; [red]no ratio will be quoted[/]")
    )
    return found


class Others:
    """How much of the processors went to anybody else between two looks."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        """`pids`: every process of the bench that outlives a run; its ended children are counted by themselves."""
        self._pids = pids
        self._at = self._now()

    def _now(self) -> tuple[float, float, float]:
        busy, total = machine.jiffies()
        ticks = os.sysconf("SC_CLK_TCK")
        own = machine.cpu_seconds(self._pids())
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            own += used.ru_utime + used.ru_stime
        return busy / ticks, total / ticks, own

    def share(self) -> float:
        """Since the last look, or since this was made."""
        before, self._at = self._at, self._now()
        busy, total, own = (after - earlier for after, earlier in zip(self._at, before, strict=True))
        return round(max(0.0, busy - own) / max(total, 1e-9), 3)
