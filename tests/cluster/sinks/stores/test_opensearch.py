"""An index of a real OpenSearch equals the log, never goes backwards, and takes no other sink's rows."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.runtime import clock
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.runner import SinkStep
from raftlog.cluster.sinks.settings import SinkSettingsError
from raftlog.cluster.sinks.store import PositionMoved, RowsRefused, StoreError, StoreFenced, StoreUnavailable
from raftlog.cluster.sinks.stores import bulk, opensearch
from raftlog.cluster.sinks.stores.opensearch import OpenSearchStore
from tests.cluster.sinks.opensearch_server import OpenSearchServer
from tests.cluster.sinks.stores.kit import SINK, StoreBench, put, small, unchanged
from tests.cluster.sinks.test_runner import AtStep, fill

pytestmark = [pytest.mark.serial, pytest.mark.extra]

STORE = "opensearch"


@pytest.fixture
def server(opensearch_server: OpenSearchServer) -> OpenSearchServer:
    """The node."""
    return opensearch_server


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, so that few records make many batches, and short waits."""
    small(monkeypatch, retry_s=0.1)
    monkeypatch.setattr(opensearch, "READ_S", 0.5)
    monkeypatch.setattr(bulk, "PAUSE_MAX_S", 0.05)
    monkeypatch.setattr(bulk, "BULK_BYTES_MAX", 300)


@pytest.fixture
def store(bench: StoreBench) -> Iterator[OpenSearchStore]:
    """An open store of that sink, with the rows a, b and c at position 4."""
    with closing(bench.store()) as store:
        assert isinstance(store, OpenSearchStore)
        assert store.open(SINK, 1) is None
        store.write(RowChanges((put(1, "a"), put(2, "b"), put(3, "c"))), None, StorePosition(4))
        yield store


def held(server: OpenSearchServer, bench: StoreBench) -> dict[str, int]:
    """The column n of each document, whatever the position says."""
    server.ask("POST", f"/{bench.given['index']}/_refresh")
    found = server.ask("GET", f"/{bench.given['index']}/_search?size=100")
    return {hit["_id"]: hit["_source"]["n"] for hit in found["hits"]["hits"]}


class _Cut(OpenSearchStore):
    """Fails when it would move the position after the data of a batch, `times` times."""

    times = 0

    def _move(self, position: StorePosition | None, ahead: int) -> None:
        if position is not None and position.next == ahead and self.times:
            self.times -= 1
            raise StoreUnavailable("the answer was lost")
        super()._move(position, ahead)


def cut(bench: StoreBench) -> _Cut:
    """A store of the same index that loses a move."""
    return _Cut(bench.given["url"], bench.given["index"], bench.sink.mapping())


def test_a_batch_that_comes_twice_changes_nothing(bench: StoreBench, store: OpenSearchStore) -> None:
    """Rows, deletes and a truncate, in other batches than before; meanwhile the store says that it is between two."""
    store.close()
    changes = RowChanges((put(6, "b"), RowChange(7, ("x",), None), put(8, "d")), truncates=True)
    lost = cut(bench)
    lost.open(SINK, 2)
    lost.times = 1
    with pytest.raises(StoreUnavailable, match="the answer was lost"):
        lost.write(changes, StorePosition(4), StorePosition(9))
    lost.close()
    with pytest.raises(
        StoreUnavailable, match="has part of a batch behind index 4: try again; if no raftlog sink run s"
    ):
        bench.rows()
    assert store.open(SINK, 3) == StorePosition(4)
    store.write(RowChanges((put(6, "b"),), truncates=True), StorePosition(4), StorePosition(7))
    with pytest.raises(StoreUnavailable, match="has part of a batch behind index 7"):
        bench.rows()
    store.write(RowChanges((RowChange(7, ("x",), None), put(8, "d"))), StorePosition(7), StorePosition(9))
    assert bench.kept() == {"b": 6, "d": 8}


