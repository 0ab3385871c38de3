"""What a cluster does under ten times the load it can take: how much it still does, how it refuses, what it needs.

Three phases against the leader of three nodes with the shipped defaults: the peak (few connections, all busy), the
overload (so many connections that the node must refuse, each asking again at once, which no well-meant client does),
the peak again. Load from wrk; what became of the writes is read from the nodes' own counters, because wrk does not tell
a refusal from a failure. `python -m bench overload --help`.
"""

from __future__ import annotations

import http.client
import resource
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from bench import machine, tools, wrk
from cluster.local_cluster import LocalCluster
from cluster.settings import LimitSettings

KEPT_SHARE_MIN = 0.8
"""How much of its peak rate a node must keep (the goal of docs/performance.md)."""
GROWTH_MAX = 1.3
"""Memory at the end over memory at a quarter of the overload: what is bounded stops growing."""


class Sample(msgspec.Struct, frozen=True):
    """One moment of the overload."""

    second: float
    applied: int
    refused: int
    memory_mib: float
    term: int
    leader: int


class Phase(msgspec.Struct, frozen=True):
    """What one phase came to, by the leader's counters; `p99_ms` is wrk's, over answers of every kind."""

    connections: int
    applied_per_second: float
    refused_per_second: float
    failed: int  # neither applied nor refused as busy
    p50_ms: float
    p99_ms: float


class Result(msgspec.Struct, frozen=True):
    """The whole run."""

    busy_before: float
    open_requests_max: int
    before: Phase
    overload: Phase
    after: Phase
    kept_share: float
    leader_changes: int
    memory_mib: tuple[float, float, float]  # at a quarter, at the end, the most
    samples: list[Sample]

    @property
    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.kept_share < KEPT_SHARE_MIN:
            found.append(f"kept {self.kept_share:.0%} of its peak rate, not {KEPT_SHARE_MIN:.0%}")
        if self.leader_changes:
            found.append(f"{self.leader_changes} changes of leader or term")
        if self.memory_mib[1] > GROWTH_MAX * self.memory_mib[0]:
            found.append(f"memory grew from {self.memory_mib[0]:.0f} to {self.memory_mib[1]:.0f} MiB")
        if not self.overload.refused_per_second:
            found.append("nothing was refused: more --connections, or fewer --open-requests")
        if self.overload.failed:
            found.append(f"{self.overload.failed} answers were neither applied nor busy")
        return found


class Counts(msgspec.Struct, frozen=True):
    """The leader's answers to appends so far."""

    applied: int
    refused: int
    failed: int


