"""`/v1/kv` over the wire: keys of any bytes, ranges as of one revision, conditions, transactions, consistency."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode

import google_crc32c
import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.client import requests
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.query import NO_PARAMETERS, split_target
from raftlog.cluster.http.routes.kv import path_key
from raftlog.cluster.http.routes.table import find_route
from tests.cluster.fake_node import FakeNode, Served, serve
from tests.cluster.http.http_probe import ask
from tests.support import wait_until_async


async def put(served: Served, key: str, value: bytes = b"v", query: str = "") -> dict[str, object]:
    """Puts and returns the answer."""
    reply = await ask(served.port, "PUT", f"/v1/kv/{key}{query}", value)
    assert reply.status == 200, reply
    written: dict[str, object] = reply.json()
    return written


# -- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("a/b", b"a/b"),
        ("a%2Fb", b"a/b"),
        ("a%2fb", b"a/b"),
        ("../x", b"../x"),
        ("a/./b/../c", b"a/./b/../c"),
        ("/a", b"/a"),
        ("a//b//", b"a//b//"),
        ("%252F", b"%2F"),
        ("a+b", b"a+b"),
        ("a%20b", b"a b"),
        ("%00%FF", b"\0\xff"),
        ("txn", b"txn"),
        ("%3Fx%23y", b"?x#y"),
        ("a;b=c&d", b"a;b=c&d"),
    ],
)
async def test_path_is_the_key_as_it_is(served: Served, raw: str, key: bytes) -> None:
    """Percent escapes are decoded once; slashes, dots and empty segments are part of the key and never normalised."""
    await put(served, raw, b"1")
    assert served.node.machine.get(key).value == b"1"
    assert served.node.machine.range(b"", None, 1)[1] == 1
    assert (await ask(served.port, "GET", f"/v1/kv/{raw}")).json()["kv"]["value"] == "1"
    absolute = await ask(served.port, "GET", f"http://127.0.0.1:{served.port}/v1/kv/{raw}")
    assert absolute.json()["kv"]["value"] == "1", "absolute form, as proxies send it"


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=64))
def test_every_key_survives_its_path(key: bytes) -> None:
    """What a client makes of any bytes is decoded to the same bytes."""
    escaped = "/v1/kv/" + "".join(f"%{byte:02X}" for byte in key)
    for target in (escaped, f"http://localhost{escaped}", requests.get(key).target):
        call = Call("PUT", target, *split_target(target), {}, whole=b"")
        find_route(call)
        assert path_key(call, NO_PARAMETERS) == key
        assert call.query_text == ""
    assert split_target(f"{escaped}?at=1") == (escaped, "at=1")


async def test_longest_key_and_key_b64(served: Served) -> None:
    """4,096 bytes fit into a path even when every byte is escaped; base64 takes both alphabets, plus unescaped too."""
    await put(served, "%FF" * 4096)
    assert served.node.machine.get(b"\xff" * 4096) is not None
    for coded in ("-_-_", "+/+/", "%2B%2F%2B%2F"):
        assert (await ask(served.port, "PUT", f"/v1/kv?key_b64={coded}", b"v")).status == 200
    assert served.node.machine.get(b"\xfb\xff\xbf").version == 3
    assert (await ask(served.port, "GET", "/v1/kv?key_b64=-_-_")).json()["kv"]["key_b64"] == "+/+/"
    assert (await ask(served.port, "DELETE", "/v1/kv?key_b64=-_-_")).json()["deleted"] == 1


# -- reading ------------------------------------------------------------------------------------------------------


async def test_get_returns_versions_and_bare_values(served: Served) -> None:
    """JSON with text or base64, the bare bytes on request, time travel by `at`."""
    await put(served, "k", b"one")
    await put(served, "k", b"\xff")
    got = (await ask(served.port, "GET", "/v1/kv/k")).json()
    assert got == {
        "kv": {"create": 2, "mod": 3, "version": 2, "key": "k", "value_b64": "/w=="},
        "revision": 3,
        "index": 4,
        "term": 1,
    }
    bare = await ask(served.port, "GET", "/v1/kv/k", headers={"Accept": "application/octet-stream"})
    assert bare.body == b"\xff"
    assert [bare.headers[f"raftlog-{name}"] for name in ("revision", "create", "mod", "version")] == list("3232")
    assert (await ask(served.port, "GET", "/v1/kv/k?at=2&encoding=base64")).json()["kv"]["value_b64"] == "b25l"
    missing = (await ask(served.port, "GET", "/v1/kv/nothing")).problem()
    assert (missing.code, missing.index, missing.revision) == (Code.KEY_NOT_FOUND, 4, 3)
    assert (await ask(served.port, "GET", "/v1/kv/k?at=4")).problem().code is Code.FUTURE_INDEX


async def test_pages_of_a_range_are_as_of_the_first(served: Served) -> None:
    """Writes between pages do not show; every page has the first one's revision and index; the count is of all."""
    for number in range(5):
        await put(served, f"k{number}", b"old")
    first = (await ask(served.port, "GET", "/v1/kv?prefix=k&limit=2")).json()
    await put(served, "k3", b"new")
    await ask(served.port, "DELETE", "/v1/kv/k4")
    keys, values, page = [], [], first
    while True:
        keys += [kv["key"] for kv in page["kvs"]]
        values += [kv["value"] for kv in page["kvs"]]
        assert (page["count"], page["revision"], page["index"]) == (5, first["revision"], first["index"])
        if not page["more"]:
            break
        page = (await ask(served.port, "GET", f"/v1/kv?prefix=k&limit=2&continuation={page['continuation']}")).json()
    assert keys == ["k0", "k1", "k2", "k3", "k4"]
    assert values == ["old"] * 5
    assert page["continuation"] is None


