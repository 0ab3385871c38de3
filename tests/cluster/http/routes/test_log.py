"""Tests `/v1/log` over the wire: appended records are read back, in every format, from any position."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import google_crc32c
import msgpack
import msgspec
import pytest

from raftlog.cluster.admission.budget import SCANS_MAX
from raftlog.cluster.api.errors import Code
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.entry import decode_entries
from raftlog.raft.codec.raw import RawHeader, encode_raw_header
from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import EFFECTS_HEADER_SIZE, Effects, decode_effects
from tests.cluster.fake_node import START_MS, FakeNode, Served, serve
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.http_probe import ask, of_session, open_session, open_stream, raw_parts
from tests.support import wait_until_async

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
MSGPACK = {"Content-Type": "application/msgpack"}


async def records(served: Served, target: str = "/v1/log?from=3") -> list[dict[str, object]]:
    """The records of one page."""
    reply = await ask(served.port, "GET", target)
    assert reply.status == 200, reply
    found: list[dict[str, object]] = reply.json()["records"]
    return found


async def test_bare_body_is_one_value(served: Served) -> None:
    """Any media type that is no batch is one record's value as it is, also bytes that are not text, also none."""
    for body, shown in ((b"hello", {"value": "hello"}), (b"\xff\x00", {"value_b64": "/wA="}), (b"", {"value": ""})):
        reply = await ask(served.port, "POST", "/v1/log", body, {"Raftlog-Time-Ms": "12"})
        appended = reply.json()
        assert appended["outcome"] == "applied"
        assert appended["first"] == appended["last"] == appended["index"] == int(reply.headers["raftlog-index"])
        (record,) = await records(served, f"/v1/log?from={appended['first']}")
        assert {name: record[name] for name in shown} == shown
        assert record["client_time_ms"] == 12


async def test_values_are_cut_where_asked(served: Served) -> None:
    """Text between characters, bytes anywhere, those of a transaction too; the whole length stands beside it."""
    appended = (await ask(served.port, "POST", "/v1/log", "zwölf".encode())).json()
    await ask(served.port, "POST", "/v1/log", b"\xff\x00\x01")
    txn = {"then": [{"operation": "put", "key": "k", "value": "long"}]}
    await ask(served.port, "POST", "/v1/kv/txn", msgspec.json.encode(txn), JSON)
    text, data, changed = await records(served, f"/v1/log?from={appended['first']}&value_bytes=3")
    assert (text["value"], text["value_bytes"]) == ("zw", 6)
    assert (data["value_b64"], "value_bytes" in data) == ("/wAB", False)
    assert changed["changes"][0]["value"] == "lon"  # type: ignore[index]
    text, *_ = await records(served, f"/v1/log?from={appended['first']}&value_bytes=6")
    assert (text["value"], "value_bytes" in text) == ("zwölf", False)


async def test_a_page_ends_at_its_bytes(served: Served) -> None:
    """Behind the record that reaches them, so that each page goes on; not of a stream, and not beyond the limit."""
    first = (await ask(served.port, "POST", "/v1/log", b"a" * 600)).json()["first"]
    for _ in range(3):
        await ask(served.port, "POST", "/v1/log", b"a" * 600)
    for form in ("json", "msgpack"):
        target = f"/v1/log?from={first}&page_bytes=1000&format={form}"
        page = (await ask(served.port, "GET", target)).body
        shown = msgspec.json.decode(page) if form == "json" else msgspec.msgpack.decode(page)
        assert (len(shown["records"]), shown["next"]) == (2, first + 2)
    assert len(await records(served, f"/v1/log?from={first}&page_bytes=1")) == 1
    for bad, words in (
        ("format=ndjson&page_bytes=9", "page_bytes is for the pages of"),
        ("page_bytes=8388609", "8388608"),
    ):
        assert words in (await ask(served.port, "GET", f"/v1/log?{bad}")).problem().message


@pytest.mark.parametrize(
    ("target", "headers", "key"),
    [
        ("/v1/log?key=a%20b+c", {}, "a b c"),
        ("/v1/log?key_b64=YS9i", {}, "a/b"),
        ("/v1/log", {"Raftlog-Key": "a%2Fb%20c+"}, "a/b c+"),
    ],
)
async def test_bare_body_may_have_a_key(served: Served, target: str, headers: dict[str, str], key: str) -> None:
    """The key of a bare body is a parameter or a percent-encoded header."""
    assert (await ask(served.port, "POST", target, b"v", headers)).status == 200
    assert [record["key"] for record in await records(served)] == [key]


