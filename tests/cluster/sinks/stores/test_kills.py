"""A process that ends at any step of a start, a batch, a rebuild or a verify loses nothing and doubles nothing."""

from __future__ import annotations

import itertools
import os
import pkgutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from redis import Redis

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import StoreRow
from raftlog.cluster.sinks.retry import RetryCounts, retry
from raftlog.cluster.sinks.runner import SinkStep, SinkStopped
from raftlog.cluster.sinks.settings import SinkSettings
from raftlog.cluster.sinks.sinks import rebuild, rejects_of, verify
from raftlog.cluster.sinks.store import WRITTEN_ON, PositionMoved, StoreError
from tests.cluster.fake_node import FakeNode
from tests.cluster.sinks.stores.conftest import MARKS
from tests.cluster.sinks.stores.kit import StoreBench, small
from tests.cluster.sinks.test_runner import COLUMNS, STEPS, AtStep, expected, fill
from tests.support import forking

Rows = dict[StoreRow, StoreRow]

KILLED = 7
MEMORY = "/dev/shm"
STORES = ("sqlite", "duckdb", "tantivy", "postgresql", "redis", "opensearch")
REBUILT = [*STEPS, SinkStep.EXCHANGED]
WIDER = {**COLUMNS, "m": "value.n:bigint"}
_MODULES = ("sql", "sqlite", "duckdb", "tantivy", "postgres", "redis", "opensearch", "webhook")
_processes = forking(__name__, *(f"raftlog.cluster.sinks.stores.{each}" for each in _MODULES), "psycopg")


def marks(store: str) -> list[pytest.MarkDecorator]:
    """`make test` kills over one store of each kind: in a file, on a server, of a user."""
    more = [] if store in ("sqlite", "postgresql", "webhook") else [pytest.mark.extra]
    return [*MARKS.get(store, ()), *more]


def params(steps: list[SinkStep], *stores: str) -> pytest.MarkDecorator:
    """Each store at each step."""
    return pytest.mark.parametrize(
        ("bench", "step"),
        [pytest.param(store, step, marks=marks(store), id=f"{store}-{step}") for store in stores for step in steps],
        indirect=["bench"],
    )


def _work(
    kind: type[SinkSettings], folder: Path, given: dict[str, Any], url: str, work: str, step: SinkStep, time: int
) -> None:
    """What a process does that ends when it reaches the step for that time."""
    small(pytest.MonkeyPatch())
    bench = StoreBench(kind, folder, **given)
    at = AtStep(step, partial(os._exit, KILLED), time)
    with SyncClient(url) as client:
        if work == "run":
            bench.run(client, at)
        elif work == "rebuild":
            rebuild(bench.file, "s", client, at=at)
        else:
            with closing(bench.store()) as store:
                verify("s", bench.sink, store, client, at=at)


def killed(bench: StoreBench, client: SyncClient, work: str, step: SinkStep, time: int = 1) -> bool:
    """Whether a process of its own has ended at the step; else it has done its work."""
    given = (bench.kind, bench.folder, bench.given, client.state.routes.configured[0], work, step, time)
    process = _processes.Process(target=_work, args=given)
    process.start()
    process.join(60)
    assert process.exitcode in (0, KILLED)
    return process.exitcode == KILLED


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, where the system has such a folder: a killed process loses nothing there, and syncs took most time."""
    with TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, and no pauses."""
    small(monkeypatch)


@params(STEPS, *STORES, "webhook")
def test_a_run_that_ends_at_a_step_goes_on(bench: StoreBench, client: SyncClient, step: SinkStep) -> None:
    """At its first and at its third time; from the state and from the log."""
    for start, time in (("state", 1), ("oldest", 3)):
        fill(client, 12, seed=time)
        made = bench.changed(start=start)
        assert killed(made, client, "run", step, time) or time == 3
        made.run(client)
        if "secret" not in bench.given:
            made.check(client)


def check_readers(bench: StoreBench, client: SyncClient, before: Rows, after: Rows, *, exchanged: bool) -> None:
    """A reader finds the old rows or the new ones; in Redis each key."""
    with suppress(StoreError):
        found = bench.rows(bench.sink.identity("s", client.status().log))
        compared = {key: (row[0], int(row[1]), int(row[2])) for key, row in found.items()}
        assert compared in ((after,) if exchanged else (before, after))
        return
    with pytest.raises(StoreError, match="a rebuild of s has not ended: raftlog sink rebuild s"):
        bench.rows()
    assert not exchanged
    with Redis.from_url(bench.given["url"], decode_responses=True) as connected:
        for key in connected.scan_iter("k:*"):
            found = connected.hgetall(key)
            values = [rows[found["id"],] for rows in (before, after) if (found["id"],) in rows]
            assert (found["n"], found["version"]) in [(str(n), str(version)) for _, n, version in values]


