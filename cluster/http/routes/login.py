"""Handles `/v1/login`: a browser shows a token once, and gets a cookie for its next requests."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from raftlog.cluster.admission.access import Credential, Denial
from raftlog.cluster.api.access import LoggedIn, LoginIn
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import decode, read_body
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.cookies import cookie, secret_of
from raftlog.cluster.http.exchange.service import Service

_BODY: Final = msgspec.json.Decoder(LoginIn)
BARRIER_S: Final = 0.5
"""Longest wait for news of a token that this node does not know. Without a leader it decides by its own state."""


async def log_in(service: Service, call: Call) -> HttpAnswer:
    """Checks a token, and gives the browser a cookie that stands for it at this node."""
    call.query()
    access, address = service.access, _address(call)
    if not access.table.is_on:
        raise ApiError(Code.BAD_REQUEST, "access control is off: every request is served without a login")
    access.logins.check(address, service.clock())
    asked = decode(_BODY, await read_body(service, call), "the body as JSON")
    shown = Credential(asked.token)
    try:
        try:
            caller = access.principal(shown)
        except Denial:
            with suppress(ApiError):
                await service.node.read_barrier(min(call.deadline, service.clock() + BARRIER_S))
            access.logins.check(address, service.clock())  # others waited as well
            caller = access.principal(shown)
    except ApiError as error:
        if error.code is Code.UNAUTHORIZED:
            access.logins.wrong(address, service.clock())
        raise ApiError(error.code, error.message, **error.more) from error  # not asked again, as a Denial would be
    call.caller = caller
    caller.meter.take(call.body_bytes)
    secret = access.logins.open(caller.name, asked.token, service.clock())
    answer = service.answer(LoggedIn(caller.name, caller.expires_ms, service.node.applied, service.node.term))
    answer.extra = (cookie(service, secret),)
    return answer


async def log_out(service: Service, call: Call) -> HttpAnswer:
    """Ends the login of this browser at this node."""
    call.query()
    secret = secret_of(service, call, call.headers.get("Host") or "")
    if secret is not None:
        service.access.logins.close(secret)
    answer = service.answer(LoggedIn("", 0, service.node.applied, service.node.term))
    answer.extra = (cookie(service, ""),)
    return answer


def _address(call: Call) -> str:
    """Where the request comes from; a proxy's clients share one address."""
    transport = call.request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if peer else "an unknown address"
