"""Redis as the store of a sink: a real server, killed, restored and shared."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.mapping import RowMapping, SinkSource
from raftlog.cluster.sinks.runner import SinkStep, SinkStopped
from raftlog.cluster.sinks.settings import RedisSettings
from raftlog.cluster.sinks.store import RowsRefused, StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.redis import RedisStore
from tests.cluster.sinks.redis_server import RedisServer, redis_served
from tests.cluster.sinks.stores.kit import SINK, StoreBench, expired, put, small
from tests.cluster.sinks.test_runner import AtStep, fill, running
from tests.support import free_port, restarted, wait_until

pytestmark = pytest.mark.serial

STORE = "redis"
FREE = {
    "from": {"keys": "k/", "values": "json"},
    "columns": {"id": "suffix", "n": "value.n:bigint", "any": "value.any"},
}
"""A sink with a column without a type."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, and no pauses."""
    small(monkeypatch)
    monkeypatch.setattr("raftlog.cluster.sinks.stores.redis._PAGE_KEYS", 3)


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """The server, empty."""
    return redis_server


def free(server: RedisServer, folder: Path, **more: object) -> StoreBench:
    """A sink with a column without a type."""
    if more.get("keep") == "string":
        more = {"columns": {"id": "suffix", "any": "value.any"}} | more
    return StoreBench(RedisSettings, folder, **(FREE | {"url": server.url, "key": "k:{id}"} | more))


def check(bench: StoreBench, client: SyncClient, server: RedisServer) -> None:
    """The store equals the log, and has no other key of the template."""
    bench.check(client)
    with server.client() as connected:
        assert len([*connected.scan_iter("k:*")]) == len([*client.range(prefix=b"k/")])


VALUES: list[object] = ["x", None, 1.50, 0, True, {"b": [1.10, None], "a": "ü"}, "1.50", "", [], 10**18, 1e-7, "null"]
"""What an untyped column may have."""


def value(number: int) -> bytes:
    """The value of a key, for `fill`."""
    return json.dumps({"n": number, "any": VALUES[number % len(VALUES)] or "x"}).encode()


@pytest.mark.parametrize("keep", ["hash", "json", "string"])
def test_the_rows_are_as_the_settings_say(keep: str, client: SyncClient, server: RedisServer, tmp_path: Path) -> None:
    """And every untyped value comes back equal."""
    for number, value in enumerate(VALUES):
        if value is not None or keep != "string":
            client.put(b"k/%d" % number, json.dumps({"n": number, "any": value}).encode())
    client.put(b"k/5", b'{"n": 5, "any": {"deep": 0.12345678901234567890123456789012345}}')
    bench = free(server, tmp_path, keep=keep)
    bench.run(client)
    check(bench, client, server)
    assert bench.said == []
    with server.client() as found:
        if keep == "hash":
            assert found.hgetall("k:0") == {"id": "0", "n": "0", "any": "x"}
            assert found.hgetall("k:1") == {"id": "1", "n": "1"}
            assert found.hget("k:2", "any") == "1.5"
            assert found.hget("k:4", "any") == "true"
        elif keep == "json":
            assert found.get("k:1") == '{"id":"1","n":1,"any":null}'
            assert json.loads(found.get("k:5") or "", parse_float=Decimal)["any"] == {
                "deep": Decimal("0.12345678901234567890123456789012345")
            }
        else:
            assert (found.get("k:0"), found.get("k:7")) == ("x", "")


def test_a_server_that_is_killed_at_random_loses_nothing(
    client: SyncClient, server: RedisServer, tmp_path: Path
) -> None:
    """Also while a script runs: the answer is lost, and the position decides."""
    bench = free(server, tmp_path)
    with running(partial(bench.made, client)) as run:
        for seed in range(8):
            fill(client, 15, seed, value)
            restarted(server)
        end = client.put(b"k/end", b'{"n": 1}').index
        wait_until(lambda: run.progress.next_index > end, 20, what="the store to follow")
    assert any("trying again" in each for each in bench.said)
    check(bench, client, server)