async def test_batches_keep_their_order_in_every_format(served: Served) -> None:
    """JSON array, NDJSON and msgpack give the same records under consecutive indexes, in one entry each."""
    json_body = b'[{"key":"k","value":"1","headers":[["n","x"],["n","y"]],"time_ms":5},{"value_b64":"AAE="},{}]'
    ndjson_body = b'{"key":"k","value":"1","headers":[["n","x"],["n","y"]],"time_ms":5}\n{"value_b64":"AAE="}\n\n{}\n'
    packed = [[b"k", b"1", 5, [["n", b"x"], ["n", b"y"]]], b"\0\1", [None, None, None, None]]
    for headers, body in ((JSON, json_body), (NDJSON, ndjson_body), (MSGPACK, msgpack.packb(packed))):
        appended = (await ask(served.port, "POST", "/v1/log", body, headers)).json()
        assert appended["count"] == 3
        assert appended["last"] == appended["first"] + 2
        found = await records(served, f"/v1/log?from={appended['first']}&encoding=auto")
        assert [record["index"] for record in found] == [*range(appended["first"], appended["last"] + 1)]
        assert found[0]["key"] == "k"
        assert found[0]["headers"] == [["n", "x"], ["n", "y"]]
        assert found[0]["client_time_ms"] == 5
        assert found[1]["value"] == "\0\1"
        assert "value" not in found[2]
    assert len(served.node.log) == 2 + 3, "one entry a request"


async def test_batches_of_nothing_but_values_keep_their_order_too(served: Served) -> None:
    """They go a shorter way, in JSON and msgpack: the records are as long and as many as they were."""
    texts = ["a", "", "\u00e9" * 3, "bb"]
    for headers, body in (
        (JSON, msgspec.json.encode([{"value": text} for text in texts])),
        (MSGPACK, msgpack.packb([text.encode() for text in texts])),
    ):
        appended = (await ask(served.port, "POST", "/v1/log", body, headers)).json()
        assert appended["count"] == len(texts)
        found = await records(served, f"/v1/log?from={appended['first']}&encoding=auto")
        assert [record["value"] for record in found] == texts
        assert all("key" not in record and "client_time_ms" not in record for record in found)


async def test_a_batch_over_its_limits_is_refused() -> None:
    """Body, records, value, key, record headers and entry are bounded; each refusal names its limit."""
    async with serve(body_bytes_max=1000, records_max=3, value_bytes_max=100, record_headers_bytes_max=50) as served:

        async def refused(body: bytes, headers: dict[str, str] = JSON, target: str = "/v1/log") -> str:
            problem = (await ask(served.port, "POST", target, body, headers)).problem()
            assert problem.code is Code.TOO_LARGE
            return problem.message

        assert "body_bytes_max" in await refused(b"x" * 1001, {})
        chunked = {"Transfer-Encoding": "chunked"}
        data = b"POST /v1/log HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with open_stream(served.port, data + (b"1f4\r\n" + b"x" * 500 + b"\r\n") * 3 + b"0\r\n\r\n") as stream:
            assert "body_bytes_max" in (await stream.reply()).problem().message, chunked
        assert "records_max" in await refused(b"[{},{},{},{}]")
        assert "value_bytes_max" in await refused(b'{"value":"' + b"x" * 101 + b'"}')
        assert "value_bytes_max" in await refused(b"x" * 101, {})
        assert "value of record 1" in await refused(msgpack.packb([b"x", b"x" * 101]), MSGPACK)
        assert "value of record 1" in await refused(b'[{"value":"x"},{"value":"' + b"x" * 101 + b'"}]')
        assert "records_max" in await refused(b'[{"value":""},{"value":""},{"value":""},{"value":""}]')
        assert "record_headers_bytes_max" in await refused(b'{"headers":[["a","' + b"x" * 60 + b'"]]}')
        assert "4096" in await refused(b"", {}, f"/v1/log?key={'k' * 4097}")
        assert served.node.applied == 2


