"""A wiped follower comes back at nice 19 while writes are offered: what the writes feel of it (`bench rejoin`).

Three nodes with the shipped defaults that hold some data. Writes are offered to the leader at a fixed rate, open loop,
window after window, some times over: one with all nodes well; then a follower is killed and its folder removed,
`members replace` gives its number to a new disk, and the node starts on that and catches up. What counts is the median
of the windows of either kind; the worst ones are told.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench import apart, conditions, machine, study
from bench.openloop import Offered
from bench.raftlog import Raftlog
from cluster.client_errors import ClientError
from cluster.client_sync import SyncClient
from cluster.local_cluster import LocalCluster, LocalClusterError
from cluster.wire_members import ChangeIn

RATE_SHARE_MIN = 0.9
P99_FACTOR_MAX = 2.0
PATIENCE_S = 600.0
_BATCH = 1_000
_POLL_S = 0.1


class Window(msgspec.Struct, frozen=True):
    """So many seconds of load; `joining`: whether the follower was away or behind in any of it."""

    joining: bool
    offered: Offered


class Result(msgspec.Struct, frozen=True):
    """The whole run."""

    when: str
    conditions: conditions.Conditions
    records: int  # in the log before
    value_bytes: int
    voter_s: list[float]  # each time: from its start until it votes
    ready_s: list[float]  # and until it serves
    windows: list[Window]

    def of(self, look: Callable[[Offered], float], *, joining: bool) -> list[float]:
        """A figure of every window of one kind, sorted."""
        return sorted(look(window.offered) for window in self.windows if window.joining == joining)

    @property
    def p99_before_ms(self) -> float:
        """The median of the calm windows."""
        return statistics.median(self.of(lambda offered: offered.p99_ms, joining=False))

    @property
    def p99_joining_ms(self) -> float:
        """The median of the others."""
        return statistics.median(self.of(lambda offered: offered.p99_ms, joining=True))

    @property
    def share(self) -> float:
        """Of the offered rate, the least of any window in which the follower was away or behind."""
        return self.of(lambda offered: offered.per_second / offered.offered_per_second, joining=True)[0]

    @property
    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.share < RATE_SHARE_MIN:
            found.append(f"{self.share:.1%} of the offered rate, not {RATE_SHARE_MIN:.0%}")
        if self.p99_joining_ms > P99_FACTOR_MAX * self.p99_before_ms:
            found.append(
                f"p99 {self.p99_joining_ms:.1f} ms, {self.p99_joining_ms / self.p99_before_ms:.1f} times that before"
            )
        if bad := sum(window.offered.bad for window in self.windows):
            found.append(f"{bad} writes failed")
        return found


class Rejoin(threading.Thread):
    """Wipes a follower and brings it back."""

    def __init__(self, cluster: LocalCluster, node: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._node = cluster, node
        self.voter_s = self.ready_s = 0.0
        self.error = ""

    def run(self) -> None:
        """The thread."""
        try:
            self._come_back()
        except (ClientError, LocalClusterError, OSError, TimeoutError) as error:
            self.error = str(error)

    def _come_back(self) -> None:
        cluster, node = self._cluster, self._node
        cluster.kill(node)
        shutil.rmtree(cluster.data(node))
        with SyncClient(cluster.urls, deadline_s=60.0) as client:
            answer = client.change_members(ChangeIn("replace", node, incarnation=os.urandom(16).hex()))
        assert answer.join is not None, answer
        cluster.adopt(answer.join)
        cluster.start_node(node)
        pid = cluster.pid(node)
        assert pid is not None
        machine.put_last(pid)  # its threads come later, and inherit it
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_S:
            told = cluster.status(node)
            if not self.voter_s and self._votes():
                self.voter_s = round(time.monotonic() - began, 1)
            if self.voter_s and told is not None:
                with suppress(LocalClusterError):
                    cluster.wait_ready([node], timeout_s=_POLL_S)
                    self.ready_s = round(time.monotonic() - began, 1)
                    return
            time.sleep(_POLL_S)
        raise TimeoutError(f"node {node} is no voter within {PATIENCE_S:.0f} s")

    def _votes(self) -> bool:
        with suppress(ClientError), SyncClient(self._cluster.urls, deadline_s=5.0) as client:
            members = client.members()
            return not members.is_changing and any(
                member.node == self._node and member.role == "voter" for member in members.members
            )
        return False


def _window(url: str, rate: int, seconds: int, *, joining: bool) -> Window:
    words = [url, "--rate", rate, "--seconds", seconds]
    return Window(joining, apart.run("bench.openloop", Offered, words=words, seconds=2.0 * seconds))


def measure(
    folder: Path, records: int, value_bytes: int, rate: int, seconds: int, times: int, console: Console
) -> Result:
    """The run. Raises RuntimeError or LocalClusterError."""
    seen = conditions.look(folder, console, 12 * records * (value_bytes + 200))
    ours = Raftlog(folder / "nodes")
    try:
        ours.start()
        body = msgspec.msgpack.encode([b"x" * value_bytes] * _BATCH)
        ours.ask_all("POST", "/v1/log", [body] * (records // _BATCH), "application/msgpack")
        leader = ours.cluster.leader()
        url = f"{ours.cluster.url(leader)}/v1/log"
        _window(url, rate, seconds, joining=False)  # not counted: everything is warm after it
        node = next(node for node in ours.cluster.nodes if node != leader)
        backs: list[Rejoin] = []
        windows: list[Window] = []
        for _ in range(times):
            windows.append(_window(url, rate, seconds, joining=False))
            backs.append(Rejoin(ours.cluster, node))
            backs[-1].start()
            while backs[-1].is_alive():
                windows.append(_window(url, rate, seconds, joining=True))
                told = windows[-1].offered
                console.print(f"  {told.per_second:,.0f}/s, p99 {told.p99_ms:.1f} ms, max {told.max_ms:.0f} ms")
            backs[-1].join()
            if backs[-1].error:
                raise RuntimeError(backs[-1].error)
    finally:
        ours.cluster.kill(*ours.cluster.nodes)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    voter_s, ready_s = [back.voter_s for back in backs], [back.ready_s for back in backs]
    return Result(now, seen, records, value_bytes, voter_s, ready_s, windows)


def _told(result: Result, rate: int) -> Iterator[str]:
    before, joining = (result.of(lambda offered: offered.p99_ms, joining=each) for each in (False, True))
    yield (
        f"{rate:,}/s offered: {result.share:.1%} at least; p99 {result.p99_before_ms:.1f} ms before (worst window "
        f"{before[-1]:.1f}), {result.p99_joining_ms:.1f} ms while the follower was away or behind (worst "
        f"{joining[-1]:.1f}); voter after {max(result.voter_s):.1f} s, ready after {max(result.ready_s):.1f} s at "
        f"most, {len(result.voter_s)} times, {result.records:,} records of {result.value_bytes} bytes"
    )


def main(
    records: Annotated[int, typer.Option(min=_BATCH, help="records in the log before")] = 1_000_000,
    size: Annotated[int, typer.Option(min=1, help="bytes of each value")] = 256,
    rate: Annotated[int, typer.Option(min=1, help="writes offered a second")] = 3_000,
    seconds: Annotated[int, typer.Option(min=2, help="length of a window")] = 10,
    times: Annotated[int, typer.Option(min=1, help="how often a follower is replaced")] = 5,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/rejoin.json"),
) -> None:
    """A wiped follower is replaced and catches up at nice 19 under 3,000 writes a second: do rate and p99 hold?"""
    study.run(
        "rejoin", data, save,
        lambda folder, console: measure(folder, records, size, rate, seconds, times, console),
        lambda result: _told(result, rate),
    )  # fmt: skip
