"""Starts a raftlog node that the bench can look into: the command line of `raftlog`, with two switches.

`BENCH_FAST_PATH=0`: every request goes through aiohttp. `BENCH_CONTROL_PORT`: commits are made from within, past HTTP
(`bench.contenders.control`). Everything else is as it ships.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.contenders.control import PORT_VARIABLE, Order
from bench.instruments.figures import Run, run_of
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
    record = BlockRecord(int(Operation.APPEND), None, b"x" * order.size)
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    bad = under_way = 0
    start = time.perf_counter()
    end = start + order.seconds

    def one() -> None:
        nonlocal under_way
        under_way += 1
        began = time.perf_counter()
        block = encode_block([record], plain=True)
        try:
            future: Any = node.submit(block, 1, deadline=clock.monotonic() + 30)
        except Exception:
            loop.call_later(0.01, settled, began, False)
        else:
            future.add_done_callback(lambda done: settled(began, done.exception() is None))

    def settled(began: float, is_good: bool) -> None:
        nonlocal bad, under_way
        under_way -= 1
        now = time.perf_counter()
        if is_good:
            latencies.append((now - began) * 1e3)
        else:
            bad += 1
        if now < end:
            one()
        elif not under_way:
            ended(run_of(order.in_flight, now - start, latencies, bad))

    for _ in range(order.in_flight):
        one()


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
