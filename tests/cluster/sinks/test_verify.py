"""`sink verify`: by the cluster's own digest, by the log, and while the runner goes on writing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import StorePosition
from raftlog.cluster.sinks.runner import VERIFIER
from raftlog.cluster.sinks.store import PositionMoved, SinkIdentity, StoredRows, StoreUnavailable
from raftlog.cluster.sinks.verify import verify
from tests.cluster.sinks.model_store import ModelServer, ModelStore
from tests.cluster.sinks.test_runner import Bench, expected, fill, running
from tests.support import wait_until

WHOLE = {"key": "key", "value": "value", "created": "create", "changed": "revision", "version": "version"}


def test_a_store_of_whole_keys_is_compared_with_the_digest_of_the_cluster(client: SyncClient, tmp_path: Path) -> None:
    """Nothing is read from the log. A changed value, a missing key and one too many are found, by their rows."""
    bench = Bench(client, tmp_path, columns=WHOLE, primary_key=["key"], **{"from": {"keys": ""}})
    fill(client, 40)
    client.put(b"\xff\x00", b"\xfe")
    bench.run()
    store = ModelStore(bench.store)
    found = verify("s", bench.sink, store, client)
    assert (found.by, found.is_same, found.rows) == ("digest", True, len(bench.rows))
    rows = bench.rows
    (first, *_, last) = [key for key in rows if key != (b"\xff\x00",)]
    changed = rows[first]
    rows[first] = (changed[0], "other", *changed[2:])
    rows[("more",)] = ("more", "x", 1, 1, 1)
    del rows[last]
    found = verify("s", bench.sink, store, client)
    assert (found.by, found.missing, found.extra, found.changed) == ("rows", 1, 1, 1)


def test_a_sink_of_puts_alone_is_compared_with_the_log(client: SyncClient, tmp_path: Path) -> None:
    """It keeps the rows of deleted keys, which the state of the cluster does not have."""
    bench = Bench(client, tmp_path, **{"from": {"keys": "k/", "operations": ["put"]}})
    client.put(b"k/a", b'{"n": 1}')
    client.delete(b"k/a")
    client.put(b"k/b", b'{"n": 2}')
    bench.run()
    assert {key: row[1] for key, row in bench.rows.items()} == {("a",): 1, ("b",): 2}
    bench.check()
    del bench.rows[("a",)]
    assert verify("s", bench.sink, ModelStore(bench.store), client).missing == 1


class _BusyStore(ModelStore):
    """A store without snapshots: each read of a store that is written to meanwhile fails."""

    def __init__(self, server: ModelServer, between: threading.Event) -> None:
        super().__init__(server)
        self._between = between

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        before = self._server.kept
        assert before.position is not None
        position, rows = before.position, [*before.rows.values()]

        def read() -> Iterator[tuple[object, ...]]:
            yield from rows
            if not self._between.is_set():
                self._between.set()
                raise PositionMoved("the rows changed")

        yield StoredRows(position, read())


def test_a_runner_waits_while_a_busy_store_is_compared(client: SyncClient, tmp_path: Path) -> None:
    """The comparison claims the sink, and gives it back: the runner goes on by itself."""
    bench = Bench(client, tmp_path)
    fill(client, 20)
    with running(bench.made):
        wait_until(lambda: bench.rows == expected(client), 20, what="the store to follow")
        found = verify("s", bench.sink, _BusyStore(bench.store, threading.Event()), client)
        assert found.is_same, found
        fill(client, 20, seed=2)
        wait_until(lambda: bench.rows == expected(client), 20, what="the runner to go on")
        assert client.consumer("sink/s").status().owner != VERIFIER


class _LeavingStore(_BusyStore):
    """A busy store whose server goes away at one of the calls."""

    def __init__(self, server: ModelServer, last: int) -> None:
        super().__init__(server, threading.Event())
        self._left = last

    def _call(self) -> None:
        self._left -= 1
        if not self._left:
            raise StoreUnavailable("gone")

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        self._call()
        return super().open(sink, generation)

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        self._call()
        with super().rows(sink) as found:
            yield found

    def close(self) -> None:
        self._call()


def test_a_comparison_that_ends_at_any_step_gives_the_sink_back(client: SyncClient, tmp_path: Path) -> None:
    """Else the runner waits for a comparison that is over."""
    bench = Bench(client, tmp_path)
    fill(client, 20)
    bench.run()
    for last in itertools.count(1):
        try:
            assert verify("s", bench.sink, _LeavingStore(bench.store, last), client).is_same
        except StoreUnavailable:
            assert client.consumer("sink/s").status().owner != VERIFIER, last
        else:
            break
    assert last > 4


def test_a_store_at_any_position_is_compared_with_the_log_up_to_there(client: SyncClient, tmp_path: Path) -> None:
    """What came later is no difference."""
    bench = Bench(client, tmp_path)
    fill(client, 12)
    for until in range(1, client.status().committed + 1):
        bench.run(until=until)
        bench.check()
