"""Notes the peer connections that were refused, for the log of the program, the status and `raftlog explain`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.line_limit import LineLimit
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.types import NOBODY, NodeId

FRESH_S: Final = 5.0
"""How long a refusal of a member is shown. A refused peer dials again every `dialled.REFUSED_REDIAL_S` seconds."""

REASON_CHARACTERS_MAX: Final = 300
SHOWN_MAX: Final = 8
"""Newest refusals that `raftlog explain` reports."""


class Refusals:
    """The newest refusals of one node, and those of each member."""

    def __init__(self, metrics: Metrics, logger: Logger) -> None:
        self.lately: deque[tuple[float, str, str]] = deque(maxlen=SHOWN_MAX)  # time, peer, reason
        self.lines = LineLimit()
        self._metrics = metrics
        self._logger = logger
        self._members: dict[NodeId, tuple[float, str]] = {}  # time and reason, by the member that was proved to dial

    def refused(self, who: str, reason: str, sender: NodeId = NOBODY) -> None:
        """This node closed a connection that a peer dialled. `sender`: the node that is proved to dial it (NOBODY: what
        the connection said shows nothing about any node)."""
        if sender != NOBODY:
            self._members[sender] = (clock.monotonic(), reason)
        self._metrics.count("raftlog_link_closed_total", "refused")
        self.lately.append((clock.monotonic(), who, reason))
        if self.lines.allows(f"{who.rpartition(':')[0]} {reason}"):
            self._logger.warning("peer_refused", who=who, reason=reason[:REASON_CHARACTERS_MAX], **self._left_out())

    def refused_by(self, node: NodeId, reason: str) -> None:
        """A peer closed a connection that this node made."""
        if self.lines.allows(f"{node} {reason}"):
            reason = reason[:REASON_CHARACTERS_MAX]
            self._logger.error("peer_refuses_this_node", peer=node, reason=reason, **self._left_out())

    def link_failed(self, node: NodeId, error: Exception) -> None:
        """Dialling a peer failed with an error that no network causes. The link dials again."""
        if self.lines.allows(f"{node} {type(error).__name__}: {error}"):
            self._logger.error("peer_link_failed", peer=node, then="it is dialled again", exc_info=error)

    def of(self, node: NodeId) -> str:
        """Why this node refused that member's newest connection; empty: it refused none lately."""
        when, reason = self._members.get(node, (-FRESH_S, ""))
        return "" if clock.monotonic() - when > FRESH_S else reason

    def keep(self, members: Collection[NodeId]) -> None:
        """Forgets the nodes that are dialled no more."""
        self._members = {node: each for node, each in self._members.items() if node in members}

    def _left_out(self) -> dict[str, int]:
        """The number of lines left out since the last line, as a field of the next one."""
        left_out = self.lines.take_left_out()
        return {"left_out": left_out} if left_out else {}
