"""Runs the demo: the whole job once, on real input, with the leader killed half-way, and every step checked.

`raftlog demo` calls it. Its steps are the calls of the commands: of `raftlog import`, `raftlog log`, and, in processes
of their own, `raftlog export` and `raftlog verify`. The small writes of the table are in `raftlog.cluster.demo.table`.
A step with a wrong result ends it with `DemoFailed`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar

from raftlog.cluster.api.status import SetDigestHex
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.demo import table as demo_table
from raftlog.cluster.demo.input import KEY, write_input
from raftlog.cluster.importer import importer
from raftlog.cluster.importer.formats import lines as import_lines, schema
from raftlog.cluster.importer.formats.lines import InputError, InputFormat
from raftlog.cluster.importer.plan import ImportPlan
from raftlog.cluster.importer.sources import FileSource, Part
from raftlog.cluster.node.first_admin import make_first_admin, use_token
from raftlog.cluster.node.local_cluster import LocalCluster

NODES: Final = 3
BATCHES_MIN: Final = 50
"""Least number of batches of the import, if the input has as many lines: the kill falls between two of them."""
BATCH_LINES_MAX: Final = 2_000
TABLE_LINES: Final = 2_000
"""Lines, evenly spread over the input, that drive the table."""

WAIT_S: Final = 60.0
COMMAND: Final = (sys.executable, "-m", "raftlog.cluster.cli.main")
SPARK_CHECK: Final = (sys.executable, "-m", "raftlog.spark_export.runtime.job")
"""Ends with 0 if Spark can be started, else with a line on standard error that says what to install."""


class DemoFailed(Exception):
    """A step had a wrong result; the message says which and why."""


class BadInput(Exception):
    """The input has no usable line, or Spark is missing: the demo does not begin."""


class DemoRow(NamedTuple):
    """The fields of a record that the demo checks, as read from Parquet (or, without Spark, from the log)."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it
    kind: str
    operation: str | None
    result: str
    key: bytes | None
    value: bytes | None
    succeeded: bool | None


@dataclass(slots=True)
class DemoInput:
    """The input, and how it is read."""

    source: Path
    key: str | None = None
    format: InputFormat = InputFormat.NDJSON
    lines: int = 0
    wanted: int = 0  # records in the input: lines that the import does not reject
    made: dict[str, int] = field(default_factory=dict)  # lines made for the demo, by where they are from

    def parts(self) -> Iterator[Part]:
        """The input, read as the import reads it."""
        return FileSource(str(self.source), format=self.format, key=self.key).read(None)

    def records(self) -> Iterator[NewRecord]:
        """Its records, in order."""
        return itertools.chain.from_iterable(part.records for part in self.parts())


@dataclass(slots=True)
class LeaderKill:
    """The end of a leader: after how many acknowledged records, and how long until another led."""

    killed: int = 0
    killed_after: int = 0
    open_at_kill: int = 0  # requests of the table; 0 where the table was quicker than the import
    new_leader: int = 0
    without_leader_s: float = 0.0


@dataclass(slots=True)
class Story:
    """The results of the steps, for the summary."""

    folder: Path
    input: DemoInput
    kill: LeaderKill = field(default_factory=LeaderKill)
    acknowledged: int = 0
    rejected: int = 0
    import_s: float = 0.0
    leader_changes: int = 0
    table: demo_table.DemoTable = field(default_factory=demo_table.DemoTable)
    index: int = 0
    state: SetDigestHex | None = None
    keys: int = 0
    records: int = 0
    effects: Counter[str] = field(default_factory=Counter)
    top_keys: list[tuple[str, int]] = field(default_factory=list)
    exported: dict[str, Any] | None = None
    verified: dict[str, Any] | None = None
    seconds: float = 0.0


T = TypeVar("T")
Tell = Callable[[str], None]
"""Called with one line about the current step."""


def serve(cluster: LocalCluster, tell: Tell) -> None:
    """Starts all nodes. Of a cluster with TLS it makes the first admin, and names its files in this process's
    environment from then on. Raises LocalClusterError."""
    tell(f"starting {NODES} nodes")
    cluster.restore()
    if cluster.is_secure:
        cluster.tls_files().to_environment()
        use_token(make_first_admin(cluster))


