"""Decides which refused hellos the core hears of: proved ones, and at most one in a second from each peer; pure.

A refused hello may be that of an older copy of a member's disk. So the core takes the acknowledgements of that member
that are under way as void, and reports what the copy lacks (`raftlog.raft.consensus.recall.refused`). Any process that
reaches the port can write a hello. If an unproved one acted, a forger could keep a member's acknowledgements from
counting for as long as it liked. The transport and the nodes of the simulator have one object each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from raftlog.raft.hello import Start
from raftlog.raft.types import NodeId

EVERY_S: Final = 1.0
"""Seconds between two refused hellos of one peer that the core hears of. A refused process dials again after so long,
and a started one waits longer for the memory of a peer that has dialled it (`recall.PATIENCE_TIMEOUTS`)."""


class RefusedHello(NamedTuple):
    """The process whose hello this node refused."""

    sender: NodeId
    incarnation: str
    start: Start


class RefusedHellos:
    """The refused hellos of which the core is still to hear."""

    def __init__(self) -> None:
        self._told: dict[NodeId, float] = {}  # when the core last heard of one
        self._waiting: dict[NodeId, RefusedHello] = {}  # the newest of each peer

    def refuse(self, hello: RefusedHello, *, is_proved: bool) -> None:
        """This node refuses that hello. `is_proved`: certificate and log id are right, and the listener at the member's
        address has shown that the hello is its own."""
        if is_proved:
            self._waiting[hello.sender] = hello

    def believed(self, node: NodeId) -> None:
        """A process of that node is believed. It may promise something that the next refused one must hear of."""
        self._told.pop(node, None)

    def keep(self, members: Collection[NodeId]) -> None:
        """Forgets the nodes that are dialled no more."""
        for known in (self._told, self._waiting):
            for node in [each for each in known if each not in members]:
                del known[node]

    def due(self, now_s: float) -> list[RefusedHello]:
        """Those of which the core is to hear now."""
        due = [each for each in self._waiting.values() if now_s - self._told.get(each.sender, -EVERY_S) >= EVERY_S]
        for each in due:
            del self._waiting[each.sender]
            self._told[each.sender] = now_s
        return due
