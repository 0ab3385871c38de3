"""Questions about the log between nodes: whose answer counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from raftlog.cluster.protocol.log_frames import PEER_VERSION, Had, QuestionKind
from raftlog.cluster.replica.log.peer_log import PeerLog
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