def forged(values: object) -> str:
    """A continuation of these values, with a right CRC."""
    packed: bytes = msgpack.packb(values)
    return urlsafe_b64encode(google_crc32c.value(packed).to_bytes(4, "big") + packed).decode().rstrip("=")


async def test_continuation_is_checked(served: Served) -> None:
    """A token that was cut, changed, made for another range or by another log is refused. A token of a compacted
    revision is gone. A token of a page that this node has not applied yet waits.
    """
    for number in range(3):
        await put(served, f"k{number}")
    token = (await ask(served.port, "GET", "/v1/kv?prefix=k&limit=1")).json()["continuation"]

    async def code(query: str) -> Code:
        return (await ask(served.port, "GET", f"/v1/kv?{query}")).problem().code

    assert await code(f"prefix=k&continuation={token[:-2]}") is Code.BAD_REQUEST
    assert await code(f"prefix=k&continuation={'B' if token[0] == 'A' else 'A'}{token[1:]}") is Code.BAD_REQUEST
    assert await code("prefix=k&continuation=%C3%A4") is Code.BAD_REQUEST
    assert await code("prefix=k&continuation=") is Code.BAD_REQUEST
    assert await code(f"prefix=j&continuation={token}") is Code.BAD_REQUEST
    assert await code(f"prefix=k&keys_only=true&continuation={token}") is Code.BAD_REQUEST
    given = [1, served.node.log_id, 4, 4, 1, b"k", b"l", False, b"k0"]
    assert (await ask(served.port, "GET", f"/v1/kv?prefix=k&continuation={forged(given)}")).status == 200
    for made in (5, [], [1], given[:-1], [*given, 1], *([*given[:at], None, *given[at + 1 :]] for at in range(9))):
        assert await code(f"prefix=k&continuation={forged(made)}") is Code.BAD_REQUEST, made
    assert await code(f"prefix=k&continuation={forged([2, *given[1:]])}") is Code.BAD_REQUEST
    served.node.log_id = "ff" * 16
    assert await code(f"prefix=k&continuation={token}") is Code.FOREIGN_LOG
    served.node.log_id = FakeNode().log_id
    behind = FakeNode()
    async with serve(behind) as other:
        reply = await ask(
            other.port, "GET", f"/v1/kv?prefix=k&continuation={token}", headers={"Raftlog-Deadline-Ms": "30"}
        )
        assert reply.problem().code is Code.FUTURE_INDEX
    await put(served, "k9")
    await ask(served.port, "POST", "/v1/kv/compact", b'{"revision":5}')
    assert await code(f"prefix=k&continuation={token}") is Code.COMPACTED


async def test_ranges_and_keys_only(served: Served) -> None:
    """start and end bound a range by bytes, an empty end is the last key, keys_only leaves values out."""
    for key in ("a", "b", "b%00", "c", "%FF%FF"):
        await put(served, key)

    async def keys(query: str) -> list[str]:
        reply = await ask(served.port, "GET", f"/v1/kv?{query}")
        return [kv.get("key") or kv["key_b64"] for kv in reply.json()["kvs"]]

    assert await keys("start=b&end=c") == ["b", "b\0"]
    assert await keys("start=c") == ["c", "//8="]
    assert await keys("prefix_b64=/w==") == ["//8="]
    assert await keys("prefix=") == await keys("") == ["a", "b", "b\0", "c", "//8="]
    page = (await ask(served.port, "GET", "/v1/kv?start=a&end=b&keys_only=true")).json()
    assert page["kvs"] == [{"create": 2, "mod": 2, "version": 1, "key": "a"}]
    assert [len(await keys(f"keys_only=true&page_bytes={size}")) for size in (1, 2, 4, 100)] == [1, 1, 2, 5]
    for bad in (
        "start=b&end=a",
        "prefix=a&start=b",
        "limit=0",
        "page_bytes=0",
        "page_bytes=8388609",
        "limit=10001",
        "keys_only=maybe",
        "at=0",
    ):
        assert (await ask(served.port, "GET", f"/v1/kv?{bad}")).problem().code is Code.BAD_REQUEST


