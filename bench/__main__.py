"""Runs raftlog and its peers interleaved, judges the figures by the goals, prints and saves them: `python -m bench`.

Every round runs each contender once, so a disturbance of the machine hits all of them. A ratio is the median of the
rounds' ratios. Shipped defaults, separate processes, real sockets; load from wrk, h2load and raw clients.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown

from bench.comparison import axes, report, rounds
from bench.comparison.goals import judge
from bench.contenders.field import Field
from bench.contenders.raftlog import NAME, PLAIN, SECURE
from bench.instruments import conditions, machine, tools
from bench.instruments.figures import Figure, compare
from bench.instruments.options import named
from bench.loads import followers, openloop
from bench.studies import growth, overload, sinks

FOLLOWERS, OPEN_LOOP = "followers", "openloop"
PARTS = (*axes.AXES, FOLLOWERS, OPEN_LOOP)
OURS = (NAME, PLAIN, SECURE, f"{NAME} JSON", f"{NAME} msgpack", f"{NAME} raw", f"{NAME} client")
OPEN_RATE = 3_000
ROOM_BYTES_PER_S = 2_800_000_000
"""Disk space that each second of a round takes, in bytes. Bulk appends by all nodes of all contenders write most (at
300,000 records/s); any other part takes at most a quarter of it.
"""
_ROOT = Path(__file__).resolve().parent.parent

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)
app.command("growth")(growth.main)
app.command("overload")(overload.main)
app.command("sinks")(sinks.main)


def commit() -> str:
    """The commit that is measured, marked when files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def follow(field: Field, count: int, rate: int, seconds: float) -> followers.Delivery:
    """So many followers of a new cluster, spread over its nodes. Raises RuntimeError."""
    ours = field.raftlog()
    start = msgspec.json.decode(ours.ask("POST", "/v1/log", b"first"))["index"] + 1
    leader = ours.cluster.leader()
    ports = [ours.cluster.place(leader).url, *(url for url in ours.cluster.urls if url != ours.cluster.url(leader))]
    job = followers.Job([int(url.rpartition(":")[2]) for url in ports], start, count, rate, seconds)
    before = machine.cpu_seconds(ours.pids)
    seen = followers.run(job)
    spent = machine.cpu_seconds(ours.pids) - before
    return msgspec.structs.replace(seen, nodes_cpu_us=round(spent / max(1, seen.delivered) * 1e6, 3))


def _axis(
    name: str,
    field: Field,
    counts: tuple[int, ...],
    number: int,
    seconds: int,
    records: int,
    console: Console,
    failed: dict[str, str],
) -> list[Figure]:
    if name == "stream":
        made = axes.stream(field, records)
    else:
        made = axes.AXES[name](field, counts) if counts else axes.AXES[name](field)
    return [figure for axis in made for figure in rounds.measure(axis, number, seconds, field.pids, console, failed)]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    only: Annotated[str, typer.Option(help=f"parts, by commas: {', '.join(PARTS)}; all unless said")] = "",
    connections: Annotated[
        str, typer.Option(help="numbers of connections, by commas, instead of each part's own")
    ] = "",
    number: Annotated[int, typer.Option("--rounds", min=1, help="interleaved rounds")] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="length of one run")] = 4,
    peers: Annotated[bool, typer.Option(help="run the peers beside raftlog")] = True,
    records: Annotated[int, typer.Option(min=10_000, help="records of the log stream")] = axes.STREAM_RECORDS,
    following: Annotated[int, typer.Option("--followers", min=1, max=3_000, help="followers")] = 1_000,
    rate: Annotated[int, typer.Option(min=1, help="records a second that they follow")] = 1_000,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data of all contenders")] = None,
    save: Annotated[Path, typer.Option(help="where the results go; .md beside it")] = Path("bench/results/latest.json"),
) -> None:
    """Run raftlog beside its peers, and judge the goals of docs/performance.md. About 35 minutes with everything."""
    if context.invoked_subcommand is not None:
        return
    console = Console(width=None if sys.stdout.isatty() else 150)
    chosen = named("--only", only, PARTS)
    try:
        counts = tuple(int(count) for count in connections.split(",") if count)
    except ValueError as error:
        raise typer.BadParameter("--connections: numbers by commas, as in 1,64,256") from error
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a thousand connections; nodes and loads inherit it
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    names: set[str] = set()
    figures: list[Figure] = []
    delivery = offered = None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=data) as place:
        folder = Path(place)
        room = ROOM_BYTES_PER_S * number * seconds // (1 if "bulk" in chosen else 4)
        seen = conditions.look(folder, console, room)
        for part in chosen:
            console.print(f"{part}, after {time.monotonic() - began:.0f} s")
            (folder / part).mkdir()
            with Field(folder / part, console, skipped, peers=peers) as field:
                try:
                    if part == FOLLOWERS:
                        delivery = follow(field, following, rate, 2.0 * seconds)
                    elif part == OPEN_LOOP:
                        url = field.raftlog().url + "/v1/log"
                        offered = asyncio.run(
                            openloop.offer(url, rate=OPEN_RATE, seconds=seconds, connections=64, body=axes.VALUE)
                        )
                    else:
                        figures += _axis(part, field, counts, number, seconds, records, console, failed)
                except tools.MissingTool as missing:
                    skipped[part] = str(missing)
                except rounds.FAILURES as error:
                    failed[part] = " ".join(str(error).split())[:300]
                    console.print(f"{part} failed: {error}", markup=False)
                names |= field.names
            shutil.rmtree(folder / part)  # bulk appends alone leave thirty gigabytes
    goals = judge(figures, delivery, unfit=seen.unfit, growth=growth.last_verdict(save.with_name("growth.json")))
    found = report.Report(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        commit(),
        round(time.monotonic() - began),
        number,
        seconds,
        seen,
        sorted(names),
        skipped,
        failed,
        figures,
        compare(figures, OURS) if seen.is_quiet else [],
        delivery,
        offered,
        goals,
    )
    console.print(Markdown(report.verdicts(found)))  # the figures are in the saved page
    report.save(found, save)
    console.print(f"saved to {save} and {save.with_suffix('.md')}")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
