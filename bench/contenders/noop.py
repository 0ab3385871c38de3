"""Serves a POST that does nothing over plain aiohttp: the floor under raftlog's writes through aiohttp.

`python -m bench.contenders.noop PORT` serves `POST /v1/log`; `Noop` runs that as a contender.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from aiohttp import web

from bench.instruments.processes import Processes
from bench.loads import wrk
from raftlog.cluster.node.ports import free_ports
from raftlog.cluster.node.process import _loop_factory

_ROOT = Path(__file__).resolve().parents[2]


class Noop(Processes):
    """One such server in a process of its own."""

    name = "no-op, plain aiohttp"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_ports(1)[0]

    def start(self, deadline_s: float = 20.0) -> None:
        """Starts it and waits until it listens. Raises RuntimeError."""
        command = [sys.executable, "-m", "bench.contenders.noop", str(self._port)]
        self.launch("noop", command, os.environ | {"PYTHONPATH": str(_ROOT)})
        self.wait("the no-op server listens", self._listens, deadline_s=deadline_s, pause_s=0.05)

    def _listens(self) -> bool:
        socket.create_connection(("127.0.0.1", self._port), 1).close()
        return True

    def write(self, value: bytes) -> wrk.Load:
        """The request of a single write."""
        return wrk.Load(f"http://127.0.0.1:{self._port}/v1/log", "POST", value)


async def _nothing(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b'{"outcome":"applied"}', content_type="application/json")


async def _main() -> None:
    application = web.Application()
    application.router.add_post("/v1/log", _nothing)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1])).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_main())
