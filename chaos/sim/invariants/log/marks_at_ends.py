"""Marks at ends: every position that nodes compare is the end of an entry (raft paper 5.3).

A node's own marks are looked at by `raftlog.raft.consensus.invariants.check_state`; here are those that travel.
"""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.messages import AppendEntries, AppendEntriesReply

PROPERTY = "marks are ends of entries"
SECTION = "promises.md: marks are ends of entries"


def appends(known: Knowledge, message: AppendEntries) -> None:
    """A leader announces its entry at prev, and its commit index. Raises InvariantBroken."""
    where = (message.prev_index, message.prev_term)
    if where not in known.chain and where != (0, 0):
        raise InvariantBroken(message.sender, PROPERTY, SECTION, f"prev {where} of {_short(message)} is no entry's end")
    if message.commit not in known.ends:
        raise InvariantBroken(message.sender, PROPERTY, SECTION, f"commit of {_short(message)} is no entry's end")
    if message.commit > known.newest[0]:
        evidence = f"{_short(message)} announces more than {known.newest}"
        raise InvariantBroken(message.sender, "only committed entries are announced", "5.3", evidence)


def replies(known: Knowledge, message: AppendEntriesReply) -> None:
    """A follower says what it holds, or where its log may agree. Raises InvariantBroken."""
    if message.match not in known.ends:
        raise InvariantBroken(message.sender, PROPERTY, SECTION, f"match {message.match} is no entry's end")
    where = (message.hint_index, message.hint_term)
    if where != (0, 0) and where not in known.chain:
        raise InvariantBroken(message.sender, PROPERTY, SECTION, f"the hint {where} is no entry's end")


def _short(message: AppendEntries) -> str:
    return f"AppendEntries({message.prev_index}, {message.prev_term}, commit {message.commit}) to node {message.to}"
