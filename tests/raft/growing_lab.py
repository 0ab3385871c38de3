"""A lab whose members change: nodes join with empty disks, restart with what their logs say, leave, get new disks."""

from __future__ import annotations

from collections.abc import Sequence

from raft.changes import Change
from raft.codec import decode_configuration, entry_mark
from raft.configuration import Configuration, Member
from raft.core import RaftCore
from raft.log import LogStart
from raft.options import Options
from raft.ready import SyncQueue
from raft.types import GENESIS, EntryKind, HardState, NodeId, TermRun
from tests.raft.lab import Lab, at


def member(node: NodeId, *, disk: int | None = None) -> Member:
    """Node `node` with its first disk, or with that one."""
    return Member(node, f"{node if disk is None else disk:032x}", f"127.0.0.1:{node}", f"http://n{node}")


class GrowingLab(Lab):
    """A lab in which every node takes its configuration from its own log."""

    def __init__(
        self,
        nodes: int = 3,
        logs: dict[NodeId, Sequence[int | tuple[int, int]]] | None = None,
        *,
        options: Options | None = None,
    ) -> None:
        super().__init__(nodes, logs, options=options)

    def start(self, node: NodeId, *, tail: int | None = None) -> RaftCore:
        """(Re)start a node from what is durable; `tail` is not looked at: all of the log is in memory."""
        entries = self.disks[node]
        runs: list[TermRun] = []
        configurations = [(0, Configuration())]
        for entry in entries:
            if not runs or runs[-1].term != entry.term:
                runs.append(TermRun(entry.first, entry.term))
            if entry.kind is EntryKind.CONFIGURATION:
                configurations.append((entry.index, decode_configuration(entry.data)))
        last = entry_mark(entries[-1]) if entries else GENESIS
        self.applied[node] = []
        self.queues[node] = SyncQueue()
        index, newest = configurations.pop()
        self.cores[node] = RaftCore(
            node, self.options, hard_state=self.hard_states[node],
            log=LogStart(1, tuple(runs), last, tuple(entries)), configuration=newest, configuration_index=index,
            earlier=tuple(configurations), commit=0, applied=0,
            random=lambda low, high: min(low + node * 10, high), now=at(self.now_ms),
        )  # fmt: skip
        return self.cores[node]

    def join(self, node: NodeId) -> RaftCore:
        """A node with an empty disk, which waits to be added; or the new disk of one that is gone."""
        self.disks[node] = []
        self.hard_states[node] = HardState()
        self.events.setdefault(node, [])
        return self.start(node)

    def change(self, node: NodeId, change: Change) -> int:
        """Propose at that leader, and let everybody work."""
        index = self.cores[node].propose_configuration(change, at(self.now_ms))
        self.settle()
        return index

    def cut_off(self, *nodes: NodeId) -> None:
        """As `isolate`, whoever is a member."""
        for a in self.cores:
            for b in self.cores:
                if (a in nodes) != (b in nodes):
                    self.cuts[a, b] = True

    def in_force(self, node: NodeId) -> Configuration:
        """The configuration in force at that node."""
        return self.cores[node].state.configuration

    def voters(self, node: NodeId) -> tuple[NodeId, ...]:
        """Who votes as that node sees it; no joint change may be under way there."""
        configuration = self.in_force(node)
        assert not configuration.outgoing, configuration
        return configuration.voters
