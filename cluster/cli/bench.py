"""Defines `raftlog bench URL`: puts a load on a running cluster, prints rates and latencies, and compares the last run.

Each client of the load is a client of `raftlog.cluster.client.aio` with a session of its own, and has one request under
way. All of them write below one prefix that no other run has, and it is empty again at the end.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, find_endpoints, say
from raftlog.cluster.cli.frame.hints import SESSION_TTL_MS
from raftlog.cluster.cli.frame.last_cluster import state_folder
from raftlog.cluster.cli.frame.output import Column, Format, bar, view
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.client.requests import prefix_end
from raftlog.cluster.runtime import build, clock
from raftlog.cluster.runtime.file_errors import replace_file

commands = Commands()
register = commands.register

PREFIX: Final = "raftlog-bench/"
"""All keys of all runs begin so: it is what a role of the user must allow, to write and to read."""
CLIENTS_MAX: Final = 1_000
VALUE_BYTES_MAX: Final = 1 << 20
SECONDS_MAX: Final = 86_400.0
BUSY: Final = 0.9
"""From this share of a core on, the load itself is the bound: one process of Python makes all requests."""
_STEPS: Final = 32
"""Buckets of the histogram in each doubling of the time: a percentile is right within 2 %."""
_BAR: Final = 40
"""Characters of the longest bar."""
_SHARES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


class BenchOptions(msgspec.Struct, frozen=True):
    """What makes two runs comparable."""

    clients: int
    value_bytes: int
    reads_percent: int


class Figures(msgspec.Struct, frozen=True):
    """What one kind of requests took. Times are in milliseconds; `failed` has the number of each error."""

    kind: str
    count: int
    per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    failed: dict[str, int]
    histogram: list[tuple[float, int]]  # the upper bound of each bucket, and its requests


class BenchRun(msgspec.Struct, frozen=True):
    """One run, as its file has it."""

    time_ms: int
    log: str
    prefix: str
    seconds: float
    options: BenchOptions
    version: str
    load_cores: float  # that the load itself took: processor seconds a second
    figures: list[Figures]


_decode: Final = msgspec.json.Decoder(BenchRun).decode


class Times:
    """Counts latencies in a histogram with steps of 2 %."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()
        self.slowest_ms = 0.0

    def add(self, seconds: float) -> None:
        """One more request that succeeded."""
        ms = seconds * 1e3
        self.slowest_ms = max(self.slowest_ms, ms)
        self.buckets[math.ceil(math.log2(max(ms, 1e-3)) * _STEPS)] += 1

    def figures(self, kind: str, seconds: float) -> Figures:
        """All of them, of a run of so many seconds."""
        ordered = [(2 ** (step / _STEPS), count) for step, count in sorted(self.buckets.items())]
        count = self.buckets.total()
        upto = list(itertools.accumulate(number for _, number in ordered))
        shares = {
            name: next((bound for (bound, _), sum_ in zip(ordered, upto, strict=True) if sum_ >= share * count), 0.0)
            for name, share in _SHARES.items()
        }
        return Figures(
            kind,
            count,
            round(count / seconds, 1),
            **{name: round(min(value, self.slowest_ms), 3) for name, value in shares.items()},
            max_ms=round(self.slowest_ms, 3),
            failed=dict(self.failed),
            histogram=[(bound, number) for bound, number in ordered],
        )


def compared(run: BenchRun, last: BenchRun | None) -> list[dict[str, Any]]:
    """A row for each kind, with the difference to the last run in percent where that had the same options."""
    before = {each.kind: each for each in last.figures} if last is not None and last.options == run.options else {}
    rows = []
    for each in run.figures:
        row = {name: getattr(each, name) for name in ("kind", "count", "per_s", *_SHARES, "max_ms")}
        row["failed"] = sum(each.failed.values())
        old = before.get(each.kind)
        if old is not None and old.count and each.count:
            row["per_s_change"] = round(100 * (each.per_s / old.per_s - 1), 1)
            row["p99_change"] = round(100 * (each.p99_ms / old.p99_ms - 1), 1)
        rows.append(row)
    return rows


def _change(name: str) -> Column:
    return Column(name, lambda row: f"{row[name]:+g} %" if name in row else None)


BENCH: Final = view(
    "kind", "count", "per_s", *_SHARES, "max_ms", "failed", _change("per_s_change"), _change("p99_change"), raw="per_s"
)


class Load:
    """Clients that write and read below `prefix`, each its own keys; each goes on as soon as it has its answer."""

    def __init__(self, cli: Cli, options: BenchOptions, prefix: str, keys: int) -> None:
        self._cli, self._options, self._prefix, self._keys = cli, options, prefix, keys
        self._value = random.randbytes(options.value_bytes)
        self._times = {"write": Times(), "read": Times()}
        self._end = 0.0
        self.is_interrupted = False

    def run(self, seconds: float) -> list[Figures]:
        """So long, or until Ctrl-C: then each client waits for its last answer, so that no write comes later."""
        with bar("load") as progress:
            return asyncio.run(self._run(seconds, progress))

    async def _run(self, seconds: float, progress: Callable[..., None]) -> list[Figures]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        began = clock.monotonic()
        self._end = began + seconds
        clients = asyncio.gather(*map(self._client, range(self._options.clients)))
        while not clients.done():
            progress(clock.monotonic() - began, seconds)
            await asyncio.wait([clients], timeout=0.2)
        await clients
        took = clock.monotonic() - began
        return [each.figures(kind, took) for kind, each in self._times.items() if each.buckets or each.failed]

    def _interrupt(self) -> None:
        self.is_interrupted, self._end = True, 0.0

    async def _client(self, number: int) -> None:
        written = 0
        async with Client(
            self._cli.endpoints, deadline_s=self._cli.deadline_s, session_ttl_ms=SESSION_TTL_MS
        ) as client:
            while (start := clock.monotonic()) < self._end:
                is_read = written > 0 and random.random() * 100 < self._options.reads_percent
                place = random.randrange(min(written, self._keys)) if is_read else written % self._keys
                key = f"{self._prefix}{number}/{place}".encode()
                times = self._times["read" if is_read else "write"]
                try:
                    await (client.get(key) if is_read else client.put(key, self._value))
                except ClientError as error:
                    times.failed[str(error.code)] += 1
                else:
                    times.add(clock.monotonic() - start)
                    written += not is_read