@params(REBUILT, *STORES)
def test_a_rebuild_that_ends_at_a_step_shows_one_whole_store(
    bench: StoreBench, client: SyncClient, step: SinkStep
) -> None:
    """Readers see the old rows or the new ones. The same command goes on; then a run does."""
    fill(client, 30)
    bench.run(client)
    before = expected(client)
    fill(client, 30, seed=2)
    client.delete(b"k/1")
    after = expected(client)
    made = bench.changed(columns=WIDER, start="state")
    is_last = step is SinkStep.EXCHANGED
    assert killed(made, client, "rebuild", step)
    check_readers(bench, client, before, after, exchanged=is_last)
    rebuild(made.file, "s", client)
    check_readers(bench, client, after, after, exchanged=True)
    client.put(b"k/new", b'{"n": 7}')
    made.run(client)
    made.check(client)


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", [SinkStep.WRITTEN, SinkStep.EXCHANGED])
def test_a_rebuild_that_ends_keeps_the_rejected_records(bench: StoreBench, client: SyncClient, step: SinkStep) -> None:
    """Of the rows that the store has then; where both are kept, a retry leaves those."""
    client.put(b"k/1", b'{"n": 1, "m": "x"}')
    client.put(b"k/2", b'{"n": "x", "m": 2}')
    bench = bench.changed(refused="reject")
    bench.run(client)
    made = bench.changed(columns={"id": "key", "m": "value.m:bigint"})
    rejects = rejects_of(made.file, "s")
    assert killed(made, client, "rebuild", step)
    if step is SinkStep.WRITTEN:
        bench.run(client)
        assert [each.key for each in rejects.read()] == ["k/2"]
        return
    made.run(client)
    assert [each.key for each in rejects.read()] == ["k/2", "k/1"]
    with closing(made.store()) as store:
        assert retry("s", made.sink, store, client, rejects) == RetryCounts(1, 1)
    assert [each.key for each in rejects.read()] == ["k/1"]
    assert made.verified(client).is_same


