"""What a connection of the fast path needs of the server behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp.web_protocol import RequestHandler

from cluster.fast_head import Head
from cluster.fast_turns import Turns
from cluster.http_answer import Answer
from cluster.http_call import Call, Service
from cluster.wire import ApiError

if TYPE_CHECKING:
    from cluster.fast_path import FastConnection


class Gate(Protocol):
    """What a connection needs of `http_api.Api`."""

    service: Service

    def identify(self, headers: Mapping[str, str]) -> str:
        """An id for a request."""

    def serve(self, call: Call) -> Coroutine[Any, Any, Any]:
        """The request's answer; never raises but for a cancellation."""

    def problem(self, identifier: str, error: ApiError) -> Answer:
        """The error as an answer."""

    def begin(self, head: Head, body: bytes, now: float) -> asyncio.Future[Any] | None:
        """The short way of a simple request; None: `serve` it."""

    def end(self, head: Head, asked: asyncio.Future[Any], seconds: float) -> Answer:
        """The answer to what `begin` asked so long ago; never raises but for a cancellation."""


class Slow(Protocol):
    """Makes aiohttp's handlers; knows the open connections."""

    fast: set[FastConnection]
    turns: Turns
    refusing_until: float  # when the refusals so far will have taken their share of the time

    def make_handler(self, front: FastConnection | None) -> RequestHandler:
        """A handler that tells `front` of each answer: `answered`."""