async def test_limit_counts_records_shown_and_next_passes_over_internal_ones(served: Served) -> None:
    """Internal records are hidden, and do not count; `next` is behind them, so that no reader stays on one."""
    await ask(served.port, "POST", "/v1/log", b"a")
    await ask(served.port, "POST", "/v1/sessions")
    await ask(served.port, "POST", "/v1/log", b"b")
    page = (await ask(served.port, "GET", "/v1/log?from=1&limit=2")).json()
    assert ([record["value"] for record in page["records"]], page["next"]) == (["a", "b"], 6)
    page = (await ask(served.port, "GET", "/v1/log?from=1&to=3&limit=2")).json()
    assert (page["records"], page["next"]) == ([], 3)
    page = (await ask(served.port, "GET", "/v1/log?from=3&limit=3")).json()
    assert [record["value"] for record in page["records"]] == ["a", "b"]
    assert (page["next"], page["committed"], page["last_user_index"], page["oldest"]) == (6, 5, 5, 1)
    shown = await records(served, "/v1/log?internal=true")
    assert [record["kind"] for record in shown] == ["configuration", "noop", "commands", "commands", "commands"]
    assert [record["operation"] for record in shown] == ["", "", "append", "session_open", "append"]


async def test_a_read_may_begin_inside_an_entry(served: Served) -> None:
    """`from`, `to` and `limit` may cut an entry anywhere."""
    body = b"[" + b",".join(b'{"value":"%d"}' % number for number in range(10)) + b"]"
    first = (await ask(served.port, "POST", "/v1/log", body, JSON)).json()["first"]
    page = (await ask(served.port, "GET", f"/v1/log?from={first + 4}&to={first + 8}&limit=3")).json()
    assert [record["value"] for record in page["records"]] == ["4", "5", "6"]
    assert page["next"] == first + 7
    page = (await ask(served.port, "GET", f"/v1/log?from={page['next']}&to={first + 8}")).json()
    assert [record["value"] for record in page["records"]] == ["7"]


async def test_large_batch_is_read_from_any_place(served: Served) -> None:
    """A batch too large to be handled on the event loop is one entry too, and pages may begin anywhere in it."""
    body = b"\n".join(b'{"value":"%d","key":"%s"}' % (number, b"k" * 100) for number in range(4_000))
    appended = (await ask(served.port, "POST", "/v1/log", body, NDJSON)).json()
    assert (appended["first"], appended["last"]) == (3, 4_002)
    for start in (3, 1_700, 4_002):
        page = (await ask(served.port, "GET", f"/v1/log?from={start}&limit=1500")).json()
        assert [record["value"] for record in page["records"]] == [
            str(index - 3) for index in range(start, min(start + 1_500, 4_003))
        ]
    cut = await ask(served.port, "POST", "/v1/log", body[:-1], NDJSON)
    assert "line 4000" in cut.problem().message


async def test_many_blocks_in_one_entry_keep_their_indexes(served: Served) -> None:
    """Requests packed into one entry, some of them with effects, stay distinct."""
    append = encode_block([BlockRecord(Operation.APPEND, None, b"x")] * 3, plain=True)
    put = encode_block([BlockRecord(Operation.PUT, b"k", b"v")])
    failed = encode_block([BlockRecord(Operation.PUT, b"k", b"w", None, 77)])
    served.node.submit_now((append, 3), (put, 1), (failed, 1), (append, 3))
    found = await records(served)
    assert [(record["index"], record["operation"], record["result"]) for record in found] == [
        (3, "append", "applied"),
        (4, "append", "applied"),
        (5, "append", "applied"),
        (6, "put", "applied"),
        (7, "put", "compare_failed"),
        (8, "append", "applied"),
        (9, "append", "applied"),
        (10, "append", "applied"),
    ]
    assert [found[3][name] for name in ("prior_index", "create", "version", "revision")] == [0, 2, 1, 2]
    assert "prior_index" not in found[4]
    assert found[4]["argument"] == 77


async def test_msgpack_page_has_bytes(served: Served) -> None:
    """format=msgpack gives the same fields, keys and values as bytes."""
    await ask(served.port, "POST", "/v1/log?key=k", b"\xff")
    reply = await ask(served.port, "GET", "/v1/log?from=3&format=msgpack")
    assert reply.headers["content-type"] == "application/msgpack"
    page = msgpack.unpackb(reply.body)
    assert page["records"][0]["value"] == b"\xff"
    assert page["records"][0]["key"] == b"k"
    assert page["next"] == int(reply.headers["raftlog-next"]) == 4