def test_a_truncate_deletes_what_half_a_batch_wrote_before_it(bench: StoreBench, store: OpenSearchStore) -> None:
    """The batch that comes again ends later than the one that was lost, and no longer has its rows."""
    store.close()
    with closing(cut(bench)) as lost:
        lost.open(SINK, 2)
        lost.times = 1
        with pytest.raises(StoreUnavailable, match="the answer was lost"):
            lost.write(RowChanges((put(5, "before"),)), StorePosition(4), StorePosition(6))
    assert store.open(SINK, 3) == StorePosition(4)
    store.write(RowChanges((put(8, "behind"),), truncates=True), StorePosition(4), StorePosition(9))
    assert bench.kept() == {"behind": 8}


def test_a_runner_that_slept_writes_nothing_and_nothing_goes_backwards(
    bench: StoreBench, server: OpenSearchServer, store: OpenSearchStore
) -> None:
    """It learns before its data that it was taken over; a request that is under way loses against the versions."""
    with closing(bench.store()) as younger:
        assert younger.open(SINK, 2) == StorePosition(4)
        younger.write(RowChanges((put(10, "a"), RowChange(11, ("b",), None))), StorePosition(4), StorePosition(12))
        with pytest.raises(StoreFenced, match="another runner of s has taken over"):
            store.write(RowChanges((put(5, "a"), put(5, "new"))), StorePosition(4), StorePosition(6))
        assert held(server, bench) == {"a": 10, "c": 3}
        store._bulk.send(store._lines(RowChanges((put(5, "a"), put(5, "b"), RowChange(4, ("a",), None)))))
        assert bench.kept() == {"a": 10, "c": 3}


def test_a_late_request_changes_no_index_of_a_rebuild(
    bench: StoreBench, server: OpenSearchServer, store: OpenSearchStore
) -> None:
    """Neither the one that took the place of its own, also not with the same version, nor one that it would make."""
    name = bench.given["index"]
    for rebuild in range(1, 4):
        with closing(store.beside()) as beside:
            position = beside.open(SINK, 0)
            beside.write(RowChanges((put(1, "a", rebuild * 100),)), position, StorePosition(4))
        with closing(bench.store()) as main:
            main.exchange(SINK, rebuild + 1)
        with pytest.raises(StoreUnavailable, match=r"raftlog-.* is not an alias"):
            store._bulk.send(store._lines(RowChanges((put(1, "a"), put(2, "late")))))
        assert held(server, bench) == {"a": rebuild * 100}
        assert [*server.ask("GET", f"/{name}*")] == [f"{name}-{2 - rebuild % 2}"]
        store.close()
        assert store.open(SINK, rebuild + 1) == StorePosition(4)


def test_a_second_beginning_is_seen(bench: StoreBench) -> None:
    """Two runners that both found no position."""
    with closing(bench.store()) as first, closing(bench.store()) as second:
        assert (first.open(SINK, 1), second.open(SINK, 2)) == (None, None)
        second.write(RowChanges(()), None, StorePosition(3))
        with pytest.raises(StoreFenced):
            first.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
        with pytest.raises(PositionMoved, match="the store is at 3, not at its beginning"):
            second.write(RowChanges((put(1, "a"),)), None, StorePosition(2))