def test_a_wrong_password_stops_the_sink(client: SyncClient, server: RedisServer, tmp_path: Path) -> None:
    """And so does a user without a permission, before anything is written. No message has the password."""
    (tmp_path / "url").write_text(server.url.replace("://", "://me:hidden@"))
    bench = free(server, tmp_path, url="@url")
    with pytest.raises(SinkStopped, match="s: Redis refuses the user of the url: invalid username-password") as stopped:
        bench.run(client)
    assert "hidden" not in str(stopped.value)
    client.put(b"k/1", b'{"n": 1}')
    bench = free(server, tmp_path)
    bench.run(client)
    client.put(b"k/1", b'{"n": 2}')
    with server.client() as admin:
        for lacking, keys, message in (
            ("-evalsha", "*", "s: Redis refuses the user of the url: .*evalsha"),
            ("-hset", "*", "s: Redis: The user executing the script can't run this command"),
            ("+hset", "raftlog:*", "s: Redis refuses the user of the url: it may not run UNLINK on k:1"),
        ):
            admin.acl_setuser("me", True, passwords=["+hidden"], categories=["+@all"], commands=[lacking], keys=[keys])
            bench = free(server, tmp_path, url="@url")
            with pytest.raises(SinkStopped, match=message):
                bench.run(client)
            admin.acl_deluser("me")
        assert admin.hget("k:1", "n") == "1"


def test_an_expired_certificate_stops_the_sink(client: SyncClient, tmp_path: Path) -> None:
    """The message names sink and store, and says what to do; the run does not wait."""
    file, port = str(expired(tmp_path)), free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", file, "--tls-key-file", file, "--tls-auth-clients", "no")
    with redis_served(*tls, "--tls-ca-cert-file", file) as server:
        with pytest.raises(SinkStopped, match=r"^s: the certificate of Redis has expired: renew it there, and start"):
            free(server, tmp_path, url=f"rediss://127.0.0.1:{port}?ssl_ca_certs={file}").run(client)


def test_rows_expire_and_are_not_missing(client: SyncClient, server: RedisServer, tmp_path: Path) -> None:
    """The time begins with each write of a row, and the names of expired rows go with the next batch."""
    client.put(b"k/1", b'{"n": 1}')
    bench = free(server, tmp_path, ttl=1)
    bench.run(client)
    with server.client() as found:
        assert 0 < found.pttl("k:1") <= 1_000
        wait_until(lambda: not found.exists("k:1"), 10, what="the row to expire")
        client.put(b"k/2", b'{"n": 2}')
        bench.run(client)
        assert found.zrange("raftlog:sink:s:keys", 0, -1) == ["k:2"]
        verified = bench.verified(client)
        assert (verified.is_same, verified.missing, verified.rows) == (True, 0, 1)
        assert verified.unproven == "rows expire after 1 s, so those that the store lacks were not counted as missing"
        found.hset("k:2", "n", "9")
        assert bench.verified(client).differ == ("2: another row",)


def test_verify_names_rows_that_somebody_changed(client: SyncClient, server: RedisServer, tmp_path: Path) -> None:
    """Also one that is of another kind now."""
    for number in range(7):
        client.put(b"k/%d" % number, b'{"n": %d}' % number)
    bench = free(server, tmp_path)
    bench.run(client)
    with server.client() as found:
        found.hset("k:1", "n", "9")
        found.delete("k:2")
        found.set("k:3", "text")
    verified = bench.verified(client)
    assert (verified.missing, verified.extra, verified.changed) == (1, 0, 2)
    assert sorted(verified.differ) == ["1: another row", "2: missing in the store", "3: another row"]
    client.put(b"k/3", b'{"n": 33}')
    bench.run(client)
    assert bench.verified(client).changed == 1


