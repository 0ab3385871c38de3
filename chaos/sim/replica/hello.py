"""Defines what a simulated process says of itself when it connects to another one."""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog.raft.hello import Start


class Hello(NamedTuple):
    """What a process says of itself when it connects."""

    incarnation: str  # of its disk
    boot: int  # its counter
    knows: int = 1  # the newest cluster version that its program knows
    start: Start | None = None  # what it found on its disk; None: a program that is too old to say it

    @property
    def run(self) -> int:
        """The number of the process; 0: its program is too old to say it."""
        return 0 if self.start is None else self.start.run


NOBODY_YET: Final = Hello("", 0)
