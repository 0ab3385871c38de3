"""Decides which disks may be hit: enough intact copies of every committed entry, vote and snapshot must stay.

A wiped and a rolled-back disk stop their node for good, or until it is replaced; a log that was hit is cut and heals
from the others, and until then neither its copies nor its vote count. Every committed entry and every vote is on a
majority. A majority without the lost nodes can still elect and commit, and has a copy. So the promise can be kept as
long as the other nodes form every majority in force. Beyond that the property is only that a node stops loudly
and never serves wrong data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import Final

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.disk.faults import FATAL
from raftlog.chaos.sim.invariants.known import is_quorum
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import NodeId

WHOLE_DISK: Final = ("wipe", "roll_back")
"""Faults of a whole disk, beside the areas of `raftlog.chaos.sim.disk.faults`."""

STATE: Final = "state"
"""A wrong state that cannot be rebuilt: its node has a note on its disk, and refuses to start."""

COVERED: Final = ("snapshot", "ledger")
"""Areas whose damage a log from 1 makes up for. It may go before anybody reads them, so they count at once."""


class Atlas:
    """The damage of each disk, and the nodes that are lost by it."""

    def __init__(self, disks: Mapping[NodeId, SimDisk], configuration: Configuration) -> None:
        self._disks = disks
        self._configurations = [configuration]
        self.hits: list[tuple[NodeId, str, str]] = []  # node, area, what: in order
        self.lost: dict[NodeId, str] = {}  # a node beyond repair, or that has still to heal, and why
        self.doubtful: dict[NodeId, str] = {}  # a node that would be lost by a compaction of its log, and why
        self.unsound: dict[NodeId, str] = {}  # a node whose state in memory is wrong: it reports that, and restarts
        self._whole_disk: dict[NodeId, bool] = {}  # whose disk as a whole is not the one that made its promises

    # -- nodes that count

    def configured(self, *configurations: Configuration) -> None:
        """The configurations that may be in force from now on: the newest committed one and all behind it."""
        assert configurations
        self._configurations = list(configurations)

    def may_configure(self, configuration: Configuration) -> bool:
        """Whether the promise stays possible with that configuration: an operator asks before a change is proposed."""
        self._mend()
        return self._has_majorities(configuration, {**self.lost, **self.doubtful, **self.unsound})

    def quorum(self, random: Random, among: Collection[NodeId] | None = None) -> list[NodeId]:
        """Members that are not lost (or those of `among`) and can go on alone: a majority of every configuration that
        may be in force. [] if they cannot.

        All of them where there is a learner: the change that it came with may go on, to voters that are not known here.
        """
        kept = [node for node in self._disks if not self.is_lost(node)] if among is None else list(among)
        if not self.is_majority(kept):
            return []
        if any(each.learners for each in self._configurations) or self.unsound:
            return kept  # if two states differ, a third one shows which is right
        for node in random.sample(kept, len(kept)):
            fewer = [other for other in kept if other != node]
            if self.is_majority(fewer):
                kept = fewer
        return kept

    def is_majority(self, nodes: Collection[NodeId]) -> bool:
        """Of every configuration that may be in force."""
        return all(is_quorum(each, nodes) for each in self._configurations)

    # -- what may be hit

    def may_hit(self, node: NodeId, area: str) -> bool:
        """Whether the promise stays possible when that area of that node's disk is damaged now."""
        self._mend()
        if node in self.lost:
            return True  # it could not become worse, and must stay as loud
        if area in ("idx", "hard_state"):
            return True  # rebuilt from the log; of the hard state the other slot stays (`disk/faults.py`)
        return self._stays_possible_without(node)

    def hit(self, node: NodeId, area: str, what: str) -> None:
        self.hits.append((node, area, what))
        if area in WHOLE_DISK:
            self._whole_disk[node] = True
        if area in FATAL or area in WHOLE_DISK or area == STATE:
            self.lost.setdefault(node, f"{area}: {what}")
        elif area in COVERED:
            self.doubtful.setdefault(node, f"{area}: {what}")
        self._mend()

    def is_lost(self, node: NodeId) -> bool:
        """Whether nothing of that node counts: it is beyond repair, or has still to heal."""
        self._mend()
        return node in self.lost

    def is_beyond_repair(self, node: NodeId) -> bool:
        """Whether its disk as a whole is not the one that made its promises, or refuses to be opened."""
        return node in self._whole_disk or bool(self._disks[node].refused)

    def _mend(self) -> None:
        """A node is whole again once its damaged files are gone (by a compaction or an install). A node is lost once
        it loses the log that made up for damage."""
        for node in list(self.doubtful):
            if not self._disks[node].is_damaged(COVERED):
                del self.doubtful[node]
            elif not self._can_start(node):
                self.lost.setdefault(node, self.doubtful[node])
        for node, disk in self._disks.items():
            if disk.view.is_healing:
                self.lost.setdefault(node, "it has not healed yet")
            elif node in self.lost and not (disk.is_hurt or self._whole_disk.get(node) or disk.is_half_repaired):
                del self.lost[node]

    def _stays_possible_without(self, node: NodeId) -> bool:
        gone = {**self.lost, **self.doubtful, **self.unsound, node: ""}
        return all(self._has_majorities(configuration, gone) for configuration in self._configurations)

    def _has_majorities(self, configuration: Configuration, gone: Collection[NodeId]) -> bool:
        """A learner that is gone counts as a voter: the leader may promote it before its damage or its wrong state is
        found."""
        promoted = [learner for learner in configuration.learners if learner in gone]
        for voters in ([*configuration.voters, *promoted], configuration.outgoing):
            if voters and 2 * len([voter for voter in voters if voter not in gone]) <= len(voters):
                return False
        return True

    def _can_start(self, node: NodeId) -> bool:
        """Whether the log begins at 1, or an intact snapshot reaches its beginning and all effects are there."""
        disk = self._disks[node]
        if disk.first_index == 1:
            return True
        damaged = {name.split("/")[1] for name in disk.damaged if name.startswith("snapshots/")}
        intact = [index for index in disk.snapshots() if f"{index:020d}" not in damaged]
        return max(intact, default=0) >= disk.first_index - 1 and not disk.is_damaged(("ledger",))

    # -- for people

    def describe(self) -> list[str]:
        """A line for each node, then one for each hit."""
        lines: list[str] = []
        for node, disk in sorted(self._disks.items()):
            state = disk.view.hard_state
            lines.append(
                f"node {node}: {'LOST (' + self.lost[node] + ')' if node in self.lost else 'intact'}; durable to "
                f"{disk.view.durable_last}, term {state.term}, vote {state.vote}, boot {state.boot}, log from "
                f"{disk.first_index}, snapshots {disk.snapshots() or 'none'}"
                + (f"; refused: {disk.refused}" if disk.refused else "")
            )
        lines += [f"voters {each.voters} outgoing {each.outgoing or 'none'}" for each in self._configurations]
        lines += [f"hit: node {node} {area}: {what}" for node, area, what in self.hits]
        return lines
