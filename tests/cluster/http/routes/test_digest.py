"""`/v1/digest` over the wire: state digests at the ends of entries, log digests that add up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.records.rows import decode_rows
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Limits, Operation
from raftlog.statemachine.digest import log_digest
from tests.cluster.fake_node import FakeNode, Served, serve
from tests.cluster.http.http_probe import ask


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A fake node that keeps four state digests, with ten entries of three puts, appends or refusals each."""
    node = FakeNode(Limits(digests_kept=4))
    for number in range(10):
        put = (encode_block([BlockRecord(Operation.PUT, b"%d" % number, b"v")]), 1)
        failed = (encode_block([BlockRecord(Operation.PUT, b"k", b"w", None, 99)], session=0), 1)
        appended = (encode_block([BlockRecord(Operation.APPEND, b"k", b"v", None, number)], plain=True), 1)
        node.submit_now(put, failed, appended)
    async with serve(node) as served:
        yield served


async def test_state_digest_at_the_end_of_an_entry(served: Served) -> None:
    """Now, and at each entry still remembered, with the revision there."""
    now = (await ask(served.port, "GET", "/v1/digest")).json()
    assert (now["index"], now["revision"], now["format"]) == (32, 11, 2)
    count, xor, low, high = served.node.machine.digest().as_hex()
    assert now["state"] == {"count": count, "xor": xor, "sum_low": low, "sum_high": high}
    before = (await ask(served.port, "GET", "/v1/digest?index=29")).json()
    assert (before["index"], before["revision"], before["state"]["count"]) == (29, 10, 9)


async def test_no_digest_inside_an_entry_below_the_kept_ones_or_in_the_future(served: Served) -> None:
    """422 with both neighbours, 410 with the oldest, 425."""
    inside = (await ask(served.port, "GET", "/v1/digest?index=30")).problem()
    assert (inside.code, inside.nearest) == (Code.INSIDE_ENTRY, (29, 32))
    old = (await ask(served.port, "GET", "/v1/digest?index=20")).problem()
    assert (old.code, old.oldest) == (Code.COMPACTED, 23)
    parts = (await ask(served.port, "GET", "/v1/digest?index=30&log_from=20")).json()
    assert (parts["state"], parts["log_digest"]["count"]) == (None, 11), "parts of the log can be asked anywhere"
    future = await ask(served.port, "GET", "/v1/digest?index=33", headers={"Raftlog-Deadline-Ms": "20"})
    assert future.problem().code is Code.FUTURE_INDEX


async def test_log_digest_is_that_of_the_exported_rows(served: Served) -> None:
    """[log_from, index], from any record on; the digests of two parts add up to that of the whole."""
    rows = [row for entry, effects in served.node.log for row in decode_rows(entry, effects)]
    for first in (1, 17, 32):
        told = (await ask(served.port, "GET", f"/v1/digest?index=32&log_from={first}")).json()
        count, xor, low, high = log_digest(row for row in rows if row.index >= first).as_hex()
        assert told["log_from"] == first
        assert told["log_digest"] == {"count": count, "xor": xor, "sum_low": low, "sum_high": high}
        assert count == 33 - first


async def test_bad_log_ranges_are_refused(served: Served) -> None:
    """A range that ends before it begins, or begins below the oldest index."""
    assert (await ask(served.port, "GET", "/v1/digest?index=29&log_from=30")).problem().code is Code.BAD_REQUEST
    served.node.oldest = 9
    problem = (await ask(served.port, "GET", "/v1/digest?log_from=8")).problem()
    assert (problem.code, problem.oldest) == (Code.COMPACTED, 9)


async def test_log_digests_are_bounded_in_number() -> None:
    """One more than allowed is refused as busy at once."""
    async with serve(digests_max=1) as served:
        await ask(served.port, "POST", "/v1/log", b"x")
        assert (await ask(served.port, "GET", "/v1/digest?log_from=1")).status == 200
    async with serve(digests_max=0) as served:
        problem = (await ask(served.port, "GET", "/v1/digest?log_from=1")).problem()
        assert (problem.code, "digests_max" in problem.message) == (Code.BUSY, True)
