"""Defines `raftlog top`: nodes, rates, lags, hottest prefixes and slow routes of a running cluster, again and again.

Everything is what a node answers to any operator: `/v1/status`, `/v1/explain/leaderless`, `/v1/history`, `/metrics`,
and the newest records of the log. It costs no request of others anything.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from raftlog.cluster.api.explain import Leaderless
from raftlog.cluster.api.status import Status
from raftlog.cluster.api.text import as_row, as_time
from raftlog.cluster.cli.admin import ask_all, dialled, overview_of, status_and_view
from raftlog.cluster.cli.frame.common import Cli, Commands
from raftlog.cluster.cli.frame.output import Column, Format, Row, cell, view
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.runtime import clock

if TYPE_CHECKING:
    from rich.console import RenderableType

commands = Commands()
register = commands.register

SLOW_S: Final = 1.0
"""A request is slow from here on; a bound of the histogram of /metrics, and the default of limits.request_slow_ms."""
SAMPLE_RECORDS: Final = 200
"""Newest records that are read for the hottest prefixes, at most this often:"""
SAMPLE_S: Final = 5.0
READS_S: Final = 5
"""Reads are those of the newest seconds of a node's history."""
KEPT_RECORDS: Final = 1_000
ROWS_MAX: Final = 5
"""Rows of groups, prefixes and routes on a terminal. JSON has all of them."""
_OPERATION: Final = ("/v1/status", "/v1/members", "/v1/explain", "/v1/history", "/livez", "/readyz", "/metrics")
"""Routes of probes, of Prometheus and of this command."""
_ENDS: Final = b"/:."
"""A prefix ends with one of these."""

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""The samples of /metrics by name and labels."""
Asked = tuple[Status, Leaderless | None, Series | None, float | None]
"""Of one node: status, view, metrics, and reads a second."""

TOP: Final = view(
    Column("time", lambda row: as_time(row["time_ms"]), 24),
    Column("leader"),
    Column("term"),
    Column("up", lambda row: sum(node["role"] != "unreachable" for node in row["nodes"])),
    Column("nodes", lambda row: len(row["nodes"])),
    Column("committed", width=12),
    "writes_per_s",
    "reads_per_s",
    Column("lag", lambda row: max((node.get("lag") or 0 for node in row["nodes"]), default=0)),
    Column("slow", lambda row: sum(route["slow"] for route in row["routes"])),
    Column("hottest", lambda row: row["prefixes"][0]["prefix"] if row["prefixes"] else None),
    raw="committed",
)


class _Table(NamedTuple):
    """A table of a view: the field with its rows, and each column with the width of the terminal from which on it is
    shown."""

    rows: str
    title: str
    columns: dict[str, tuple[str, int]]


TABLES: Final = (
    _Table(
        "nodes",
        "",
        {
            "node": ("node", 0),
            "role": ("role", 0),
            "term": ("term", 80),
            "committed": ("commit", 60),
            "applied": ("applied", 70),
            "lag": ("lag", 0),
            "lag_seconds": ("lag s", 90),
            "writes_per_s": ("writes/s", 0),
            "reads_per_s": ("reads/s", 60),
            "sync_p99_ms": ("sync p99 ms", 50),
            "disk_free_mib": ("free MiB", 100),
            "url": ("url", 120),
        },
    ),
    _Table("groups", "groups and sinks", {"name": ("name", 0), "lag": ("lag", 0), "lag_seconds": ("lag s", 0)}),
    _Table("prefixes", "hottest prefixes", {"prefix": ("prefix", 0), "percent": ("% of writes", 0)}),
    _Table(
        "routes",
        "requests, the slowest first",
        {
            "route": ("route", 0),
            "per_s": ("per s", 50),
            "p50_ms": ("p50 ms", 60),
            "p99_ms": ("p99 ms", 0),
            "slow": (f"over {SLOW_S:g} s", 0),
        },
    ),
)


class Watcher:
    """Asks the cluster for one view after another. Rates are since the view before; in the first they are None."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._urls: dict[int, str] = {}
        self._before: dict[str, Series] = {}
        self._at = self._sampled_at = -math.inf
        self._next = 0  # index of the first record that was not read
        self._keys: deque[bytes | None] = deque(maxlen=KEPT_RECORDS)
        self._problem = ""  # why the newest records could not be read

    def look(self) -> dict[str, Any]:
        """The next view. Raises ClientError if no node has ever answered."""
        try:
            self._urls = {each.node: dialled(each.url) for each in self._client.members().members}
        except ClientError:
            if not self._urls:
                raise
        now = clock.monotonic()
        answers = ask_all(self._urls.values(), _ask)
        seconds, self._at = now - self._at, now
        shown: dict[str, Any] = {"time_ms": clock.wall_ms()}
        shown |= overview_of(
            self._urls, {url: each if isinstance(each, ClientError) else each[:2] for url, each in answers.items()}
        )
        series = {url: each[2] for url, each in answers.items() if not isinstance(each, ClientError) and each[2]}
        grown = {url: _grown(now_there, self._before[url]) for url, now_there in series.items() if url in self._before}
        self._before = series
        reads = {url: each[3] for url, each in answers.items() if not isinstance(each, ClientError)}
        for row in shown["nodes"]:
            url = row["url"]
            row |= _of_node(series.get(url), grown.get(url), seconds)
            if url in reads:
                row["reads_per_s"] = reads[url]
        for rate in ("writes_per_s", "reads_per_s"):
            known = [row[rate] for row in shown["nodes"] if row.get(rate) is not None]
            shown[rate] = round(sum(known), 1) if known else None
        statuses = [each[0] for each in answers.values() if not isinstance(each, ClientError)]
        groups = max((each.consumers for each in statuses), key=len, default=[])
        shown["groups"] = sorted(map(as_row, groups), key=lambda row: -row["lag"])
        self._sample(shown["leader"], {each.node: each for each in statuses}, now)
        counts = Counter(map(prefix_of, self._keys))
        shown["prefixes"] = [
            {"prefix": prefix, "writes": writes, "percent": round(100 * writes / len(self._keys), 1)}
            for prefix, writes in counts.most_common()
        ]
        shown["routes"] = _routes(list(grown.values()), seconds)
        shown["notes"] = [] if series or not statuses else ["rates are missing: they need the grant watch on cluster"]
        shown["notes"] += [self._problem] if self._problem else []
        return shown

    def _sample(self, leader: int | None, statuses: dict[int, Status], now: float) -> None:
        """Reads the keys of the newest writes, at a follower if there is one: the leader has enough to do."""
        nodes = sorted(statuses, key=lambda node: (node == leader, node))
        if not nodes or now - self._sampled_at < SAMPLE_S:
            return
        self._sampled_at = now
        status = statuses[nodes[0]]
        start = max(self._next, status.oldest, status.last_user_index - SAMPLE_RECORDS + 1)
        question = requests.log_page(start, limit=SAMPLE_RECORDS, consistency="stale")
        (answer,) = ask_all([self._urls[nodes[0]]], lambda client: client.call(question)).values()
        if isinstance(answer, ClientError):
            self._problem = f"hottest prefixes are missing: {answer.message}"
            return
        self._problem = ""
        self._keys.extend(record.key for record in answer.records)
        self._next = max([self._next, *(record.index + 1 for record in answer.records)])


