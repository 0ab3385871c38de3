"""Wakes the streams that follow the log in rounds, and makes each piece once for all streams that need it.

The routes of the log stream and the watch use it. A thousand readers at the end of a log that gets a thousand records a
second would otherwise be woken a million times a second. A round wakes every reader with new records. With more
readers the next round comes later, so that following takes a bounded share of the node's time, but never later than
`limits.stream_gather_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.replica.interface import NodeInterface

READER_S: Final = 0.0002
"""Seconds that each woken reader delays the next round: about five times the cost of waking it."""
PIECES_MAX: Final = 4
"""Most pieces that are kept, each with the records since the last round: readers of one round need the same."""

Piece = tuple[tuple[bytes | memoryview, ...], int]
"""The bytes to send, and the position after them."""


class LogTail:
    """The end of one node's log. Belongs to the event loop."""

    def __init__(
        self,
        node: NodeInterface,
        clock: Callable[[], float],
        wait_beyond: Callable[[int, float], Coroutine[Any, Any, None]],
        gather_s: float,
        check_s: float,
    ) -> None:
        """`wait_beyond` is `Service.wait_beyond`, called again every `check_s` seconds."""
        self._node = node
        self._clock = clock
        self._wait_beyond = wait_beyond
        self._gather_s, self._check_s = gather_s, check_s
        self._readers: dict[asyncio.Future[None], int] = {}  # waiting readers, with the index that each waits for
        self._rounds: asyncio.Task[None] | None = None
        self._next_round = 0.0
        self._beyond = 0  # the rounds wait for an index after this one; 0: they do not wait
        self._pieces: dict[Hashable, asyncio.Future[Piece]] = {}

    async def reach(self, index: int, until: float) -> None:
        """Returns with the first round after `index` was applied, or at `until`. Raises ApiError at a stop."""
        if index <= self._beyond:  # it was applied before the rounds began to wait: no round would wake the reader
            await asyncio.sleep(max(0.0, self._next_round - self._clock()))
            return
        loop = asyncio.get_running_loop()
        reader: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._clock()), _wake, reader)
        self._readers[reader] = index
        if self._rounds is None:
            self._rounds = loop.create_task(self._run())
        try:
            await reader
        finally:
            timer.cancel()
            self._readers.pop(reader, None)

    async def piece(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Piece]]) -> Piece:
        """Calls `make` once for all readers that ask for `key`, until something is applied or trimmed."""
        key = (key, self._node.applied, self._node.oldest)
        pieces = self._pieces
        made = pieces.get(key)
        if made is None:
            if len(pieces) >= PIECES_MAX:
                del pieces[next(iter(pieces))]
            made = pieces[key] = asyncio.ensure_future(make())
        if made.done() and not made.exception():
            return made.result()
        try:
            return await asyncio.shield(made)
        except ApiError as error:
            raise _again(error) from error
        finally:
            if made.done() and made.exception() is not None:
                pieces.pop(key, None)

    async def _run(self) -> None:
        """Runs rounds as long as a reader waits."""
        try:
            while self._readers:
                pause_s = self._next_round - self._clock()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                applied = self._node.applied
                due = [reader for reader, index in self._readers.items() if index <= applied]
                if due:
                    self._next_round = self._clock() + min(self._gather_s, len(due) * READER_S)
                    for reader in due:
                        del self._readers[reader]
                        _wake(reader)
                elif self._readers:
                    self._beyond = applied
                    await self._wait_beyond(applied, self._clock() + self._check_s)
                    self._beyond = 0
        except Exception as error:  # else readers would wait for ever; the next one begins new rounds
            cause = error
            if not isinstance(cause, ApiError):
                cause = ApiError(Code.INTERNAL, f"the rounds of the log's end failed: {error}")
            for reader in self._readers:
                if not reader.done():
                    reader.set_exception(_again(cause))
            if cause is not error:
                raise
        finally:
            self._rounds = None
            self._beyond = 0


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)


def _again(error: ApiError) -> ApiError:
    """A copy of the error for one more reader: each raise changes the traceback of its exception."""
    return ApiError(error.code, error.message, **error.more)
