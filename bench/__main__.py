"""`python -m bench`: raftlog and its peers in one run, interleaved, printed and saved as ratios.

Every round runs each contender once, so that what the machine does in between hits all of them; the ratio is the
median of the rounds' ratios. Shipped defaults, separate processes, real sockets, load from wrk.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Protocol

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench import etcd, machine, openloop, wrk
from bench.raftlog import Raftlog
from cluster.local_cluster import free_ports

VALUE = "x" * 256
WRITE, READ = "write", "linearizable read"


class Contender(Protocol):
    """What the bench needs of a cluster."""

    @property
    def pids(self) -> list[int]:
        """Process ids of all nodes."""

    def write(self, value: str) -> wrk.Load:
        """One durable write."""

    def read(self) -> wrk.Load:
        """One linearizable read."""

    def stop(self) -> None:
        """End all nodes."""


class Figure(msgspec.Struct, frozen=True):
    """One contender at one number of connections: the rounds, and the processor time of all nodes an operation."""

    contender: str
    load: str
    connections: int
    runs: list[wrk.Run]
    cpu_us_per_operation: float
    memory_mib: float

    @property
    def per_second(self) -> float:
        """Median of the rounds."""
        return median(run.per_second for run in self.runs)


class Ratio(msgspec.Struct, frozen=True):
    """raftlog over a peer: median over the rounds of the rates' ratios, and their smallest and largest."""

    peer: str
    load: str
    connections: int
    throughput: float
    lowest: float
    highest: float
    p99: float  # raftlog's p99 over the peer's: below 1 is better


class Report(msgspec.Struct, frozen=True):
    """One run of the bench, as it is saved."""

    when: str
    disk: machine.Disk
    busy_before: float
    is_quiet: bool
    versions: dict[str, str]
    skipped: dict[str, str]
    figures: list[Figure]
    ratios: list[Ratio]
    open_loop: list[openloop.Offered]


def start_peers(
    folder: Path, tools: Path, stack: ExitStack, skipped: dict[str, str]
) -> tuple[dict[str, Contender], dict[str, str]]:
    """Every etcd that this machine has or can build, started; the others named in `skipped`."""
    peers: dict[str, Contender] = {}
    versions: dict[str, str] = {}
    for name, get in (("etcd", etcd.find), (f"etcd {etcd.NEWEST}", lambda: etcd.build(tools.resolve()))):
        place = folder / name.replace(" ", "-")
        place.mkdir()
        try:
            peer = etcd.Etcd(get(), place, free_ports(6))
        except wrk.MissingTool as missing:
            skipped[name] = str(missing)
            continue
        stack.callback(peer.stop)
        peer.start()
        peer.prepare(VALUE)
        versions[f"etcd {peer.version}"] = peer.version
        peers[f"etcd {peer.version}"] = peer
    return peers, versions


def compare(figures: list[Figure]) -> list[Ratio]:
    """raftlog beside each peer, load by load."""
    ours = {(figure.load, figure.connections): figure for figure in figures if figure.contender == "raftlog"}
    ratios: list[Ratio] = []
    for figure in figures:
        if figure.contender == "raftlog":
            continue
        mine = ours[figure.load, figure.connections]
        rounds = [a.per_second / b.per_second for a, b in zip(mine.runs, figure.runs, strict=True)]
        p99 = median(a.p99_ms / b.p99_ms for a, b in zip(mine.runs, figure.runs, strict=True))
        ratios.append(
            Ratio(
                figure.contender, figure.load, figure.connections, round(median(rounds), 2), round(min(rounds), 2),
                round(max(rounds), 2), round(p99, 2),
            )
        )  # fmt: skip
    return ratios


def measure(
    contenders: dict[str, Contender], loads: list[str], connections: list[int], rounds: int, seconds: int,
    folder: Path, console: Console,
) -> list[Figure]:  # fmt: skip
    """Every contender under every load, the rounds interleaved."""
    figures: list[Figure] = []
    for load in loads:
        for count in connections:
            runs: dict[str, list[wrk.Run]] = {name: [] for name in contenders}
            cpu = dict.fromkeys(contenders, 0.0)
            for number in range(rounds):
                for name, contender in contenders.items():
                    request = contender.write(VALUE) if load == WRITE else contender.read()
                    before = machine.cpu_seconds(contender.pids)
                    run = wrk.run(request, connections=count, seconds=seconds, folder=folder)
                    cpu[name] += machine.cpu_seconds(contender.pids) - before
                    runs[name].append(run)
                    console.print(
                        f"  {load}, c={count}, round {number + 1}/{rounds}: {name} {run.per_second:,.0f}/s, "
                        f"p99 {run.p99_ms:.1f} ms" + (f", [red]{run.bad} bad answers[/]" if run.bad else "")
                    )
            for name, contender in contenders.items():
                done = sum(run.requests for run in runs[name])
                memory = round(machine.memory_mib(contender.pids), 1)
                figures.append(Figure(name, load, count, runs[name], round(cpu[name] / max(1, done) * 1e6, 1), memory))
    return figures


