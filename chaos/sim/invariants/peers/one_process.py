"""Checks that of two processes with one boot counter a peer believes the first."""

from __future__ import annotations

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId

PROPERTY = "of a disk and its copy one is believed"
SECTION = "promises.md: identity is not address"


class OneProcess:
    """The newest process of each disk that each process has believed."""

    def __init__(self) -> None:
        # (peer, its life), (node, incarnation) -> boot counter and run
        self._newest: dict[tuple[tuple[NodeId, int], tuple[NodeId, str]], tuple[int, int]] = {}

    def believes(self, peer: tuple[NodeId, int], disk: tuple[NodeId, str], boot: int, run: int) -> None:
        """A peer takes the hello of that process. A boot counter that was passed, or the same one with another run, is
        that of a copy. Raises InvariantBroken."""
        known_boot, known_run = self._newest.get((peer, disk), (0, 0))
        if boot < known_boot or (boot == known_boot and run and known_run and run != known_run):
            evidence = (
                f"node {peer[0]} believes start {boot}, run {run:016x}, after start {known_boot}, run {known_run:016x}"
            )
            raise InvariantBroken(disk[0], PROPERTY, SECTION, evidence)
        self._newest[peer, disk] = (boot, run)