def run(story: Story, cluster: LocalCluster, tell: Tell, *, with_spark: bool) -> None:
    """Runs the whole job on a cluster that serves, after `prepare`. Leaves the cluster running. Raises DemoFailed."""
    started = time.monotonic()
    table = _aside(_drive_table, story, cluster)
    _import_with_a_kill(story, cluster, table, tell)
    tell("finishing the table's writes")
    table.result(WAIT_S)
    _restart(story, cluster, tell)
    if with_spark:
        _export(story, cluster, tell)
    tell("comparing the rows with the input, one by one")
    compare(story, _exported_rows(story) if with_spark else _log_rows(cluster))
    story.seconds = time.monotonic() - started


def _aside(work: Callable[..., T], *given: object) -> Future[T]:
    """Its result, from a thread of its own: Ctrl-C does not wait for it, as it would for a thread of a pool."""
    result: Future[T] = Future()

    def settle() -> None:
        try:
            result.set_result(work(*given))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=settle, daemon=True).start()
    return result


def _check(is_right: object, step: str, why: str) -> None:
    if not is_right:
        raise DemoFailed(f"{step}: {why}")


def check_spark() -> None:
    """Raises BadInput, saying what to install, where `raftlog export` could not start Spark."""
    done = subprocess.run(SPARK_CHECK, capture_output=True, check=False)
    if done.returncode:
        raise BadInput(done.stderr.decode(errors="replace").strip())


def prepare(given: DemoInput, tell: Tell) -> None:
    """Makes the input if there is none, and finds out how to read it. Raises BadInput, OSError."""
    if not given.source.exists():
        tell("writing the input from this repository's history")
        given.made = write_input(given.source)
    with given.source.open("rb") as file:
        first = file.readline()
    if not first:
        raise BadInput(f"{given.source} is empty: give a file with at least one line")
    try:
        given.format = import_lines.detect(given.source.name, first)
    except InputError:
        given.format = InputFormat.LINES
    if given.key is None and given.made:
        given.key = KEY
    elif given.key is None and given.format is InputFormat.ACCESS:
        given.key = "host"
    while not given.lines:
        try:
            _count(given)
        except InputError as error:
            if given.key is not None or given.format is InputFormat.LINES:
                raise BadInput(f"{given.source}: {error}") from error
            tell(f"{given.source.name}: {error}; its lines are read as text")
            given.format, given.lines = InputFormat.LINES, 0
    if not given.wanted:
        what = "behind the names of its columns" if given.format is InputFormat.CSV else "that can be imported"
        raise BadInput(f"{given.source} has no line {what}, of {given.lines:,} in all (read as {given.format})")


def _count(given: DemoInput) -> None:
    """Counts the lines and records of the input. Raises InputError."""
    given.wanted = given.lines = 0
    for part in given.parts():
        given.wanted += len(part.records)
        given.lines = part.position["line"] - 1
    if not given.lines:
        with given.source.open("rb") as file:
            given.lines = sum(1 for _ in file)


