"""Whether a turn has anything to begin: one batch and one read round under way at a time, and what else holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import random
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import clock, gather
from cluster.gather import Gather
from cluster.node_requests import PATIENCE_S, Look, look
from cluster.settings import LimitSettings
from cluster.waiting import Reader, Reads
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline
from tests.support import pace, wait_until_async

LIMITS = LimitSettings()
IN_A_MINUTE = -60.0  # so that no machine is slow enough


def node_with(
    queued: int = 0, size: int = 0, *, is_leader: bool = True, appended: tuple[int, float] | None = None,
    applied: int = 7, readers: int = 0,
) -> Any:  # fmt: skip
    """What `look` sees of a node. `appended`: its newest proposal, so many seconds ago."""
    reads = Reads()
    reads.waiting = [Reader(SimpleNamespace(done=lambda: False), 0.0) for _ in range(readers)]
    return SimpleNamespace(
        is_leader=is_leader, pending=SimpleNamespace(queued=queued, queued_bytes=size), applied=applied, reads=reads,
        appended=[] if appended is None else [(appended[0], clock.monotonic() - appended[1])],
        settings=SimpleNamespace(limits=LIMITS), options=SimpleNamespace(heartbeat_ms=60_000), reads_not_before=0.0,
        writes_gather=Gather(), reads_gather=Gather(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "found"),
    [
        pytest.param(partial(node_with), Look.LATER, id="nobody asks"),
        pytest.param(partial(node_with, 1), Look.GO, id="nothing is under way"),
        pytest.param(partial(node_with, 1, appended=(7, 0.0)), Look.GO, id="the batch before is applied"),
        pytest.param(partial(node_with, 1, appended=(8, IN_A_MINUTE)), Look.LATER, id="it is not"),
        pytest.param(partial(node_with, 1, appended=(8, PATIENCE_S)), Look.GO, id="it takes long"),
        pytest.param(
            partial(node_with, 1, LIMITS.batch_eager_bytes, appended=(8, IN_A_MINUTE)), Look.GO, id="much waits"
        ),
        pytest.param(
            partial(node_with, 1, appended=(8, IN_A_MINUTE), is_leader=False), Look.GO, id="a follower passes it on"
        ),
        pytest.param(partial(node_with, readers=1), Look.GO, id="a reader"),
        pytest.param(
            partial(node_with, 1, appended=(8, IN_A_MINUTE), readers=1),
            Look.GO,
            id="a reader does not wait for a batch",
        ),
    ],
)
def test_what_a_turn_would_begin(make: Callable[[], Any], found: Look) -> None:
    """Each rule by itself."""
    assert look(make()) is found


def test_a_round_under_way_holds_the_next_one_up() -> None:
    """Readers meanwhile gather; with writes it is the same, and neither holds up the other."""
    node = node_with(readers=1)
    node.reads.start(1, clock.monotonic())
    node.reads.waiting = [Reader(SimpleNamespace(done=lambda: False), 0.0)]
    assert look(node) is Look.LATER
    node.pending.queued = 1
    assert look(node) is Look.GO


@pytest.mark.parametrize("asked", [{"queued": 1}, {"readers": 1}])
def test_who_gathers_looks_again(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a turn nor silence: the next turn of the loop tells whether more have come."""
    monkeypatch.setattr(gather, "GATHER_S", 60.0)
    monkeypatch.setattr(gather, "GAP_S", 60.0)
    node = node_with(**asked)
    for each in (node.writes_gather, node.reads_gather):
        each.answered(2, 0)
    assert look(node) is Look.AGAIN
    assert look(node) is Look.AGAIN
    node.pending.queued *= 2
    node.reads.waiting *= 2
    assert look(node) is Look.GO


async def test_who_was_answered_is_waited_for_in_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that ask again as soon as they are answered stay in one batch, but for where a leader is lost. Guard:
    `answered` in cluster/node_apply.py, and the look behind it."""
    monkeypatch.setattr(gather, "GAP_S", 60.0)
    monkeypatch.setattr(gather, "GATHER_S", 60.0)
    async with cluster_of(3, tmp_path) as nodes:
        await wait_until_async(lambda: _stay_together(nodes))


async def _stay_together(nodes: Nodes) -> bool:
    """Whether eight clients that append three times each, never all in one turn of the loop, make three entries."""
    leader = await nodes.leader()
    before = leader.applied

    async def ask() -> None:
        for _ in range(3):
            await leader.submit(append_block(b"x"), 1, deadline=deadline())
            await pace(0.02 * random())

    if any(await asyncio.gather(*(ask() for _ in range(8)), return_exceptions=True)):
        return False
    pairs = await leader.read_log(before + 1, 100, 1 << 20)
    return [entry.count for entry, _ in pairs] == [8, 8, 8]
