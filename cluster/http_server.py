"""Makes a node's HTTP server, and ends it: `raftlog node` and tests listen with what `build_runner` gives."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from cluster import clock
from cluster.consumer_lag import Lags
from cluster.fast_head import HeadParser
from cluster.http_answer import Identity
from cluster.http_api import KEEPALIVE_SECONDS, Api, Server
from cluster.http_call import Service
from cluster.http_routes import route_lines
from cluster.node_face import NodeFace
from cluster.settings import Settings

_LEAVE_SECONDS: Final = 0.25
"""Longer than a client that is busy takes from an answer to its next request, also where the machine is."""
_LINGER_SECONDS: Final = 2.0
"""How long what is left of a refused body is read and dropped, so that the client gets to see the answer."""


class ApiRunner(web.ServerRunner):
    """The server with a clean end: long polls and streams finish with what they have."""

    __slots__ = ("_api",)

    def __init__(self, api: Api, server: web.Server, shutdown_timeout: float) -> None:
        super().__init__(server, shutdown_timeout=shutdown_timeout)
        self._api = api

    async def leave(self) -> None:
        """Before `cleanup`: for a moment every answer ends its connection, so that no client sends its next request on
        one that is about to be closed, and cannot tell whether it was taken."""
        self._api.service.is_leaving = True
        await asyncio.sleep(_LEAVE_SECONDS)

    async def shutdown(self) -> None:
        """Called once nothing new is taken."""
        self._api.service.stop()

    async def cleanup(self) -> None:
        """Ends everything; what is under way gets `limits.stop_timeout_ms`."""
        await super().cleanup()
        await self._api.close()


def build_runner(node: NodeFace, settings: Settings, *, fast_path: bool = True) -> ApiRunner:
    """The HTTP server of `node`: `await runner.setup()`, then listen with `aiohttp.web.TCPSite`, then `cleanup()`.

    Call it in the running event loop. `fast_path=False` is for tests and benchmarks, which compare the two.
    """
    limits = settings.limits
    service = Service(
        node, settings.http, limits, settings.options().entry_bytes_max, clock.monotonic,
        Identity(node.log_id, node.node_id, limits.stream_stall_ms / 1000), Lags(node), routes=route_lines(),
    )  # fmt: skip
    api = Api(service)
    parser = HeadParser(limits.head_bytes_max, limits.head_fields_max) if fast_path else None
    server = Server(
        api, parser, access_log=None, keepalive_timeout=KEEPALIVE_SECONDS, lingering_time=_LINGER_SECONDS,
        auto_decompress=False, max_line_size=limits.head_bytes_max, max_field_size=limits.head_bytes_max,
        max_headers=limits.head_fields_max,
    )  # fmt: skip
    return ApiRunner(api, server, limits.stop_timeout_ms / 1000)