def _drive_table(story: Story, cluster: LocalCluster) -> None:
    stride = max(1, story.input.lines // TABLE_LINES)
    picked = itertools.islice(story.input.records(), 0, None, stride)
    keys = [(record.key or (record.value or b"")[:40])[:1_000] for record in picked]
    asyncio.run(demo_table.drive(story.table, cluster.urls, keys))


def _import_with_a_kill(story: Story, cluster: LocalCluster, table: Future[None], tell: Tell) -> None:
    """The import; when half of the lines are acknowledged, SIGKILL to the leader, the next batch on its way.

    An input of one batch has no half: the leader is killed when it is imported.
    """
    source = story.input
    batch = min(max(1, source.lines // BATCHES_MIN), BATCH_LINES_MAX)
    plan = ImportPlan(
        source=str(source.source),
        state=story.folder / "import.json",
        rejects=story.folder / "rejected.ndjson",
        format=source.format,
        key=source.key,
        batch_lines=batch,
    )
    tell(f"importing {source.lines:,} lines in batches of {batch}")
    began = time.monotonic()
    killing: Future[LeaderKill] | None = None
    with SyncClient(cluster.urls, deadline_s=WAIT_S) as client:
        for progress in importer.run(plan, client, sys.stdin.buffer):
            story.acknowledged, story.rejected = progress.records, progress.rejected
            tell(f"importing: {progress.records:,} of {source.lines:,} acknowledged")
            if killing is None and progress.lines * 2 >= source.lines:
                # From a thread: the next batch is on its way meanwhile.
                killing = _aside(_kill_leader, cluster, progress.records, story.table.open)
            if table.done():
                table.result()
    _check(killing is not None, "the import", "no batch was acknowledged")
    assert killing is not None
    story.kill = killing.result()
    story.import_s = time.monotonic() - began


def _kill_leader(cluster: LocalCluster, records: int, requests_open: int) -> LeaderKill:
    """SIGKILL to the leader; waits until another leads."""
    killed = cluster.leader()
    cluster.kill(killed)
    killed_at = time.monotonic()
    return LeaderKill(killed, records, requests_open, cluster.leader(), time.monotonic() - killed_at)


def _restart(story: Story, cluster: LocalCluster, tell: Tell) -> None:
    """Starts the killed node again, and waits until every node has the same state at the same index."""
    tell(f"starting node {story.kill.killed} again, and comparing digests")
    cluster.start_node(story.kill.killed)
    cluster.wait_ready()
    end = time.monotonic() + WAIT_S
    while True:
        statuses = [cluster.status(node) for node in cluster.nodes]
        seen = {(status.applied, status.state) for status in statuses if status is not None}
        if len(seen) == 1 and None not in statuses:
            story.index, story.state = seen.pop()
            story.keys = story.state.count
            break
        _check(time.monotonic() < end, "the digests", f"the nodes do not agree: {sorted(str(each) for each in seen)}")
        time.sleep(0.05)
    _check(story.keys, "the table", "it ended empty")


def _json(cluster: LocalCluster, step: str, *arguments: str) -> dict[str, Any]:
    """What a command of Spark prints."""
    command = [*COMMAND, arguments[0], "--endpoints", ",".join(cluster.urls), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, check=False)
    why = f"`raftlog {' '.join(arguments)}` left with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
    _check(done.returncode == 0, step, why)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _export(story: Story, cluster: LocalCluster, tell: Tell) -> None:
    """`raftlog export` and `raftlog verify`."""
    folder = story.folder / "export"
    tell("exporting to Parquet through Spark")
    spark = ("--engine", "spark", "--summary-json")
    story.exported = _json(
        cluster, "the export", "export", "--to", str(folder), "--records", "all", "--top-keys", "10", *spark
    )
    story.top_keys = [(each["key"], each["count"]) for each in story.exported["top_keys"]]
    tell("verifying the export against the cluster's digests")
    story.verified = _json(cluster, "the verification", "verify", str(folder), *spark)
    _check(story.verified["verified"] is True, "the verification", str(story.verified))


def _exported_rows(story: Story) -> Iterator[DemoRow]:
    """The rows of the Parquet files, in the order of the log."""
    import pyarrow.dataset  # comes with Spark's extra

    files = sorted(str(path) for path in (story.folder / "export" / "log").glob("*.parquet"))
    columns = ["index", "kind", "operation", "result", "key", "value", "succeeded"]
    for batch in pyarrow.dataset.dataset(files, format="parquet").to_batches(columns=columns):
        yield from (DemoRow(**row) for row in batch.to_pylist())


def _log_rows(cluster: LocalCluster) -> Iterator[DemoRow]:
    """The same rows from the log."""
    with SyncClient(cluster.urls, deadline_s=WAIT_S) as client:
        for row in client.log(1, internal=True):
            yield DemoRow(row.index, row.kind, row.operation or None, row.result, row.key, row.value, row.succeeded)


def compare(story: Story, rows: Iterable[DemoRow]) -> None:
    """Row by row with the input, in order; every index once; every effect that was to be shown is there."""
    expected = enumerate(story.input.records(), start=1)
    next_index = leaders = schemas = 0
    for row in rows:
        next_index += 1
        _check(row.index == next_index, "the rows", f"index {row.index} stands where {next_index} should")
        story.records += 1
        leaders += row.kind == "noop"
        if row.key is not None and row.key.startswith(schema.PREFIX):  # the import's own record, not the table's
            schemas += row.result == "applied"
            continue
        story.effects[f"{row.operation or row.kind} {row.result}"] += 1
        if row.succeeded is not None and row.result == "applied":  # a repeated transaction names its branch again
            story.effects["then branch" if row.succeeded else "else branch"] += 1
        if row.operation != "append" or row.result != "applied":
            continue
        number, record = next(expected, (0, None))
        _check(record is not None, "the rows", f"index {row.index} is a line more than the input has")
        assert record is not None
        _check(
            (row.key, row.value) == (record.key, record.value),
            "the rows",
            f"index {row.index} is not record {number} of the input: {row.value!r:.200}, not {record.value!r:.200}",
        )
    _check(next(expected, None) is None, "the rows", "the end of the input is missing")
    _check(schemas <= 1, "the schema", f"the import's schema was put {schemas} times, not once")
    story.leader_changes = leaders - 1
    has_changed = story.leader_changes >= 1 and story.kill.new_leader != story.kill.killed
    _check(has_changed, "the kill", "no leader change happened")
    for effect, count in story.table.effects().items():
        found = story.effects[effect]
        # A client that lost an answer sends its write again: so there may be more repetitions, and of nothing else.
        is_right = found >= count if effect.endswith(" repeated") else found == count
        _check(is_right, "the effects", f"the table's writes made {count} × {effect!r}, the log has {found}")
    why = f"{story.acknowledged} records were acknowledged, the input has {story.input.wanted}"
    _check(story.acknowledged == story.input.wanted, "the import", why)


def keep_up(cluster: LocalCluster, log_file: Path) -> int:
    """Leaves the stopped cluster running by itself, in a `raftlog up` of its own session; its pid once it serves."""
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "up", "--data", str(cluster.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end = time.monotonic() + WAIT_S
    while any(cluster.status(node) is None for node in cluster.nodes):
        has_time = process.poll() is None and time.monotonic() < end
        _check(has_time, "leaving the cluster up", log_file.read_text(errors="replace")[-2000:])
        time.sleep(0.1)
    return process.pid


def sentences(story: Story) -> Sequence[tuple[str, str]]:
    """The summary: what and how much."""
    given, kill = story.input, story.kill
    table = ", ".join(f"{count:,} × {what}" for what, count in sorted(story.table.done.items()))
    digest = "" if story.state is None else f"{story.state.xor} over {story.keys:,} keys at index {story.index:,}"
    rows = [
        (
            "input",
            f"{given.source.name}: {given.lines:,} lines"
            + "".join(f", {count:,} {what}" for what, count in given.made.items()),
        ),
        ("acknowledged", f"{story.acknowledged:,} records in {story.import_s:.1f} s, {story.rejected:,} rejected"),
        ("table", table),
        ("killed", f"leader {kill.killed} after {kill.killed_after:,} records, {kill.open_at_kill} requests open"),
        ("leader changes", f"{story.leader_changes}: node {kill.new_leader} led {kill.without_leader_s:.3f} s later"),
        (
            "records",
            f"{story.records:,}, each index once: "
            + ", ".join(f"{count:,} {effect}" for effect, count in story.effects.most_common()),
        ),
        ("digest", f"{digest}, equal on {NODES} nodes"),
    ]
    if story.exported is not None and story.verified is not None:
        rows.append(
            ("export", f"{story.exported['records']:,} rows in {story.exported['seconds']:.1f} s through Spark")
        )
        rows.append(("verified", f"{story.verified['rows']:,} rows against {story.verified['source']}"))
        rows.append(("top keys", ", ".join(f"{key} ({count:,})" for key, count in story.top_keys)))
    rows.append(("in all", f"{story.seconds:.1f} s"))
    return rows
