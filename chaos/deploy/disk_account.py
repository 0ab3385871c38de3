"""Accounts for disks that lost their promises: while a majority is intact, every acknowledged write must be there.

It is the counterpart of the simulator's atlas for real files. A damaged, wiped or rolled-back disk is lost until
another disk has taken its place and votes. With more than a minority of lost disks nothing is promised. So a fault that
would lose one more disk is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence


class DiskAccount:
    """The lost disks of a cluster."""

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}

    def refusal(self, node: int, voters: Sequence[int]) -> str | None:
        """Why that node's disk may not be lost now; None: it may."""
        gone = {each for each in self.lost if each in voters} | {node}
        if 2 * (len(voters) - len(gone)) > len(voters):
            return None
        lost = "; ".join(f"node {each}: {why}" for each, why in sorted(self.lost.items())) or "none is lost yet"
        return f"without the disk of node {node} no majority of {list(voters)} would be intact ({lost})"

    def lose(self, node: int, why: str) -> None:
        """That disk is not to be trusted any more."""
        self.lost[node] = why

    def replaced(self, node: int) -> None:
        """A new disk has its place."""
        self.lost.pop(node, None)
