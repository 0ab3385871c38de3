"""A disk that answers one sync without doing it: what that sync should have made durable goes with the next power cut.

Other syncs of that disk are done, later ones of the same file too. The view beside the files takes the answer for the
truth, as the node does, until the loss comes out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.disk.files import Inode
from raftlog.raft.types import HardState
from raftlog.raft.wal.formats import HARD_STATE, LOG_FOLDER

KINDS: Final = ("log", "hard state")
"""What a lie is about: entries of a batch, or a change of the hard state with its copy in the other slot."""

SLOTS: Final = 2


class Lie:
    """One lie. `answered` is called when the sync is answered; `may_lose` when the
    power fails, and says whether the promises allow the loss."""

    def __init__(self, disk: SimDisk, kind: str, *, answered: Callable[[], None], may_lose: Callable[[], bool]) -> None:
        assert kind in KINDS, kind
        self._disk, self._kind = disk, kind
        self._answered, self._may_lose = answered, may_lose
        self._name = ""
        self._inode: Inode | None = None  # of the file whose sync was answered
        self._slots = 0  # of the hard state: how many syncs were answered
        self._durable_last = 0
        self._hard_state = HardState()
        self._seen = b""

    @property
    def is_under_way(self) -> bool:
        inode = self._inode
        return inode is not None and inode.lied is not None and self._disk.files.nodes.get(self._name) is inode

    def takes(self, name: str, inode: Inode) -> bool:
        """Whether the sync of that file is the one. The promise is meant, so nothing of a start is."""
        disk = self._disk
        if self._inode is not None:
            return name == self._name == HARD_STATE and self._takes_other_slot()
        if not disk.process.is_busy or not inode.changes or inode.disk is not None or not self._is_meant(name):
            return False
        self._name, self._inode, self._slots = name, inode, 1
        self._durable_last, self._hard_state = disk.view.durable_last, disk.view.hard_state
        self._answered()
        return True

    def _is_meant(self, name: str) -> bool:
        view = self._disk.view
        if self._kind == "log":
            return name.startswith(LOG_FOLDER) and name.endswith(".seg") and len(view.ends) > view.synced
        return name == HARD_STATE and view.coming is not None

    def _takes_other_slot(self) -> bool:
        """The hard state is written twice, and either copy would do: both are not done. A later change makes up for
        both."""
        self._slots += 1
        if self._slots <= SLOTS:
            return True
        self.make_good()
        return False

    def make_good(self) -> None:
        """The disk has done what it said."""
        if self._inode is not None:
            self._inode.lied = None

    def comes_out(self) -> bool:
        """The power fails. Where the loss is allowed, the view records which entries the disk forgets."""
        if not self.is_under_way or not self._may_lose():
            self.make_good()
            return False
        assert self._inode is not None
        view = self._disk.view
        held = view.held
        if self._kind == "log":
            view.synced = min(view.synced, bisect_right(view.ends, self._durable_last))
        else:
            view.coming = view.coming or view.hard_state  # a copy that was not to be synced yet may be there by chance
            view.hard_state = self._hard_state
        view.lost(held, has_lost_votes=self._kind != "log")
        self._seen = bytes(self._inode.seen)
        return True

    def lost(self) -> None:
        """It is lost: takes note of the place, as of damage."""
        assert self._inode is not None
        before, now = self._seen, self._inode.seen
        differ = [at for at in range(min(len(before), len(now))) if before[at] != now[at]]
        if differ:
            self._inode.wounds.append((differ[0], before[differ[0] : differ[-1] + 1]))
        self._disk.hit((self._name, f"a sync of {self._name} was answered and not done"))
