"""Streams over the wire: follow and watch begin, catch up, go live, resume and end without a gap or a repetition."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from raftlog.cluster.api.errors import Code
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation, Txn, TxnOperation
from raftlog.statemachine.txn import encode_txn
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.http_probe import Stream, ask, get, open_stream
from tests.support import wait_until_async


async def idle(served: Served) -> None:
    """Until some reader waits for what comes next."""
    await wait_until_async(lambda: served.node.applied_more._waiters, what="a reader waits for the next entry")


# -- follow -------------------------------------------------------------------------------------------------------


async def test_ndjson_without_follow_ends_with_a_progress_line(served: Served) -> None:
    """The stream goes to the end of the log, however long, and its last line has `next`."""
    for number in range(2500):
        served.node.add(b"%d" % number)
    *lines, last = (await ask(served.port, "GET", "/v1/log?from=3&format=ndjson")).lines()
    assert [line["value"] for line in lines] == [str(number) for number in range(2500)]
    assert "operation" not in last
    assert (last["next"], last["committed"], last["last_user_index"]) == (2503, 2502, 2502)


async def test_follow_continues_with_new_records(served: Served) -> None:
    """Catch-up and live are one stream: every record once, in order, up to `limit` scanned."""
    served.node.add(b"before")
    async with open_stream(served.port, get("/v1/log?from=3&format=ndjson&follow=true&limit=3")) as stream:
        assert (await stream.json())["value"] == "before"
        for value in (b"live", b"last"):
            await idle(served)
            served.node.add(value)
            assert (await stream.json())["value"] == value.decode()
        assert (await stream.json())["next"] == 6
        assert await stream.json() is None


async def test_follow_raw_sends_chunks_and_marks() -> None:
    """A raw follow stream sends entries as they come, and while it is idle chunks without rows."""
    async with serve(progress_ms=20) as served:
        async with open_stream(served.port, get("/v1/log?from=2&format=raw&follow=true")) as stream:
            await stream.head()
            header, mark = (await stream.raw()).header, (await stream.raw()).header
            assert (header.first, header.next) == (2, 3)
            assert (mark.rows, mark.next) == (0, 3)


async def test_idle_stream_says_how_far_it_is() -> None:
    """A stream without records still sends progress marks, and its `next` passes over what it does not show."""
    async with serve(progress_ms=20) as served:
        async with open_stream(served.port, get("/v1/log?from=3&format=ndjson&follow=true")) as stream:
            assert (await stream.json())["next"] == 3
            served.node.submit_now((encode_block([BlockRecord(Operation.SESSION_OPEN, argument=5000)]), 1))
            line = await stream.json()
            while line["next"] == 3:
                line = await stream.json()
            assert line["next"] == 4
            assert "operation" not in line


async def test_slow_reader_is_closed_with_its_next() -> None:
    """A reader that takes nothing is cut off; the sent part is whole, and its last line says where to go on."""
    async with serve(stream_stall_ms=100) as served:
        for _ in range(60):
            served.node.add(b"x" * 500_000)
        async with open_stream(served.port, get("/v1/log?from=3&format=ndjson")) as stream:
            await wait_until_async(lambda: served.node.metrics.text().count(b'seconds_count{route="/v1/log"}'))
            lines: list[Any] = []
            while line := await stream.message():
                lines.append(json.loads(line))
            *found, last = lines
            assert last["problem"]["code"] == "busy"
            assert "stream_stall_ms" in last["problem"]["message"]
            assert [record["index"] for record in found] == [*range(3, last["next"])]
            assert last["problem"]["next"] == last["next"] < 63


async def test_streams_are_bounded_in_number() -> None:
    """One more stream than allowed is refused as busy at once, and a closed one makes room."""
    async with serve(watchers_max=1, progress_ms=20) as served:
        async with open_stream(served.port, get("/v1/watch")) as stream:
            await stream.message(b"\n\n")
            problem = (await ask(served.port, "GET", "/v1/log?format=ndjson&follow=true")).problem()
            assert (problem.code, problem.retryable) == (Code.BUSY, True)
            assert "watchers_max" in problem.message

        async def is_free() -> bool:
            return (await ask(served.port, "GET", "/v1/log?format=ndjson")).status == 200

        await wait_until_async(is_free)


async def test_stop_ends_streams_and_long_polls() -> None:
    """A clean stop: streams end with a problem and their `next`, long polls with a problem, the rest is refused."""
    async with serve() as served:
        async with (
            open_stream(served.port, get("/v1/log?from=3&format=ndjson&follow=true")) as follow,
            open_stream(served.port, get("/v1/watch?format=ndjson")) as watch,
            open_stream(served.port, get("/v1/log?from=3&wait=60000")) as poll,
        ):
            await follow.head()
            assert await watch.json() == {"progress": 2}
            await wait_until_async(lambda: len(served.node.applied_more._waiters) == 3)
            closing = asyncio.create_task(served.stop())
            assert (await follow.json())["problem"]["code"] == "shutting_down"
            assert (await watch.json())["problem"]["next"] == 3
            assert (await poll.reply()).problem().code is Code.SHUTTING_DOWN
            await closing


# -- watch --------------------------------------------------------------------------------------------------------


async def test_watch_shows_changes_with_keys_values_and_numbers(served: Served) -> None:
    """Put, overwrite and delete: key and value come from the command, the numbers from the ledger."""
    served.node.put(b"k", b"1")
    served.node.put(b"k", b"\xff")
    served.node.submit_now((encode_block([BlockRecord(Operation.DELETE, b"k")]), 1))
    async with open_stream(served.port, get("/v1/watch?from=1&format=ndjson")) as stream:
        assert await stream.json() == {"progress": 0}
        first, second, third = [await stream.json() for _ in range(3)]
    assert (first["index"], first["term"], first["revision"]) == (3, 1, 2)
    assert first["changes"] == [
        {"deleted": False, "create": 2, "mod": 2, "version": 1, "key": "k", "value": "1", "prior_index": 0}
    ]
    assert second["changes"] == [
        {"deleted": False, "create": 2, "mod": 3, "version": 2, "key": "k", "value_b64": "/w==", "prior_index": 3}
    ]
    assert third["changes"] == [{"deleted": True, "create": 0, "mod": 4, "version": 0, "key": "k", "prior_index": 4}]


async def test_watch_has_one_message_for_all_changes_of_an_index(served: Served) -> None:
    """A transaction and a range delete: every change of theirs in one message, in order, under one id."""
    steps = tuple(TxnOperation(Operation.PUT, b"%d" % number, b"v") for number in range(3))
    served.node.submit_now((encode_block([BlockRecord(Operation.TXN, None, encode_txn(Txn((), steps, ())))]), 1))
    served.node.submit_now((encode_block([BlockRecord(Operation.DELETE_RANGE, b"0", b"2")]), 1))
    async with open_stream(served.port, get("/v1/watch?from=3&format=ndjson")) as stream:
        await stream.json()
        made, gone = await stream.json(), await stream.json()
    assert [change["key"] for change in made["changes"]] == ["0", "1", "2"]
    assert [(change["key"], change["deleted"]) for change in gone["changes"]] == [("0", True), ("1", True)]
    assert (made["index"], gone["index"]) == (3, 4)


async def test_watch_shows_only_its_keys(served: Served) -> None:
    """prefix= and key= choose; what they leave out of a message is left out, and empty messages are not sent."""
    steps = tuple(TxnOperation(Operation.PUT, key, b"v") for key in (b"a/1", b"b/1", b"a/2"))
    served.node.submit_now((encode_block([BlockRecord(Operation.TXN, None, encode_txn(Txn((), steps, ())))]), 1))
    served.node.put(b"b/1", b"w")
    served.node.put(b"a/1", b"w")
    for target, told in (("prefix=a/", [["a/1", "a/2"], ["a/1"]]), ("key=b/1", [["b/1"], ["b/1"]])):
        async with open_stream(served.port, get(f"/v1/watch?from=3&format=ndjson&{target}")) as stream:
            await stream.json()
            assert [[change["key"] for change in (await stream.json())["changes"]] for _ in told] == told


async def read_events(stream: Stream, count: int) -> list[tuple[int, str, Any]]:
    """(id, event, data) of that many server-sent events."""
    events = []
    for _ in range(count):
        fields = dict(line.split(": ", 1) for line in (await stream.message(b"\n\n")).decode().splitlines())
        events.append((int(fields["id"]), fields.get("event", "message"), json.loads(fields["data"])))
    return events


async def test_watch_resumes_behind_the_last_event_id(served: Served) -> None:
    """A browser that reconnects sends the id of the last message it saw, and gets the one after it; this wins over
    the `from` that is still in its URL."""
    for number in range(4):
        served.node.put(b"k", b"%d" % number)
    async with open_stream(served.port, get("/v1/watch?from=3")) as stream:
        assert (await stream.head())[1]["content-type"] == "text/event-stream"
        events = await read_events(stream, 3)
    assert [(number, event) for number, event, _ in events] == [(2, "progress"), (3, "message"), (4, "message")]
    async with open_stream(served.port, get("/v1/watch?from=3", ("Last-Event-ID", "4"))) as stream:
        events = await read_events(stream, 3)
    assert [(number, event) for number, event, _ in events] == [(4, "progress"), (5, "message"), (6, "message")]


async def test_watch_begins_inside_an_entry(served: Served) -> None:
    """Three puts lie in one entry, at 3, 4 and 5: a watch from 4 on gets the second and the third."""
    blocks = [(encode_block([BlockRecord(Operation.PUT, b"k", b"%d" % number)]), 1) for number in range(3)]
    served.node.submit_now(*blocks)
    async with open_stream(served.port, get("/v1/watch?from=4")) as stream:
        await stream.head()
        events = await read_events(stream, 3)
    assert [(number, event) for number, event, _ in events] == [(3, "progress"), (4, "message"), (5, "message")]


async def test_watch_from_a_revision(served: Served) -> None:
    """from_revision begins with the change that made it, 1 with the first of all, a future one waits for it."""
    for number in range(3):
        served.node.add(b"no change")
        served.node.put(b"k", b"%d" % number)
    for revision, index in ((1, 4), (2, 4), (3, 6), (4, 8)):
        async with open_stream(served.port, get(f"/v1/watch?from_revision={revision}&format=ndjson")) as stream:
            await stream.json()
            assert (await stream.json())["index"] == index
    async with open_stream(served.port, get("/v1/watch?from_revision=6&format=ndjson")) as stream:
        await stream.json()
        await idle(served)
        served.node.put(b"k", b"revision 5")
        await idle(served)
        served.node.put(b"k", b"revision 6")
        assert (await stream.json())["revision"] == 6


async def test_watch_without_a_position_shows_later_changes(served: Served) -> None:
    """Nothing given: the first message says from where on, then only new changes."""
    served.node.put(b"k", b"old")
    async with open_stream(served.port, get("/v1/watch?format=ndjson")) as stream:
        assert await stream.json() == {"progress": 3}
        await idle(served)
        served.node.put(b"k", b"new")
        assert (await stream.json())["changes"][0]["value"] == "new"


async def test_pitfall_80_watch_never_skips_compacted_changes(served: Served) -> None:
    """A watch that falls behind the oldest index ends with a problem that names it, before anything after the gap; one
    that begins there is refused. Guard: `_check_oldest` before every slice of http_watch."""
    served.node.put(b"k", b"1")
    async with open_stream(served.port, get("/v1/watch?from=3&format=ndjson")) as stream:
        await stream.json()
        assert (await stream.json())["index"] == 3
        await idle(served)
        served.node.oldest = 6
        for number in range(4):
            served.node.put(b"k", b"%d" % number)
        last = await stream.json()
        assert (last["problem"]["code"], last["problem"]["oldest"], last["progress"]) == ("compacted", 6, 3)
        assert await stream.json() is None
    for target in ("from=5", "from_revision=2"):
        problem = (await ask(served.port, "GET", f"/v1/watch?{target}")).problem()
        assert (problem.code, problem.oldest) == (Code.COMPACTED, 6)
    assert (await ask(served.port, "GET", "/v1/watch?from=6", headers=(("Last-Event-ID", "4"),))).status == 410


async def test_watch_catches_up_and_goes_live_without_a_seam(served: Served) -> None:
    """Changes made while a watcher reads the past are reported once each, in order."""
    for number in range(1500):
        served.node.put(b"k", b"%d" % number)
    async with open_stream(served.port, get("/v1/watch?from=3&format=ndjson")) as stream:
        await stream.json()
        told = []
        for number in range(1500, 2000):
            served.node.put(b"k", b"%d" % number)
            if number % 50 == 0:
                told.append(await stream.json())
        while len(told) < 2000:
            told.append(await stream.json())
    assert [message["changes"][0]["value"] for message in told] == [str(number) for number in range(2000)]
