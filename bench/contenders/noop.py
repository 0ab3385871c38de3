"""Serves a POST that does nothing, over plain aiohttp or raftlog's fast path: the floor under every HTTP figure.

`python -m bench.contenders.noop plain|fast PORT` serves `POST /v1/log`; `Noop` runs that as a contender.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from bench.instruments.processes import Processes
from bench.loads import wrk
from raftlog.cluster.config.settings import HttpSettings, Settings
from raftlog.cluster.http.exchange.answer import HttpAnswer, ServerIdentity
from raftlog.cluster.http.exchange.body import read_body
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes import table
from raftlog.cluster.http.server import build_runner
from raftlog.cluster.node.local_cluster import free_ports
from raftlog.cluster.node.process import _loop_factory
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.statemachine.machine import StateMachine

_ROOT = Path(__file__).resolve().parents[2]
_BODY = b'{"outcome":"applied"}'


async def _plain(port: int) -> None:
    async def nothing(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=_BODY, content_type="application/json")

    application = web.Application()
    application.router.add_post("/v1/log", nothing)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()


async def _fast(port: int) -> None:
    """All of the fast path and of the gate, with a handler that does nothing."""
    identity = ServerIdentity("0" * 32, 1, 10.0)

    async def nothing(service: Service, call: Call) -> HttpAnswer:
        await read_body(service, call)
        return HttpAnswer(identity, _BODY, 1, 1)

    methods = table._FIXED["/v1/log"]
    methods["POST"] = methods["POST"]._replace(handler=nothing)
    node: Any = SimpleNamespace(
        log_id=identity.log_id, node_id=1, metrics=Metrics(), machine=StateMachine(), is_fenced=False, applied=1, term=1
    )
    runner = build_runner(node, Settings(http=HttpSettings(access_log=False)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()


class Noop:
    """One such server in a process of its own."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.name = f"no-op, {'fast path' if kind == 'fast' else 'plain aiohttp'}"
        self._kind = kind
        self._processes = Processes(folder)
        self._port = free_ports(1)[0]

    @property
    def pids(self) -> list[int]:
        """The one process."""
        return self._processes.pids

    def start(self, deadline_s: float = 20.0) -> None:
        """Starts it and waits until it listens. Raises RuntimeError."""
        environment = os.environ | {"PYTHONPATH": str(_ROOT)}
        self._processes.start(
            "noop", [sys.executable, "-m", "bench.contenders.noop", self._kind, str(self._port)], environment
        )
        self._processes.wait("the no-op server listens", self._listens, deadline_s=deadline_s, pause_s=0.05)

    def _listens(self) -> bool:
        socket.create_connection(("127.0.0.1", self._port), 1).close()
        return True

    def stop(self) -> None:
        """Ends it."""
        self._processes.stop()

    def write(self, value: bytes) -> wrk.Load:
        """The request of a single write."""
        return wrk.Load(f"http://127.0.0.1:{self._port}/v1/log", "POST", value)


async def _main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    await (_fast(port) if kind == "fast" else _plain(port))
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_main())
