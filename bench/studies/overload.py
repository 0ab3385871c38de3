"""Offers a cluster ten times the load that it can take, and measures its rate, its refusals and its memory.

Runs three phases against the leader of three nodes with the shipped defaults. The peak has few connections, all busy.
The overload has so many connections that the node must refuse, and each repeats at once, as no well-behaved client
does. Then comes the peak again. wrk makes the load. The nodes' own counters give the outcomes of the writes, because
wrk does not distinguish a refusal from a failure. Meanwhile an operator asks questions and gives a command, and a
client makes one write, each on a new connection. `python -m bench overload --help`.
"""

from __future__ import annotations

import http.client
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from bench.comparison import report
from bench.instruments import conditions, machine
from bench.instruments.tools import MissingTool
from bench.loads import wrk
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.node.local_cluster import LocalCluster, LocalClusterError

KEPT_SHARE_MIN = 0.8
"""How much of its peak rate a node must keep (the goal of docs/performance.md)."""
GROWTH_MAX = 1.3
"""Highest ratio of memory at the end to memory at a quarter of the overload: bounded memory stops growing."""
REFUSED_MS_MAX = 250.0
"""Longest median time in milliseconds until a refused client on a new connection has its refusal."""
OPERATOR_MS_MAX = 2_000.0
"""Longest time in milliseconds until an operator has an answer, also while thousands connect at once."""
_TIMEOUT_S = 30.0
_EVERY_S = 0.25
APPEND = ("POST", "/v1/log")
OPERATORS = (
    ("GET", "/livez"),
    ("GET", "/v1/status"),
    ("GET", "/metrics"),
    ("GET", "/v1/explain/leaderless"),
    ("POST", "/v1/log/trim"),
)
_BODIES = {APPEND: b"a write of another client", ("POST", "/v1/log/trim"): b'{"before":1}'}
_NO_ANSWER, _BUSY = 0, 429


class Sample(msgspec.Struct, frozen=True):
    """One moment of the overload; what the node says is None where it did not answer in time."""

    second: float
    memory_mib: float
    applied: int | None = None
    refused: int | None = None
    term: int | None = None
    leader: int | None = None


class Answers(msgspec.Struct, frozen=True):
    """The answers to one question, asked again and again, each time on a new connection."""

    what: str
    statuses: dict[int, int]  # how many of each; 0: none within half a minute
    p50_ms: float
    max_ms: float


class Phase(msgspec.Struct, frozen=True):
    """What one phase came to, by the leader's counters; `p50_ms`, `p99_ms` are wrk's, over answers of every kind."""

    connections: int
    applied_per_second: float
    refused_per_second: float
    failed: dict[str, int]  # neither applied nor refused as busy, by code
    p50_ms: float
    p99_ms: float


class Result(msgspec.Struct, frozen=True):
    """The whole run."""

    when: str
    conditions: conditions.Conditions
    open_requests_max: int
    before: Phase
    overload: Phase
    after: Phase
    kept_share: float
    leader_changes: int
    memory_mib: tuple[float, float, float]  # at a quarter, at the end, the most
    refusals: Answers
    operators: list[Answers]
    samples: list[Sample]

    @property
    def faults(self) -> list[str]:
        """The missed bounds, as sentences."""
        found = []
        if self.kept_share < KEPT_SHARE_MIN:
            found.append(f"kept {self.kept_share:.0%} of its peak rate, not {KEPT_SHARE_MIN:.0%}")
        if self.leader_changes:
            found.append(f"{self.leader_changes} changes of leader or term")
        if self.memory_mib[1] > GROWTH_MAX * self.memory_mib[0]:
            found.append(f"memory grew from {self.memory_mib[0]:.0f} to {self.memory_mib[1]:.0f} MiB")
        if not self.overload.refused_per_second:
            found.append("nothing was refused: more --connections, or fewer --open-requests")
        if failed := sum(self.overload.failed.values()):
            found.append(f"{failed} answers were neither applied nor busy: {self.overload.failed}")
        if self.refusals.p50_ms > REFUSED_MS_MAX:
            found.append(f"refusals took {self.refusals.p50_ms:.0f} ms, not {REFUSED_MS_MAX:.0f}")
        for asked in self.operators:
            if lost := sum(number for status, number in asked.statuses.items() if status in (_NO_ANSWER, _BUSY)):
                found.append(f"{asked.what} was refused or not answered {lost} times")
            elif asked.max_ms > OPERATOR_MS_MAX:
                found.append(f"{asked.what} took up to {asked.max_ms:.0f} ms, not {OPERATOR_MS_MAX:.0f}")
        return found


