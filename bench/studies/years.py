"""Measures the traces of years of writes: disk, memory and restarts while keys are put again and again (`bench years`).

Three nodes run with the shipped defaults and one setting: how many bytes of log are kept. Each put is a record of its
own, and by default a request of its own over many connections (wrk). With `--within` the leader's process makes the
puts, without HTTP, so that millions take minutes. With `--transactions` a hundred puts share one request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench.contenders.raftlog import Raftlog
from bench.instruments import conditions, machine
from bench.loads import wrk
from bench.studies import study
from bench.studies.growth import PUTS, RESTART_S, puts as transactions_of
from bench.studies.overload import GROWTH_MAX
from raftlog.cluster.node.local_cluster import LocalCluster

KEPT_BYTES = 1 << 30
"""`retention.bytes` of every node, with which the measured sizes are compared."""
LOOK_S = 0.5
ROUND_S = 15
"""Length of one run of wrk in seconds: wrk counts time, not writes."""
CONNECTIONS = 64
CLIENTS = 4
IN_FLIGHT = 512
WITHIN_S = 5
"""One order to the leader's process: it keeps the latencies of that long in memory."""
TOLD = 10
"""Moments of the run that are shown."""


class How(Enum):
    """How the puts come."""

    REQUESTS = f"requests over {CONNECTIONS} connections"
    WITHIN = f"from within the leader, {IN_FLIGHT} in flight"
    TRANSACTIONS = f"transactions of {PUTS}"


class Sample(msgspec.Struct, frozen=True):
    """One moment, the largest of the nodes."""

    second: float
    applied: int  # the newest index
    log_mib: float  # files of the log
    disk_mib: float  # all files but the reserve
    memory_mib: float  # resident


class Restart(msgspec.Struct, frozen=True):
    """From the start of a process until it serves, in seconds."""

    node: int
    killed_s: float
    stopped_s: float


class Result(msgspec.Struct, frozen=True):
    """The whole run."""

    when: str
    conditions: conditions.Conditions
    how: str
    puts: int
    keys: int
    bad: int
    seconds: float
    kept_mib: float
    snapshot_mib: float
    oldest: int
    restarts: list[Restart]
    together_s: float  # all three killed at once, until all serve
    looks: list[Sample]

    @property
    def log_most_mib(self) -> float:
        """The most that the log took on any disk, ever."""
        return max(look.log_mib for look in self.looks)

    @property
    def memory_mib(self) -> tuple[float, float, float]:
        """In the middle, at the end, the most."""
        all_of_them = [look.memory_mib for look in self.looks]
        return all_of_them[len(all_of_them) // 2], all_of_them[-1], max(all_of_them)

    @property
    def faults(self) -> list[str]:
        """The missed bounds, as sentences."""
        found = []
        if self.log_most_mib > self.kept_mib:
            found.append(
                f"the log took {self.log_most_mib:.0f} MiB of a disk, not {self.kept_mib:.0f} (retention.bytes)"
            )
        if self.oldest == 1:
            found.append("nothing was trimmed: more --puts")
        middle, end, _ = self.memory_mib
        if end > GROWTH_MAX * middle:
            found.append(f"memory grew from {middle:.0f} MiB in the middle to {end:.0f}")
        slow = [each for each in self.restarts if max(each.killed_s, each.stopped_s) > RESTART_S]
        found += [
            f"node {each.node} served {each.killed_s:.1f} s after a kill, {each.stopped_s:.1f} s after a stop"
            for each in slow
        ]
        if self.together_s > RESTART_S:
            found.append(f"all three served {self.together_s:.1f} s after they were killed together")
        if self.bad:
            found.append(f"{self.bad} puts failed")
        return found


def _size(folder: Path) -> int:
    """What the files below it take; those that go meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


class Watcher(threading.Thread):
    """Samples all nodes until it is stopped, and once more then."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._ended = threading.Event()
        self.looks: list[Sample] = []

    def run(self) -> None:
        """The thread."""
        began = time.monotonic()
        is_over = False
        while not is_over:
            is_over = self._ended.wait(LOOK_S)
            second = round(time.monotonic() - began, 1)
            nodes = self._cluster.running
            shards = [self._cluster.data(node) / "shard-0" for node in nodes]
            told = [status.applied for node in nodes if (status := self._cluster.status(node)) is not None]
            pids = [pid for node in nodes if (pid := self._cluster.pid(node)) is not None]
            self.looks.append(
                Sample(
                    second,
                    max(told, default=0),
                    round(max(_size(shard / "log") for shard in shards) / (1 << 20), 1),
                    round(max(_size(shard) for shard in shards) / (1 << 20), 1),
                    round(max(machine.memory_mib([pid]) for pid in pids), 1),
                )
            )

    def end(self) -> list[Sample]:
        """Stops the thread and returns the samples."""
        self._ended.set()
        self.join(60)
        return self.looks


def _put_one_by_one(cluster: LocalCluster, puts: int, keys: int, size: int, folder: Path) -> tuple[int, int]:
    """wrk, as long as it takes: how many puts were answered well, how many not."""
    done = bad = 0
    load = wrk.Load(f"{cluster.url(cluster.leader())}/v1/kv/key-", "PUT", b"v" * size, keys=keys)
    while done < puts:
        run = wrk.run(load, connections=CONNECTIONS, seconds=ROUND_S, folder=folder)
        done, bad = done + run.requests - run.bad, bad + run.bad
        if not run.requests:
            raise RuntimeError("wrk was answered nothing")
    return done, bad


def _put_within(ours: Raftlog, puts: int, keys: int, size: int) -> tuple[int, int]:
    """Makes the puts in the leader's process, IN_FLIGHT at a time: how many succeeded and how many failed."""
    done = bad = 0
    while done < puts:
        run = ours.commit(size, IN_FLIGHT, WITHIN_S, keys, done)
        done, bad = done + run.requests - run.bad, bad + run.bad
        if not run.requests:
            raise RuntimeError("nothing was committed")
    return done, bad


def _put_in_transactions(ours: Raftlog, puts: int, keys: int, size: int) -> tuple[int, int]:
    """Transactions of a hundred puts, from a few clients at once."""
    bodies = list(transactions_of(0, keys, size))
    share = puts // PUTS // CLIENTS

    def client(number: int) -> int:
        own = islice(cycle(bodies), number * len(bodies) // CLIENTS, None)
        ours.ask_all("POST", "/v1/kv/txn", islice(own, share), "application/json")
        return share * PUTS

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(client, range(CLIENTS))), 0


def _until_ready(cluster: LocalCluster, *nodes: int) -> float:
    began = time.monotonic()
    cluster.start(nodes)
    cluster.wait_ready(nodes, timeout_s=120.0)
    return round(time.monotonic() - began, 2)


def _restarts(cluster: LocalCluster) -> tuple[list[Restart], float]:
    """Every node killed and started, stopped and started; then all killed together."""
    found = []
    for node in cluster.nodes:
        cluster.kill(node)
        killed = _until_ready(cluster, node)
        cluster.stop_node(node)
        found.append(Restart(node, killed, _until_ready(cluster, node)))
    cluster.kill(*cluster.nodes)
    return found, _until_ready(cluster, *cluster.nodes)


def measure(folder: Path, puts: int, keys: int, size: int, kept: int, how: How, console: Console) -> Result:
    """The run. Raises RuntimeError or LocalClusterError."""
    seen = conditions.look(folder, console, 3 * (kept + (1 << 30)))
    ours = Raftlog(folder / "nodes", settings={"retention.bytes": kept})
    cluster = ours.cluster
    try:
        ours.start()
        watcher = Watcher(cluster)
        watcher.start()
        began = time.monotonic()
        match how:
            case How.TRANSACTIONS:
                done, bad = _put_in_transactions(ours, puts, keys, size)
            case How.WITHIN:
                done, bad = _put_within(ours, puts, keys, size)
            case How.REQUESTS:
                done, bad = _put_one_by_one(cluster, puts, keys, size, folder)
        seconds = time.monotonic() - began
        looks = watcher.end()
        console.print(f"{done:,} puts in {seconds:.0f} s ({done / seconds:,.0f}/s); restarts")
        restarts, together = _restarts(cluster)
        status = cluster.status(cluster.leader())
        snapshots = max(_size(cluster.data(node) / "shard-0" / "snapshots") for node in cluster.nodes)
    finally:
        cluster.kill(*cluster.nodes)
    return Result(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), seen, how.value, done, keys, bad, round(seconds, 1),
        kept / (1 << 20), round(snapshots / (1 << 20), 1), 0 if status is None else status.oldest, restarts, together,
        looks,
    )  # fmt: skip