def ask(url: str, target: str) -> bytes:
    """A GET on a connection of its own."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", target)
        return connection.getresponse().read()
    finally:
        connection.close()


def counts(url: str) -> Counts:
    """What the node answered to appends."""
    by_status: dict[str, int] = {}
    for family in text_string_to_metric_families(ask(url, "/metrics").decode()):
        for sample in family.samples:
            if sample.name == "raftlog_http_requests_total" and sample.labels["route"] == "/v1/log":
                by_status[sample.labels["status"]] = int(sample.value)
    applied, refused = by_status.pop("200", 0), by_status.pop("429", 0)
    return Counts(applied, refused, sum(by_status.values()))


class Watcher(threading.Thread):
    """Looks at the cluster every second, until it is told to stop."""

    def __init__(self, cluster: LocalCluster, url: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._url = cluster, url
        self._ended = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        """The thread."""
        began = time.monotonic()
        pids = [pid for node in self._cluster.nodes if (pid := self._cluster.pid(node)) is not None]
        while not self._ended.wait(1.0):
            status = msgspec.json.decode(ask(self._url, "/v1/status"))
            seen = counts(self._url)
            leader = status["leader"]["node"] if status["leader"] else 0
            memory = round(machine.memory_mib(pids), 1)
            second = round(time.monotonic() - began, 1)
            self.samples.append(Sample(second, seen.applied, seen.refused, memory, status["term"], leader))

    def end(self) -> list[Sample]:
        """What it saw."""
        self._ended.set()
        self.join(60)
        return self.samples


def phase(url: str, connections: int, seconds: int, size: int, folder: Path) -> Phase:
    """wrk for that long."""
    before, began = counts(url), time.monotonic()
    load = wrk.Load(f"{url}/v1/log", "POST", "x" * size)
    run = wrk.run(load, connections=connections, seconds=seconds, folder=folder)
    after, took = counts(url), time.monotonic() - began
    return Phase(
        connections, round((after.applied - before.applied) / took, 1),
        round((after.refused - before.refused) / took, 1), after.failed - before.failed, run.p50_ms, run.p99_ms,
    )  # fmt: skip


def soak(
    folder: Path, *, seconds: int, peak_seconds: int, peak_connections: int, connections: int, size: int,
    open_requests: int,
) -> Result:  # fmt: skip
    """The three phases. Raises tools.MissingTool."""
    busy = machine.busy_share()
    settings = {"limits.open_requests_max": open_requests}
    with LocalCluster(folder / "raftlog", settings=settings) as cluster:
        cluster.start()
        cluster.wait_ready(timeout_s=120.0)
        url = cluster.url(cluster.leader())
        phase(url, peak_connections, 2, size, folder)  # warm
        before = phase(url, peak_connections, peak_seconds, size, folder)
        watcher = Watcher(cluster, url)
        watcher.start()
        overload = phase(url, connections, seconds, size, folder)
        samples = watcher.end()
        after = phase(url, peak_connections, peak_seconds, size, folder)
    memory = [sample.memory_mib for sample in samples] or [0.0]
    terms = [(sample.term, sample.leader) for sample in samples]
    peak = max(before.applied_per_second, 1e-9)
    return Result(
        round(busy, 3), open_requests, before, overload, after, round(overload.applied_per_second / peak, 3),
        sum(1 for one, two in pairwise(terms) if one != two),
        (memory[len(memory) // 4], memory[-1], max(memory)), samples,
    )  # fmt: skip


def markdown(result: Result) -> str:
    """The result as a page."""
    lines = [
        "# Overload",
        "",
        f"The machine was {result.busy_before:.0%} busy before; limits.open_requests_max {result.open_requests_max}.",
        "",
        "| | connections | applied/s | refused/s | failed | p50 ms | p99 ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, each in (("peak", result.before), ("overload", result.overload), ("peak again", result.after)):
        lines.append(
            f"| {title} | {each.connections:,} | {each.applied_per_second:,.0f} | {each.refused_per_second:,.0f} "
            f"| {each.failed} | {each.p50_ms:.1f} | {each.p99_ms:.1f} |"
        )
    quarter, end, most = result.memory_mib
    lines += [
        "",
        f"Kept {result.kept_share:.0%} of its peak (asked: {KEPT_SHARE_MIN:.0%}); {result.leader_changes} changes of "
        f"leader; memory of all nodes {quarter:.0f} MiB at a quarter, {end:.0f} at the end, {most:.0f} at most.",
        "",
        *(f"- Not as it should be: {fault}" for fault in result.faults),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main(
    seconds: Annotated[int, typer.Option(min=5, help="length of the overload")] = 120,
    peak_seconds: Annotated[int, typer.Option(min=1, help="length of each of the two peaks")] = 10,
    peak_connections: Annotated[int, typer.Option(min=1, help="connections of the peak")] = 64,
    connections: Annotated[int, typer.Option(min=1, help="connections of the overload")] = 12_000,
    open_requests: Annotated[
        int, typer.Option(min=1, help="limits.open_requests_max; the default is the shipped one")
    ] = LimitSettings().open_requests_max,
    size: Annotated[int, typer.Option(min=0, help="bytes of a value")] = 256,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path | None, typer.Option(help="where the result goes, as JSON; .md beside it")] = None,
) -> None:
    """Overload a cluster; say what it kept, refused and needed. Ends with 1 if that is not as it should be."""
    console = Console()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the nodes and wrk inherit it
    if hard != resource.RLIM_INFINITY and hard < connections + 200:
        console.print(f"[red]{connections} connections need more open files than the {hard} allowed here[/]")
        raise typer.Exit(2)
    with tempfile.TemporaryDirectory(prefix="raftlog-overload-", dir=data) as name:
        try:
            result = soak(
                Path(name), seconds=seconds, peak_seconds=peak_seconds, peak_connections=peak_connections,
                connections=connections, size=size, open_requests=open_requests,
            )  # fmt: skip
        except tools.MissingTool as missing:
            console.print(f"[red]{missing}[/]")
            raise typer.Exit(8) from missing
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for line in markdown(result).splitlines():
        console.print(line, markup=False, soft_wrap=True)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        save.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        save.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    if result.faults:
        raise typer.Exit(1)