def prefix_of(key: bytes | None) -> bytes:
    """A key up to its last separator, the whole key if it has none; empty for a record without a key."""
    key = key or b""
    end = max(map(key.rfind, (_ENDS[place : place + 1] for place in range(len(_ENDS))))) + 1
    return key[:end] or key


def _ask(client: SyncClient) -> Asked:
    status, explained = status_and_view(client)
    try:
        series, history = parsed(client.call(requests.metrics())), client.call(requests.history(READS_S))
    except ClientError:  # a user without the grant
        return status, explained, None, None
    reads = [each for each in history.columns["reads"] if each is not None]
    return status, explained, series, round(sum(reads) / len(reads), 1) if reads else None


def parsed(text: bytes) -> Series:
    """The samples of /metrics."""
    from prometheus_client.parser import text_string_to_metric_families  # here: no other command needs it

    families = text_string_to_metric_families(text.decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def _grown(now: Series, before: Series) -> Series:
    """What each sample has grown by. A restart begins all of them at 0: then they are since that start."""
    if any(value < before.get(name, 0) for name, value in now.items() if name[0] == "raftlog_sync_seconds_count"):
        return now
    return {name: value - before.get(name, 0) for name, value in now.items()}


def _sum(series: Series, name: str) -> float:
    return sum(value for (each, _), value in series.items() if each == name)


def _of_node(now: Series | None, grown: Series | None, seconds: float) -> Row:
    row: dict[str, Any] = {}
    if now is not None:
        row["disk_free_mib"] = int(_sum(now, "raftlog_disk_free_bytes")) >> 20
    if grown is not None:
        row["writes_per_s"] = round(_sum(grown, "raftlog_submits_total") / seconds, 1)
        row["sync_p99_ms"] = in_ms(quantile(_buckets([grown], "raftlog_sync_seconds"), 0.99))
    return row


def _routes(grown: list[Series], seconds: float) -> list[Row]:
    """The routes that were asked, that with the slowest requests first."""
    names = {dict(labels)["route"] for each in grown for name, labels in each if name.startswith(_HTTP)}
    rows: list[dict[str, Any]] = []
    for route in names:
        buckets = _buckets(grown, _HTTP, route)
        count = max(buckets.values())
        if count and not route.startswith(_OPERATION):
            slow = int(count - buckets[SLOW_S])
            times = {f"p{q * 100:g}_ms": in_ms(quantile(buckets, q)) for q in (0.5, 0.99)}
            rows.append({"route": route, "per_s": round(count / seconds, 1), **times, "slow": slow})
    return sorted(rows, key=lambda row: (-row["slow"], -(row["p99_ms"] or 0)))


_HTTP: Final = "raftlog_http_request_seconds"


def _buckets(grown: Iterable[Series], name: str, route: str = "") -> dict[float, float]:
    """The counts of a histogram by their upper bounds, over all nodes."""
    found: Counter[float] = Counter()
    for series in grown:
        for (each, labels), value in series.items():
            of = dict(labels)
            if each == f"{name}_bucket" and of.get("route", "") == route:
                found[float(of["le"])] += value  # type: ignore[assignment]  # they count in floats
    return dict(sorted(found.items()))


def quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """As Prometheus reads it from a histogram: in its unit, None without events. Beyond the last bound: that bound."""
    count = max(buckets.values(), default=0)
    if not count:
        return None
    below, lower = 0.0, 0.0
    for bound, upto in buckets.items():
        if upto >= q * count:
            return lower if math.isinf(bound) else lower + (bound - lower) * (q * count - below) / (upto - below)
        below, lower = upto, bound
    raise AssertionError("the last bucket has all events")


def in_ms(seconds: float | None) -> float | None:
    """Milliseconds, for people."""
    return None if seconds is None else round(seconds * 1e3, 2)


def drawn(shown: Row, width: int) -> RenderableType:
    """A view for a terminal of that width."""
    from rich.console import Group  # here: rich takes long to import
    from rich.table import Table
    from rich.text import Text

    leader = "no leader" if shown["leader"] is None else f"leader {shown['leader']}"
    facts = [leader, *(f"{name} {shown[name]}" for name in ("term", "committed", "keys", "sessions") if name in shown)]
    facts += [
        f"{shown[f'{name}_per_s']} {name}/s" for name in ("writes", "reads") if shown[f"{name}_per_s"] is not None
    ]
    parts: list[RenderableType] = [Text("  ".join(facts), style="bold")]
    for table in TABLES:
        rows = shown[table.rows] if table.rows == "nodes" else shown[table.rows][:ROWS_MAX]
        if not rows:
            continue
        made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=table.title or None, title_justify="left")
        columns = {field: name for field, (name, least) in table.columns.items() if width >= least}
        for field, name in columns.items():
            is_text = field in ("role", "url", "name", "prefix", "route")
            made.add_column(name, justify="left" if is_text else "right", no_wrap=True)
        for row in rows:
            style = {"leader": "green", "unreachable": "red"}.get(str(row.get("role")), "")
            made.add_row(*(Text(cell(row.get(field))) for field in columns), style=style)
        parts += [Text(), made]
    notes = [f"node {row['node']} is cut off: {row['cut_off']}" for row in shown["nodes"] if "cut_off" in row]
    notes += [*filter(None, [shown.get("trouble")]), *shown["notes"]]
    return Group(*parts, *(Text(note, style="red") for note in notes))


@commands("top")
def top_command(
    cli: Cli,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between two views.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One view, after two looks at the cluster.")] = False,
) -> None:
    """Show nodes, rates, lags, the hottest prefixes and slow requests, until Ctrl-C.

    Without a terminal: one line a view. It needs the grant `watch on cluster`; prefixes need `read on log`.
    """
    from rich.console import Console  # here: rich takes long to import
    from rich.live import Live

    with cli.client() as client:
        watcher = Watcher(client)
        watcher.look()

        def views() -> Iterator[dict[str, Any]]:
            while True:
                time.sleep(interval)
                yield watcher.look()
                if once:
                    return

        console = Console(highlight=False)
        is_table = cli.printer.format is Format.TABLE
        if is_table and (once or console.is_terminal):
            with Live(console=console, auto_refresh=False) as live:
                for shown in views():
                    live.update(drawn(shown, console.width), refresh=True)
        elif once:
            cli.printer.one(next(views()), TOP)
        else:
            cli.printer.each(views(), TOP)
