"""The asyncio and the blocking client against the real HTTP layer, and against nodes that misbehave."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raftlog import Client, CompareFailed, NewRecord, NotApplied, OutcomeUnknown, Policy, Record, compare, step
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import SessionExpired, Unavailable
from raftlog.cluster.client.flow import ApiRequest, Response
from raftlog.cluster.client.http1 import ResponseHead
from raftlog.raft.types import EntryKind
from tests.cluster.fake_node import FakeNode, serve
from tests.support import HANG_S, StreamHandler, free_port, streams_served

QUICK = Policy(back_off_first_ms=2, back_off_max_ms=20, attempt_ms=150, grace_ms=50)


@asynccontextmanager
async def listening(handler: StreamHandler) -> AsyncIterator[str]:
    """The URL of a server that does with each connection what the handler does."""
    async with streams_served(handler) as port:
        yield f"http://127.0.0.1:{port}"


async def request_head(reader: asyncio.StreamReader) -> bytes:
    """Reads a request with its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))
    return head


def test_threads_take_turns_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread at a time reads and changes the state that all requests of a client share, and releases it while
    sending. Otherwise the index seen could fall (a thread would not read its own write), or a URL be forgotten twice.

    Guard: `_turn` in cluster/client/blocking/client.py.
    """
    with SyncClient("http://127.0.0.1:1", sessions=False) as client:
        sending: list[bool] = []
        deciding: list[bool] = []

        def send(url: str, data: bytes, timeout_s: float) -> Response:
            sending.append(client._turn.locked())
            return Response(ResponseHead(200, {}), b"")

        monkeypatch.setattr(client._pool, "send", send)
        client.call(ApiRequest("GET", "/", lambda head, body: deciding.append(client._turn.locked())))
    assert (sending, deciding) == ([False], [True])


async def test_every_client_call_works_over_the_real_routes() -> None:
    """Each method of the client does what its name says, bytes come back as bytes, and the token follows."""
    async with serve() as served, Client(served.url) as client:
        first = await client.append(b"\xff\x00", key=b"k/\xfe", headers=[("h", b"\x80")], time_ms=5)
        many = await client.append_many([NewRecord(b"a"), NewRecord(b"", b"k"), NewRecord(None, b"x")])
        assert (many.count, many.first) == (3, many.last - 2)
        written = await client.put(b"a", b"1", if_revision=0)
        with pytest.raises(CompareFailed) as failed:
            await client.put(b"a", b"2", if_revision=0)
        assert failed.value.problem is not None
        assert failed.value.problem.revision == written.revision
        item = await client.get(b"a")
        assert item is not None
        assert (item.value, item.mod, item.version) == (b"1", written.revision, 1)
        assert await client.get(b"..") is None
        await client.put(b"..", b"dots")
        await client.put(b"a//%2F/\xff", b"")
        assert [item.key async for item in client.range()] == [b"..", b"a", b"a//%2F/\xff"]
        assert [item.key async for item in client.range(prefix=b"a")] == [b"a", b"a//%2F/\xff"]
        assert (await client.range_page(prefix=b"a/")).count == 1
        with pytest.raises(ValueError, match="either it, or start and end"):
            await client.range_page(b"a", prefix=b"a")
        page = await client.range_page(limit=1)
        assert (len(page.items), page.count, page.continuation is not None) == (1, 3, True)
        done = await client.txn(
            TxnIn(
                compare=[compare(b"a", "value", "=", b"no"), compare(b"a", "mod", ">", 0)],
                then=[step("put", b"a", b"3")],
                orelse=[step("get", b"a"), step("delete", b"..")],
            )
        )
        assert not done.succeeded
        assert [response.operation for response in done.responses] == ["get", "delete"]
        assert done.responses[0].items[0].value == b"1"
        assert done.responses[1].deleted == 1
        assert (await client.delete(b"a")).deleted == 1
        assert (await client.delete_range(b"", None)).deleted == 1
        records = [record async for record in client.log()]
        assert records[0] == records[0]
        assert isinstance(records[0], Record)
        assert (records[0].index, records[0].key, records[0].value) == (first.first, b"k/\xfe", b"\xff\x00")
        assert records[0].headers == (("h", b"\x80"),)
        assert records[0].client_time_ms == 5
        assert client.session is not None
        assert (records[0].session, records[0].sequence) == (client.session, 1)
        assert client.index >= done.index
        receipt = await client.receipt(client.session, 1)
        assert receipt.first == first.first or receipt.state == "settled"
        digest = await client.digest()
        assert digest.index == client.index
        assert (await client.status()).log == digest.log == (await client.members()).log == (await client.cluster()).log


async def test_follow_and_watch_give_each_change_once() -> None:
    """A following reader gets the records appended after it began; a watch gets all changes of an index as one
    event.
    """
    async with serve() as served, Client(served.url) as client:
        await client.put(b"p/1", b"old")
        appended = await client.append(b"one")
        seen: list[Record] = []
        async for told in client.log(appended.first, follow=True):
            assert isinstance(told, Record)
            seen.append(told)
            if len(seen) == 1:
                await client.append(b"two")
            if len(seen) == 2:
                break
        assert [record.value for record in seen] == [b"one", b"two"]
        events = client.watch(prefix=b"p/", from_index=1)
        assert [(change.key, change.value) for change in (await anext(events)).changes] == [(b"p/1", b"old")]  # type: ignore[union-attr]
        await client.txn(TxnIn(then=[step("put", b"p/2", b"x"), step("delete", b"p/1"), step("put", b"q", b"y")]))
        event = await anext(events)
        assert {(change.key, change.deleted) for change in event.changes} == {(b"p/1", True), (b"p/2", False)}  # type: ignore[union-attr]
        await events.aclose()


async def test_blocking_client_does_the_same() -> None:
    """The blocking shell over the same requests and decisions, from two threads at once."""
    async with serve() as served:

        def work() -> None:
            with SyncClient(served.url) as client:
                appended = client.append_many([NewRecord(b"a"), NewRecord(b"b")])
                other = threading.Thread(target=client.put, args=(b"t", b"thread"))
                other.start()
                client.put(b"k", b"v")
                other.join()
                assert {item.key for item in client.range()} == {b"k", b"t"}
                assert [item.key for item in client.range(prefix=b"k")] == [b"k"]
                assert client.range_page(prefix=b"", limit=1).count == 2
                with pytest.raises(ValueError, match="either it, or start and end"):
                    list(client.range(end=b"z", prefix=b"k"))
                assert [record.value for record in client.log(appended.first)][:2] == [b"a", b"b"]
                chunks = list(client.log_raw(1, appended.last + 1))
                assert chunks[0].header.first == 1
                assert chunks[-1].header.next > appended.last
                event = next(iter(client.watch(from_index=1)))
                assert event.changes[0].key in (b"k", b"t")
                with pytest.raises(CompareFailed):
                    client.delete(b"k", if_revision=1)

        await asyncio.to_thread(work)


async def test_plain_write_whose_answer_is_lost_is_unknown_and_sent_once() -> None:
    """Without a session the client does not send again what may have happened; PUT no more than POST."""
    requests_seen: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests_seen.append(await request_head(reader))
        writer.close()

    async with listening(silent) as url, Client(url, sessions=False, policy=QUICK) as client:
        with pytest.raises(OutcomeUnknown):
            await client.put(b"a", b"1")
        with pytest.raises(OutcomeUnknown):
            await client.append(b"1")
    assert len(requests_seen) == 2


@pytest.mark.parametrize(
    "request_of",
    [
        partial(requests.trim, 4),
        partial(requests.compact, 4),
        partial(requests.void, 3, 1),
        partial(requests.close_session, 3),
    ],
)
async def test_a_change_that_is_repeated_without_a_session_is_unknown_once_its_answer_was_lost(
    request_of: Callable[[], ApiRequest[object]],
) -> None:
    """A repetition changes nothing more, so the client sends it again. The lost one may have been carried out."""
    requests_seen: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests_seen.append(await request_head(reader))
        writer.close()

    async with listening(silent) as url, Client(url, deadline_s=0.1, policy=QUICK) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call(request_of())
    assert len(requests_seen) > 1


async def test_an_unreachable_cluster_is_named_by_url() -> None:
    """No server listens: not applied, and the message names every URL."""
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with Client(urls, deadline_s=0.2, policy=QUICK) as client:
        with pytest.raises(Unavailable) as failed:
            await client.put(b"a", b"1")
        assert set(failed.value.tried) == set(urls)
        assert all(url in str(failed.value) for url in urls)
        assert "connection refused" in str(failed.value)


async def test_silent_node_is_left_for_the_next() -> None:
    """A node that accepts and says nothing (SIGSTOP) costs one attempt's time, then another node answers."""

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(mute) as quiet, serve() as served, Client([quiet, served.url], policy=QUICK) as client:
        client.state.routes.preferred = quiet
        assert (await client.put(b"a", b"1")).outcome == "applied"


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 502 Bad\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
    ],
)
async def test_an_answer_of_another_program_is_an_unknown_outcome(answer: bytes) -> None:
    """After an answer of another program a write's outcome is unknown, and the error shows the answer."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_head(reader)
        writer.write(answer)
        writer.close()

    async with listening(other) as url, Client(url, sessions=False, policy=QUICK) as client:
        with pytest.raises(OutcomeUnknown):
            await client.append(b"1")


async def test_leader_hint_is_followed() -> None:
    """A node without room for the write names the leader; the client goes there at once and stays."""
    async with serve() as leader:
        follower_node = FakeNode()
        async with serve(follower_node) as follower, Client(follower.url) as client:
            hint = LeaderHint(2, leader.url)
            follower_node.refusal = ApiError(Code.NO_LEADER, "not I", leader=hint)
            follower_node.leader = hint
            await client.put(b"a", b"1")
            assert client.state.routes.leader == leader.url


async def test_expired_session_is_replaced_for_later_writes() -> None:
    """The session ran out: the write that meets this ends unknown and is not sent again, for a copy of it may have been
    applied; the next write opens another session."""
    node = FakeNode()
    async with serve(node) as served, Client(served.url, session_ttl_ms=1_000) as client:
        await client.append(b"one")
        old = client.session
        node.clock_ms += 60_000
        with pytest.raises(SessionExpired) as lost:
            await client.append(b"lost")
        assert (lost.value.session, lost.value.outcome) == (old, "unknown")
        appended = await client.append(b"two")
        assert client.session not in (None, old)
        assert appended.result == "applied"
        assert [record.value async for record in client.log() if isinstance(record, Record)] == [b"one", b"two"]


async def test_cancelled_write_keeps_its_sequence_open() -> None:
    """No caller waits for it any more, but it may yet be applied: it is not counted as settled."""
    node = FakeNode()
    async with serve(node) as served, Client(served.url, batch_records_max=1) as client:
        await client.append(b"one")
        assert client._carrier.session is not None
        book = client._carrier.session.book
        assert book is not None
        node.held = asyncio.Event()
        task = asyncio.create_task(client.append(b"two"))
        while book.next < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        node.held.set()
        node.held = None
        await client.append(b"three")
        assert client._carrier.session.book is book
        assert (book.settled, book.given_up) == (2, {2})


async def test_stream_goes_on_where_it_broke_off() -> None:
    """A stream cut in the middle of a line is opened again at the next record: nothing twice, nothing missing."""
    async with serve() as served:

        async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", served.port)
            with closing(inner_writer):
                inner_writer.write(await reader.read(65_536))
                writer.write(await inner_reader.read(900))
                await writer.drain()

        async with (
            Client(served.url) as direct,
            listening(cutting) as url,
            Client(url, bound=True, policy=QUICK) as client,
        ):
            last = (await direct.append_many([NewRecord(b"%d" % number) for number in range(30)])).last
            told = [record.value async for record in client.log(to=last + 1) if isinstance(record, Record)]
            assert told == [b"%d" % number for number in range(30)]


async def test_pitfall_39_a_stale_read_is_not_older_than_the_index_seen() -> None:
    """The client moves to a node that lags: it waits or fails, and never shows the past. Guard: `may_be_late`
    of the request."""
    node = FakeNode()
    patient = replace(QUICK, grace_ms=int(HANG_S * 1_000))  # the node's own refusal arrives, however late
    async with serve(node) as served, Client(served.url, policy=patient, deadline_s=2) as client:
        await client.put(b"a", b"1")
        assert await client.get(b"a", consistency="stale") is not None
        client.state.index = node.applied + 1  # as another node answered
        with pytest.raises(ApiError, match="future_index"):
            await client.get(b"a", consistency="stale")
        node.append(EntryKind.NOOP, b"", 1)
        assert await client.get(b"a", consistency="stale") is not None


async def test_compacted_position_is_an_error_not_a_gap() -> None:
    """Asking for a revision that is gone raises, whatever the reader (pitfall 80: changes lost at the edge of a
    compaction)."""
    async with serve() as served, Client(served.url) as client:
        for number in range(3):
            await client.put(b"a", b"%d" % number)
        await client.compact(3)
        with pytest.raises(ApiError) as failed:
            await client.get(b"a", at=2)
        assert failed.value.code is Code.COMPACTED


def test_requests_name_bytes_as_they_are() -> None:
    """Keys that look like paths, or are no text, are in the target byte by byte."""
    targets: dict[bytes, str] = {
        b"a/b": "/v1/kv/a%2Fb",
        b"..": "/v1/kv/%2E%2E",
        b".": "/v1/kv/%2E",
        b"\xff": "/v1/kv/%FF",
        b"%2F": "/v1/kv/%252F",
    }
    for key, target in targets.items():
        assert requests.get(key).target == target
    with pytest.raises(ValueError, match="end is empty"):
        requests.delete_range(b"a", b"")
    assert requests.delete_range(b"\xff", None).target == "/v1/kv?start_b64=%2Fw%3D%3D"
    with pytest.raises(ValueError, match="at least one byte"):
        requests.get(b"")
    with pytest.raises(ValueError, match="at least one record"):
        requests.append([])


@pytest.mark.parametrize(("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"", None)])
def test_prefix_ends_before_the_next_key(prefix: bytes, end: Any) -> None:
    """The end of a prefix is the first key that does not begin with it."""
    assert requests.prefix_end(prefix) == end


async def test_a_client_means_the_log_that_answered_it_first() -> None:
    """When a restored cluster replaces the old one under the same addresses, an earlier client gets an error. It is not
    served a namesake's keys and sequences; a new client is served.
    """
    node = FakeNode()
    async with serve(node) as served:
        async with Client(served.url, deadline_s=5, sessions=False) as client:
            assert (await client.put(b"k", b"v")).index
            node.log_id = "ff" * 16
            for call in (client.put(b"k", b"v"), client.get(b"k")):
                with pytest.raises(NotApplied, match=f"this is log {'ff' * 16}") as refused:
                    await call
                assert refused.value.code is Code.FOREIGN_LOG
        with SyncClient(served.url, deadline_s=5, sessions=False) as blocking:
            assert (await asyncio.to_thread(blocking.put, b"k", b"v")).index
            node.log_id = "ee" * 16
            with pytest.raises(NotApplied, match=f"this is log {'ee' * 16}"):
                await asyncio.to_thread(blocking.get, b"k")
