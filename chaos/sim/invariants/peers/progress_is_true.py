"""Progress is true: what a leader takes for proved at a follower was answered in its term, and is durable there.

It never falls (raft paper figure 2, section 5.3; thesis 3.5), but to 0 for a new process of the follower, or one that
lost what it acknowledged (`raftlog.raft.consensus.recall`).
"""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.messages import AppendEntriesReply
from raftlog.raft.types import NodeId

PROPERTY = "progress is true"
SECTION = "figure 2"


class ProgressIsTrue:
    """The match indexes of each leader when it was last looked at, and what each node answered whom."""

    def __init__(self) -> None:
        self._answers: dict[tuple[NodeId, NodeId], tuple[int, int]] = {}  # (follower, leader) -> term, match in it
        # leader -> its term, peer -> the round from which on its answers count, match
        self._matches: dict[NodeId, tuple[int, dict[NodeId, tuple[int, int]]]] = {}

    def answers(self, message: AppendEntriesReply) -> None:
        """A node acknowledges entries. (That it has a snapshot proves nothing: it is asked again.)"""
        key, answer = (message.sender, message.to), (message.term, message.match)
        before = self._answers.get(key)
        if before is None or before < answer:
            self._answers[key] = answer

    def leads(self, known: Knowledge, node: NodeId, term: int, role: Leader, log: Log) -> None:
        """That node leads the term, and this is what it thinks of its followers. Raises InvariantBroken."""
        seen = self._matches.get(node)
        if seen is None or seen[0] != term:
            seen = self._matches[node] = (term, {})
        matches = seen[1]
        for peer, progress in role.progress.items():
            match, first = progress.match, progress.round_first
            before_first, before = matches.get(peer, (first, 0))
            matches[peer] = (first, match)
            if match == before:
                continue  # nothing new is proved, even where answers of earlier rounds do not count any more
            if before_first < first and not match:
                continue  # a new process of that peer, or one that lost what it had: it is asked from nothing
            if match < before:
                raise InvariantBroken(node, PROPERTY, SECTION, f"match of node {peer} fell from {before} to {match}")
            answered = self._answers.get((peer, node))
            if answered is None or answered < (term, match):
                evidence = f"match of node {peer} is {match} in term {term}; it answered {answered}"
                raise InvariantBroken(node, PROPERTY, SECTION, evidence)
            disk = known.disks.get(peer)
            if disk is None or peer in known.lost or disk.view.hard_state.term > term:
                continue  # a follower of a newer leader may have cut it since
            entry_term = log.term_at(match)
            is_there = (
                entry_term is None or disk.view.has(match, entry_term) or (match, entry_term) in disk.view.forgotten
            )
            if not is_there:
                evidence = f"match of node {peer} is {match} (term {entry_term}), which is not durable there"
                raise InvariantBroken(node, PROPERTY, SECTION, evidence)