async def test_pages_of_a_range_are_bounded_in_bytes() -> None:
    """Large values end a page early; the continuation gives the rest."""
    async with serve(page_bytes_max=4_000) as served:
        for number in range(6):
            await put(served, f"k{number}", b"x" * 900)
        page = (await ask(served.port, "GET", "/v1/kv?prefix=k")).json()
        assert (len(page["kvs"]), page["more"], page["count"]) == (3, True, 6)
        page = (await ask(served.port, "GET", f"/v1/kv?prefix=k&continuation={page['continuation']}")).json()
        assert (len(page["kvs"]), page["more"]) == (3, False)


# -- consistency --------------------------------------------------------------------------------------------------


async def test_pitfall_33_every_read_has_a_barrier_of_its_own(served: Served) -> None:
    """No read is answered by an index learned for an earlier one. Each asks again, and reads the state only after its
    own barrier returned. Guard: `read_index` before the state is touched.
    """
    await put(served, "k", b"1")
    for _ in range(3):
        assert (await ask(served.port, "GET", "/v1/kv/k")).json()["kv"]["value"] == "1"
    assert served.node.barriers == 3
    served.node.barrier_held = asyncio.Event()
    read = asyncio.create_task(ask(served.port, "GET", "/v1/kv/k"))
    await wait_until_async(lambda: served.node.barriers == 4)
    served.node.put(b"k", b"2")
    served.node.barrier_held.set()
    assert (await read).json()["kv"]["value"] == "2"


@pytest.mark.parametrize("target", ["/v1/kv/k", "/v1/kv?prefix=k", "/v1/kv?start=a&end=z", "/v1/digest"])
async def test_a_read_sees_the_state_of_after_its_barrier_whatever_took_its_place(served: Served, target: str) -> None:
    """A leader's snapshot puts another state in the place of the one that was there when the read began: the read is
    answered from that one. A range read was answered from the old one, and found a new node empty (found by chaos)."""
    other = FakeNode()
    other.put(b"k", b"of the snapshot")
    served.node.barrier_held = asyncio.Event()
    before = served.node.barriers
    read = asyncio.create_task(ask(served.port, "GET", target))
    await wait_until_async(lambda: served.node.barriers > before)
    served.node.machine = other.machine
    served.node.barrier_held.set()
    told = (await read).json()
    assert (told["revision"], told["index"]) == (other.machine.revision, other.machine.applied_index)
    if "kv" in told:
        assert told["kv"]["value"] == "of the snapshot"
    if "kvs" in told:
        assert [each["value"] for each in told["kvs"]] == ["of the snapshot"]


async def test_pitfall_38_reads_are_linearizable_unless_asked_otherwise(served: Served) -> None:
    """Every read route passes the barrier by default and fails with it; only consistency=stale goes without. Guard:
    `read_index`, whose default is linearizable."""
    await put(served, "k", b"1")
    served.node.refusal = ApiError(Code.NO_LEADER, "there is no leader")
    for target in (
        "/v1/kv/k",
        "/v1/kv?prefix=",
        "/v1/log",
        "/v1/log?format=ndjson",
        "/v1/watch",
        "/v1/digest",
        "/v1/sessions/3/receipts/1",
    ):
        assert (await ask(served.port, "GET", target)).problem().code is Code.NO_LEADER, target
    for target in ("/v1/kv/k?", "/v1/kv?prefix=&", "/v1/log?", "/v1/log?format=ndjson&", "/v1/digest?"):
        assert (await ask(served.port, "GET", f"{target}consistency=stale")).status == 200, target
    problem = (await ask(served.port, "GET", "/v1/kv/k?consistency=eventual")).problem()
    assert "linearizable, stale" in problem.message


@pytest.mark.parametrize("consistency", ["stale", "linearizable"])
async def test_pitfall_39_min_index_never_lets_time_go_backward(served: Served, consistency: str) -> None:
    """A client that saw an index, and goes on at a lagging node or at one of another log, waits there until the index
    is applied, or gets 425; it never gets an older state. Guard: `min_index` in `read_index`."""
    target = f"/v1/kv/k?consistency={consistency}&min_index="
    late = await ask(served.port, "GET", f"{target}99", headers={"Raftlog-Deadline-Ms": "30"})
    assert late.problem().code is Code.FUTURE_INDEX
    read = asyncio.create_task(ask(served.port, "GET", f"{target}3"))
    await wait_until_async(lambda: served.node.applied_more._waiters)
    served.node.put(b"k", b"seen")
    reply = (await read).json()
    assert (reply["kv"]["value"], reply["index"]) == ("seen", 3)


