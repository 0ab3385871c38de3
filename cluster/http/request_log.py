"""Logs requests in batches from a thread, so that a slow log never delays an answer.

The gate adds each request. Requests that failed or were slow have a line, at most LINES_A_SECOND of them; with
`http.access_log` every request has one. structlog costs as much for one line as the request itself. So if lines are
JSON, a batch is encoded at once; on a terminal structlog renders them one by one.
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

from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.log_file import sink
from raftlog.cluster.runtime.logging import get_logger

_FLUSH_SECONDS: Final = 0.05
LINES_A_SECOND: Final = 50
"""Most lines of failed and slow requests per second, unless every request has one: about 1 GB a day. The next line
counts the omitted ones."""
FAILED: Final = 500
"""Statuses from here on are the server's failures; lower ones are the client's."""
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
    code: str = ""  # code of the problem
    dropped: int = 0  # lines left out before this one: too many, or the log was too slow


class RequestLog:
    """Collects lines; `close` writes the last ones. Belongs to the event loop."""

    def __init__(self, node: int, lines_max: int, slow_ms: int, *, has_all: bool) -> None:
        """`lines_max`: most lines that wait to be written. `slow_ms`: a request that takes longer is slow. `has_all`:
        every request has a line."""
        self._node = node
        self._slow_s = slow_ms / 1_000
        self._has_all = has_all
        self.from_s = 0.0 if has_all else self._slow_s
        """Below this, and below status FAILED, `add` would do nothing: the gate does not call it then."""
        self._room, self._room_until = 0, 0.0  # lines of failed and slow requests left in this second
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
        return bool(self._logger.is_enabled_for(logging.INFO))

    def add(
        self, method: str, target: str, status: int, seconds: float, request_id: str, code: str, *, waits: bool = False
    ) -> None:
        """Adds one request; its line is written soon. `waits`: the request itself asked to wait."""
        if not self._has_all:
            if status < FAILED and (waits or seconds < self._slow_s):
                return
            if not self._may():
                self._dropped += 1
                return
        if len(self._lines) >= self._lines_max:
            self._dropped += 1
            return
        if (now := clock.monotonic()) >= self._when_until:  # one time text for all requests of a millisecond
            self._when_until, self._when = now + 0.001, datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        self._lines.append(
            RequestLine(
                "request",
                self._node,
                method,
                target,
                status,
                int(seconds * 100_000 + 0.5) / 100,
                request_id,
                "info",
                self._when,
                code,
            )
        )
        if self._handle is None and not self._is_writing:
            self._handle = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush)

    def _may(self) -> bool:
        """Whether one more failed or slow request may have a line in this second."""
        if (now := clock.monotonic()) >= self._room_until:
            self._room, self._room_until = LINES_A_SECOND, now + 1.0
        self._room -= 1
        return self._room >= 0

    async def close(self) -> None:
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
        """A function that writes the collected lines. They are encoded here, at a third of a µs each: a thread that ran
        Python code would make the event loop wait for the interpreter."""
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
