"""Questions about the log between nodes: whose answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.log_frames import PeerLogReply, Question, QuestionKind
from raftlog.cluster.replica.log import peer_log
from raftlog.cluster.replica.log.peer_log import PeerLog
from raftlog.cluster.replica.parts import serving
from raftlog.raft.types import NodeId
from tests.raft.lab import configuration
from tests.support import wait_until_async


def log_of(send_bulk: Callable[[int, bytes], bool] = lambda peer, data: True) -> PeerLog:
    """The questions of node 1 of six, whose links take everything."""
    links: Any = SimpleNamespace(
        is_bulk_up=lambda peer: True,
        has_dialled=lambda peer: True,
        send_bulk=send_bulk,
        flush=lambda: None,
    )
    core: Any = SimpleNamespace(state=SimpleNamespace(configuration=configuration(6), leader=2))
    disk: Any = SimpleNamespace(oldest=9)
    nothing: Any = SimpleNamespace()
    return PeerLog(1, 1, core=core, links=links, disk=disk, applier=nothing)


async def test_only_the_peer_that_was_asked_answers() -> None:
    """Node 3 names the number of a question to node 2: that counts for nothing, and node 2's answer does."""
    log = log_of()
    asked = asyncio.create_task(log.ask(2, QuestionKind.STATE))
    await wait_until_async(lambda: log._waiting)
    (number,) = log._waiting
    log.take(3, PeerLogReply(number, "", 1, 1, 33))
    await asyncio.sleep(0)
    assert not asked.done()
    log.take(2, PeerLogReply(number, "", 1, 1, 22))
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
        disk=disk,
        reader=SimpleNamespace(own_time=own_time),
        life=SimpleNamespace(is_fenced=False, is_stopping=False),
        applier=SimpleNamespace(applied=12),
        machine=SimpleNamespace(oldest=3),
    )
    had = await serving._answer(replica, Question(1, QuestionKind.TIME, 5, 0, 0))
    assert (had.first, had.begins) == (9, 9)


async def test_a_read_ends_in_time_although_no_peer_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five peers are connected and silent, and more reads than may ask at a time wait for them. Each ends when its time
    is over. Before, each read asked all peers one after the other, and the reads waited for each other."""
    monkeypatch.setattr(peer_log, "PATIENCE_S", 0.2)
    monkeypatch.setattr(peer_log, "ANSWER_S", 0.15)
    asked: list[int] = []

    def send(peer: int, data: bytes) -> bool:
        asked.append(peer)
        return True

    log = log_of(send)
    ends = await asyncio.gather(*(log.read(5, 6, 1, lambda: True) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(end, ApiError) and end.code is Code.DEADLINE for end in ends)
    assert "node 5: no answer within 0.2 s" in str(ends[0])
    assert 1 <= len(asked) <= 50, "of 100 at least"
    assert not log._waiting


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ({"applied": 0, "first": 2}, None),
        ({"applied": 4, "first": 7}, None),
        ({"applied": 4, "first": 3}, 3),
        ({"applied": 8, "first": 9}, 9),
    ],
    ids=["joins", "has entries that are not applied", "has it", "has none before this disk begins"],
)
async def test_a_peer_that_has_not_applied_enough_finds_no_time(peer: dict[str, int], found: int | None) -> None:
    """The disk of this node begins at index 9. Before, a node that had just joined and had one entry answered that the
    next one, which it did not have, was the first of that time."""

    def send(to: NodeId, _: bytes) -> bool:
        number = max(log._waiting)
        asyncio.get_running_loop().call_soon(
            log.take, to, PeerLogReply(number, "", 1, 1, peer["applied"], peer["first"])
        )
        return True

    log = log_of(send)
    log._applier = SimpleNamespace(machine=SimpleNamespace(oldest=1))  # type: ignore[assignment]
    if found is None:
        with pytest.raises(ApiError, match=f"node 3: it has applied the log up to {peer['applied']} only"):
            await log.find_time(5, lambda: True)
    else:
        assert await log.find_time(5, lambda: True) == found
