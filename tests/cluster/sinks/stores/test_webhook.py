"""A webhook as the store of a sink: the server of the test gives the answers that a test sets, or none."""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress

import pytest

from raftlog import NewRecord
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.runner import SinkStep, SinkStopped
from raftlog.cluster.sinks.sinks import rejects_of, wait
from raftlog.cluster.sinks.store import StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.webhook import WebhookStore
from tests.cluster.fake_node import LOG_ID
from tests.cluster.importer.jobs import Killed
from tests.cluster.sinks.stores.kit import FULL, KINDS, SINK, StoreBench, gone, put, unchanged
from tests.cluster.sinks.test_runner import COLUMNS, AtStep, die, expected
from tests.cluster.sinks.webhook_service import SECRET, Service
from tests.support import free_ports

pytestmark = pytest.mark.usefixtures("_small")

STORE = "webhook"


def check(bench: StoreBench, client: SyncClient, service: Service) -> None:
    """The service knows the rows of the cluster, each request is signed, and no index went back but for a
    repetition."""
    assert service.rows == {key: dict(zip(COLUMNS, row, strict=True)) for (key,), row in expected(client).items()}
    bodies: dict[str, bytes] = {}
    for request in service.requests:
        assert bodies.setdefault(request.key, request.body) == request.body
        digest = hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
        assert request.signature == f"sha256={digest}"
    sent = [json.loads(body) for body in bodies.values()]
    indexes = [each["index"] for one in sent for each in (one if isinstance(one, list) else [one])]
    assert indexes == sorted(indexes)


def captured(transaction: int, op: str, after: object) -> NewRecord:
    """A change of the table `t` that an import of PostgreSQL wrote."""
    value = {"op": op, "table": "t", "lsn": f"0/{transaction}", "xid": transaction, "before": None, "after": after}
    return NewRecord(json.dumps(value | {"last": True}, separators=(",", ":")).encode())


def fill(client: SyncClient, count: int) -> None:
    """Puts of a few keys, and a delete."""
    for number in range(count):
        client.put(b"k/%d" % (number % 9), b'{"n": %d}' % number)
    client.delete(b"k/3")


@pytest.mark.parametrize("batch", [1, 3])
def test_each_change_is_told_once_and_in_order(
    batch: int, bench: StoreBench, client: SyncClient, service: Service
) -> None:
    """While nothing fails."""
    fill(client, 20)
    bench = bench.changed(batch=batch)
    bench.run(client)
    check(bench, client, service)
    keys = [request.key for request in service.requests]
    assert len(keys) == len({*keys})
    assert all(key.startswith(f"{LOG_ID}-") for key in keys)
    newest = service.requests[-1].told
    assert (newest[-1] if batch > 1 else newest) == {
        "index": client.log_page(NUMBER_MAX, limit=1).last_user_index,
        "key": {"id": "3"},
        "row": None,
        "truncated": False,
    }
    before = len(keys)
    bench.run(client)
    assert len(service.requests) == before


def test_a_lost_answer_repeats_the_request_with_its_key(
    bench: StoreBench, client: SyncClient, service: Service
) -> None:
    """On a new connection at once, and if that fails too, from the position."""
    fill(client, 6)
    service.answers = [204, 0, 0, 0, 204, 204, 0]
    bench.run(client)
    check(bench, client, service)
    keys = [request.key for request in service.requests]
    assert keys[1] == keys[2] == keys[3] == keys[4]
    assert len(keys) == len({*keys}) + 4
    assert any("the webhook does not answer" in each for each in bench.said)


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_passes_is_sent_again(status: int, bench: StoreBench, client: SyncClient, service: Service) -> None:
    """The requests of the same batch that were answered are not."""
    fill(client, 7)
    service.answers = [204, 204, status, 204, status, status]
    bench.run(client)
    check(bench, client, service)
    keys = [request.key for request in service.requests]
    assert len(keys) == len({*keys}) + 3
    assert any(f"the webhook answers {status}: because of the test" in each for each in bench.said)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_refused_change_stops_the_sink_or_is_rejected(
    batch: int, bench: StoreBench, client: SyncClient, service: Service
) -> None:
    """With the service's reason; in a request of many the guilty one is found."""
    fill(client, 7)
    service.refused = {"2"}
    with pytest.raises(SinkStopped, match=r"index \d+, key 2: the webhook answers 400: because of the test") as stopped:
        bench.changed(batch=batch).run(client)
    assert len(str(stopped.value)) < 500
    bench = bench.changed(batch=batch, refused="reject")
    run = bench.run(client)
    assert run.progress.rejected == 1
    (kept,) = rejects_of(bench.file, "s").read()
    assert (kept.key, kept.reason[:26]) == ("2", "the webhook answers 400: b")
    taken = [request for request in service.requests if b'"id":"2"' not in request.body]
    service.requests = taken
    client.delete(b"k/2")
    bench.run(client)
    assert set(service.rows) == {"0", "1", "4", "5", "6"}


