"""Measures how fast Spark reads the log, beside the same rows in Parquet and in Kafka: `python -m bench.spark`.

All runs are on one machine with interleaved rounds. All contenders are up at once, and idle while another one runs. The
first two rounds are dropped; medians of the rest count. Heaps have a fixed size on all sides. The report names each
part that could not run, with the reason, and each goal without a figure. Results go to a JSON file and a Markdown page
beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown

from bench.comparison.report import save_json
from bench.instruments import conditions, machine
from bench.instruments.options import named
from bench.instruments.tools import MissingTool
from bench.spark import jobs as spark_jobs, live, log
from bench.spark.kafka import Kafka
from raftlog.cluster.node.local_cluster import LocalCluster

NO_OP, HASH, PARQUET, STREAM, EXPORT = "no-op", "hash", "parquet", "stream no-op", "export command"
PROVED = "export and verify without Java"
JOBS = (NO_OP, HASH, PARQUET, STREAM, EXPORT, PROVED)
KAFKA, FILES = "kafka", "parquet files"
ROW = "index BIGINT, term BIGINT, time TIMESTAMP, operation STRING, key BINARY, value BINARY"
"""The columns of the rows of about 140 bytes that the goals speak of, beside which Kafka's have seven."""
ALL = ", all columns"
"""Behind the name of a contender whose rows have every column that the source has: nineteen, about 250 bytes."""

LOCAL = ", from its files"
"""Suffix of a contender's name that reads sealed segments from the node's folder (option localFolders)."""


class Figure(msgspec.Struct, frozen=True):
    """One job of one contender: rows a second in each round."""

    contender: str
    job: str
    rounds: list[int]

    @property
    def rows_per_second(self) -> float:
        """Median of the rounds."""
        return median(self.rounds)


class Goal(msgspec.Struct, frozen=True):
    """One goal of this bench and its measured value."""

    what: str
    goal: float
    measured: float
    is_met: bool


class Report(msgspec.Struct, frozen=True):
    """One run, as it is saved."""

    when: str
    records: int
    partitions: int
    heap: str
    busy_before: float
    is_quiet: bool
    disk: machine.Disk
    figures: list[Figure]
    latency: live.Latency | None
    held: live.Held | None
    goals: list[Goal]
    unjudged: list[str]
    skipped: dict[str, str]


def goals_of(
    figures: list[Figure], latency: live.Latency | None, held: live.Held | None, sizes: list[int]
) -> tuple[list[Goal], list[str]]:
    """The goals that this run can speak of, and the others by name."""
    rates = {(figure.contender, figure.job): figure.rows_per_second for figure in figures}
    goals: list[Goal] = []
    unjudged: list[str] = []

    def judge(what: str, goal: float, measured: float | None, *, is_most: bool = False) -> None:
        if measured is None:
            unjudged.append(what)
        else:
            is_met = measured <= goal if is_most else measured >= goal
            goals.append(Goal(what, goal, round(measured, 3), is_met))

    def ratio(ours: tuple[str, str], theirs: tuple[str, str]) -> float | None:
        return rates[ours] / rates[theirs] if ours in rates and theirs in rates else None

    for name in (_name(size) + local for size in sizes for local in ("", LOCAL)):
        judge(f"rows/s into no-op, {name}", 2.5e6, rates.get((name, NO_OP)))
        for all_columns in ("",) if name.endswith(LOCAL) else ("", ALL):
            share = ratio((name + all_columns, HASH), (FILES + all_columns, HASH))
            judge(f"hash beside Parquet files, {name}{all_columns}", 0.4, share)
        judge(f"rows/s into Parquet, {name}", 1e6, rates.get((name, PARQUET)))
        for job in (NO_OP, STREAM, PARQUET):
            judge(f"{job} beside Kafka, {name}", 1.2, ratio((name, job), (KAFKA, job)))
    for name in map(_name, sizes):
        judge(f"rows/s exported and verified without Java, {name}", 1e5, rates.get((name, PROVED)))
    judge("commit to visible, p50 ms", 200, None if latency is None else latency.p50_ms, is_most=True)
    judge("write rate with Spark at nice 19, of that alone", 0.9, None if held is None else held.share)
    judge("leader changes meanwhile", 0, None if held is None else float(not held.same_leader), is_most=True)
    return goals, unjudged