def test_verify_begins_again_while_rows_change(
    client: SyncClient, server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner waits meanwhile. What another program writes is an error: no row is compared with another moment's."""
    fill(client, 30, value=value)
    bench = free(server, tmp_path)
    bench.run(client)
    read = RedisStore._row
    times = 1

    def disturbed(store: RedisStore, name: bytes, value: object) -> object:
        nonlocal times
        if times:
            times -= 1
            client.put(b"k/new", b'{"n": 1}')
            bench.run(client)
        return read(store, name, value)

    monkeypatch.setattr(RedisStore, "_row", disturbed)
    check(bench, client, server)
    times = 100
    client.put(b"k/1", b'{"n": 5}')
    with pytest.raises(StoreError, match="the rows changed while they were read"):
        bench.verified(client)


def test_a_large_batch_is_one_script(bench: StoreBench, server: RedisServer) -> None:
    """10,000 rows of 4 MiB, and their truncate, which leaves the keys of others."""
    store = bench.store()
    store.open(SINK, 1)
    rows = tuple(put(index, str(index), "n" * 400) for index in range(1, 10_001))
    with server.client() as client:
        client.set("k:own", "mine")
        before = int(client.info("commandstats")["cmdstat_evalsha"]["calls"])
        store.write(RowChanges(rows), None, StorePosition(10_001))
        assert int(client.info("commandstats")["cmdstat_evalsha"]["calls"]) - before <= 2  # the first loads the script
        assert client.dbsize() == 10_004
        store.write(RowChanges((put(10_001, "1"),), truncates=True), StorePosition(10_001), StorePosition(10_002))
        assert sorted(client.keys()) == ["k:1", "k:own", "raftlog:sink:s", "raftlog:sink:s:keys", "raftlog:sinks"]
        store.drop(SINK)
        assert client.keys() == ["k:own"]
    store.close()


def test_a_failed_batch_writes_nothing(bench: StoreBench, server: RedisServer) -> None:
    """Out of memory, it is tried again."""
    store = bench.store()
    store.open(SINK, 1)
    store.write(RowChanges((put(1, "a"),)), None, StorePosition(2))
    with server.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            store.write(RowChanges((put(2, "a"), put(2, "b"))), StorePosition(2), StorePosition(3))
        client.config_set("maxmemory", 0)
    bench.expect(StorePosition(2), ("a", 1, 1))
    store.write(RowChanges((put(2, "a"), put(2, "b"))), StorePosition(2), StorePosition(3))
    bench.expect(StorePosition(3), ("a", 2, 1), ("b", 2, 1))
    store.close()


TWO = RowMapping(SinkSource(records=""), {"a": "value.a", "b": "value.b", "v": "value.v"}, ["a", "b"])


def test_two_rows_never_share_a_key(server: RedisServer) -> None:
    """What would be read back as another key is refused, and so is what belongs to the sinks themselves."""

    def change(index: int, a: object, b: object) -> RowChange:
        return RowChange(index, (a, b), (a, b, "v"))

    store = RedisStore(server.url, "{b}:{a}", TWO, keep="string")
    store.open(SINK, 1)
    store.write(RowChanges((change(1, "x:y", 5), change(2, "", ""), change(3, b"\xff", "ü"))), None, StorePosition(4))
    with store.rows(SINK) as found:
        assert found is not None
        assert sorted(found.rows, key=str) == [("", "", "v"), ("x:y", "5", "v"), (b"\xff", "ü", "v")]
    with pytest.raises(RowsRefused, match=r"key z, x:y: .*text that stands between columns in {b}:{a}; and 1 more"):
        store.write(RowChanges((change(4, "z", "x:y"), change(4, "s", "raftlog"))), StorePosition(4), StorePosition(5))
    with pytest.raises(RowsRefused, match='v is NULL, which keep = "string" has no text for'):
        store.write(RowChanges((RowChange(4, ("a", "b"), ("a", "b", None)),)), StorePosition(4), StorePosition(5))
    store.close()


def test_an_unavailable_server_and_a_wrong_url(bench: StoreBench, server: RedisServer) -> None:
    """The one is tried again, the other is not; no message has the password."""
    with pytest.raises(StoreUnavailable, match="refused"):
        bench.changed(url=f"redis://127.0.0.1:{free_port()}").store().open(SINK, 1)
    for url in ("http://a", "redis://me:hid/den@127.0.0.1", ""):
        with pytest.raises(StoreError, match="url is none of Redis") as refused:
            RedisStore(url, "{a}.{b}", TWO).open(SINK, 1)
        assert not isinstance(refused.value, StoreUnavailable)
        assert "hid" not in str(refused.value)
    store = bench.store()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.write(RowChanges(()), None, StorePosition(1))


def test_what_the_server_does_not_promise_is_said_once(client: SyncClient, tmp_path: Path) -> None:
    """Its disk, and rows that it may evict."""
    with redis_served("--appendfsync", "everysec", "--maxmemory-policy", "allkeys-lru") as server:
        client.put(b"k/1", b'{"n": 1}')
        bench = free(server, tmp_path)
        bench.run(client, AtStep(SinkStep.MAPPED, partial(restarted, server), 1, 2))
        check(bench, client, server)
    assert [each for each in bench.said if "trying again" not in each] == [
        "s: Redis does not write each batch to its disk (appendonly yes, appendfsync always): after a crash rows and "
        "position are those of a moment ago, and the sink goes on from there",
        "s: Redis may evict rows, and the sink's position too: set maxmemory-policy to noeviction, or volatile-ttl",
    ]


def test_redis_cluster_is_refused_by_name() -> None:
    """No script has keys of several nodes."""
    with redis_served("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        with pytest.raises(StoreError, match="this is Redis Cluster") as refused:
            RedisStore(server.url, "{a}.{b}", TWO).open(SINK, 1)
        assert not isinstance(refused.value, StoreUnavailable)


def test_a_server_that_refuses_writes_is_tried_again() -> None:
    """A replica may become the primary again."""
    with redis_served("--replicaof", "127.0.0.1", str(free_port())) as server:
        with pytest.raises(StoreUnavailable):
            RedisStore(server.url, "{a}.{b}", TWO).open(SINK, 1)
