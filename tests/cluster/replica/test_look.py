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

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.protocol import batching
from raftlog.cluster.protocol.batching import AGAIN, GO, LATER, BatchDecision, BatchWindow
from raftlog.cluster.protocol.waiters import Reads, ReadWaiter
from raftlog.cluster.replica.parts import reads as read_rounds, writes
from raftlog.cluster.replica.parts.writes import PATIENCE_S
from raftlog.cluster.replica.state import ReadIndexes
from raftlog.cluster.runtime import clock
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline
from tests.support import pace, wait_until_async

LIMITS = LimitSettings()
IN_A_MINUTE = -60.0  # so that no machine is slow enough


def node_with(
    queued: int = 0,
    size: int = 0,
    *,
    is_leader: bool = True,
    appended: tuple[int, float] | None = None,
    applied: int = 7,
    readers: int = 0,
    knows_time: bool = True,
) -> Any:
    """What a look sees of a node. `appended`: its newest proposal, so many seconds ago."""
    reads = Reads()
    reads.waiting = [ReadWaiter(SimpleNamespace(done=lambda: False), 0.0) for _ in range(readers)]
    pending = SimpleNamespace(queue=[None] * queued, queued_bytes=size)
    proposals = [] if appended is None else [(appended[0], clock.monotonic() - appended[1])]
    return SimpleNamespace(
        core=SimpleNamespace(state=SimpleNamespace(role=SimpleNamespace(is_leader=is_leader))),
        applier=SimpleNamespace(applied=applied),
        settings=SimpleNamespace(limits=LIMITS),
        options=SimpleNamespace(heartbeat_ms=60_000),
        disks=SimpleNamespace(knows_time=knows_time),
        writes=SimpleNamespace(pending=pending, appended=proposals, batching=BatchWindow()),
        reads=ReadIndexes(rounds=reads),
    )


def found_in(node: Any) -> BatchDecision:
    """What a look finds now, for writes and reads together."""
    mono = clock.monotonic()
    found = (
        writes.look(node, mono) if node.writes.pending.queue else LATER,
        read_rounds.look(node, mono) if node.reads.rounds.waiting else LATER,
    )
    return GO if GO in found else AGAIN if AGAIN in found else LATER


@pytest.mark.parametrize(
    ("make", "found"),
    [
        pytest.param(partial(node_with), BatchDecision.LATER, id="no request waits"),
        pytest.param(partial(node_with, 1), BatchDecision.GO, id="nothing is under way"),
        pytest.param(partial(node_with, 1, knows_time=False), BatchDecision.LATER, id="no majority's clock was heard"),
        pytest.param(partial(node_with, 1, appended=(7, 0.0)), BatchDecision.GO, id="the batch before is applied"),
        pytest.param(
            partial(node_with, 1, appended=(8, IN_A_MINUTE)), BatchDecision.LATER, id="the batch before is not applied"
        ),
        pytest.param(
            partial(node_with, 1, appended=(8, PATIENCE_S)),
            BatchDecision.GO,
            id="the batch before takes longer than the patience",
        ),
        pytest.param(
            partial(node_with, 1, LIMITS.batch_eager_bytes, appended=(8, IN_A_MINUTE)),
            BatchDecision.GO,
            id="the bytes of an eager batch wait",
        ),
        pytest.param(
            partial(node_with, 1, appended=(8, IN_A_MINUTE), is_leader=False),
            BatchDecision.GO,
            id="a follower passes it on",
        ),
        pytest.param(partial(node_with, readers=1), BatchDecision.GO, id="a reader"),
        pytest.param(
            partial(node_with, 1, appended=(8, IN_A_MINUTE), readers=1),
            BatchDecision.GO,
            id="a reader does not wait for a batch",
        ),
    ],
)
def test_a_look_begins_a_turn_only_for_due_work(make: Callable[[], Any], found: BatchDecision) -> None:
    """Each rule by itself."""
    assert found_in(make()) is found


def test_a_round_under_way_holds_the_next_one_up() -> None:
    """Readers meanwhile gather; with writes it is the same, and neither holds up the other."""
    node = node_with(readers=1)
    node.reads.rounds.start(1, clock.monotonic())
    node.reads.rounds.waiting = [ReadWaiter(SimpleNamespace(done=lambda: False), 0.0)]
    assert found_in(node) is BatchDecision.LATER
    node.writes.pending.queue = [None]
    assert found_in(node) is BatchDecision.GO


@pytest.mark.parametrize("asked", [{"queued": 1}, {"readers": 1}])
def test_an_open_batch_is_looked_at_in_the_next_turn(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a turn nor silence: the next turn of the loop shows whether more have come."""
    monkeypatch.setattr(batching, "WINDOW_S", 60.0)
    monkeypatch.setattr(batching, "GAP_S", 60.0)
    node = node_with(**asked)
    for each in (node.writes.batching, node.reads.batching):
        each.answered(2, 0)
    assert found_in(node) is BatchDecision.AGAIN
    assert found_in(node) is BatchDecision.AGAIN
    node.writes.pending.queue *= 2
    node.reads.rounds.waiting *= 2
    assert found_in(node) is BatchDecision.GO


async def test_the_next_batch_waits_for_answered_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that ask again as soon as they are answered stay in one batch, but for where a leader is lost. Guard:
    `answered` in cluster/replica/parts/applying.py, and the look behind it."""
    monkeypatch.setattr(batching, "GAP_S", 60.0)
    monkeypatch.setattr(batching, "WINDOW_S", 60.0)
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