@pytest.mark.parametrize("status", [401, 403, 404, 301])
def test_a_wrong_secret_or_url_stops_the_sink(
    status: int, bench: StoreBench, client: SyncClient, service: Service
) -> None:
    """It rejects no change: the next one would fare the same."""
    fill(client, 1)
    service.answers = [status]
    with pytest.raises(SinkStopped, match=f"s: the webhook answers {status}.*look at its url and secret"):
        bench.changed(refused="reject").run(client)


@pytest.mark.parametrize("step", [SinkStep.CLAIMED, SinkStep.OPENED, SinkStep.MAPPED, SinkStep.WRITTEN])
@pytest.mark.parametrize("start", ["oldest", "state"])
def test_a_killed_runner_goes_on_at_its_position(
    step: SinkStep, start: str, bench: StoreBench, client: SyncClient, service: Service
) -> None:
    """The requests of a batch that was not finished come again, with the same keys."""
    fill(client, 30)
    bench = bench.changed(start=start)
    at = AtStep(step, die, 1, 3)
    for _ in range(3):
        with suppress(Killed):
            bench.made(client, at).run(once=True)
    fill(client, 10)
    bench.run(client)
    assert set(service.rows) == {item.key.decode()[2:] for item in client.range(prefix=b"k/")}
    if start == "oldest":
        check(bench, client, service)


def test_a_runner_that_is_killed_within_a_batch_repeats_its_requests(
    bench: StoreBench, client: SyncClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position is written after the answers."""
    fill(client, 6)
    monkeypatch.setattr(service, "answers", [204, 204, 204])
    write = WebhookStore._keep
    answered = 0

    def killed(store: WebhookStore, position: StorePosition | None) -> None:
        nonlocal answered
        if service.requests and not answered:
            answered = len(service.requests)
            raise Killed
        write(store, position)

    monkeypatch.setattr(WebhookStore, "_keep", killed)
    with pytest.raises(Killed):
        bench.run(client)
    bench.run(client)
    check(bench, client, service)
    keys = [request.key for request in service.requests]
    assert answered > 0
    assert keys[:answered] == keys[answered : 2 * answered]


def test_it_cannot_be_read_back_and_says_where_it_is(bench: StoreBench, client: SyncClient, service: Service) -> None:
    """Waiting works, comparing does not."""
    fill(client, 5)
    bench.run(client)
    end = client.put(b"k/1", b'{"n": 1}').index
    bench.run(client)
    assert wait(bench.file, "s", client, end).next == end + 1
    with pytest.raises(StoreError, match="a webhook cannot be read back, so there is nothing to compare"):
        bench.verified(client)
    store, sink = bench.store(), bench.sink.identity("s", LOG_ID)
    store.drop(sink)
    with pytest.raises(StoreError, match="has nothing yet after 0 s"):
        wait(bench.file, "s", client, end, timeout_s=0)
    assert store.open(sink, 10**6) is None


def test_a_truncate_is_told_before_what_follows(bench: StoreBench, client: SyncClient, service: Service) -> None:
    """As an object without key and row."""
    made = bench.changed(**{"from": {"table": "t"}, "columns": {"id": "value.id", "n": "value.n"}})
    client.append_many([captured(1, "insert", {"id": 1, "n": 1}), captured(2, "truncate", None)])
    client.append_many([captured(3, "insert", {"id": 2, "n": 2})])
    made.run(client)
    truncated, put = [request.told for request in service.requests][-2:]
    assert (truncated["key"], truncated["row"], truncated["truncated"]) == (None, None, True)
    assert truncated["index"] <= put["index"]
    assert [*service.rows.values()] == [{"id": 2, "n": 2}]


def test_each_object_has_index_key_and_row(bench: StoreBench, service: Service) -> None:
    """In JSON, bytes as base64; columns that a change does not know are left out."""
    made = bench.changed(columns=KINDS)
    store = made.store()
    store.open(SINK, 1)
    store.write(RowChanges((RowChange(1, ("a",), FULL), gone(2, "b"))), None, StorePosition(3))
    store.close()
    assert service.requests[0].told == {
        "index": 1,
        "key": {"id": "a"},
        "row": {
            "id": "a",
            "text": "x",
            "small": 1,
            "large": 2,
            "real": 0.5,
            "exact": 1.0,
            "flag": True,
            "day": "2020-02-29",
            "at": "2023-11-14T22:13:20.123456+00:00",
            "raw": "/wAnXA==",
            "tree": {"a": [1, {"b": None}], "c": "ü"},
            "any": "x",
        },
        "truncated": False,
    }
    assert b'"exact":1.0000000000,' in service.requests[0].body
    store = bench.store()
    store.open(SINK._replace(name="t"), 1)
    store.write(RowChanges((unchanged(1, "a"),)), None, StorePosition(2))
    store.close()
    assert service.requests[2].told["row"] == {"id": "a", "version": 1}


def test_a_damaged_file_and_a_missing_service(bench: StoreBench) -> None:
    """The one stops the sink, the other is tried again."""
    file = bench.folder / "s.position"
    file.write_text("{")
    with pytest.raises(StoreError, match=r"s\.position cannot be read"):
        bench.store().open(SINK, 1)
    file.unlink()
    store = bench.changed(url=f"http://127.0.0.1:{free_ports(1)[0]}").store()
    store.open(SINK, 1)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