def live_lines(latency: live.Latency | None, held: live.Held | None) -> list[str]:
    """Report the figures of readers beside a cluster that clients write to, one line each."""
    lines = []
    if latency is not None:
        lines.append(
            f"commit to visible (low-latency preset, {latency.batches} batches of {live.BATCH}): p50 "
            f"{latency.p50_ms:g} ms, p99 {latency.p99_ms:g} ms"
        )
    if held is not None:
        lines.append(
            f"writes offered: {held.alone.per_second:,.0f}/s alone, {held.beside.per_second:,.0f}/s beside Spark "
            f"at nice 19, which read the log {held.passes} times; "
            f"{'the same leader' if held.same_leader else 'ANOTHER leader'}"
        )
    return lines


def _name(size: int) -> str:
    return f"raftlog, entries of {size:,}"


@dataclass
class _Bench:
    """What one run has in hand."""

    folder: Path
    records: int
    partitions: int
    heap: str
    jobs: list[str]
    rounds_counted: int
    warm_up: int
    console: Console
    skipped: dict[str, str] = field(default_factory=dict)
    took: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def session(self) -> Any:
        """Spark with the preset for latency (it does not touch batches) and a heap of fixed size."""
        from raftlog.spark_export.runtime.job import session

        return session(
            "bench",
            master=self.master,
            java_options=spark_jobs.java_options(self.heap),
            low_latency=True,
            spark__driver__memory=self.heap,
        )

    @property
    def master(self) -> str:
        return f"local[{self.partitions},4]"

    def frames(self, spark: Any, nodes: LocalCluster, **more: str) -> tuple[Any, Any, Any]:
        """The log as three frames: a table of ROW in as many tasks as partitions, a table of all columns, and a stream
        of ROW.

        `more` are options of the source.
        """
        each = -(-(self.records + 10) // self.partitions)
        options = {
            "endpoints": ",".join(nodes.urls),
            "minPartitions": str(self.partitions),
            "maxRecordsPerPartition": str(each),
            **more,
        }
        table = spark.read.format("raftlog").options(**options)
        stream = spark.readStream.format("raftlog").options(**options, startingOffsets="earliest")
        return (
            table.schema(ROW).load(),
            spark.read.format("raftlog").options(**options).load(),
            stream.option("maxEntriesPerTrigger", str(2 * self.records)).schema(ROW).load(),  # in one batch, as Kafka's
        )

    def rounds(self, jobs: dict[tuple[str, str], Callable[[], object]]) -> None:
        """Runs every job once in each round, except the export: it takes minutes, and runs only in the last round.

        A job that fails is left out from then on, with its reason.
        """
        jobs = {place: job for place, job in jobs.items() if place[1] in self.jobs}
        last = self.warm_up + self.rounds_counted - 1
        for number in range(last + 1):
            for place, job in list(jobs.items()):
                if place[1] in (EXPORT, PROVED) and number < last:
                    continue
                try:
                    spent = spark_jobs.seconds(job)
                except Exception as error:
                    self.skipped[" ".join(place)] = _first_line(error)
                    del jobs[place]
                    continue
                counted = number >= self.warm_up
                if counted:
                    self.took.setdefault(place, []).append(spent)
                rate = self.records / spent / 1e6
                self.say(
                    f"  round {number + 1}{'' if counted else ' (not counted)'}: {', '.join(place)} {rate:.2f} M rows/s"
                )

    def figures(self) -> list[Figure]:
        return [
            Figure(contender, job, [round(self.records / spent) for spent in spents])
            for (contender, job), spents in self.took.items()
        ]


def keep_bytecode(folder: Path) -> None:
    """Lets the Python processes that start from here on keep their bytecode, as installed packages do.

    Where `PYTHONDONTWRITEBYTECODE` is set and the packages came without bytecode, each of Spark's processes would
    compile pyspark, numpy and pyarrow again. That takes most of a second of processor time, and each streaming query
    starts one.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "raftlog.spark_export.errors" in line or "NotImplementedError" in line]
    return f"{type(error).__name__}: {(named or lines or ['no message'])[-1 if named else 0].strip()[:300]}"


def _throughput(bench: _Bench, sizes: list[int], kafka: Kafka | None) -> None:
    with ExitStack() as stack:
        spark = bench.session()
        stack.callback(spark.stop)
        jobs: dict[tuple[str, str], Callable[[], object]] = {}
        files = bench.folder / "files"
        for size in sizes:
            started = time.monotonic()
            nodes = log.start(bench.folder / f"log-{size}", bench.records, size)
            stack.callback(nodes.stop)
            bench.say(f"made a log of {bench.records:,} records, {_name(size)}, in {time.monotonic() - started:.0f} s")
            table, whole, stream = bench.frames(spark, nodes)
            name = _name(size)
            for frame, columns in ((table, ""), (whole, ALL)):
                into = spark_jobs.parquet_into(bench.folder / f"parquet-{size}")
                jobs[name + columns, NO_OP] = partial(spark_jobs.no_op, frame)
                jobs[name + columns, HASH] = partial(spark_jobs.hashed, frame)
                jobs[name + columns, PARQUET] = partial(into, frame)
                staged = files / (columns or "row")
                if not staged.exists():
                    frame.write.parquet(str(staged))
            jobs[name, STREAM] = partial(spark_jobs.stream_no_op, stream, bench.folder / f"checkpoint-{size}")
            table, _, stream = bench.frames(spark, nodes, localFolders=str(nodes.data(1).resolve()))
            jobs[name + LOCAL, NO_OP] = partial(spark_jobs.no_op, table)
            jobs[name + LOCAL, HASH] = partial(spark_jobs.hashed, table)
            jobs[name + LOCAL, PARQUET] = partial(into, table)
            jobs[name + LOCAL, STREAM] = partial(spark_jobs.stream_no_op, stream, bench.folder / f"checkpoint-{size}")
            out = bench.folder / f"export-{size}"
            jobs[name, EXPORT] = partial(_export, nodes, out, "--engine", "spark", "--master", bench.master)
            jobs[name, PROVED] = partial(_export, nodes, out, "--engine", "arrow", is_verified=True)
        for columns in ("", ALL):
            staged_rows = spark.read.parquet(str(files / (columns or "row")))
            jobs[FILES + columns, NO_OP] = partial(spark_jobs.no_op, staged_rows)
            jobs[FILES + columns, HASH] = partial(spark_jobs.hashed, staged_rows)
        if kafka is not None:
            try:
                jobs |= {(KAFKA, name): job for name, job in _kafka(bench, kafka, stack).items()}
            except MissingTool as missing:
                bench.skipped[KAFKA] = str(missing)
        bench.rounds(jobs)


def _export(nodes: LocalCluster, out: Path, *engine: str, is_verified: bool = False) -> None:
    """`raftlog export` as a user runs it: with the start of its engine, and the default heap; then `raftlog verify`."""
    with tempfile.TemporaryDirectory(prefix=out.name, dir=out.parent) as name:
        folder = str(Path(name) / "out")
        for command in (["export", "--to", folder], ["verify", folder])[: 2 if is_verified else 1]:
            ran = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "raftlog.cluster.cli.main",
                    *command,
                    "--endpoints",
                    ",".join(nodes.urls),
                    *engine,
                    "--summary-json",
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if ran.returncode:
                raise RuntimeError(f"raftlog {command[0]} ended with {ran.returncode}: {ran.stderr.strip()[-300:]}")


def _kafka(bench: _Bench, kafka: Kafka, stack: ExitStack) -> dict[str, Callable[[], None]]:
    """The rival's jobs; its broker and its Spark run until the stack ends. Raises MissingTool."""
    kafka.get()
    servers = stack.enter_context(kafka.broker(bench.folder / "kafka"))
    started = time.monotonic()
    kafka.fill(servers, bench.records)
    bench.say(f"filled Kafka in {time.monotonic() - started:.0f} s")
    return stack.enter_context(kafka.jobs(servers, bench.folder / "kafka-out", heap=bench.heap, master=bench.master))


def markdown(report: Report) -> str:
    """The report as a page."""
    quiet = "quiet" if report.is_quiet else "BUSY: these figures say nothing about the goals"
    lines = [
        "# Spark bench",
        "",
        f"{report.when}; {report.records:,} rows, {report.partitions} partitions, heap {report.heap}; "
        f"machine {report.busy_before:.0%} busy before ({quiet}).",
        "",
        "| contender | job | M rows/s | lowest to highest |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {figure.contender} | {figure.job} | {figure.rows_per_second / 1e6:.2f} | "
        f"{min(figure.rounds) / 1e6:.2f} to {max(figure.rounds) / 1e6:.2f} |"
        for figure in report.figures
    ]
    lines += ["", "| goal | asked | measured | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {goal.what} | {goal.goal:,g} | {goal.measured:,g} | {'met' if goal.is_met else 'not met'} |"
        for goal in report.goals
    ]
    lines += ["", *(f"- {line}" for line in live_lines(report.latency, report.held))]
    lines += [f"- no figure for the goal: {name}" for name in report.unjudged]
    lines += [f"- skipped {name}: {reason}" for name, reason in report.skipped.items()]
    return "\n".join(lines).rstrip() + "\n"


def main(
    records: Annotated[int, typer.Option(min=1_000, help="rows")] = 5_000_000,
    entries: Annotated[str, typer.Option(help="records in an entry, by commas")] = "1,1000",
    partitions: Annotated[int, typer.Option(min=1, help="tasks at once")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="rounds that are counted")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="rounds before that are not counted")] = spark_jobs.WARM_UP,
    jobs: Annotated[str, typer.Option(help=f"which, by commas: {', '.join(JOBS)}; all unless said")] = "",
    heap: Annotated[str, typer.Option(help="of each Spark")] = "4g",
    latency_seconds: Annotated[float, typer.Option(min=0, help="of the stream that is timed; 0 leaves it out")] = 30,
    held_seconds: Annotated[float, typer.Option(min=0, help="of the open loop beside Spark; 0 leaves it out")] = 20,
    rate: Annotated[int, typer.Option(min=1, help="writes a second of that open loop")] = 3_000,
    throughput: Annotated[bool, typer.Option(help="time the jobs")] = True,
    kafka: Annotated[bool, typer.Option(help="run the Kafka connector beside")] = True,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for all data")] = None,
    tools: Annotated[Path, typer.Option(help="where what Maven gives is kept")] = Path(".tools/kafka"),
    save: Annotated[Path, typer.Option(help="where the results go; a .md beside it")] = Path(
        "bench/results/spark.json"
    ),
) -> None:
    """Time Spark over the log, over Parquet and over Kafka; the latency of a stream; writes beside Spark."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    sizes = [int(size) for size in entries.split(",")]
    chosen = named("--jobs", jobs, JOBS)
    latency = held = None
    with tempfile.TemporaryDirectory(prefix="raftlog-spark-", dir=data) as name:
        folder = Path(name)
        keep_bytecode(folder / "bytecode")
        bench = _Bench(folder, records, partitions, heap, chosen, rounds, warm_up, console)
        seen = conditions.look(folder, console)
        if throughput:
            _throughput(bench, sizes, Kafka(tools) if kafka else None)
        if latency_seconds:
            try:
                spark = bench.session()
                latency = live.latency(spark, folder / "latency", latency_seconds)
                spark.stop()
            except Exception as error:
                bench.skipped["latency"] = _first_line(error)
        if held_seconds:
            try:
                held = live.held(folder / "held", held_seconds, rate)
            except Exception as error:
                bench.skipped["writes beside Spark"] = _first_line(error)
        figures = bench.figures()
        report = Report(
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            records,
            partitions,
            heap,
            seen.busy_before,
            seen.is_quiet,
            seen.disk,
            figures,
            latency,
            held,
            *goals_of(figures, latency, held, sizes),
            bench.skipped,
        )
    page = markdown(report)
    console.print(Markdown(page))
    save_json(report, save)
    save.with_suffix(".md").write_text(page)
    console.print(f"saved to {save} and {save.with_suffix('.md')}")


if __name__ == "__main__":
    typer.run(main)
