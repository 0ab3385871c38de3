"""Measures what writes feel when a wiped follower comes back at nice 19: `bench rejoin`.

Three nodes hold some data and run with the shipped defaults. Writes are offered to the leader at a fixed rate, open
loop, in several pairs of windows. In the first window of a pair all nodes are up. In the second, a follower is killed
and its folder is moved away, because deleting it would slow down the others on the same disk. `members replace` gives
its number to a new disk, and the node starts on that disk and catches up. The result compares the medians of both kinds
of windows. It also shows the worst windows, and the latencies of the writes in each phase of a return.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from bench.contenders.raftlog import Raftlog
from bench.instruments import apart, conditions, machine
from bench.loads import phases
from bench.loads.openloop import Each, Offered
from bench.loads.phases import Moment, Phase
from bench.studies import study
from raftlog.cluster.api.members import ChangeIn
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.node.local_cluster import LocalCluster, LocalClusterError

RATE_SHARE_MIN = 0.9
P99_FACTOR_MAX = 2.0
PATIENCE_S = 600.0
_BATCH = 1_000
_POLL_S = 0.1
_LOADED_S = 1.0
"""Time in seconds until the process that offers the writes surely does: an earlier kill would not be seen in them."""

CALM, DOWN, REPLACING, FORMATTING, STARTING, LOG, SNAPSHOT, BACKFILL = (
    "all up", "down", "replaced", "its folder is made", "starting", "gets the log",
    "gets a snapshot", "gets older segments",
)  # fmt: skip
"""The phases."""


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
    phases: list[Phase] = []  # of all windows together

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
        """The missed bounds, as sentences."""
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

    def __init__(self, cluster: LocalCluster, node: int, away_s: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._node, self._away_s = cluster, node, away_s
        self.voter_s = self.ready_s = 0.0
        self.error = ""
        self.moments: list[Moment] = []

    def run(self) -> None:
        """The thread."""
        try:
            self._come_back()
        except (ClientError, LocalClusterError, OSError, TimeoutError) as error:
            self.error = str(error)

    def _begins(self, phase: str) -> None:
        self.moments.append(Moment(time.monotonic(), phase))

    def _come_back(self) -> None:
        cluster, node = self._cluster, self._node
        time.sleep(_LOADED_S)
        self._begins(DOWN)
        cluster.kill(node)
        time.sleep(self._away_s)
        self._begins(REPLACING)
        cluster.data(node).rename(cluster.data(node).with_suffix(".gone"))
        with SyncClient(cluster.urls, deadline_s=60.0) as client:
            answer = client.change_members(ChangeIn("replace", node, incarnation=os.urandom(16).hex()))
        assert answer.join is not None, answer
        self._begins(FORMATTING)
        cluster.adopt(answer.join)
        self._begins(STARTING)
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
                    self._begins(CALM)
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


def _window(url: str, rate: int, seconds: int) -> Each:
    words = [url, "--rate", rate, "--seconds", seconds, "--each"]
    return apart.run("bench.loads.openloop", Each, words=words, seconds=2.0 * seconds)


def phase_of(told: dict[str, Any]) -> str | None:
    """Which phase begins with that line of the log of the node that comes back."""
    match told["event"]:
        case "peer_connected":  # its own link is up as well then, or soon
            return LOG
        case "snapshot_coming":
            return SNAPSHOT
        case "snapshot_in_force":
            return LOG
        case "backfill_begins":
            return BACKFILL
        case "backfill_done":
            return CALM
    return None


def phases_of(runs: Iterable[Each], own: Iterable[Moment], logged: Iterable[Moment]) -> list[Phase]:
    """Every write under its phase: `own` moments are the bench's, `logged` those of the node's log. A node is ready
    before it has its older segments: until then it is not done."""
    moments: list[Moment] = []
    is_filling = False
    for moment, is_logged in sorted([*((each, False) for each in own), *((each, True) for each in logged)]):
        is_filling = moment.phase == BACKFILL or (is_filling and moment.phase == CALM and not is_logged)
        phase = moments[-1].phase if moments else CALM
        if is_logged and moment.phase == LOG and phase not in (STARTING, SNAPSHOT):
            continue  # peers connect again and again
        moments.append(moment._replace(phase=BACKFILL if is_filling else moment.phase))
    return phases.fold(runs, moments, CALM)


def measure(
    folder: Path, records: int, value_bytes: int, rate: int, seconds: int, times: int, away_s: float,
    trailing: int | None, console: Console,
) -> Result:  # fmt: skip
    """The run. Raises RuntimeError or LocalClusterError."""
    seen = conditions.look(folder, console, 12 * records * (value_bytes + 200))
    ours = Raftlog(folder / "nodes", settings={} if trailing is None else {"limits.trailing_log_bytes": trailing})
    try:
        ours.start()
        body = msgspec.msgpack.encode([b"x" * value_bytes] * _BATCH)
        ours.ask_all("POST", "/v1/log", [body] * (records // _BATCH), "application/msgpack")
        leader = ours.cluster.leader()
        url = f"{ours.cluster.url(leader)}/v1/log"
        _window(url, rate, seconds)  # not counted: everything is warm after it
        node = next(node for node in ours.cluster.nodes if node != leader)
        backs: list[Rejoin] = []
        runs: list[Each] = []
        windows: list[Window] = []
        for _ in range(times):
            runs.append(_window(url, rate, seconds))
            windows.append(Window(False, runs[-1].offered))
            backs.append(Rejoin(ours.cluster, node, away_s))
            backs[-1].start()
            while backs[-1].is_alive():
                runs.append(_window(url, rate, seconds))
                told = runs[-1].offered
                windows.append(Window(True, told))
                console.print(f"  {told.per_second:,.0f}/s, p99 {told.p99_ms:.1f} ms, max {told.max_ms:.0f} ms")
            backs[-1].join()
            if backs[-1].error:
                raise RuntimeError(backs[-1].error)
        logged = phases.moments_of(ours.cluster.log_file(node), phase_of)
        lasted = phases_of(runs, (moment for back in backs for moment in back.moments), logged)
    finally:
        ours.cluster.kill(*ours.cluster.nodes)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    voter_s, ready_s = [back.voter_s for back in backs], [back.ready_s for back in backs]
    return Result(now, seen, records, value_bytes, voter_s, ready_s, windows, lasted)


def _told(result: Result, rate: int) -> Iterator[str]:
    before, joining = (result.of(lambda offered: offered.p99_ms, joining=each) for each in (False, True))
    yield (
        f"{rate:,}/s offered: {result.share:.1%} at least; p99 {result.p99_before_ms:.1f} ms before (worst window "
        f"{before[-1]:.1f}), {result.p99_joining_ms:.1f} ms while the follower was away or behind (worst "
        f"{joining[-1]:.1f}); voter after {max(result.voter_s):.1f} s, ready after {max(result.ready_s):.1f} s at "
        f"most, {len(result.voter_s)} times, {result.records:,} records of {result.value_bytes} bytes"
    )
    for phase in result.phases:
        yield (
            f"  {phase.name}: {phase.seconds:.2f} s, p50 {phase.p50_ms:.1f} ms, p99 {phase.p99_ms:.1f} ms, "
            f"max {phase.max_ms:.0f} ms"
        )


def main(
    records: Annotated[int, typer.Option(min=_BATCH, help="records in the log before")] = 1_000_000,
    size: Annotated[int, typer.Option(min=1, help="bytes of each value")] = 256,
    rate: Annotated[int, typer.Option(min=1, help="writes offered a second")] = 3_000,
    seconds: Annotated[int, typer.Option(min=2, help="length of a window")] = 10,
    times: Annotated[int, typer.Option(min=1, help="how often a follower is replaced")] = 5,
    away: Annotated[float, typer.Option(min=0, help="seconds that it is merely down before it is replaced")] = 0.0,
    trailing: Annotated[
        int | None, typer.Option(min=1, help="limits.trailing_log_bytes: with little it gets a snapshot")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/rejoin.json"),
) -> None:
    """A wiped follower is replaced and catches up at nice 19 under 3,000 writes a second: do rate and p99 hold?"""
    study.run(
        "rejoin",
        data,
        save,
        lambda folder, console: measure(folder, records, size, rate, seconds, times, away, trailing, console),
        lambda result: _told(result, rate),
    )