@pytest.mark.parametrize(
    "bench",
    [pytest.param(each, marks=MARKS.get(each, ())) for each in ("sqlite", "postgresql", "opensearch")],
    indirect=True,
)
def test_a_rebuild_never_sets_readers_back(bench: StoreBench, client: SyncClient) -> None:
    """The runner of the old rows writes on until it learns of the rebuild, which fills those records too."""
    fill(client, 10)
    bench.run(client)
    reached = 0

    def write_on() -> None:
        nonlocal reached
        reached = client.put(b"k/new", b'{"n": 7}').index
        bench.run(client)

    rebuild(bench.file, "s", client, at=AtStep(SinkStep.REPORTED, write_on, *range(1, 7)), tell=bench.said.append)
    with closing(bench.store()) as store, store.rows(bench.sink.identity("s", client.status().log)) as found:
        assert found is not None
        assert found.position.next > reached
    assert f"s: {WRITTEN_ON}" in bench.said
    bench.check(client)


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
def test_a_store_that_is_further_than_the_log_is_not_exchanged(
    bench: StoreBench, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild ends with the reason after some tries. Rows of another log are replaced."""
    monkeypatch.setattr("raftlog.cluster.sinks.sinks._EXCHANGES_MAX", 2)
    fill(client, 10)
    bench.run(client)
    with sqlite3.connect(bench.folder / "file") as connection:
        connection.execute("UPDATE raftlog_sinks SET next = 1000000")
    with pytest.raises(PositionMoved, match="or the log has gone back"):
        rebuild(bench.file, "s", client)
    assert len(bench.rows()) == len(expected(client))
    connection.execute("UPDATE raftlog_sinks SET log = 'other' WHERE name = 's'")
    connection.commit()
    connection.close()
    rebuild(bench.file, "s", client)
    bench.check(client)


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("start", "choice"), [("newest", '"newest" would leave out all'), ("oldest", "index 9")])
def test_a_rebuild_that_would_lack_rows_is_refused(
    bench: StoreBench, client: SyncClient, node: FakeNode, start: str, choice: str
) -> None:
    """The log that they came from is trimmed, or would not be read. The state of the keys is there."""
    fill(client, 20)
    bench.run(client)
    before = bench.rows()
    node.oldest = 9
    with pytest.raises(StoreError, match=rf's: .*{choice}.*: set start = "state", and rebuild again'):
        rebuild(bench.changed(start=start).file, "s", client)
    assert bench.rows() == before
    rebuild(bench.changed(start="state").file, "s", client)
    bench.check(client)


@params([SinkStep.READ, SinkStep.COMPARED], *STORES)
def test_a_verify_that_ends_at_a_step_leaves_nothing(bench: StoreBench, client: SyncClient, step: SinkStep) -> None:
    """No lock, and no half of anything."""
    fill(client, 20)
    bench.run(client)
    assert killed(bench, client, "verify", step)
    fill(client, 20, seed=2)
    bench.run(client)
    bench.check(client)


class Cut(BaseException):
    """The process ends here: nothing below catches it."""


CUTS = {
    "tantivy": ("raftlog.cluster.sinks.stores.tantivy.replace_file", "shutil.rmtree"),
    "redis": ("redis.commands.core.Script.__call__",),
    "opensearch": ("raftlog.cluster.sinks.stores.http.HttpServer.ask",),
}
"""What an exchange is made of, in each store where it is more than one transaction."""


@pytest.mark.parametrize("bench", [pytest.param(each, marks=MARKS.get(each, ())) for each in CUTS], indirect=True)
def test_an_exchange_that_ends_anywhere_shows_one_whole_store(
    bench: StoreBench, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before each of its steps. A run goes on where the exchange has happened, and a rebuild does in any case."""
    kind = next(each for each in CUTS if each in bench.kind.__name__.lower().replace("settings", ""))
    made = bench
    fill(client, 30)
    bench.run(client)
    for cut in itertools.count(1):
        before = expected(client)
        fill(client, 10, seed=cut)
        after = expected(client)
        made = bench.changed(columns=WIDER if cut % 2 else COLUMNS, start="state")
        seen = 0

        def counted(work: Callable[..., Any], *given: Any, at: int = cut, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == at:
                raise Cut
            return work(*given, **more)

        exchange = type(made.store()).exchange

        def exchanged(store: Any, *given: Any, work: Callable[..., None] = exchange) -> None:
            with monkeypatch.context() as patched:
                for name in CUTS[kind]:
                    patched.setattr(name, partialmethod_of(name, counted))
                work(store, *given)

        with monkeypatch.context() as patched:
            patched.setattr(type(made.store()), "exchange", exchanged)
            is_cut = True
            with suppress(Cut):
                rebuild(made.file, "s", client)
                is_cut = False
        check_readers(bench, client, before, after, exchanged=not is_cut)
        with suppress(SinkStopped):  # the rows are the old ones, or the rebuild has not ended
            made.run(client)
            made.check(client)
        rebuild(made.file, "s", client)
        made.run(client)
        made.check(client)
        if not is_cut:
            break
    assert cut > 2


def partialmethod_of(name: str, counted: Callable[..., Any]) -> Callable[..., Any]:
    """What stands at the name, counted."""
    work: Callable[..., Any] = pkgutil.resolve_name(name)
    return lambda *given, **more: counted(work, *given, **more)


@pytest.mark.parametrize("bench", [pytest.param(each, marks=MARKS.get(each, ())) for each in STORES], indirect=True)
def test_a_changed_mapping_is_refused_by_a_run(bench: StoreBench, client: SyncClient) -> None:
    """And done by a rebuild; the rejected records are those of the new rows."""
    client.put(b"k/1", b'{"n": 1, "m": "x"}')
    client.put(b"k/2", b'{"n": "x", "m": 2}')
    bench.changed(refused="reject").run(client)
    rejects = rejects_of(bench.file, "s")
    assert [each.key for each in rejects.read()] == ["k/2"]
    made = bench.changed(refused="reject", columns={"id": "suffix", "m": "value.m:bigint"})
    with pytest.raises(SinkStopped, match="raftlog sink rebuild s fills it again"):
        made.run(client)
    assert rebuild(made.file, "s", client).progress.rows == 1
    assert [each.key for each in rejects.read()] == ["k/1"]
    (kept,) = made.rows(made.sink.identity("s", client.status().log)).values()
    assert (kept[0], int(kept[1])) == ("2", 2)
    good = made.changed(columns={"id": "suffix", "text": "value.m:string"})
    rebuild(good.file, "s", client)
    assert rejects.read() == []
    assert not [*bench.folder.glob("*.rebuild*")]


@pytest.mark.parametrize("bench", ["webhook"], indirect=True)
def test_a_webhook_has_nothing_to_rebuild(bench: StoreBench, client: SyncClient) -> None:
    """It says what to do instead."""
    with pytest.raises(StoreError, match="the store of s has no rows to rebuild: raftlog sink drop s --yes and"):
        rebuild(bench.file, "s", client)
