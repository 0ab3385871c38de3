"""A lab whose members change and whose logs are compacted: joining nodes, new disks, snapshots over the wire.

A snapshot is the bytes of all entries it stands for, so that the state of two nodes can be compared entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.raft.changes import MemberChange
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.codec.entry import decode_entries
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import CoreStart, RaftCore
from raftlog.raft.consensus.invariants import check_log, check_state
from raftlog.raft.ready import Ready, SnapshotInstall, SyncQueue
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, LogStart, Mark, NodeId, TermRun
from tests.raft.lab import Lab, at


def member(node: NodeId, *, disk: int | None = None) -> Member:
    """Node `node` with its first disk, or with that one."""
    return Member(node, f"{node if disk is None else disk:032x}", f"127.0.0.1:{node}", f"http://n{node}")


@dataclass(frozen=True, slots=True)
class Saved:
    """A durable snapshot."""

    mark: Mark
    configuration: Configuration
    configuration_index: int
    data: bytes


def saved_of(data: bytes) -> Saved:
    """The snapshot that these bytes are."""
    entries = decode_entries(data)
    index, configuration = configurations_of(entries)[-1]
    return Saved(entries[-1].mark, configuration, index, data)


def configurations_of(entries: tuple[Entry, ...]) -> list[tuple[int, Configuration]]:
    """Every configuration among the entries, oldest first, and before them the empty one of a node that joins."""
    found = [(each.index, each.data) for each in entries if each.kind is EntryKind.CONFIGURATION]
    return [(0, Configuration()), *((index, decode_configuration(data)) for index, data in found)]


class GrowingLab(Lab):
    """A lab in which every node takes its configuration from its own disk."""

    saved: dict[NodeId, Saved]

    def start(self, node: NodeId, *, tail: int | None = None) -> RaftCore:
        """(Re)start a node from its durable files; `tail` is ignored: the whole log is in memory."""
        if not hasattr(self, "saved"):  # before Lab's own part is through
            self.saved = {}
            self.parts: dict[NodeId, bytes] = {}  # written aside
            self.installs: dict[NodeId, SnapshotInstall] = {}  # asked for, not done
            self.is_slow = False  # whether installs wait for `install`
            self.names: dict[NodeId, str] = {}  # incarnations of disks
            self.knows: dict[NodeId, int] = {}  # newest cluster version that each node's program knows; 1 if not said
        self.parts.pop(node, None)
        self.installs.pop(node, None)
        entries, saved = tuple(self.disks[node]), self.saved.get(node)
        mark = saved.mark if saved else GENESIS
        base = Mark(entries[0].before, 0) if entries else mark
        runs: list[TermRun] = []
        for entry in entries:
            if not runs or runs[-1].term != entry.term:
                runs.append(TermRun(entry.first, entry.term))
        start = LogStart(base.index + 1, tuple(runs), entries[-1].mark if entries else mark, entries, mark)
        configurations = configurations_of(entries)
        if saved:
            newer = [pair for pair in configurations if pair[0] > mark.index]
            configurations = [(saved.configuration_index, saved.configuration), *newer]
        self.applied[node] = list(decode_entries(saved.data)) if saved else []
        self.queues[node] = SyncQueue()
        index, newest = configurations.pop()
        self.cores[node] = RaftCore(
            node,
            self.options,
            CoreStart(
                hard_state=self.hard_states[node],
                log=start,
                configuration=newest,
                configuration_index=index,
                earlier=tuple(configurations),
                commit=mark.index,
                applied=mark.index,
                incarnation=self.names.setdefault(node, member(node).incarnation),
            ),
            random=lambda low, high: min(low + node * 10, high),
            now=at(self.now_ms),
            knows=self.knows.get(node, 1),
        )
        return self.cores[node]

    def connect(self, *nodes: NodeId) -> None:
        """Those nodes (all) connect to every other one that runs, and it to them."""
        for sender in self.cores:
            for to in self.cores:
                if sender != to and (not nodes or sender in nodes or to in nodes):
                    self.cores[to].link_opened(sender, self.names[sender], self.knows.get(sender, 1), at(self.now_ms))

    def disconnect(self, node: NodeId) -> None:
        """Every other node hears its connection close."""
        for other in self.cores:
            if other != node:
                self.cores[other].link_closed(node, at(self.now_ms))

    def upgrade(self, node: NodeId, knows: int) -> None:
        """Stop the node, and start a program that knows that cluster version on its disk."""
        self.disconnect(node)
        self.knows[node] = knows
        self.start(node)
        self.connect(node)

    # -- members -----------------------------------------------------------------------------------------------

    def join(self, node: NodeId, *, disk: int | None = None) -> RaftCore:
        """A node with an empty disk, which waits to be added; or the new disk of one that is gone."""
        self.names[node] = member(node, disk=disk).incarnation
        self.disks[node] = []
        self.saved.pop(node, None)
        self.hard_states[node] = HardState()
        self.events.setdefault(node, [])
        return self.start(node)

    def change(self, node: NodeId, change: MemberChange) -> int:
        """Propose at that leader, and let everybody work."""
        index = self.cores[node].propose_configuration(change, at(self.now_ms))
        self.settle()
        return index

    def cut_off(self, *nodes: NodeId) -> None:
        """As `isolate`, also for nodes that are not members."""
        for a in self.cores:
            for b in self.cores:
                if (a in nodes) != (b in nodes):
                    self.cuts[a, b] = True

    def in_force(self, node: NodeId) -> Configuration:
        """The configuration in force at that node."""
        return self.cores[node].state.configuration

    def voters(self, node: NodeId) -> tuple[NodeId, ...]:
        """The voters as that node sees them; no joint change may be under way there."""
        configuration = self.in_force(node)
        assert not configuration.outgoing, configuration
        return configuration.voters

    # -- snapshots ---------------------------------------------------------------------------------------------

    def snapshot(self, node: NodeId, *, kept: int = 0) -> Mark:
        """Take a snapshot of the node's applied state, and drop its log except for the last `kept` entries before
        it.
        """
        core, applied = self.cores[node], self.applied[node]
        self.saved[node] = saved_of(b"".join([part for each in applied for part in (each.header, each.data)]))
        keep_after = applied[-1 - kept].index
        core.compact(self.saved[node].mark, keep_after)
        self.disks[node] = [entry for entry in self.disks[node] if entry.index > keep_after]
        check_state(core.state)
        check_log(core.state.log)
        return self.saved[node].mark

    def work(self, node: NodeId) -> bool:
        """As `Lab.work`, and asks a core that has no Ready too: when a removed member left, the next step of the leader
        waits for another input."""
        core, did = self.cores[node], False
        while (ready := core.ready()) is not None:
            did = True
            self.carry_out(node, core, ready)
            check_state(core.state)
        return did

    def carry_out(self, node: NodeId, core: RaftCore, ready: Ready) -> None:
        """As `Lab.carry_out`, and its snapshots."""
        super().carry_out(node, core, ready)
        now = at(self.now_ms)
        for wanted in ready.snapshot_fetches:
            saved = self.saved[node]
            is_there = (saved.mark.index, saved.mark.term) == (wanted.index, wanted.term)
            data = saved.data[wanted.offset : wanted.offset + wanted.bytes_max] if is_there else b""
            core.snapshot_chunk(wanted, len(saved.data), data, now)
        for write in ready.snapshot_writes:
            before = self.parts.get(node, b"") if write.offset else b""
            assert len(before) == write.offset
            self.parts[node] = before + write.data
            core.snapshot_written(write, now)
        if ready.snapshot_install is not None:
            self.installs[node] = ready.snapshot_install
            if not self.is_slow:
                self.install(node)

    def install(self, node: NodeId) -> None:
        """Put the received snapshot in force."""
        wanted, saved = self.installs.pop(node), saved_of(self.parts.pop(node))
        assert (saved.mark.index, saved.mark.term) == (wanted.index, wanted.term)
        self.saved[node] = saved
        self.disks[node] = []
        self.applied[node] = list(decode_entries(saved.data))
        core = self.cores[node]
        core.installed(saved.mark, saved.configuration, saved.configuration_index, at(self.now_ms))
        check_state(core.state)
        check_log(core.state.log)
