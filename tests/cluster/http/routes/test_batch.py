"""`POST /v1/kv/batch`: every write has an outcome of its own, and is applied once however often it is sent."""

import json
from collections.abc import AsyncIterator
from itertools import permutations
from typing import Any

import msgpack
import pytest

from raftlog.cluster.api.errors import ApiError, Code
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.http_probe import Reply, ask, of_session, open_session


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A node behind the real HTTP server, which takes small batches."""
    async with serve(records_max=8, value_bytes_max=100) as served:
        yield served


async def batch(served: Served, body: Any, **names: int) -> Reply:
    """Sends a batch as JSON; `names` are the headers Raftlog-…"""
    headers = {f"Raftlog-{name}": str(value) for name, value in names.items()}
    return await ask(served.port, "POST", "/v1/kv/batch", json.dumps(body).encode(), headers)


async def packed(served: Served, session: int, writes: list[Any], settled: int = 1) -> Reply:
    """Sends a batch as msgpack; 0: without a session."""
    headers = {"Content-Type": "application/msgpack"}
    if session:
        headers |= {"Raftlog-Session": str(session), "Raftlog-Settled": str(settled)}
    return await ask(served.port, "POST", "/v1/kv/batch", msgpack.packb(writes), headers)


async def test_each_write_has_its_own_index_revision_and_outcome(served: Served) -> None:
    """Two puts, a put whose compare fails, a delete, and a delete of a key that is not there."""
    reply = await batch(
        served,
        {
            "writes": [
                {"key": "a", "value": "1"},
                {"key_b64": "/w==", "value_b64": "gA=="},
                {"key": "a", "value": "2", "if_revision": 0},
                {"key": "a", "delete": True},
                {"key": "b", "delete": True},
            ]
        },
    )
    assert reply.status == 200
    one, two, three, four, five = reply.json()["results"]
    assert [each["written"]["revision"] for each in (one, two, four)] == [2, 3, 4]
    assert [each["written"]["index"] for each in (one, two, four, five)] == [3, 4, 6, 7]
    assert [each["written"].get("deleted", 0) for each in (four, five)] == [1, 0]
    problem = three["problem"]
    assert (problem["code"], problem["outcome"], problem["revision"], problem["index"]) == (
        "compare_failed",
        "not_applied",
        2,
        5,
    )
    assert served.node.machine.get(b"a") is None
    assert served.node.machine.get(b"\xff").value == b"\x80"


async def test_a_batch_that_is_sent_again_is_applied_once(served: Served) -> None:
    """The second answer is the first, as `repeated`; also where only a part of the batch comes again, or alone."""
    session = await open_session(served.port)
    writes = [[number, b"k%d" % number, b"v", None] for number in (1, 2, 3)]
    first = (await packed(served, session, writes)).json()["results"]
    applied = served.node.applied
    again = (await packed(served, session, writes[1:])).json()["results"]
    assert [each["written"]["result"] for each in again] == ["repeated", "repeated"]
    assert [each["written"]["revision"] for each in again] == [each["written"]["revision"] for each in first[1:]]
    alone = await ask(served.port, "PUT", "/v1/kv/k3", b"v", of_session(session, 3))
    assert alone.json()["result"] == "repeated"
    assert served.node.machine.revision == 4
    assert served.node.applied == applied + 3  # the repetitions are in the log, and change nothing


async def test_a_write_that_the_node_does_not_take_keeps_the_others(served: Served) -> None:
    """A value over the limit, and a sequence that was used for another request."""
    session = await open_session(served.port)
    await packed(served, session, [[1, b"a", b"1", None]])
    writes = [[2, b"b", b"x" * 101, None], [1, b"a", b"other", None], [3, b"c", b"3", None]]
    results = (await packed(served, session, writes)).json()["results"]
    assert [each["problem"]["code"] for each in results[:2]] == ["too_large", "sequence_reused"]
    assert "limits.value_bytes_max" in results[0]["problem"]["message"]
    assert served.node.machine.get(b"c").value == b"3"
    served.node.refusal = ApiError(Code.BUSY, "too many")
    (result,) = (await packed(served, 0, [[0, b"d", b"4", None]])).json()["results"]
    assert (result["problem"]["code"], result["problem"]["outcome"]) == ("busy", "not_applied")


async def test_a_refused_copy_of_a_batch_is_never_answered_not_applied(served: Served) -> None:
    """Its writes were applied. Refused as a whole or one by one, settled or under a session that has expired, the
    copy's outcome is unknown."""
    session = await open_session(served.port)
    writes = [[1, b"a", b"1", None], [2, b"b", b"2", None]]
    await packed(served, session, writes)
    served.node.refusal = ApiError(Code.BUSY, "too many")
    results = (await packed(served, session, writes)).json()["results"]
    assert [each["problem"]["outcome"] for each in results] == ["unknown", "unknown"]
    served.node.refusal = None
    served.node.is_fenced = True
    assert (await packed(served, session, writes)).problem().outcome == "unknown"
    served.node.is_fenced = False
    await packed(served, session, [[3, b"c", b"3", None]], settled=3)
    settled = (await packed(served, session, writes)).json()["results"]
    served.node.clock_ms += 10_000_000
    expired = (await packed(served, session, writes)).json()["results"]
    told = [(each["problem"]["code"], each["problem"]["outcome"]) for each in settled + expired]
    assert told == [("sequence_settled", "unknown")] * 2 + [("session_expired", "unknown")] * 2


