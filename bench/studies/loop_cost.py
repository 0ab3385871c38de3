"""Measures the processor time of the event loop's thread for a commit or a request, also on a busy machine.

Three nodes on one loop, real disks and sockets between them, and connections in memory: no system call for a request.
The time that a thread got is counted in short windows, and the least busy of them is believed, so that other
processes disturb it little. `python -m bench.studies.loop_cost` prints a row for each load; `--profile ROW` prints
cProfile's view of one of them instead.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bench.comparison.axes import VALUE
from raftlog.cluster.config.settings import load_settings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.http.server import build_runner
from raftlog.cluster.node.formatting import format_cluster, new_cluster
from raftlog.cluster.node.host import Host
from raftlog.cluster.node.ports import free_ports
from raftlog.cluster.node.process import GC_THRESHOLDS, SWITCH_INTERVAL_S, _loop_factory
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock, logging
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation

_WINDOW_S = 0.05
_WARM_UP_S = 0.5
_SEGMENT_BYTES = 64 << 20
_WRITE = b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(VALUE), VALUE)
_READ = b"GET /v1/kv/bench HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_BULK_BODY = msgspec.msgpack.encode([VALUE] * 100)
_BULK = (
    b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/msgpack\r\nContent-Length: %d\r\n\r\n%b"
) % (len(_BULK_BODY), _BULK_BODY)
ROWS = {
    "commit 1": 1,
    "commit 64": 64,
    "commit 256": 256,
    "write 64": 64,
    "write 256": 256,
    "bulk 16": 16,
    "read 64": 64,
    "read 256": 256,
}
"""The loads, and how many requests are under way in each.

They are commits from within the process, and writes (in bulk: 100 records each) and reads over HTTP.
"""
_REQUESTS = {"write": _WRITE, "bulk": _BULK, "read": _READ}


class _Wire(asyncio.Transport):
    """A connection in memory: each answer brings the same request again."""

    def __init__(self, request: bytes, answered: Callable[[], bool]) -> None:
        super().__init__()
        self._request, self._answered = request, answered
        self.protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def ask(self) -> None:
        self.protocol.data_received(self._request)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert bytes(data[:12]) == b"HTTP/1.1 200", bytes(data[:300])
        if self._answered():
            asyncio.get_running_loop().call_soon(self.ask)


async def _hosts(folder: Path) -> list[Host]:
    ports = free_ports(6)
    cluster = new_cluster(3, peer_ports=ports[:3], http_ports=ports[3:])
    file = folder / "cluster.toml"
    format_cluster(cluster, file, segment_bytes=_SEGMENT_BYTES)
    hosts: list[Host] = []
    for number in (1, 2, 3):
        # On a busy machine, elections would start and disturb the measurement.
        slow = {"raft.election_timeout_min_ms": 3_000, "raft.election_timeout_max_ms": 6_000}
        loaded = load_settings(file, {}, {"node": number, **slow})
        disk, recovered = Disk.open(loaded.data, log_id=cluster.cluster.log, node=number, segment_bytes=_SEGMENT_BYTES)
        logger = logging.get_logger(node=number)
        hosts.append(Host(loaded.settings, disk, recovered, metrics=Metrics(), logger=logger, cluster=cluster))
        await hosts[-1].start()
    while not any(host.replica.is_leader and host.replica.is_ready for host in hosts):
        await asyncio.sleep(0.01)
    return hosts


async def _begin(leader: Replica, row: str, answered: Callable[[], bool]) -> None:
    """The closed loop of a row: `answered` is called for each end, and returns whether to continue."""
    if row.startswith("commit"):
        record = BlockRecord(int(Operation.APPEND), None, VALUE)

        def one(settled: Any = None) -> None:
            if settled is None or answered():
                block = encode_block([record], plain=True)
                leader.submit(block, 1, deadline=clock.monotonic() + 30).add_done_callback(one)

        for _ in range(ROWS[row]):
            one()
        return
    runner = build_runner(leader, leader.state.settings)
    await runner.setup()
    server: Any = runner.server
    for _ in range(ROWS[row]):
        wire = _Wire(_REQUESTS[row.partition(" ")[0]], answered)
        wire.protocol = server()
        wire.protocol.connection_made(wire)
        wire.ask()


async def _measure(row: str, seconds: float, profile: cProfile.Profile | None) -> None:
    with tempfile.TemporaryDirectory(prefix="raftlog-loop-") as name:
        hosts = await _hosts(Path(name))
        leader = next(host.replica for host in hosts if host.replica.is_leader)
        put = encode_block([BlockRecord(int(Operation.PUT), b"bench", VALUE)])
        await leader.submit(put, 1, deadline=clock.monotonic() + 30)
        done, is_over, gone = 0, False, asyncio.Event()

        def answered() -> bool:
            nonlocal done
            done += 1
            return not is_over

        await _begin(leader, row, answered)
        await asyncio.sleep(_WARM_UP_S)
        if profile is not None:
            profile.enable()
        costs: list[float] = []
        until = clock.monotonic() + seconds
        while clock.monotonic() < until:
            before, spent = done, time.thread_time()
            await asyncio.sleep(_WINDOW_S)
            if done > before:
                costs.append((time.thread_time() - spent) / (done - before) * 1e6)
        if profile is not None:
            profile.disable()
        is_over = True
        asyncio.get_running_loop().call_later(_WARM_UP_S, gone.set)
        await gone.wait()
        costs.sort()
        print(f"{row:12} least {costs[0]:7.1f} µs, median {costs[len(costs) // 2]:7.1f} µs", flush=True)
        for host in hosts:
            await host.stop()


def main(
    seconds: Annotated[float, typer.Option(min=1, help="seconds for each row")] = 5.0,
    profile: Annotated[str, typer.Option(help=f"one of {', '.join(ROWS)}: its profile")] = "",
) -> None:
    """Prints the processor time of the loop's thread for each load."""
    if profile and profile not in ROWS:
        raise typer.BadParameter(f"{profile!r} is none of {', '.join(ROWS)}")
    gc.set_threshold(*GC_THRESHOLDS)  # as a node does
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.configure("info", "json")
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - lines are made, as they are by default
    for row in [profile] if profile else ROWS:
        profiler = cProfile.Profile(time.thread_time) if profile else None
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_measure(row, seconds, profiler))
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    typer.run(main)
