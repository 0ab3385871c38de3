"""What must hold between the nodes of a world: the properties of figure 3, and that a promise is durable.

Fed with what happens, one event at a time, so that checking after every step stays cheap. Entries are told apart by the
CRC of their header, which chains through the CRC of the one before: equal CRCs mean equal logs up to there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from chaos.sim.disk import SimDisk
from raft.codec import header_crc
from raft.configuration import Configuration
from raft.core import RaftCore
from raft.invariants import InvariantBroken, Observed, check_log, check_state, check_step, observe
from raft.messages import AppendEntriesReply, Message, RequestVote, RequestVoteReply
from raft.roles import RoleName
from raft.types import Entry, NodeId


class Witness:
    """Sees everything; raises InvariantBroken."""

    __slots__ = ("_leaders", "_seen", "_votes", "chain", "checks", "committed", "configuration")

    def __init__(self, configuration: Configuration, first: Entry) -> None:
        self.configuration = configuration
        self._leaders: dict[int, NodeId] = {}
        self._votes: dict[tuple[NodeId, int], NodeId] = {}
        self._seen: dict[NodeId, Observed] = {}
        self.chain: dict[tuple[int, int], int] = {(first.index, first.term): header_crc(first)}
        self.committed: list[tuple[int, int]] = [(first.index, first.term)]  # in order, as first seen
        self.checks = 0

    def position_after(self, index: int) -> int:
        """How many entries a node has applied whose state stands at the end `index`."""
        return bisect_left(self.committed, (index, 0)) + 1

    def started(self, core: RaftCore) -> None:
        """A process began: what is volatile may have fallen."""
        check_log(core.state.log, core.state.node)
        self._seen[core.state.node] = observe(core.state)

    def stepped(self, core: RaftCore, disks: dict[NodeId, SimDisk]) -> None:
        """A node took an input."""
        state = core.state
        node = state.node
        self.checks += 1
        check_state(state)
        before, after = self._seen[node], observe(state)
        if before == after:
            return
        check_step(node, before, after)
        self._seen[node] = after
        if after.role is RoleName.LEADER and (before.role, before.term) != (after.role, after.term):
            self._became_leader(core)
        if after.committed > before.committed:
            self._committed(core, disks)

    def appended(self, node: NodeId, entries: Iterable[Entry]) -> None:
        """Entries went into a node's log: log matching (figure 3)."""
        for entry in entries:
            crc = header_crc(entry)
            if self.chain.setdefault((entry.index, entry.term), crc) != crc:
                raise InvariantBroken(node, "log matching", "figure 3", (entry.index, entry.term))

    def sends(self, message: Message, disk: SimDisk) -> None:
        """A message leaves: whatever it promises must be on that node's disk (persist, then promise)."""
        node = message.sender
        match message:
            case RequestVoteReply(pre=False, granted=True):
                self._voted(node, message.term, message.to, disk)
            case RequestVote(pre=False):
                self._voted(node, message.term, node, disk)
            case AppendEntriesReply(success=True) if message.match > 0:
                if disk.hard_state.term < message.term:
                    raise InvariantBroken(node, "persist the term, then answer in it", "3.8", message)
                if disk.ends[disk.synced - 1] < message.match:
                    raise InvariantBroken(node, "persist, then promise", "3.8", (message, disk.ends[disk.synced - 1]))

    def applied(self, node: NodeId, position: int, entry: Entry) -> None:
        """A node applies the entry at that position of its log: state machine safety (figure 3)."""
        if position >= len(self.committed) or self.committed[position] != (entry.index, entry.term):
            raise InvariantBroken(node, "state machine safety", "figure 3", (position, entry.index, entry.term))
        if self.chain[entry.index, entry.term] != header_crc(entry):
            raise InvariantBroken(node, "what is applied is what was appended", "figure 3", entry.index)

    def _voted(self, node: NodeId, term: int, to: NodeId, disk: SimDisk) -> None:
        durable = disk.hard_state
        if durable.term < term or (durable.term == term and durable.vote != to):
            raise InvariantBroken(node, "persist the vote, then give it", "3.8", (term, to, durable))
        if self._votes.setdefault((node, term), to) != to:
            raise InvariantBroken(node, "one vote per term", "5.2", (term, to, self._votes[node, term]))

    def _became_leader(self, core: RaftCore) -> None:
        state = core.state
        if self._leaders.setdefault(state.term, state.node) != state.node:
            raise InvariantBroken(state.node, "election safety", "figure 3", (state.term, self._leaders[state.term]))
        index, term = self.committed[-1]
        if state.log.term_at(index) != term:
            raise InvariantBroken(state.node, "leader completeness", "figure 3", (index, term, state.log.last))

    def _committed(self, core: RaftCore, disks: dict[NodeId, SimDisk]) -> None:
        """Commit rose at a node: what is new must be durable on a majority, and go on from what was committed."""
        node, index = core.state.node, core.state.log.committed
        newest, _ = self.committed[-1]
        if index <= newest:
            return  # applied() compares each entry with what others committed
        term = core.state.log.term_at(index)
        holders = [voter for voter in self.configuration.voters if term is not None and disks[voter].has(index, term)]
        if 2 * len(holders) <= len(self.configuration.voters):
            raise InvariantBroken(node, "committed means durable on a majority", "5.3", (index, term, holders))
        fresh = disks[holders[0]].between(newest, index)
        if fresh[0].before != newest:
            raise InvariantBroken(node, "commit goes on from what was committed", "figure 3", (newest, index))
        self.committed += [(entry.index, entry.term) for entry in fresh]