# -- writing ------------------------------------------------------------------------------------------------------


async def test_compare_and_set(served: Served) -> None:
    """if_revision: 0 is "must not exist"; a failed compare is 412 with the deciding index and the current revision."""
    assert (await put(served, "k", b"1", "?if_revision=0"))["revision"] == 2
    problem = (await ask(served.port, "PUT", "/v1/kv/k?if_revision=0", b"2")).problem()
    assert (problem.code, problem.outcome, problem.index, problem.revision) == (
        Code.COMPARE_FAILED,
        "not_applied",
        4,
        2,
    )
    assert (await put(served, "k", b"2", "?if_revision=2"))["revision"] == 3
    assert (await ask(served.port, "DELETE", "/v1/kv/k?if_revision=2")).problem().revision == 3
    assert (await ask(served.port, "DELETE", "/v1/kv/k?if_revision=3")).json()["deleted"] == 1


async def test_delete_and_range_delete_report_removed_keys(served: Served) -> None:
    """Deleting nothing is applied and no step; a range delete must name its range."""
    for key in ("a1", "a2", "b"):
        await put(served, key)
    nothing = (await ask(served.port, "DELETE", "/v1/kv/nothing")).json()
    assert (nothing["outcome"], nothing["revision"], nothing.get("deleted", 0)) == ("applied", 4, 0)
    assert (await ask(served.port, "DELETE", "/v1/kv")).problem().code is Code.BAD_REQUEST
    assert (await ask(served.port, "DELETE", "/v1/kv?prefix=a&if_revision=1")).problem().code is Code.BAD_REQUEST
    assert (await ask(served.port, "DELETE", "/v1/kv?prefix=a")).json()["deleted"] == 2
    assert (await ask(served.port, "DELETE", "/v1/kv?prefix=")).json()["deleted"] == 1


async def transact(served: Served, txn: dict[str, object]) -> dict[str, object]:
    """Runs a transaction that must be applied."""
    reply = await ask(served.port, "POST", "/v1/kv/txn", json.dumps(txn).encode())
    assert reply.status == 200, reply
    answer: dict[str, object] = reply.json()
    return answer


async def test_transactions_take_one_branch(served: Served) -> None:
    """Both branches are `applied`; each step answers; all changes share one revision."""
    txn = {
        "compare": [{"target": "version", "operator": "=", "key": "k", "number": 0}],
        "then": [
            {"operation": "put", "key": "k", "value": "1"},
            {"operation": "put", "key_b64": "/w==", "value_b64": "/w=="},
            {"operation": "get", "key": "", "end": "", "limit": 1},
        ],
        "else": [{"operation": "delete", "key": "k"}, {"operation": "delete_range", "key": "", "end": ""}],
    }
    first = await transact(served, txn)
    assert (first["succeeded"], first["revision"]) == (True, 2)
    kv = {"create": 2, "mod": 2, "version": 1, "key": "k", "value": "1"}
    assert first["responses"] == [
        {"operation": "put"},
        {"operation": "put"},
        {"operation": "get", "kvs": [kv], "count": 2},
    ]
    second = await transact(served, txn)
    assert (second["outcome"], second["succeeded"], second["revision"]) == ("applied", False, 3)
    assert second["responses"] == [
        {"operation": "delete", "deleted": 1},
        {"operation": "delete_range", "deleted": 1},
    ]


async def test_compact_drops_older_revisions(served: Served) -> None:
    """Below the compacted revision `at` is 410 with the oldest; compacting the future is refused."""
    for number in range(3):
        await put(served, "k", b"%d" % number)
    done = (await ask(served.port, "POST", "/v1/kv/compact", b'{"revision":3}')).json()
    assert (done["outcome"], done["oldest_revision"], done["revision"]) == ("applied", 3, 4)
    problem = (await ask(served.port, "GET", "/v1/kv/k?at=2")).problem()
    assert (problem.code, problem.revision) == (Code.COMPACTED, 3)
    assert (await ask(served.port, "POST", "/v1/kv/compact", b'{"revision":9}')).problem().code is Code.FUTURE_INDEX
    assert (await ask(served.port, "POST", "/v1/kv/compact", b'{"revision":-1}')).problem().code is Code.BAD_REQUEST
