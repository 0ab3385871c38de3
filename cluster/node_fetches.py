"""What a node does where its core wants entries from the disk: reads them, no faster than they are applied."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from cluster import clock
from raft.ready import Fetch
from raft.types import NOBODY, Entry

if TYPE_CHECKING:
    from cluster.node import Node


class Fetches:
    """The fetches of one node: those that are read, and one that waits until what came before it is applied."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._held: tuple[Fetch, tuple[Entry, ...]] | None = None

    def begin(self, fetch: Fetch) -> None:
        """Reads it; the core gets it in a turn of its own."""
        read = asyncio.ensure_future(self._node.disk.read_entries(fetch.after, fetch.to, fetch.bytes_max))
        read.add_done_callback(partial(self._done, fetch))

    def release(self) -> bool:
        """Called when something was applied: whether the core got what was held until then."""
        if self._held is None or self._node.applier.waiting:
            return False
        fetch, entries = self._held
        self._held = None
        self._node.core.fetched(fetch, entries, clock.read())
        return True

    def _done(self, fetch: Fetch, done: asyncio.Future[tuple[Entry, ...]]) -> None:
        node = self._node
        if done.cancelled() or node.ended.done():
            return
        if (error := done.exception()) is not None:
            node.damage.fetch_failed(fetch, error)
        entries = () if error is not None else done.result()
        if fetch.peer == NOBODY and node.applier.waiting:
            self._held = (fetch, entries)  # replay reads no faster than it applies
            return
        try:
            node.core.fetched(fetch, entries, clock.read())
        except Exception as failure:
            node.fail(failure)
        node.turn()