def show(report: Report, console: Console) -> None:
    """The report as tables."""
    disk = report.disk
    console.print(
        f"fdatasync p50 {disk.p50_us:.0f} µs, p99 {disk.p99_us:.0f} µs ({disk.filesystem}); "
        f"machine {report.busy_before:.0%} busy before"
    )
    table = Table("contender", "load", "c", "ops/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU µs/op", "MiB", "bad")
    for figure in report.figures:
        table.add_row(
            figure.contender, figure.load, str(figure.connections), f"{figure.per_second:,.0f}",
            *(f"{median(getattr(run, name) for run in figure.runs):.2f}" for name in ("p50_ms", "p99_ms", "p999_ms")),
            f"{figure.cpu_us_per_operation:.0f}", f"{figure.memory_mib:.0f}", str(sum(run.bad for run in figure.runs)),
        )  # fmt: skip
    console.print(table)
    if report.ratios and not report.is_quiet:
        console.print("[red]the machine was busy: no ratio is quoted[/]")
    elif report.ratios:
        table = Table("raftlog beside", "load", "c", "throughput", "lowest-highest", "p99")
        for ratio in report.ratios:
            table.add_row(
                ratio.peer, ratio.load, str(ratio.connections), f"{ratio.throughput:.2f}×",
                f"{ratio.lowest:.2f}-{ratio.highest:.2f}", f"{ratio.p99:.2f}×",
            )  # fmt: skip
        console.print(table)
    for run in report.open_loop:
        console.print(
            f"open loop, {run.offered_per_second:,}/s offered over {run.connections} connections: "
            f"p50 {run.p50_ms:.1f}, p99 {run.p99_ms:.1f}, p99.9 {run.p999_ms:.1f}, max {run.max_ms:.1f} ms, "
            f"{run.answered} of {run.sent} answered, {run.bad} bad"
        )
    for name, reason in report.skipped.items():
        console.print(f"skipped {name}: {reason}")


def main(
    load: Annotated[list[str] | None, typer.Option(help="write, read; both unless said")] = None,
    connections: Annotated[str, typer.Option(help="numbers of connections, by commas")] = "64,256",
    rounds: Annotated[int, typer.Option(min=1, help="interleaved rounds")] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="length of one run")] = 4,
    rate: Annotated[int, typer.Option(min=0, help="writes a second of the open loop; 0 leaves it out")] = 3_000,
    peers: Annotated[bool, typer.Option(help="run the peers beside raftlog")] = True,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data of all contenders")] = None,
    tools: Annotated[Path, typer.Option(help="where a built etcd is kept")] = Path(".tools"),
    save: Annotated[Path, typer.Option(help="where the results go")] = Path("bench/results/latest.json"),
) -> None:
    """Run raftlog beside etcd and print ratios, floors and an open-loop run."""
    console = Console()
    names = {"write": WRITE, "read": READ}
    try:
        loads = [names[name] for name in load or names]
        counts = [int(count) for count in connections.split(",")]
    except (KeyError, ValueError) as error:
        raise typer.BadParameter(f"{error}: --load is write or read, --connections numbers by commas") from error
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=data) as name, ExitStack() as stack:
        folder = Path(name)
        try:
            disk = machine.measure_disk(folder)
        except machine.NotADisk as refusal:
            console.print(f"[red]{refusal}[/]")
            raise typer.Exit(2) from refusal
        busy = machine.busy_share()
        others, versions = start_peers(folder, tools, stack, skipped) if peers else ({}, {})
        ours = Raftlog(folder / "raftlog")
        stack.callback(ours.stop)
        ours.start()
        ours.prepare(VALUE)
        try:
            figures = measure({"raftlog": ours, **others}, loads, counts, rounds, seconds, folder, console)
        except wrk.MissingTool as missing:
            console.print(f"[red]{missing}[/]")
            raise typer.Exit(8) from missing
        open_loop = []
        if rate:
            url = ours.write(VALUE).url
            open_loop.append(
                asyncio.run(openloop.offer(url, rate=rate, seconds=seconds, connections=64, body=VALUE.encode()))
            )
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        is_quiet = busy <= machine.BUSY_SHARE_MAX
        report = Report(
            when, disk, round(busy, 3), is_quiet, versions, skipped, figures, compare(figures) if is_quiet else [],
            open_loop,
        )  # fmt: skip
    show(report, console)
    save.parent.mkdir(parents=True, exist_ok=True)
    save.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    console.print(f"saved to {save}")


if __name__ == "__main__":
    typer.run(main)
