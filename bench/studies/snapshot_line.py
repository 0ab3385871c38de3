"""Measures a snapshot over a line with a long round trip, beside one plain socket: `bench snapshot-line`.

Three nodes run behind Toxiproxy. A follower is killed, and clients write so much that the leader drops the log that the
follower lacks. Every message between the follower and the others is delayed, and the follower starts again. The result
is the time between the first chunk and the last one at the follower. The floor is the same number of bytes over one
socket through a proxy of the same server with the same delay, in the same run. A second pass cuts the follower's links
half-way: bytes that came before the cut must not be sent again.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from bench.instruments import conditions
from bench.studies import study
from raftlog.chaos.deploy.deployment import Deployment, peer_proxy
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import free_ports

GOAL_MB_S: Final = 60.0
FOLLOWER: Final = 3
PATIENCE_S: Final = 120.0
_VALUE: Final = 256 << 10
_SETTINGS: Final = {
    "log.format": "json",
    "limits.snapshot_log_bytes": 64 << 20,
    "limits.trailing_log_bytes": 1 << 20,
    "limits.trailing_log_percent": 1,
}
"""A snapshot after 64 MB, and hardly any log kept for a slow follower."""


class Sent(msgspec.Struct, frozen=True):
    """One snapshot over the line."""

    bytes: int
    seconds: float
    received_bytes: int  # more than `bytes`: some came twice

    @property
    def mb_s(self) -> float:
        """Megabytes a second."""
        return self.bytes / self.seconds / 1e6


class Result(msgspec.Struct, frozen=True):
    """The whole run."""

    when: str
    conditions: conditions.Conditions
    one_way_ms: int
    floor_mb_s: float
    whole: list[Sent]
    cut: Sent

    @property
    def faults(self) -> list[str]:
        """The missed bounds, as sentences."""
        slowest = min(sent.mb_s for sent in self.whole)
        found = [] if slowest >= GOAL_MB_S else [f"{slowest:.1f} MB/s, not {GOAL_MB_S:.0f}"]
        if self.cut.received_bytes > 1.5 * self.cut.bytes:
            found.append(f"after a cut {self.cut.received_bytes:,} bytes came of {self.cut.bytes:,}")
        return found


def floor(deployment: Deployment, one_way_ms: int, size: int) -> float:
    """Megabytes a second of one socket through a proxy of that server with that delay each way."""
    listen, into = free_ports(2)
    deployment.toxiproxy.add_proxy("floor", listen=f"127.0.0.1:{listen}", upstream=f"127.0.0.1:{into}")
    deployment.toxiproxy.add_toxic("floor", "late", "latency", "upstream", {"latency": one_way_ms})
    came = threading.Event()
    began = 0.0

    def sink(listening: socket.socket) -> None:
        nonlocal began
        connection, _ = listening.accept()
        left = size
        with connection:
            while left:
                data = connection.recv(1 << 20)
                began = began or time.monotonic()
                left -= len(data)
                assert data, "the connection ended early"
            came.set()

    with socket.create_server(("127.0.0.1", into)) as listening:
        threading.Thread(target=sink, args=(listening,), daemon=True).start()
        with socket.create_connection(("127.0.0.1", listen)) as sender:
            part = bytes(_VALUE)
            for _ in range(size // len(part)):
                sender.sendall(part)
            assert came.wait(PATIENCE_S), "the plain socket was not done in time"
    return size / (time.monotonic() - began) / 1e6


def _fill(deployment: Deployment, megabytes: int) -> None:
    """So many keys of 256 KiB; the same keys each time, so that the state stays as large."""
    value = os.urandom(_VALUE)
    with SyncClient(deployment.cluster.urls, deadline_s=60.0) as client:
        for number in range(megabytes * (1 << 20) // _VALUE):
            client.put(b"key-%06d" % number, value[number % 97 :])


def _metric(deployment: Deployment, node: int, name: str) -> float:
    try:
        _, body = deployment.cluster.ask(node, "/metrics")
    except OSError:
        return 0.0
    return sum(float(line.split()[-1]) for line in body.decode().splitlines() if line.startswith(name))


def _events(deployment: Deployment, name: str) -> list[dict[str, object]]:
    lines = deployment.cluster.log_file(FOLLOWER).read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{") and f'"{name}"' in line]
    return [each for each in told if each["event"] == name]


def _at(event: dict[str, object]) -> float:
    return datetime.fromisoformat(str(event["timestamp"]).replace("Z", "+00:00")).timestamp()


def send(deployment: Deployment, one_way_ms: int, megabytes: int, *, cuts: bool) -> Sent:
    """The follower is away while much is written, and gets a snapshot. Raises TimeoutError."""
    cluster, proxies = deployment.cluster, deployment.toxiproxy
    links = [peer_proxy(FOLLOWER, other) for other in (1, 2)] + [peer_proxy(other, FOLLOWER) for other in (1, 2)]
    cluster.kill(FOLLOWER)
    _fill(deployment, megabytes)
    before = len(_events(deployment, "snapshot_in_force"))
    for name in links:
        proxies.add_toxic(name, "late", "latency", "upstream", {"latency": one_way_ms})
    cluster.start_node(FOLLOWER)
    end = time.monotonic() + PATIENCE_S
    received = 0.0
    while len(_events(deployment, "snapshot_in_force")) == before:
        if time.monotonic() > end:
            raise TimeoutError("the follower got no snapshot in time\n" + cluster.tails())
        received = max(received, _metric(deployment, FOLLOWER, "raftlog_snapshot_received_bytes"))
        if cuts and received > (megabytes << 20) / 2:
            cuts = False
            for name in links:
                proxies.disable(name)
            for name in links:
                proxies.enable(name)
        time.sleep(0.02)
    done = _events(deployment, "snapshot_in_force")[-1]
    coming = [each for each in _events(deployment, "snapshot_coming") if each["index"] == done["index"]]
    received = _metric(deployment, FOLLOWER, "raftlog_snapshot_received_bytes")
    cluster.wait_ready(timeout_s=PATIENCE_S)
    deployment.heal()
    seconds = _at(done) - float(str(done["seconds"])) - _at(coming[0])
    return Sent(int(str(coming[-1]["bytes"])), seconds, int(received))


def measure(folder: Path, megabytes: int, one_way_ms: int, times: int, console: Console) -> Result:
    """The run. Raises RuntimeError, TimeoutError or LocalClusterError."""
    seen = conditions.look(folder, console, 20 * megabytes << 20)
    with Deployment(folder / "nodes", free_ports, settings=_SETTINGS) as deployment:
        deployment.start()
        raw = floor(deployment, one_way_ms, megabytes << 20)
        whole = []
        for _ in range(times):
            whole.append(send(deployment, one_way_ms, megabytes, cuts=False))
            console.print(f"  {whole[-1].mb_s:.1f} MB/s; one plain socket {raw:.1f}")
        cut = send(deployment, one_way_ms, megabytes, cuts=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Result(now, seen, one_way_ms, raw, whole, cut)


def _told(result: Result) -> Iterator[str]:
    speeds = sorted(sent.mb_s for sent in result.whole)
    yield (
        f"{result.one_way_ms} ms each way: {speeds[len(speeds) // 2]:.1f} MB/s (slowest {speeds[0]:.1f}), "
        f"{speeds[len(speeds) // 2] / result.floor_mb_s:.2f} of one plain socket's {result.floor_mb_s:.1f}; "
        f"cut half-way: {result.cut.received_bytes / result.cut.bytes:.2f} of its bytes came"
    )


def main(
    megabytes: Annotated[int, typer.Option(min=64, help="size of the state")] = 256,
    one_way: Annotated[int, typer.Option(min=0, help="delay of each direction in ms: half of the round trip")] = 25,
    times: Annotated[int, typer.Option(min=1, help="how often it is sent whole")] = 3,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/snapshot_line.json"),
) -> None:
    """A snapshot over a line with a long round trip: how fast, beside one plain socket, and does a cut cost much?"""
    study.run(
        "snapshot_line", data, save,
        lambda folder, console: measure(folder, megabytes, one_way, times, console), _told,
    )  # fmt: skip