def read_last(path: Path) -> BenchRun | None:
    """The last run; None if there is no such file. Raises CommandFailed for a file that is something else."""
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CommandFailed(
            f"{path} is no result of `raftlog bench`, and would be overwritten: name another file", Exit.USAGE
        ) from error


@commands("bench")
def bench_command(
    cli: Cli,
    url: Annotated[str, typer.Argument(help="URLs of nodes, with commas between them.")],
    clients: Annotated[int, typer.Option("--clients", help="Clients at once.", min=1, max=CLIENTS_MAX)] = 16,
    seconds: Annotated[float, typer.Option("--seconds", help="How long.", min=0.1, max=SECONDS_MAX)] = 10.0,
    size: Annotated[int, typer.Option("--size", help="Bytes of a value.", min=0, max=VALUE_BYTES_MAX)] = 256,
    reads: Annotated[int, typer.Option("--reads", help="Percent of linearizable reads.", min=0, max=100)] = 0,
    keys: Annotated[int, typer.Option("--keys", help="Keys of each client.", min=1, max=1_000)] = 100,
    file: Annotated[
        Path | None, typer.Option("--file", help="The last run, and then this one; else in the state folder.")
    ] = None,
) -> None:
    """Put a load on a running cluster: rates, latencies, and the difference to the last run.

    It writes below a prefix of its own under raftlog-bench/, which it names, and deletes those keys at the end. The log
    keeps the records until retention, and exports, sinks and consumers see them. It measures the cluster with this
    client and machine.
    """
    cli = replace(cli, find=functools.cache(functools.partial(find_endpoints, url, writes=True)))
    options = BenchOptions(clients, size, reads)
    prefix = f"{PREFIX}{secrets.token_hex(4)}/"
    with cli.client() as client:
        log = client.status().log
        path = file or state_folder().with_name("bench") / f"{log}.json"
        last = read_last(path)
        _try(client)
        if not cli.printer.is_json:
            say(f"{clients} clients write below {prefix} for {seconds:g} s")
        load = Load(cli, options, prefix, keys)
        time_ms, cpu_s, began = clock.wall_ms(), time.process_time(), clock.monotonic()
        try:
            figures = load.run(seconds)
            cores = (time.process_time() - cpu_s) / (clock.monotonic() - began)
        finally:
            _clean_up(client, prefix, clients, url)
    if load.is_interrupted:
        raise KeyboardInterrupt
    run = BenchRun(time_ms, log, prefix, seconds, options, build.facts()["version"], round(cores, 2), figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    _print(cli, run, last, path)


def _try(client: SyncClient) -> None:
    """One write, read and delete, so that a user without the rights learns it before the load. Raises ClientError."""
    key = f"{PREFIX}try-{secrets.token_hex(4)}".encode()
    client.put(key, b"")
    client.get(key)
    client.delete_range(key, prefix_end(key))


def _clean_up(client: SyncClient, prefix: str, clients: int, url: str) -> None:
    try:
        for number in range(clients):
            start = f"{prefix}{number}/".encode()
            client.delete_range(start, prefix_end(start))
    except ClientError as error:
        again = f"raftlog del {prefix} --prefix -e {url}"
        raise CommandFailed(
            f"keys of the load are left below {prefix}: {error}", Exit.FAILURE, f"Delete them: {again}"
        ) from error


def _print(cli: Cli, run: BenchRun, last: BenchRun | None, path: Path) -> None:
    rows = compared(run, last)
    if cli.printer.is_json:
        cli.printer.one(msgspec.to_builtins(run) | {"changes": rows, "file": str(path)}, BENCH)
        return
    cli.printer.all(rows, BENCH)
    if cli.printer.format is Format.TABLE:
        for each in run.figures:
            print("\n".join(["", f"{each.kind}, ms", *drawn(each.histogram)]))
    notes = [f"{each.failed[code]} {each.kind}s failed: {code}" for each in run.figures for code in each.failed]
    if run.load_cores >= BUSY:
        notes.append(
            f"the load itself took {run.load_cores:g} cores: the cluster may do more than this process asked for"
        )
    if last is not None and last.options != run.options:
        old = last.options
        notes.append(
            f"not compared: the last run had {old.clients} clients, {old.value_bytes} bytes, "
            f"{old.reads_percent} % reads"
        )
    say("\n".join([*notes, f"the result is in {path}"]))


def drawn(histogram: list[tuple[float, int]]) -> list[str]:
    """A line for each doubling of the time, with a bar of its share."""
    doublings: Counter[float] = Counter()
    for bound, count in histogram:
        doublings[2.0 ** math.ceil(round(math.log2(bound), 6))] += count
    most, total = max(doublings.values(), default=1), doublings.total()
    return [
        f"{bound:>10g}  {100 * count / total:5.1f} %  {'█' * math.ceil(_BAR * count / most)}"
        for bound, count in sorted(doublings.items())
    ]