def test_a_batch_that_is_too_old_is_not_sent(
    bench: StoreBench, server: OpenSearchServer, store: OpenSearchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have forgotten the version of a document that was deleted meanwhile."""
    read = clock.read
    readings = itertools.count()

    def late() -> Any:
        now = read()
        return now._replace(wall_ms=now.wall_ms + (next(readings) > 0) * 1_800_001)

    monkeypatch.setattr(clock, "read", late)
    with pytest.raises(StoreUnavailable, match=r"a batch for t\d+ is 1800 s old, too old to be sent"):
        store.write(RowChanges((put(5, "a"),)), StorePosition(4), StorePosition(6))
    assert held(server, bench)["a"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"index.gc_deletes": "59m"}, r"index.gc_deletes of t\d+ is 59m, .*: PUT /t\d+/_settings"),
        ({"index.gc_deletes": None}, r"index.gc_deletes of t\d+ is 60s, "),
        ({"index.translog.durability": "async"}, r"index.translog.durability of t\d+ is async, .*: PUT /t"),
    ],
)
def test_settings_that_break_the_promise_are_refused(
    bench: StoreBench, server: OpenSearchServer, store: OpenSearchStore, settings: Any, message: str
) -> None:
    """At each start, with the request that changes the setting."""
    store.close()
    server.ask("PUT", f"/{bench.given['index']}/_settings", settings)
    with pytest.raises(StoreError, match=message):
        store.open(SINK, 2)


def test_an_index_that_went_or_was_made_anew_is_refused(
    bench: StoreBench, server: OpenSearchServer, store: OpenSearchStore
) -> None:
    """The position would be of rows that are not there; after a drop the sink begins again."""
    store.close()
    name = bench.given["index"]
    for act in (lambda: None, lambda: server.ask("PUT", f"/{name}", {"settings": {"index.gc_deletes": "2h"}})):
        server.ask("DELETE", f"/{name}")
        act()
        with pytest.raises(
            StoreError, match=r"is gone, or was deleted and made again, .*: raftlog sink drop s, and begin again"
        ):
            store.open(SINK, 2)
    with pytest.raises(StoreError, match=r"the index t\d+ is of no sink, not of s"):
        store.drop(SINK)
    server.ask("DELETE", f"/{name}")
    store.drop(SINK)
    assert store.open(SINK, 3) is None


def test_another_index_in_the_settings_is_refused(bench: StoreBench, store: OpenSearchStore) -> None:
    """The rows are in the one that the position names; an alias is no index."""
    with closing(bench.changed(index="other").store()) as other:
        with pytest.raises(StoreError, match=r"s has its rows in the index t\d+, not in other"):
            other.open(SINK, 2)
    with pytest.raises(SinkSettingsError, match="index is raftlog-sinks, which has the positions of sinks"):
        bench.changed(index="raftlog-sinks").store()


def test_an_index_of_the_user_is_taken_with_its_mapping(bench: StoreBench, server: OpenSearchServer) -> None:
    """A value that does not fit is refused with index, key and reason, and the position stays."""
    name = bench.given["index"]
    properties = {"id": {"type": "keyword"}, "n": {"type": "byte"}}
    made = {"settings": {"index.gc_deletes": "2h"}, "mappings": {"_meta": {"x": 1}, "properties": properties}}
    server.ask("PUT", f"/{name}", made)
    with closing(bench.store()) as store:
        assert store.open(SINK, 1) is None
        assert server.ask("GET", f"/{name}")[name]["mappings"]["_meta"] == {"x": 1, "raftlog": "s"}
        with pytest.raises(RowsRefused, match=r"index 6, key b: failed to parse field \[n\] .* out of range") as raised:
            store.write(RowChanges((put(5, "a"), put(6, "b", 1000), put(7, "c"))), None, StorePosition(8))
        assert [each.change.key for each in raised.value.refusals] == [("b",)]
        store.write(RowChanges((put(5, "a"), put(7, "c"))), None, StorePosition(8))
        assert bench.kept() == {"a": 5, "c": 7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unchanged(5, "a"), "index 5, key a: the record lacks n, .* REPLICA IDENTITY FULL"),
        (put(5, "x" * 513), "its key has 513 bytes, and an id has at most 512"),
        (put(5, "b", b"\xff"), "n is no UTF-8 text: give it the type binary"),
    ],
)
def test_a_row_over_the_limits_is_refused(
    bench: StoreBench, store: OpenSearchStore, change: RowChange, message: str
) -> None:
    """Before anything of the batch is sent."""
    with pytest.raises(RowsRefused, match=message):
        store.write(RowChanges((put(5, "c"), change)), StorePosition(4), StorePosition(6))
    assert bench.kept() == {"a": 1, "b": 2, "c": 3}


def test_a_server_killed_under_a_run_loses_nothing(
    bench: StoreBench, server: OpenSearchServer, client: SyncClient
) -> None:
    """The run waits for it, and goes on from the position."""
    fill(client, 60)
    for number in range(40):
        client.put(b"k/more-%d" % number, b'{"n": 1}')
    made = bench.changed(start="state")

    def kill() -> None:
        server.kill()
        thread.start()

    thread = threading.Thread(target=server.start)
    try:
        made.run(client, AtStep(SinkStep.WRITTEN, kill, 3))
    finally:
        thread.join()  # it has its own deadline
    assert any("does not answer" in each for each in made.said)
    made.check(client)
