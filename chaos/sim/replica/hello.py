"""Defines what a simulated process says of itself when it connects to another one."""

from __future__ import annotations

from typing import Final, NamedTuple

from raftlog.raft.hello import Start


class Hello(NamedTuple):
    """What a process says of itself when it connects."""

    incarnation: str  # of its disk
    boot: int  # its counter
    start: Start  # what it found on its disk

    @property
    def run(self) -> int:
        """The number of the process."""
        return self.start.run


NOBODY_YET: Final = Hello("", 0, Start(run=0, last_index=0, last_term=0, term=0, floor=0))