async def test_raw_stream_is_the_bytes_of_the_log(served: Served) -> None:
    """format=raw gives whole entries and their effects as they are on disk, and ends with a chunk without rows."""
    for body in (b"a", b"b"):
        await ask(served.port, "POST", "/v1/log", body)
    await ask(served.port, "PUT", "/v1/kv/k", b"v")
    reply = await ask(served.port, "GET", "/v1/log?from=1&format=raw")
    assert reply.headers["content-type"] == "application/vnd.raftlog.raw"
    (header, rows, segment, ledger), last = raw_parts(reply.body)
    assert (header.first, header.next, header.rows) == (1, 6, 5)
    assert google_crc32c.value(rows) == header.rows_crc
    assert decode_entries(segment) == tuple(entry for entry, _ in served.node.log)
    assert decode_effects(ledger).index == 1
    assert (last.header.rows, last.header.next, last.header.committed) == (0, 6, 5)
    assert reply.body.endswith(ledger + encode_raw_header(last.header))


async def test_raw_stream_with_brief_effects(served: Served) -> None:
    """effects=brief: if each entry has one record and no effects have a payload, only the first and the last effects
    are sent. If any effects have a payload, all are sent. Pages and lines refuse the parameter."""
    for body in (b"a", b"b", b"c"):
        await ask(served.port, "POST", "/v1/log", body)
    await ask(served.port, "PUT", "/v1/kv/k", b"v")

    async def chunk(more: str) -> tuple[RawHeader, bytes]:
        first = raw_parts((await ask(served.port, "GET", f"/v1/log?format=raw{more}")).body)[0]
        return first.header, first.ledger

    header, effects = await chunk("&from=2&to=6")
    assert (header.is_brief, header.rows, len(effects)) == (False, 4, 4 * EFFECTS_HEADER_SIZE)
    brief, ends = await chunk("&from=2&to=6&effects=brief")
    assert brief == header._replace(ledger_bytes=len(ends), is_brief=True)
    assert ends == effects[:EFFECTS_HEADER_SIZE] + effects[-EFFECTS_HEADER_SIZE:]
    assert await chunk("&from=2&effects=brief") == await chunk("&from=2")  # the put's have a payload
    assert await chunk("&from=4&to=6&effects=brief") == await chunk("&from=4&to=6")  # two are the first and the last
    assert await chunk("&from=2&to=6&effects=whole") == (header, effects)
    for query in ("format=raw&effects=none", "effects=brief", "format=ndjson&effects=brief"):
        reply = await ask(served.port, "GET", f"/v1/log?{query}")
        assert (reply.status, b"effects" in reply.body) == (400, True)


async def test_from_time_begins_with_the_first_entry_at_or_after(served: Served) -> None:
    """from_time finds a position by the entries' time; later than everything, it is the next index to come."""
    await ask(served.port, "POST", "/v1/log", b"early")
    served.node.time_ms += 1000
    await ask(served.port, "POST", "/v1/log", b"late")
    assert [record["value"] for record in await records(served, f"/v1/log?from_time={START_MS + 1}")] == ["late"]
    page = (await ask(served.port, "GET", f"/v1/log?from_time={START_MS + 1001}")).json()
    assert (page["records"], page["next"]) == ([], 5)


async def test_below_the_oldest_is_gone_and_beyond_the_end_is_empty(served: Served) -> None:
    """Below the oldest index: 410 that names it, in every format. Beyond the end: an empty page at once."""
    for body in (b"a", b"b", b"c"):
        await ask(served.port, "POST", "/v1/log", body)
    served.node.oldest = 4
    for target in ("/v1/log?from=3", "/v1/log?from=3&format=ndjson", "/v1/log?from=1&format=raw&follow=true"):
        problem = (await ask(served.port, "GET", target)).problem()
        assert (problem.code, problem.oldest) == (Code.COMPACTED, 4)
    page = (await ask(served.port, "GET", "/v1/log?from=1000")).json()
    assert (page["records"], page["next"]) == ([], 1000)
    assert [record["value"] for record in await records(served, "/v1/log")] == ["b", "c"]


async def test_a_trim_is_answered_with_the_oldest_index(served: Served) -> None:
    """Below it everything is 410 with `oldest`, and with `snapshot`, the state to begin with; it never goes back."""
    for body in (b"a", b"b", b"c"):
        await ask(served.port, "POST", "/v1/log", body)
    for before, oldest in ((3, 3), (2, 3)):
        done = (await ask(served.port, "POST", "/v1/log/trim", b'{"before":%d}' % before)).json()
        assert (done["outcome"], done["oldest"]) == ("applied", oldest)
    for target in ("/v1/log?from=2", "/v1/log?from=1&format=raw", "/v1/watch?from=2", "/v1/digest?log_from=2"):
        problem = (await ask(served.port, "GET", target)).problem()
        assert (problem.code, problem.oldest, problem.snapshot) == (Code.COMPACTED, 3, 2)
    assert (await ask(served.port, "POST", "/v1/log/trim", b'{"before":900}')).problem().code is Code.REFUSED


