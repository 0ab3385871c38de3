"""Runs the demo: the whole job once, on real input, with the leader killed half-way, and every step checked.

`raftlog demo` calls it. It runs the command line in subprocesses, as a user would. Only two things do not: the small
writes of the table (`raftlog.cluster.demo.table`), and the kill. A step with a wrong result ends it with `DemoFailed`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from raftlog.cluster.api.status import SetDigestHex
from raftlog.cluster.client.answers import given
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.demo import table as demo_table
from raftlog.cluster.demo.input import KEY, write_input
from raftlog.cluster.importer.formats import lines as import_lines, schema
from raftlog.cluster.importer.formats.lines import InputError, InputFormat
from raftlog.cluster.importer.sources import FileSource
from raftlog.cluster.node.first_admin import make_first_admin, use_token
from raftlog.cluster.node.local_cluster import LocalCluster, LocalClusterError, PortTaken

NODES: Final = 3
STARTS_MAX: Final = 5  # starts at most: each after the first has other ports, because one was taken
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
class Story:
    """The results of the steps, for the summary."""

    folder: Path
    source: Path
    key: str | None = None
    format: InputFormat = InputFormat.NDJSON
    lines: int = 0
    wanted: int = 0  # records in the input: lines that the import does not reject
    made: dict[str, int] = field(default_factory=dict)  # lines made for the demo, by where they are from
    acknowledged: int = 0
    rejected: int = 0
    import_s: float = 0.0
    killed: int = 0
    killed_after: int = 0  # acknowledged records
    open_at_kill: int = 0
    new_leader: int = 0
    without_leader_s: float = 0.0
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


Tell = Callable[[str], None]
"""Called with one line about the current step."""


def start(data: Path, ports: Sequence[int], tell: Tell, *, secure: bool = False) -> LocalCluster:
    """A new cluster in the folder `data`, whose nodes serve. `secure`: with TLS and access control, which this
    process's environment names from then on. Raises DemoFailed.

    Another process may take a port between the choice of `ports` and the start. Then the cluster is made again, on
    other ports.
    """
    tell(f"starting {NODES} nodes")
    for left in reversed(range(STARTS_MAX)):
        cluster = LocalCluster(data, NODES, ports=ports, secure=secure)
        try:
            cluster.start()
            cluster.wait_ready()
            if secure:
                cluster.tls_files().to_environment()
                use_token(make_first_admin(cluster))
        except PortTaken as error:
            if not left:
                cluster.kill(*cluster.nodes)
                raise DemoFailed(str(error)) from error
            cluster.remove()
            ports = ()
        except LocalClusterError as error:
            cluster.kill(*cluster.nodes)
            raise DemoFailed(f"{error}\n{cluster.tails()}") from error
        except BaseException:
            cluster.kill(*cluster.nodes)
            raise
        else:
            return cluster
    raise AssertionError("the last start returned or raised")


def run(story: Story, cluster: LocalCluster, tell: Tell, *, with_spark: bool) -> None:
    """Runs the whole job on a cluster that serves, after `prepare`. Leaves the cluster running. Raises DemoFailed."""
    started = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        table = threads.submit(_drive_table, story, cluster)
        try:
            _import_with_a_kill(story, cluster, table, tell)
            tell("finishing the table's writes")
            table.result(WAIT_S)
        except BaseException:
            cluster.kill(*cluster.running)  # this also ends the table's thread
            raise
    _check(not story.table.differences, "the table", "; ".join(story.table.differences[:3]))
    _restart(story, cluster, tell)
    if with_spark:
        _export(story, cluster, tell)
    tell("comparing the rows with the input, one by one")
    compare(story, _exported_rows(story) if with_spark else _log_rows(cluster))
    story.seconds = time.monotonic() - started


def _check(is_right: object, step: str, why: str) -> None:
    if not is_right:
        raise DemoFailed(f"{step}: {why}")


def check_spark() -> None:
    """Raises BadInput, saying what to install, where `raftlog export` could not start Spark."""
    done = subprocess.run(SPARK_CHECK, capture_output=True, check=False)
    if done.returncode:
        raise BadInput(done.stderr.decode(errors="replace").strip())


def prepare(story: Story, tell: Tell) -> None:
    """Makes the input if there is none, and finds out how to read it. Raises BadInput, OSError."""
    if not story.source.exists():
        tell("writing the input from this repository's history")
        story.made = write_input(story.source)
    with story.source.open("rb") as file:
        first = file.readline()
    if not first:
        raise BadInput(f"{story.source} is empty: give a file with at least one line")
    try:
        story.format = import_lines.detect(story.source.name, first)
    except InputError:
        story.format = InputFormat.LINES
    if story.key is None and story.made:
        story.key = KEY
    elif story.key is None and story.format is InputFormat.ACCESS:
        story.key = "host"
    try:
        try:
            _count(story)
        except InputError as error:
            if story.key is not None or story.format is InputFormat.LINES:
                raise
            tell(f"{story.source.name}: {error}; its lines are read as text")
            story.format = InputFormat.LINES
            _count(story)
    except InputError as error:
        raise BadInput(f"{story.source}: {error}") from error
    if not story.wanted:
        what = "behind the names of its columns" if story.format is InputFormat.CSV else "that can be imported"
        raise BadInput(f"{story.source} has no line {what}, of {story.lines:,} in all (read as {story.format})")


def _count(story: Story) -> None:
    """Counts the lines and records of the input. Raises InputError."""
    story.wanted = story.lines = 0
    for part in _source(story).read(None):
        story.wanted += len(part.records)
        story.lines = part.position["line"] - 1
    if not story.lines:
        with story.source.open("rb") as file:
            story.lines = sum(1 for _ in file)


def _source(story: Story) -> FileSource:
    """The input, read as the import reads it."""
    return FileSource(str(story.source), format=story.format, key=story.key)


def _records(story: Story) -> Iterator[NewRecord]:
    """The input's records, in order."""
    return itertools.chain.from_iterable(part.records for part in _source(story).read(None))


