"""`await append(x)` from many tasks, one record each: raftlog's client, or nats-py's `js.publish`.

`python -m bench.loads.client_load raftlog|nats URL TASKS SECONDS BYTES` prints one run as JSON; `run` starts it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.instruments import apart
from bench.instruments.figures import Run, run_of
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.node.process import _loop_factory


async def closed_loop(append: Callable[[], Awaitable[Any]], tasks: int, seconds: float) -> Run:
    """Every task appends again as soon as its last one is acknowledged."""
    latencies: list[float] = []
    bad = 0
    start = time.perf_counter()
    end = start + seconds

    async def one() -> None:
        nonlocal bad
        while (began := time.perf_counter()) < end:
            try:
                await append()
            except Exception:
                bad += 1
            else:
                latencies.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(one() for _ in range(tasks)))
    return run_of(tasks, time.perf_counter() - start, latencies, bad)


async def _raftlog(urls: str, tasks: int, seconds: float, value: bytes) -> Run:
    async with Client(urls.split(",")) as client:
        await client.append(value)
        return await closed_loop(lambda: client.append(value), tasks, seconds)


async def _nats(url: str, tasks: int, seconds: float, value: bytes) -> Run:
    import nats

    connection = await nats.connect(url)
    stream = connection.jetstream(publish_async_max_pending=1 << 16)
    await stream.publish("bench", value)
    run = await closed_loop(lambda: stream.publish("bench", value), tasks, seconds)
    await connection.close()
    return run


def run(kind: str, url: str, tasks: int, seconds: float, size: int, packages: Path | None = None) -> Run:
    """The loop in a process of its own; `packages` has what the peer's client needs. Raises RuntimeError."""
    words = (kind, url, tasks, seconds, size)
    return apart.run("bench.loads.client_load", Run, words=words, seconds=seconds, packages=packages)


if __name__ == "__main__":
    _, _kind, _url, _tasks, _seconds, _size = sys.argv
    _which = {"raftlog": _raftlog, "nats": _nats}[_kind]
    with asyncio.Runner(loop_factory=_loop_factory()) as _runner:
        apart.tell(_runner.run(_which(_url, int(_tasks), float(_seconds), b"x" * int(_size))))
