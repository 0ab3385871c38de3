"""Lines about requests, written in batches by a thread: a log that is slow to take them never delays an answer.

Requests that failed or were slow have a line, at most LINES_A_SECOND of them; with `http.access_log` every request has.

What structlog does for one line costs as much as the request itself, so where lines are JSON a batch is encoded at
once; on a terminal structlog renders them one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec
import structlog

from cluster import clock
from cluster.log_file import sink
from cluster.logging import get_logger

_FLUSH_SECONDS: Final = 0.05
LINES_A_SECOND: Final = 50
"""Of failed and slow requests, unless every request has a line: about 1 GB a day. The next line counts the others."""
_FAILED: Final = 500
"""Statuses from here on are the server's failures; those below are what the client asked for."""
_encode_lines: Final = msgspec.json.Encoder().encode_lines


class RequestLine(msgspec.Struct, omit_defaults=True):
    """One request, in the shape of every other line of the log."""

    event: str
    node: int
    method: str
    target: str
    status: int
    ms: float
    request_id: str
    level: str
    timestamp: datetime
    code: str = ""  # of the problem
    dropped: int = 0  # lines left out before this one: too many, or the log was too slow


class RequestLog:
    """Collects lines; `close` writes the last ones. Belongs to the event loop."""

    __slots__ = (
        "_dropped",
        "_handle",
        "_has_all",
        "_is_json",
        "_is_writing",
        "_lines",
        "_lines_max",
        "_logger",
        "_node",
        "_pool",
        "_room",
        "_room_until",
        "_slow_s",
        "_when",
        "_when_until",
    )

    def __init__(self, node: int, lines_max: int, slow_ms: int, *, has_all: bool) -> None:
        """`lines_max` lines wait to be written; a request that took `slow_ms` is slow; `has_all`: every one has a
        line."""
        self._node = node
        self._slow_s = slow_ms / 1_000
        self._has_all = has_all
        self._room, self._room_until = 0, 0.0  # lines of failed and slow requests that this second may still have
        self._lines: list[RequestLine] = []
        self._lines_max = lines_max
        self._dropped = 0
        self._when_until, self._when = 0.0, datetime.fromtimestamp(0, UTC)
        self._handle: asyncio.TimerHandle | None = None
        self._is_writing = False
        self._logger = get_logger(node=node)
        self._is_json = isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="request-log")

    @property
    def is_enabled(self) -> bool:
        """Whether lines of this level are wanted at all."""
        return bool(self._logger.is_enabled_for(logging.INFO))

    def add(
        self, method: str, target: str, status: int, seconds: float, request_id: str, code: str, *, waits: bool = False
    ) -> None:
        """Notes one request; it is written within a moment. `waits`: it was asked to take its time."""
        if not self._has_all:
            if status < _FAILED and (waits or seconds < self._slow_s):
                return
            if not self._may():
                self._dropped += 1
                return
        if len(self._lines) >= self._lines_max:
            self._dropped += 1
            return
        if (now := clock.monotonic()) >= self._when_until:  # one for all requests of a millisecond
            self._when_until, self._when = now + 0.001, datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        self._lines.append(
            RequestLine(
                "request", self._node, method, target, status, int(seconds * 100_000 + 0.5) / 100, request_id, "info",
                self._when, code,
            )
        )  # fmt: skip
        if self._handle is None and not self._is_writing:
            self._handle = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush)

    def _may(self) -> bool:
        """Whether one more failed or slow request has its line in this second."""
        if (now := clock.monotonic()) >= self._room_until:
            self._room, self._room_until = LINES_A_SECOND, now + 1.0
        self._room -= 1
        return self._room >= 0

    async def close(self) -> None:
        """Writes what is left, and ends the thread."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        await asyncio.get_running_loop().run_in_executor(self._pool, self._take())
        self._pool.shutdown(wait=False)

    def _flush(self) -> None:
        self._handle = None
        self._is_writing = True
        asyncio.get_running_loop().run_in_executor(self._pool, self._take()).add_done_callback(self._written)

    def _written(self, future: asyncio.Future[None]) -> None:
        self._is_writing = False
        if not future.cancelled() and future.exception() is not None:
            self._logger.error("request_log_failed", error=repr(future.exception()))
        if self._lines:
            self._handle = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush)

    def _take(self) -> Callable[[], None]:
        """What writes the lines collected so far. Encoded here, at a third of a µs each: a thread that ran Python code
        would make the event loop wait for the interpreter."""
        lines, self._lines = self._lines, []
        if lines:
            lines[0].dropped, self._dropped = self._dropped, 0
        if self._is_json:
            return partial(sink.write, _encode_lines(lines))
        return partial(self._render, lines)

    def _render(self, lines: list[RequestLine]) -> None:
        for line in lines:
            values = {name: getattr(line, name) for name in ("method", "target", "status", "ms", "request_id")}
            self._logger.info("request", **values, **({"code": line.code} if line.code else {}))