async def test_long_poll_waits_for_a_record_that_shows(served: Served) -> None:
    """`wait` returns with the first visible record; internal ones in between only move `next`."""
    poll = asyncio.create_task(ask(served.port, "GET", "/v1/log?from=3&wait=10000"))
    await wait_until_async(lambda: served.node.applied_more._waiters, what="the long poll waits")
    served.node.submit_now((encode_block([BlockRecord(Operation.SESSION_OPEN, argument=5000)]), 1))
    await wait_until_async(lambda: served.node.applied_more._waiters, what="the long poll waits again")
    assert not poll.done()
    served.node.add(b"x")
    page = (await poll).json()
    assert [record["value"] for record in page["records"]] == ["x"]
    assert page["next"] == 5


async def test_long_poll_ends_empty_after_its_wait(served: Served) -> None:
    """Nothing came: an empty page, 200, with the position to go on from."""
    page = (await ask(served.port, "GET", "/v1/log?from=3&wait=30")).json()
    assert (page["records"], page["next"]) == ([], 3)


async def test_pages_are_bounded_in_bytes() -> None:
    """A page ends once it is full; going on from `next` gives everything, once."""
    async with serve(page_bytes_max=2_000) as served:
        body = b"[" + b",".join([b'{"value":"' + b"x" * 500 + b'"}'] * 9) + b"]"
        await ask(served.port, "POST", "/v1/log", body, JSON)
        position, sizes = 3, []
        while position <= served.node.applied:
            page = (await ask(served.port, "GET", f"/v1/log?from={position}")).json()
            sizes.append(len(page["records"]))
            position = page["next"]
        assert sum(sizes) == 9
        assert max(sizes) == 4


@pytest.mark.parametrize("form", ["json", "ndjson"])
async def test_slices_of_the_log_are_read_a_few_at_a_time(served: Served, form: str) -> None:
    """1,000 readers of 7 MB pages made the node hold 2.3 GB: each had read its entries before its answer was counted.
    Guard: `service.scans`."""
    reading, most, free = 0, 0, asyncio.Event()
    node: Any = served.node
    read_log: Callable[[int, int, int], Awaitable[list[tuple[Entry, Effects]]]] = node.read_log

    async def reads(from_index: int, limit: int, bytes_max: int) -> list[tuple[Entry, Effects]]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await free.wait()
        reading -= 1
        return await read_log(from_index, limit, bytes_max)

    node.read_log = reads
    target = f"/v1/log?from=1&format={form}"
    asked = [asyncio.ensure_future(ask(served.port, "GET", target)) for _ in range(3 * SCANS_MAX)]
    await wait_until_async(lambda: (served.node.barriers, reading >= SCANS_MAX) == (len(asked), True))
    free.set()
    assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
    assert most == SCANS_MAX


async def test_head_is_get_without_the_body(served: Served) -> None:
    """HEAD returns length and headers only; of a stream it says that there is one. Each route with GET has it."""
    await ask(served.port, "PUT", "/v1/kv/k", b"v")
    whole = await ask(served.port, "GET", "/v1/kv/k")
    head = await ask(served.port, "HEAD", "/v1/kv/k")
    assert head.body == b""
    assert head.headers["content-length"] == str(len(whole.body))
    whole, head = [await ask(served.port, method, "/v1/log?limit=1") for method in ("GET", "HEAD")]
    assert (head.headers["content-length"], head.body) == (str(len(whole.body)), b"")
    assert (await ask(served.port, "HEAD", "/v1/log?limit=0")).status == 400
    for target in ("/v1/log?format=ndjson", "/v1/log?format=raw&follow=true", "/v1/watch?key=a", "/v1/backup"):
        head = await ask(served.port, "HEAD", target)
        assert (head.status, head.body, head.headers.get("content-length")) == (200, b"", None)


async def test_long_poll_at_the_end_is_answered_with_the_very_next_record(served: Served) -> None:
    """One record comes, and no other one: the poll does not wait for a second."""
    poll = asyncio.create_task(ask(served.port, "GET", "/v1/log?from=3&wait=20000"))
    await wait_until_async(lambda: served.node.applied_more._waiters)
    served.node.add(b"v")
    await wait_until_async(poll.done, 10, what="the answer")
    assert [each["index"] for each in poll.result().json()["records"]] == [3]