def _told(result: Result, save: Path) -> Iterator[str]:
    middle, end, most = result.memory_mib
    yield (
        f"{result.puts:,} puts over {result.keys:,} keys, {result.how}, in {result.seconds:.0f} s; the log took at "
        f"most {result.log_most_mib:.0f} MiB of a disk (policy {result.kept_mib:.0f}), {result.looks[-1].log_mib:.0f} "
        f"at the end; all files at most {max(look.disk_mib for look in result.looks):.0f} MiB, two snapshots "
        f"{result.snapshot_mib:.0f}; memory {middle:.0f} MiB in the middle, {end:.0f} at the end, {most:.0f} at most"
    )
    for look in result.looks[:: max(1, len(result.looks) // TOLD)]:
        yield (
            f"after {look.second:.0f} s, at index {look.applied:,}: log {look.log_mib:.0f} MiB, all files "
            f"{look.disk_mib:.0f} MiB, memory {look.memory_mib:.0f} MiB"
        )
    for each in result.restarts:
        yield f"node {each.node} serves {each.killed_s:.2f} s after a kill, {each.stopped_s:.2f} s after a stop"
    yield f"all three serve {result.together_s:.2f} s after they were killed together; saved to {save}"


def main(
    puts: Annotated[int, typer.Option(min=1_000, help="writes in all")] = 10_000_000,
    keys: Annotated[int, typer.Option(min=100, help="keys that they go to in turn")] = 100_000,
    size: Annotated[int, typer.Option(min=1, help="bytes of each value")] = 256,
    kept: Annotated[int, typer.Option(help="retention.bytes of every node")] = KEPT_BYTES,
    transactions: Annotated[bool, typer.Option("--transactions", help="a hundred puts in each request")] = False,
    within: Annotated[
        bool, typer.Option("--within", help="without HTTP, within the leader's process: quicker")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/years.json"),
) -> None:
    """Writes 10 M puts over 100 k keys: disk bounded by policy, memory by the state, restarts within 5 s."""
    if transactions and within:
        raise typer.BadParameter("--transactions are made over HTTP: leave --within out")
    how = How.TRANSACTIONS if transactions else How.WITHIN if within else How.REQUESTS
    study.run(
        "years",
        data,
        save,
        lambda folder, console: measure(folder, puts, keys, size, kept, how, console),
        lambda result: _told(result, save),
    )
