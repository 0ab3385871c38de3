"""Bounded sending: no state of a follower makes its leader, or any node, say the same again without end.

A message that says something new is bounded by what there is to say. One that repeats an earlier one of the same second
may follow a heartbeat, a closed link or a question that may be lost; so many a second and peer are enough for that,
however busy or idle the cluster is.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.messages import AppendEntries, Message, Recall, RecallReply
from raftlog.raft.types import NodeId

PROPERTY = "no node repeats a message without end"
SECTION = "promises.md: bounded"

SECOND_US: Final = 1_000_000
PER_HEARTBEAT: Final = 4  # the heartbeat, a probe, a message that seems lost, a question about promises
BESIDES: Final = 40  # closed links, and what a process that stood still catches up with


class BoundedSending:
    """What each node sent to each other in the second of now."""

    def __init__(self, heartbeat_ms: int) -> None:
        self.repeats_max = PER_HEARTBEAT * 1_000 // heartbeat_ms + BESIDES
        self._seen: dict[tuple[NodeId, NodeId], tuple[int, dict[object, int]]] = {}

    def sends(self, message: Message, now_us: int) -> None:
        what: object
        match message:
            case AppendEntries():
                what = (message.term, message.prev_index, len(message.entries), message.commit, message.round)
            case Recall() | RecallReply():
                what = (message.term, type(message).__name__)
            case _:
                return  # an answer, or bounded by timeouts
        second, key = now_us // SECOND_US, (message.sender, message.to)
        seen = self._seen.get(key)
        if seen is None or seen[0] != second:
            seen = self._seen[key] = (second, {})
        count = seen[1][what] = seen[1].get(what, 0) + 1
        if count > self.repeats_max:
            evidence = f"{count} times within a second to node {message.to}: {message!r:.300}"
            raise InvariantBroken(message.sender, PROPERTY, SECTION, evidence)
