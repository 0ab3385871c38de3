"""Holds back for a moment a message that says nothing but a new commit index: the next entries say it too.

While writes come one after the other this saves a follower every second message, and the leader every second answer. A
peer that serves clients itself is told at once: they wait for what it applies. Dropping such a message is what any
network may do; holding it is what every network does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cluster import clock
from raft.messages import AppendEntries
from raft.types import NodeId

HOLD_S: Final = 0.002
"""Longer than a write takes from its entry's commit to the next entry, where the same client waits for it."""
ASKED_S: Final = 1.0
"""A peer that passed a request or a read on is one that serves clients for so long."""


class CommitNews:
    """What one leader knows of its followers' knowledge. Belongs to the event loop."""

    __slots__ = ("_asked", "_held", "_send", "_timer", "_told")

    def __init__(self, send: Callable[[AppendEntries], None]) -> None:
        """`send` sends what was held for long enough."""
        self._send = send
        self._told: dict[NodeId, tuple[int, int, int]] = {}  # term, round and commit of the newest message that left
        self._held: dict[NodeId, AppendEntries] = {}
        self._asked: dict[NodeId, float] = {}  # when a peer last asked for something
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, peer: NodeId) -> None:
        """That peer waits for an answer: what is held for it, and what comes soon, is sent at once."""
        self._asked[peer] = clock.monotonic()
        if (held := self._held.pop(peer, None)) is not None:
            self._leave(held)

    def holds(self, message: AppendEntries) -> bool:
        """Whether the message is held back; else it is to be sent now."""
        to = message.to
        told = self._told.get(to)
        is_news_alone = (
            not message.entries
            and told is not None
            and (message.term, message.round) == told[:2]
            and message.commit > told[2]
        )
        if is_news_alone and clock.monotonic() - self._asked.get(to, -ASKED_S) >= ASKED_S:
            self._held[to] = message
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._due)
            return True
        held = self._held.get(to)
        if held is not None and message.commit >= held.commit:
            del self._held[to]  # this one says it too
        self._told[to] = (message.term, message.round, message.commit)
        return False

    def stop(self) -> None:
        """Nothing more is sent."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        held, self._held = self._held, {}
        for message in held.values():
            self._leave(message)

    def _leave(self, message: AppendEntries) -> None:
        self._told[message.to] = (message.term, message.round, message.commit)
        self._send(message)
