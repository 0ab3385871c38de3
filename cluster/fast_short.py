"""The two commonest requests without a coroutine: an append of one value, and a linearizable get.

What four coroutines cost around a call of the node and its answer is more than both. Only heads in which nothing is out
of the ordinary come here (`fast_head.Short`), and whatever else is (a node that stops, a limit, a host not met before)
goes the long way, through `http_api.Api.serve`, which says what is wrong. What is answered is made by the handlers' own
functions.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cluster.fast_head import Head, Short
from cluster.http_answer import Answer
from cluster.http_append import appended
from cluster.http_call import NO_SESSION, Call, Service
from cluster.http_kv import got, path_key
from cluster.http_outcomes import done_of
from cluster.http_query import NO_PARAMETERS
from cluster.http_routes import ROUTES, Route, find_route
from raft.codec import BLOCK_SIZE, RECORD_SIZE, encode_values
from statemachine.commands import Operation

_APPEND: Final = int(Operation.APPEND)
_KEYS_MAX: Final = 1_024
"""Paths whose keys are remembered."""


class ShortWay:
    """One per node. `begin`, and when its future is done `end`."""

    __slots__ = ("_deadline_s", "_keys", "_service")

    def __init__(self, service: Service) -> None:
        self._service = service
        self._deadline_s = service.limits.deadline_default_ms / 1000
        self._keys: dict[str, bytes] = {}

    def begin(self, head: Head, body: bytes) -> asyncio.Future[Any] | None:
        """Asks the node; None: not the short way. Raises ApiError where the node refuses."""
        service = self._service
        node, limits = service.node, service.limits
        if service.is_stopping or node.is_fenced or service.open_requests >= limits.open_requests_max:
            return None
        deadline = service.clock() + self._deadline_s
        if head.short is Short.APPEND:
            size = len(body)
            if size > limits.value_bytes_max or BLOCK_SIZE + RECORD_SIZE + size > service.entry_bytes_max:
                return None
            return node.submit(encode_values(_APPEND, (body,)), 1, deadline=deadline)
        self._key(head)
        return node.read_barrier(deadline)

    def _key(self, head: Head) -> bytes:
        """The key of the path. Raises ApiError where it is none."""
        key = self._keys.get(head.target)
        if key is None:
            call = Call(head.method, head.target, head.headers, "")
            find_route(call)
            key = path_key(call, NO_PARAMETERS)
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            self._keys[head.target] = key
        return key

    def end(self, head: Head, done: Any) -> Answer:
        """The answer to what the node said. Raises ApiError."""
        service = self._service
        if head.short is Short.APPEND:
            return appended(service, done_of(done, NO_SESSION))
        return got(service, self._key(head), None, "auto", is_bare=False)


_ROUTES: Final = {(route.method, route.pattern): route for route in ROUTES}
_APPENDS: Final = _ROUTES["POST", "/v1/log"]
_GETS: Final = _ROUTES["GET", "/v1/kv/{key}"]


def route_of(head: Head) -> Route:
    """The route that serves it the long way."""
    return _APPENDS if head.short is Short.APPEND else _GETS
