"""Answers probes and Prometheus on an address of their own, without TLS and without users: `http.probe_listen`.

`raftlog node` listens there if the setting names an address. The handlers are those of the API. Neither a full API port
nor wrong files of TLS keep a probe out.
"""

from __future__ import annotations

from asyncio import Transport
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import READS
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.operator import TEXT, get_livez, get_metrics, get_readyz

END_S: Final = 0.1
"""How long `SmallServer.shutdown` waits for each step of a connection, in seconds. Every answer is ready at once."""


class SmallServer(web.Server):
    """A server of few connections: pass it to `raftlog.cluster.runtime.door.listen`. `shutdown` ends it."""

    def __init__(self, connections_max: int) -> None:
        super().__init__(self.answer, access_log=None)  # type: ignore[arg-type]  # an answer has the methods called
        self._connections_max = connections_max

    def connection_made(self, handler: RequestHandler, transport: Transport) -> None:
        """One connection too many ends the oldest: silent clients keep no probe out."""
        super().connection_made(handler, transport)
        if len(self.connections) > self._connections_max:
            self.connections[0].force_close()

    async def shutdown(self, timeout: float | None = END_S) -> None:
        """Ends all connections. aiohttp reads nothing more then, and takes 0 for no bound: it would wait for ever for a
        client that keeps its connection."""
        await super().shutdown(timeout)

    async def answer(self, request: web.BaseRequest) -> HttpAnswer:
        """The answer to that request."""
        raise NotImplementedError


class ProbeServer(SmallServer):
    """Answers from the node's service."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.limits.probe_connections_max)
        self._service = service
        self._handlers = {"/livez": get_livez, "/readyz": get_readyz}
        if service.settings.http.probe_metrics:
            self._handlers["/metrics"] = get_metrics

    async def answer(self, request: web.BaseRequest) -> HttpAnswer:
        """What the handler of that path answers."""
        service, handler = self._service, self._handlers.get(request.path)
        if handler is None or request.method not in READS:
            said = f"only GET of {', '.join(self._handlers)} is served here: send other requests to http.listen\n"
            return service.bare(said.encode(), TEXT, 404)
        return await handler(service)
