"""Persist, then promise: term, vote and entries are synced before a message says so (figure 2; thesis 3.8)."""

from __future__ import annotations

from raftlog.chaos.sim.disk.view import View
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.messages import AppendEntriesReply, Message
from raftlog.raft.types import HardState, NodeId

PROPERTY = "persist, then promise"
SECTION = "thesis 3.8"


def votes(node: NodeId, term: int, candidate: NodeId, hard_state: HardState) -> None:
    """A vote leaves, be it for itself: term and vote are on its disk. Raises InvariantBroken."""
    if hard_state.term < term or (hard_state.term == term and hard_state.vote != candidate):
        raise InvariantBroken(node, PROPERTY, SECTION, f"a vote for node {candidate} in {term}; synced: {hard_state}")


def leads(message: Message, hard_state: HardState) -> None:
    """A leader speaks in its term: it must remember after a restart that it voted for itself there.

    Else it could lead the same term twice, with other entries. Raises InvariantBroken.
    """
    if hard_state.term < message.term or (hard_state.term == message.term and hard_state.vote != message.sender):
        evidence = f"{type(message).__name__} of term {message.term} to node {message.to}; synced: {hard_state}"
        raise InvariantBroken(message.sender, PROPERTY, SECTION, evidence)


def acknowledges(message: AppendEntriesReply, view: View) -> None:
    """A follower acknowledges entries: they and the term are synced. Raises InvariantBroken."""
    hard_state = view.hard_state
    if hard_state.term < message.term:
        evidence = f"it answers in term {message.term}; synced: {hard_state}"
        raise InvariantBroken(message.sender, PROPERTY, SECTION, evidence)
    if view.durable_last < message.match:
        evidence = f"it acknowledges {message.match}; its log is synced to {view.durable_last}"
        raise InvariantBroken(message.sender, PROPERTY, SECTION, evidence)
