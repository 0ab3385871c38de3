"""`GET /v1/kv/{key}?versions=N`: every version of a key from the log, by whatever request it was made."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.fake_node import Served, serve
from tests.cluster.http.http_probe import ask


async def send(served: Served, method: str, target: str, body: bytes = b"") -> dict[str, Any]:
    """A request that succeeds."""
    reply = await ask(served.port, method, target, body)
    assert reply.status == 200, reply
    return dict(reply.json())


async def test_versions_of_a_key_by_every_kind_of_write(served: Served) -> None:
    """A put, a batch, a transaction and a put: newest first, with index, time and value, up to the record that created
    the key. A delete of a range ends it; its index shows the versions before."""
    await send(served, "PUT", "/v1/kv/a/b", b"1")
    await send(served, "PUT", "/v1/kv/other", b"x")
    batch = {"writes": [{"key": "other", "value": "y"}, {"key": "a/b", "value": "2"}]}
    await send(served, "POST", "/v1/kv/batch", json.dumps(batch).encode())
    txn = {
        "then": [{"operation": "put", "key": "other", "value": "z"}, {"operation": "put", "key": "a/b", "value": "3"}]
    }
    await send(served, "POST", "/v1/kv/txn", json.dumps(txn).encode())
    last = await send(served, "PUT", "/v1/kv/a/b", b"\xff")
    found = await send(served, "GET", "/v1/kv/a/b?versions=10")
    assert [each.get("value") for each in found["versions"]] == [None, "3", "2", "1"]
    assert [each["version"] for each in found["versions"]] == [4, 3, 2, 1]
    assert found["versions"][0]["value_b64"] == "/w=="
    assert (found["versions"][0]["index"], found["versions"][0]["revision"]) == (last["index"], last["revision"])
    assert (found["next"], found["ends"]) == (None, "created")
    gone = await send(served, "DELETE", "/v1/kv?prefix=a/")
    await send(served, "PUT", "/v1/kv/a/b", b"again")
    found = await send(served, "GET", "/v1/kv/a/b?versions=10")
    assert ([each.get("value") for each in found["versions"]], found["ends"]) == (["again"], "created")
    found = await send(served, "GET", f"/v1/kv/a/b?versions=10&from={gone['index']}")
    assert [each["deleted"] for each in found["versions"]] == [True, False, False, False, False]


async def test_pages_of_versions_join(served: Served) -> None:
    """`next` is the `from` of the page after it; the pages are the whole, and the last one has no `next`."""
    for number in range(7):
        await send(served, "PUT", "/v1/kv/k", b"%d" % number)
    found: list[str] = []
    target = "/v1/kv/k?versions=3"
    while True:
        page = await send(served, "GET", target)
        assert len(page["versions"]) <= 3
        found += [each["value"] for each in page["versions"]]
        if page["next"] is None:
            break
        assert page["ends"] == ""
        target = f"/v1/kv/k?versions=3&from={page['next']}"
    assert found == list("6543210")
    assert page["ends"] == "created"


async def test_versions_end_where_the_log_is_trimmed(served: Served) -> None:
    """Records below the oldest index are gone: the page reports it, and names no version twice."""
    written = [await send(served, "PUT", "/v1/kv/k", b"%d" % number) for number in range(4)]
    await send(served, "POST", "/v1/log/trim", json.dumps({"before": written[2]["index"]}).encode())
    found = await send(served, "GET", "/v1/kv/k?versions=10")
    assert [each["value"] for each in found["versions"]] == ["3", "2"]
    assert (found["next"], found["ends"]) == (None, "trimmed")


async def test_versions_as_of_a_revision(served: Served) -> None:
    """They begin with the version that was the newest then, and where there was no key, it is not found."""
    first, second = [await send(served, "PUT", "/v1/kv/k", each) for each in (b"1", "zwölf".encode())]
    await send(served, "DELETE", "/v1/kv/k")
    found = await send(served, "GET", f"/v1/kv/k?versions=10&at={second['revision']}&value_bytes=3")
    assert [(each["value"], each.get("value_bytes")) for each in found["versions"]] == [("zw", 6), ("1", None)]
    problem = (await ask(served.port, "GET", f"/v1/kv/k?versions=10&at={first['revision'] - 1}")).problem()
    assert problem.code == "key_not_found"


async def test_versions_of_a_key_that_is_no_text(served: Served) -> None:
    """The key is a parameter then; of a range there are no versions."""
    await send(served, "PUT", "/v1/kv/%FF..", b"1")
    found = await send(served, "GET", "/v1/kv?key_b64=/y4u&versions=2")
    assert [each["value"] for each in found["versions"]] == ["1"]
    problem = (await ask(served.port, "GET", "/v1/kv?prefix=a&versions=2")).problem()
    assert "unknown parameter 'versions'" in problem.message


async def test_a_deleted_key_has_versions_from_an_index(served: Served) -> None:
    """Without one it is not found, and the message says how to go on."""
    await send(served, "PUT", "/v1/kv/k", b"1")
    gone = await send(served, "DELETE", "/v1/kv/k")
    problem = (await ask(served.port, "GET", "/v1/kv/k?versions=2")).problem()
    assert problem.code == "key_not_found"
    assert "from=" in problem.message
    found = await send(served, "GET", f"/v1/kv/k?versions=2&from={gone['index']}")
    assert [each["deleted"] for each in found["versions"]] == [True, False]


async def test_large_versions_fill_a_page() -> None:
    """A page ends with its bytes (limits.page_bytes_max), and names the next one."""
    async with serve(page_bytes_max=10_000) as served:
        for letter in b"ABCDEF":
            await send(served, "PUT", "/v1/kv/k", bytes([letter]) * 4_000)
        page = await send(served, "GET", "/v1/kv/k?versions=100")
        assert [each["value"][0] for each in page["versions"]] == ["F", "E", "D"]
        rest = await send(served, "GET", f"/v1/kv/k?versions=1&from={page['next']}")
        assert rest["versions"][0]["value"][0] == "C"
