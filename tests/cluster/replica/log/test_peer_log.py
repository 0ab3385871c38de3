"""Questions about the log between nodes: whose answer counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.protocol.log_frames import PEER_VERSION, Had, Question, QuestionKind
from raftlog.cluster.replica.log.peer_log import PeerLog
from raftlog.cluster.replica.parts import serving
from tests.support import wait_until_async


def log_of() -> PeerLog:
    """The questions of node 1, whose links take everything."""
    links: Any = SimpleNamespace(
        is_bulk_up=lambda peer: True,
        version_of=lambda peer: PEER_VERSION,
        send_bulk=lambda peer, data: True,
        flush=lambda: None,
    )
    nothing: Any = SimpleNamespace()
    return PeerLog(1, 1, core=nothing, links=links, disk=nothing, applier=nothing)


async def test_only_the_peer_that_was_asked_answers() -> None:
    """Node 3 names the number of a question to node 2: that counts for nothing, and node 2's answer does."""
    log = log_of()
    asked = asyncio.create_task(log.ask(2, QuestionKind.STATE))
    await wait_until_async(lambda: log._waiting)
    (number,) = log._waiting
    log.take(3, Had(number, "", 1, 1, 33))
    await asyncio.sleep(0)
    assert not asked.done()
    log.take(2, Had(number, "", 1, 1, 22))
    assert (await asked).applied == 22
    log.close()


@pytest.mark.parametrize(("before", "after"), [(6, 9), (9, 6)], ids=["a snapshot installed", "older segments back"])
async def test_a_found_time_counts_from_the_later_begin_of_a_log_that_changed_meanwhile(
    before: int, after: int
) -> None:
    """The search may not have seen the entries between the two: the node that asks must not take it for complete."""
    disk = SimpleNamespace(oldest=before)

    async def own_time(time_ms: int) -> int:
        disk.oldest = after
        return 9

    replica: Any = SimpleNamespace(
        disk=disk, reader=SimpleNamespace(own_time=own_time), life=SimpleNamespace(is_fenced=False, is_stopping=False),
        applier=SimpleNamespace(applied=12), machine=SimpleNamespace(oldest=3),
    )  # fmt: skip
    had = await serving._answer(replica, Question(1, QuestionKind.TIME, 5, 0, 0))
    assert (had.first, had.begins) == (9, 9)
