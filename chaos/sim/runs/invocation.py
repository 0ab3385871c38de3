"""One `raftlog sim` as it was asked for, checked, and the ways in which it may end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from raftlog.chaos.sim.runs.runner import Job
from raftlog.chaos.sim.world.world import MACHINE

FAILURES_MAX: Final = 3
"""A run ends after this many failed seeds: one bug fails many, and each leaves a report."""

REPORTS: Final = Path("runs/sim")
"""The folder for reports of failed seeds, unless `--report` names another one."""


class Exit(IntEnum):
    """How the command ends."""

    OK = 0
    BROKEN = 1  # a property does not hold
    USAGE = 2
    TOO_LITTLE = 6  # nothing broke, but too little happened for that to mean anything
    INTERNAL = 8  # the simulator itself failed: nothing is known
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class SimRequest:
    """The command line, checked."""

    seeds: range
    seconds: int
    minutes: float | None
    is_replay: bool
    trace: bool
    shrink: bool
    skip: frozenset[int]
    mutant: str | None
    machine: str
    jobs: int
    reports: Path

    def job(self, seed: int) -> Job:
        return Job(seed, self.seconds, self.skip, self.mutant, self.machine)

    @property
    def is_plain(self) -> bool:
        """Whether this is the project itself under test, whole."""
        return not self.mutant and not self.skip and self.machine == MACHINE and not self.is_replay

    @property
    def failures_max(self) -> int:
        """After how many failures the run ends; one finds a planted bug."""
        return 1 if self.mutant else FAILURES_MAX
