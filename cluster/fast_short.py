"""The three commonest requests without a coroutine: an append of one value, a put, and a linearizable get.

What four coroutines cost around a call of the node and its answer is more than both. Only heads in which nothing is out
of the ordinary come here (`fast_head.Short`), and whatever else is (a node that stops, a limit, a host not met before)
goes the long way, through `http_api.Api.serve`, which says what is wrong. What is answered is made by the handlers' own
functions.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cluster.fast_head import KEY_PATH, Head, Short
from cluster.http_answer import Answer
from cluster.http_append import appended
from cluster.http_call import NO_SESSION, Service
from cluster.http_kv import got, key_in_path, written
from cluster.http_outcomes import done_of
from cluster.http_routes import ROUTES, Route
from raft.codec import encode_single
from statemachine.commands import Operation

_APPEND: Final = int(Operation.APPEND)
_PUT: Final = int(Operation.PUT)
_SHORT_APPEND: Final = Short.APPEND
_GET: Final = Short.GET


class ShortWay:
    """One per node. `begin`, and when its future is done `end`."""

    __slots__ = ("_deadline_s", "_service", "_value_max")

    def __init__(self, service: Service) -> None:
        self._service = service
        self._deadline_s = service.limits.deadline_default_ms / 1000
        self._value_max = min(service.limits.value_bytes_max, service.limits.body_bytes_max)

    def begin(self, head: Head, body: bytes, now: float) -> asyncio.Future[Any] | None:
        """Asks the node; None: not the short way. Raises ApiError where the node refuses."""
        service = self._service
        node = service.node
        if service.is_stopping or node.is_fenced or service.open_requests >= service.limits.open_requests_max:
            return None
        deadline = now + self._deadline_s
        if head.short is _GET:
            return node.read_barrier(deadline)
        if len(body) > self._value_max:
            return None
        if head.short is _SHORT_APPEND:
            block = encode_single(_APPEND, None, body, plain=True)
        else:
            block = encode_single(_PUT, _key(head), body)
        return node.submit(block, 1, deadline=deadline) if len(block) <= service.entry_bytes_max else None

    def end(self, head: Head, done: Any) -> Answer:
        """The answer to what the node said. Raises ApiError."""
        service = self._service
        if head.short is _GET:
            return got(service, _key(head), None, "auto", is_bare=False)
        settled = done_of(done, NO_SESSION)
        return appended(service, settled) if head.short is _SHORT_APPEND else written(service, settled)


def _key(head: Head) -> bytes:
    """The key of the path. Raises ApiError where it is none."""
    return key_in_path(head.target[len(KEY_PATH) :])


_ROUTES: Final = {(route.method, route.pattern): route for route in ROUTES}
_SERVED: Final = {
    "POST": _ROUTES["POST", "/v1/log"],
    "PUT": _ROUTES["PUT", "/v1/kv/{key}"],
    "GET": _ROUTES["GET", "/v1/kv/{key}"],
}


def route_of(head: Head) -> Route:
    """The route that serves it the long way."""
    return _SERVED[head.method]