def _drive_table(story: Story, cluster: LocalCluster) -> None:
    stride = max(1, story.lines // TABLE_LINES)
    picked = itertools.islice(_records(story), 0, None, stride)
    keys = [(record.key or (record.value or b"")[:40])[:1_000] for record in picked]
    asyncio.run(demo_table.drive(story.table, cluster.urls, keys))


def _command(cluster: LocalCluster, *arguments: str) -> list[str]:
    return [*COMMAND, arguments[0], "--endpoints", ",".join(cluster.urls), *arguments[1:]]


@contextmanager
def _running(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose output is read as it comes; it is killed where reading ends early."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _import_with_a_kill(story: Story, cluster: LocalCluster, table: Future[None], tell: Tell) -> None:
    """`raftlog import`; when half of the lines are acknowledged, SIGKILL to the leader, the next batch on its way.

    An input of one batch has no half: the leader is killed when it is imported.
    """
    batch = min(max(1, story.lines // BATCHES_MIN), BATCH_LINES_MAX)
    arguments = ["import", str(story.source), "--format", story.format, "--batch", str(batch), "-o", "jsonl"]
    arguments += ["--state", str(story.folder / "import.json"), "--rejects", str(story.folder / "rejected.ndjson")]
    arguments += ["--key", story.key] if story.key else []
    tell(f"importing {story.lines:,} lines in batches of {batch}")
    began = time.monotonic()
    killer: threading.Thread | None = None
    failed: list[BaseException] = []
    with _running(_command(cluster, *arguments)) as process:
        progress: dict[str, Any] = {}
        for line in process.stdout or ():
            progress = json.loads(line)
            tell(f"importing: {progress['records']:,} of {story.lines:,} acknowledged")
            is_half = progress["lines"] * 2 >= story.lines
            if killer is None and is_half and not progress["done"]:
                story.open_at_kill = story.table.open  # 0 where the table was quicker than the import
                story.killed_after = progress["records"]
                # From a thread: the import's progress is read on meanwhile, and its next batch is on its way.
                killer = threading.Thread(target=_kill_leader, args=(story, cluster, failed))
                killer.start()
            if table.done():
                table.result()
        process.wait()
    if killer is not None:
        killer.join()
    _check(process.returncode == 0, "the import", f"`raftlog import` left with {process.returncode}")
    if killer is None:
        story.open_at_kill, story.killed_after = story.table.open, progress["records"]
        _kill_leader(story, cluster, failed)
    if failed:
        raise failed[0]
    story.acknowledged, story.rejected = progress["records"], progress["rejected"]
    story.import_s = time.monotonic() - began


def _kill_leader(story: Story, cluster: LocalCluster, failed: list[BaseException]) -> None:
    """SIGKILL to the leader; notes how long it took until another led."""
    try:
        story.killed = cluster.leader()
        cluster.kill(story.killed)
        killed_at = time.monotonic()
        story.new_leader = cluster.leader()
        story.without_leader_s = time.monotonic() - killed_at
    except BaseException as error:
        failed.append(error)


def _restart(story: Story, cluster: LocalCluster, tell: Tell) -> None:
    """Starts the killed node again, and waits until every node has the same state at the same index."""
    tell(f"starting node {story.killed} again, and comparing digests")
    cluster.start_node(story.killed)
    cluster.wait_ready()
    end = time.monotonic() + WAIT_S
    while True:
        told = [cluster.status(node) for node in cluster.nodes]
        seen = {(status.applied, status.state) for status in told if status is not None}
        if len(seen) == 1 and None not in told:
            story.index, story.state = seen.pop()
            story.keys = story.state.count
            break
        _check(time.monotonic() < end, "the digests", f"the nodes do not agree: {sorted(str(each) for each in seen)}")
        time.sleep(0.05)
    _check(story.keys, "the table", "it ended empty")


def _json(cluster: LocalCluster, step: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(_command(cluster, *arguments), capture_output=True, check=False)
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
    """The same rows from `raftlog log`."""
    arguments = _command(cluster, "log", "--internal", "--encoding", "base64", "-o", "jsonl")
    with _running(arguments) as process:
        for line in process.stdout or ():
            row = json.loads(line)
            key, value = given(None, row.get("key_b64")), given(None, row.get("value_b64"))
            yield DemoRow(
                row["index"], row["kind"], row["operation"] or None, row["result"], key, value, row.get("succeeded")
            )


def compare(story: Story, rows: Iterable[DemoRow]) -> None:
    """Row by row with the input, in order; every index once; every effect that was to be shown is there."""
    expected = enumerate(_records(story), start=1)
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
    _check(story.leader_changes >= 1 and story.new_leader != story.killed, "the kill", "no leader change happened")
    for effect, count in story.table.effects.items():
        found = story.effects[effect]
        # A client that lost an answer sends its write again: so there may be more repetitions, and of nothing else.
        is_right = found >= count if effect.endswith(" repeated") else found == count
        _check(is_right, "the effects", f"the table's writes made {count} × {effect!r}, the log has {found}")
    told = f"{story.acknowledged} records were acknowledged, the input has {story.wanted}"
    _check(story.acknowledged == story.wanted, "the import", told)


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
    table = ", ".join(f"{count:,} × {what}" for what, count in sorted(story.table.done.items()))
    digest = "" if story.state is None else f"{story.state.xor} over {story.keys:,} keys at index {story.index:,}"
    rows = [
        (
            "input",
            f"{story.source.name}: {story.lines:,} lines"
            + "".join(f", {count:,} {what}" for what, count in story.made.items()),
        ),
        ("acknowledged", f"{story.acknowledged:,} records in {story.import_s:.1f} s, {story.rejected:,} rejected"),
        ("table", table),
        ("killed", f"leader {story.killed} after {story.killed_after:,} records, {story.open_at_kill} requests open"),
        ("leader changes", f"{story.leader_changes}: node {story.new_leader} led {story.without_leader_s:.3f} s later"),
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
