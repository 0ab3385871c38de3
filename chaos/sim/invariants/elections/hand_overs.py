"""A process hands leadership over for its disk only now and then, so that two nodes do not pass it to and fro."""

from __future__ import annotations

from raftlog.cluster.protocol.disk_reports import Handover, Why
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NOBODY, NodeId

PROPERTY = "hand-overs for a disk are rare"
SECTION = "docs/decisions/0018"


class HandOvers:
    """Remembers the newest one of each process and reason; but for a slow disk, of each voter that it hands over to.

    A voter that turns out to be no better must not keep the leader from trying the next one.
    """

    def __init__(self) -> None:
        self._last_ms: dict[tuple[NodeId, int, Why, NodeId], int] = {}

    def began(self, node: NodeId, life: int, handover: Handover, now_ms: int, pause_ms: int) -> None:
        """That process (`life`) hands over, by its own clock. Raises InvariantBroken."""
        key = (node, life, handover.why, NOBODY if handover.why is Why.SLOW else handover.to)
        last_ms = self._last_ms.get(key)
        if last_ms is not None and now_ms - last_ms < pause_ms:
            evidence = f"{handover.why}: {now_ms - last_ms} ms after the last one, {pause_ms} is the least"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)
        self._last_ms[key] = now_ms
