"""Makes a node's HTTP server, and ends it. `raftlog node` and tests listen with the result of `build_runner`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

from raftlog.cluster.admission.access import Access
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.http.connections import KEEPALIVE_SECONDS, Server
from raftlog.cluster.http.exchange.answer import ServerIdentity
from raftlog.cluster.http.exchange.consumer_lag import Lags
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.fast.head import HeadParser
from raftlog.cluster.http.gate import Api
from raftlog.cluster.http.routes.table import ROUTES, route_lines
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.log_file import LogSink
from raftlog.cluster.security.tls import Credentials

if TYPE_CHECKING:
    from raftlog.cluster.http.spans import Tracer
    from raftlog.cluster.security.provider import Provider

_LEAVE_SECONDS: Final = 0.25
"""Longer than a busy client takes from an answer to its next request, even on a busy machine."""
_LINGER_SECONDS: Final = 2.0
"""Seconds for reading and dropping the rest of a refused body, so that the client gets to read the answer."""


class ApiRunner(web.ServerRunner):
    """The server with a clean end: long polls and streams end with what they have."""

    __slots__ = ("_api",)

    def __init__(self, api: Api, server: web.Server, shutdown_timeout: float) -> None:
        super().__init__(server, shutdown_timeout=shutdown_timeout)
        self._api = api

    @property
    def service(self) -> Service:
        """What its handlers share, and those of probes."""
        return self._api.service

    async def leave(self) -> None:
        """Call it a moment before `cleanup`. Every answer then closes its connection, so that no client sends a request
        on a connection that is about to be closed. Its outcome would be unknown."""
        self._api.service.is_leaving = True
        await asyncio.sleep(_LEAVE_SECONDS)

    async def shutdown(self) -> None:
        self._api.service.stop()

    async def cleanup(self) -> None:
        """Ends everything; requests under way get `limits.stop_timeout_ms`."""
        await super().cleanup()
        await self._api.close()


def build_runner(
    node: NodeInterface,
    settings: Settings,
    *,
    fast_path: bool = True,
    credentials: Credentials | None = None,
    provider: Provider | None = None,
    audit: LogSink | None = None,
    tracer: Tracer | None = None,
) -> ApiRunner:
    """The HTTP server of `node`: `await runner.setup()`, then listen with `aiohttp.web.TCPSite`, then `cleanup()`.

    Call it in the running event loop. `fast_path=False` is for tests and benchmarks, which compare the two.
    """
    limits = settings.limits
    service = Service(
        node,
        limits,
        settings.options().entry_bytes_max,
        clock.monotonic,
        ServerIdentity(node.log_id, node.node_id, limits.stream_stall_ms / 1000),
        Lags(node),
        Access(
            node,
            limits,
            provider,
            is_exposed=settings.is_exposed and not settings.security.insecure,
            has_tls=credentials is not None,
            token_place="the header Authorization: Bearer TOKEN",
        ),
        settings,
        credentials,
        routes=route_lines(),
    )
    node.metrics.http.begin(dict.fromkeys(("none", *(route.pattern for route in ROUTES))))
    api = Api(service, audit, tracer)
    parser = HeadParser(limits.head_bytes_max, limits.head_fields_max, limits.body_bytes_max) if fast_path else None
    server = Server(
        api,
        parser,
        access_log=None,
        keepalive_timeout=KEEPALIVE_SECONDS,
        lingering_time=_LINGER_SECONDS,
        auto_decompress=False,
        max_line_size=limits.head_bytes_max,
        max_field_size=limits.head_bytes_max,
        max_headers=limits.head_fields_max,
    )
    return ApiRunner(api, server, limits.stop_timeout_ms / 1000)