@pytest.mark.parametrize(
    ("body", "names", "says"),
    [
        ({"writes": []}, {}, "holds 0 writes: it takes 1 to 8 (limits.records_max)"),
        ({"writes": [{"key": "a", "value": "1"}] * 9}, {}, "holds 9 writes"),
        ({"writes": [{"value": "1"}]}, {}, "writes[0] has no key"),
        ({"writes": [{"key": "", "value": "1"}]}, {}, "writes[0].key"),
        ({"writes": [{"key": "k" * 4_097, "value": "1"}]}, {}, "writes[0].key"),
        ({"writes": [{"key": "a", "key_b64": "YQ==", "value": "1"}]}, {}, "both key and key_b64"),
        ({"writes": [{"key": "a"}]}, {}, "writes[0] needs either a value"),
        ({"writes": [{"key": "a", "value": "1", "delete": True}]}, {}, "writes[0] needs either a value"),
        ({"writes": [{"key": "a", "value_b64": "?"}]}, {}, "writes[0].value_b64 is not base64"),
        ({"writes": [{"key": "a", "value": "1", "if_revision": -1}]}, {}, "if_revision"),
        ({"writes": [{"key": "a", "value": "1", "sequence": 1}]}, {}, "belong to a session"),
        ({"writes": [{"key": "a", "value": "1"}]}, {"Session": 3}, "a write has sequence 0"),
        (
            {"writes": [{"key": "a", "value": "1", "sequence": 4}]},
            {"Session": 3, "Settled": 5},
            "not below Raftlog-Settled (5)",
        ),
        ({"writes": [{"key": "a", "value": "1"}]}, {"Settled": 1}, "belong to a session"),
        ({"writes": [{"key": "a", "value": "1"}]}, {"Session": 3, "Sequence": 1}, "each write of a batch has its own"),
        ({"writes": [{"key": "a", "value": "1", "sequence": 4}] * 2}, {"Session": 3}, "the same sequence"),
        ({"writes": [{"key": "a", "vale": "1"}]}, {}, "vale"),
    ],
)
async def test_a_malformed_batch_is_refused_whole(served: Served, body: Any, names: dict[str, int], says: str) -> None:
    """No part of it is applied, and the problem names the fault and its place."""
    before = served.node.applied
    problem = (await batch(served, body, **names)).problem()
    assert problem.outcome == ("unknown" if "Session" in names else "not_applied")  # of an earlier copy
    assert says in problem.message
    assert served.node.applied == before


async def test_the_order_of_the_writes_decides_nothing_about_their_sequences(served: Served) -> None:
    """Below the settled mark, named twice, or 0: wherever such a write stands, the whole batch is refused."""
    session = await open_session(served.port)
    for sequences in ((3, 4, 5), (3, 4, 2), (3, 4, 0), (3, 5, 5)):
        for row in permutations(sequences):
            writes = [[sequence, b"k%d" % sequence, b"v", None] for sequence in row]
            reply = await packed(served, session, writes, settled=3)
            assert reply.status == (200 if sequences == (3, 4, 5) else 400), row