async def test_a_page_has_as_many_records_as_were_asked_for() -> None:
    """Internal records do not count, in a page as in a stream of lines. A page that finds no record goes on behind
    what it has looked at, at most limits.page_scan_max records."""
    node = FakeNode()
    for number in range(3):
        for _ in range(30):
            node.append(EntryKind.NOOP, b"", 1)
        node.add(b"v%d" % number)
    async with serve(node, page_scan_max=40) as served:
        for form in ("", "&format=msgpack"):
            page = await ask(served.port, "GET", f"/v1/log?from=1&limit=2{form}")
            assert [value in page.body for value in (b"v0", b"v1", b"v2")] == [True, False, False]
        first = (await ask(served.port, "GET", "/v1/log?from=1&limit=1")).json()
        assert (len(first["records"]), first["next"]) == (1, first["records"][0]["index"] + 1)
        lines = (await ask(served.port, "GET", "/v1/log?from=1&limit=2&format=ndjson")).body.splitlines()
        assert [msgspec.json.decode(line).get("value") for line in lines[:2]] == ["v0", "v1"]
        assert len(lines) == 3
    async with serve(node) as served:
        page = (await ask(served.port, "GET", "/v1/log?from=1&limit=2")).json()
        assert [record["value"] for record in page["records"]] == ["v0", "v1"]


FILTERED: list[tuple[str, list[str]]] = [
    ("operation=put", ["p"]),
    ("operation=append", ["plain 1", "plain 2", "keyed", "headed", "other", "session"]),
    ("prefix=a/", ["keyed", "p"]),
    ("prefix_b64=/w==", ["headed"]),
    ("header=trace", ["headed", "other"]),
    ("header=trace%3Da%3Db", ["headed"]),
    ("header=trace%3D", []),
    ("operation=put&prefix=a/", ["p"]),
    ("operation=txn", [""]),
    ("prefix=in/", [""]),
    ("operation=noop&internal=true", [""]),
    ("user=none&internal=true", []),
    ("prefix=", ["keyed", "headed", "p", ""]),
]


@pytest.mark.parametrize("form", ["json", "msgpack", "ndjson"])
async def test_a_filter_shows_the_records_that_pass(form: str) -> None:
    """By operation or kind, key, changed key, session and header, in every format of records; the page looks at no
    more records than others, and `next` says how far it is."""
    async with serve(page_scan_max=8) as served:
        session = await open_session(served.port)
        batch = [
            {"value": "plain 1"},
            {"value": "plain 2"},
            {"value": "keyed", "key": "a/1"},
            {"value": "headed", "key_b64": "/wA=", "headers": [["trace", "a=b"]]},
            {"value": "other", "headers": [["trace", "c"]]},
        ]
        await ask(served.port, "POST", "/v1/log", msgspec.json.encode(batch[:2]), JSON)
        await ask(served.port, "POST", "/v1/log", msgspec.json.encode(batch[2:]), JSON)
        await ask(served.port, "PUT", "/v1/kv/a/2", b"p")
        txn = {"then": [{"operation": "put", "key": "in/a", "value": "t"}]}
        await ask(served.port, "POST", "/v1/kv/txn", msgspec.json.encode(txn), JSON)
        await ask(served.port, "POST", "/v1/log", b"session", of_session(session, 1))
        for query, values in [*FILTERED, (f"session={session},9", ["session"]), ("session=9", [])]:
            found, at, last = [], 1, served.node.applied
            while at <= last:
                reply = await ask(served.port, "GET", f"/v1/log?{query}&format={form}&from={at}&to={last + 1}")
                if form == "ndjson":
                    shown, (*_, end) = [line for line in reply.lines() if "operation" in line], reply.lines()
                else:
                    end = msgpack.unpackb(reply.body) if form == "msgpack" else reply.json()
                    shown = end["records"]
                    assert at < end["next"] <= at + 8
                found += ["" if each["operation"] == "txn" else each.get("value") or "" for each in shown]
                at = end["next"]
            wanted = [value if form != "msgpack" else value.encode() or "" for value in values]
            assert found == wanted, query


async def test_a_filter_by_user_needs_the_grant_that_shows_users() -> None:
    """Without it no record would have its user, and none would pass."""
    async with AccessWorld() as world:
        world.user("ada", "read on log", "read on keys:*", "read on groups:*")
        world.user("ben", "read on log", "read on keys:*", "read on groups:*", "operate on cluster")
        target = "/v1/log?internal=true&user=ben"
        assert (await world.ask("ada", "GET", target)).problem().missing == "operate on cluster"
        assert (await world.ask("ben", "GET", target)).status == 200
