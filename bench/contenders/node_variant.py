"""Starts a raftlog node that the bench can look into: the command line of `raftlog`, with two switches.

`BENCH_FAST_PATH=0`: every request goes through aiohttp. `BENCH_CONTROL_PORT`: commits are made from within, past HTTP
(`bench.contenders.control`). Everything else is as it ships.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from bench.contenders.control import PORT_VARIABLE, Loop, Order
from bench.instruments.figures import Run
from raftlog.cluster.cli.main import main
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.http.server import ApiRunner, build_runner
from raftlog.cluster.node import process
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation

FAST_PATH_VARIABLE = "BENCH_FAST_PATH"


def load(node: NodeInterface, order: Order, ended: Callable[[Run], None]) -> None:
    """The closed loop of commits: what a request costs once its bytes are encoded at the edge."""
    value = b"x" * order.size
    appended = BlockRecord(int(Operation.APPEND), None, value)
    numbers = count(order.first)

    def submit(done: Callable[[bool], None]) -> None:
        if order.keys:
            key = b"key-%08d" % (next(numbers) % order.keys)
            block = encode_block([BlockRecord(int(Operation.PUT), key, value)])
        else:
            block = encode_block([appended], plain=True)
        try:
            future: Any = node.submit(block, 1, deadline=clock.monotonic() + 30)
        except Exception:
            asyncio.get_running_loop().call_later(0.01, done, False)
            return
        future.add_done_callback(lambda settled: done(settled.exception() is None))

    Loop(order, submit, ended).begin()


async def _listen(node: NodeInterface, port: int) -> None:
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


def _build(node: NodeInterface, settings: Settings, **options: Any) -> ApiRunner:
    if port := os.environ.get(PORT_VARIABLE):
        _listening.add(asyncio.get_running_loop().create_task(_listen(node, int(port))))
    fast_path = os.environ.get(FAST_PATH_VARIABLE) != "0"
    return build_runner(node, settings, fast_path=fast_path, **options)


if __name__ == "__main__":
    process.__dict__["build_runner"] = _build
    main()
