"""A raftlog node that the bench can look into: the command line of `raftlog`, with two switches in its environment.

`BENCH_FAST_PATH=0`: every request goes through aiohttp. `BENCH_CONTROL_PORT`: commits are made from within, past HTTP
(`bench.control`). Everything else is as it ships.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from bench.control import PORT_VARIABLE, Loop, Order
from bench.figures import Run
from cluster import clock, launcher
from cluster.cli import main
from cluster.http_server import ApiRunner, build_runner
from cluster.node_face import NodeFace
from cluster.settings import Settings
from raft.codec import Record, encode_block
from statemachine.commands import Operation

FAST_PATH_VARIABLE = "BENCH_FAST_PATH"


def load(node: NodeFace, order: Order, ended: Callable[[Run], None]) -> None:
    """The closed loop of commits: what a request costs once its bytes are encoded at the edge."""
    value = b"x" * order.size
    appended = Record(int(Operation.APPEND), None, value)
    numbers = count(order.first)

    def submit(done: Callable[[bool], None]) -> None:
        if order.keys:
            key = b"key-%08d" % (next(numbers) % order.keys)
            block = encode_block([Record(int(Operation.PUT), key, value)])
        else:
            block = encode_block([appended], plain=True)
        try:
            future: Any = node.submit(block, 1, deadline=clock.monotonic() + 30)
        except Exception:
            asyncio.get_running_loop().call_later(0.01, done, False)
            return
        future.add_done_callback(lambda settled: done(settled.exception() is None))

    Loop(order, submit, ended).begin()


async def _listen(node: NodeFace, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = msgspec.json.decode(await reader.readline(), type=Order)
        finished: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        load(node, order, finished.set_result)
        writer.write(msgspec.json.encode(await finished))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


_listening: set[asyncio.Task[None]] = set()


def _build(node: NodeFace, settings: Settings) -> ApiRunner:
    if port := os.environ.get(PORT_VARIABLE):
        _listening.add(asyncio.get_running_loop().create_task(_listen(node, int(port))))
    return build_runner(node, settings, fast_path=os.environ.get(FAST_PATH_VARIABLE) != "0")


if __name__ == "__main__":
    launcher.__dict__["build_runner"] = _build
    main()