class Counts(msgspec.Struct, frozen=True):
    """The leader's answers to appends so far."""

    applied: int
    refused: int
    failed: Counter[str]


def exchange(url: str, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own. Raises OSError or HTTPException."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ask(url: str, target: str) -> bytes:
    """A GET on a connection of its own."""
    return exchange(url, "GET", target)[1]


def counts(metrics: bytes) -> Counts:
    """What the node answered to appends, by its /metrics. No other request of the study gets a problem."""
    applied, by_code = 0, Counter[str]()
    for family in text_string_to_metric_families(metrics.decode()):
        for name, labels, value, *_ in family.samples:
            if name == "raftlog_http_requests_total" and labels == {"route": APPEND[1], "status": "2xx"}:
                applied = int(value)
            elif name == "raftlog_http_problems_total" and value:
                by_code[labels["code"]] = int(value)
    return Counts(applied, by_code.pop("busy", 0), by_code)


class Asker(threading.Thread):
    """Asks one question again and again until it is stopped."""

    def __init__(self, url: str, question: tuple[str, str], ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._url, self._question, self._ended = url, question, ended
        self.took_ms: list[tuple[int, float]] = []  # status, and how long it took
        self.newest = b""

    def run(self) -> None:
        """The thread."""
        while not self._ended.wait(_EVERY_S):
            began = time.monotonic()
            try:
                status, answer = exchange(self._url, *self._question, _BODIES.get(self._question))
            except (OSError, http.client.HTTPException):
                status, answer = _NO_ANSWER, b""
            self.took_ms.append((status, (time.monotonic() - began) * 1e3))
            self.newest = answer

    def asked(self, only: int | None = None) -> Answers:
        """The answers and their times; only the times of one status if `only` is given."""
        times = [took for status, took in self.took_ms if only in (None, status)] or [0.0]
        statuses = dict(sorted(Counter(status for status, _ in self.took_ms).items()))
        return Answers(" ".join(self._question), statuses, round(statistics.median(times), 1), round(max(times), 1))


class Watcher(threading.Thread):
    """Samples the cluster every second until it is stopped."""

    def __init__(self, cluster: LocalCluster, url: str) -> None:
        super().__init__(daemon=True)
        self._pids = [pid for node in cluster.nodes if (pid := cluster.pid(node)) is not None]
        self._ended = threading.Event()
        self._operators = [Asker(url, question, self._ended) for question in OPERATORS]
        self._client = Asker(url, APPEND, self._ended)
        self.samples: list[Sample] = []

    def run(self) -> None:
        """The thread."""
        began = time.monotonic()
        for asker in (*self._operators, self._client):
            asker.start()
        while not self._ended.wait(1.0):
            sample = Sample(round(time.monotonic() - began, 1), round(machine.memory_mib(self._pids), 1))
            _, status, metrics, *_ = [asker.newest for asker in self._operators]
            if status and metrics:
                newest, seen = msgspec.json.decode(status), counts(metrics)
                leader = newest["leader"]["node"] if newest["leader"] else 0
                sample = msgspec.structs.replace(
                    sample, applied=seen.applied, refused=seen.refused, term=newest["term"], leader=leader
                )
            self.samples.append(sample)

    def end(self) -> tuple[list[Sample], Answers, list[Answers]]:
        """The samples, the times of refusals, and the answers to operators."""
        time.sleep(2.0)  # it also sees the node let go of everybody
        self._ended.set()
        for thread in (self, *self._operators, self._client):
            thread.join(2 * _TIMEOUT_S)
        return self.samples, self._client.asked(_BUSY), [asker.asked() for asker in self._operators]


def phase(url: str, connections: int, seconds: int, size: int, folder: Path) -> Phase:
    """wrk for that long. Raises RuntimeError, MissingTool or OSError."""
    before, began = counts(ask(url, "/metrics")), time.monotonic()
    load = wrk.Load(f"{url}{APPEND[1]}", APPEND[0], "x" * size)
    run = wrk.run(load, connections=connections, seconds=seconds, folder=folder)
    after, took = counts(ask(url, "/metrics")), time.monotonic() - began
    return Phase(
        connections,
        round((after.applied - before.applied) / took, 1),
        round((after.refused - before.refused) / took, 1),
        dict(after.failed - before.failed),
        run.p50_ms,
        run.p99_ms,
    )


def soak(
    folder: Path,
    console: Console,
    *,
    seconds: int,
    peak_seconds: int,
    peak_connections: int,
    connections: int,
    size: int,
) -> Result:
    """The three phases. Raises RuntimeError, LocalClusterError or MissingTool."""
    seen = conditions.look(folder, console)
    with LocalCluster(folder / "raftlog") as cluster:
        cluster.restore(120.0)
        url = cluster.url(cluster.leader())
        try:
            phase(url, peak_connections, 2, size, folder)  # warm
            before = phase(url, peak_connections, peak_seconds, size, folder)
            watcher = Watcher(cluster, url)
            watcher.start()
            overload = phase(url, connections, seconds, size, folder)
            samples, refusals, operators = watcher.end()
            after = phase(url, peak_connections, peak_seconds, size, folder)
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"{url} does not answer: {error}") from error
    memory = [sample.memory_mib for sample in samples] or [0.0]
    terms = [(sample.term, sample.leader) for sample in samples if sample.term is not None]
    peak = max(before.applied_per_second, 1e-9)
    return Result(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        seen,
        LimitSettings().open_requests_max,
        before,
        overload,
        after,
        round(overload.applied_per_second / peak, 3),
        sum(1 for one, two in pairwise(terms) if one != two),
        (memory[len(memory) // 4], memory[-1], max(memory)),
        refusals,
        operators,
        samples,
    )


def tell(result: Result) -> Iterator[str]:
    """The result in lines."""
    for title, each in (("peak", result.before), ("overload", result.overload), ("peak again", result.after)):
        yield (
            f"{title:10} {each.connections:6,} connections: {each.applied_per_second:8,.0f} applied/s, "
            f"{each.refused_per_second:7,.0f} refused/s; answers of every kind p50 {each.p50_ms:.1f} ms, p99 "
            f"{each.p99_ms:.1f} ms"
        )
    quarter, end, most = result.memory_mib
    yield (
        f"kept {result.kept_share:.0%} of its peak (asked: {KEPT_SHARE_MIN:.0%}); {result.leader_changes} changes of "
        f"leader; memory of all nodes {quarter:.0f} MiB at a quarter, {end:.0f} at the end, {most:.0f} at most"
    )
    for asked in (result.refusals, *result.operators):
        statuses = ", ".join(f"{number} × {status or 'no answer'}" for status, number in asked.statuses.items())
        of = " (times of those refused)" if asked is result.refusals else ""
        yield f"{asked.what}: {statuses}; p50 {asked.p50_ms:.0f} ms, at most {asked.max_ms:.0f} ms{of}"


def main(
    seconds: Annotated[int, typer.Option(min=5, help="length of the overload")] = 120,
    peak_seconds: Annotated[int, typer.Option(min=1, help="length of each of the two peaks")] = 10,
    peak_connections: Annotated[int, typer.Option(min=1, help="connections of the peak")] = 64,
    connections: Annotated[int, typer.Option(min=1, help="connections of the overload")] = 12_000,
    size: Annotated[int, typer.Option(min=0, help="bytes of a value")] = 256,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/overload.json"),
) -> None:
    """Overload a cluster and show its rate, refusals and memory. Ends with exit code 1 if a bound was missed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + 200:
        Console().print(f"[red]{connections} connections need more open files than the {hard} allowed here[/]")
        raise typer.Exit(2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the nodes and wrk inherit it
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        with tempfile.TemporaryDirectory(prefix="raftlog-overload-", dir=data) as place:
            result = soak(
                Path(place),
                console,
                seconds=seconds,
                peak_seconds=peak_seconds,
                peak_connections=peak_connections,
                connections=connections,
                size=size,
            )
    except (RuntimeError, LocalClusterError, MissingTool) as error:
        console.print(f"it failed: {error}", markup=False)
        raise typer.Exit(1) from error
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    report.save_json(result, save)
    for line in (*tell(result), *(f"[red]{fault}[/]" for fault in result.faults)):
        console.print(line)
    if result.faults:
        raise typer.Exit(1)
