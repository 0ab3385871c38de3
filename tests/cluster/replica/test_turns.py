"""A turn does what its cause needs: a batch is looked at once, and a sync checks nothing that it cannot change."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.cluster.protocol.batching import BatchWindow
from raftlog.cluster.replica.replica import Replica
from tests.cluster.nodes import cluster_of


async def test_batch_of_one_client_is_asked_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write of a client that writes alone is a batch, and each batch is looked at exactly once."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        asked: list[int] = []
        real = BatchWindow.is_whole

        def counted(self: BatchWindow, waiting: int, now: float) -> bool:
            if self is leader.state.writes.batching:
                asked.append(waiting)
            return real(self, waiting, now)

        monkeypatch.setattr(BatchWindow, "is_whole", counted)
        for number in range(20):
            await nodes.append(leader, b"%d" % number)
        assert asked == [1] * 20


async def test_sync_that_only_commits_is_not_followed_by_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of requests, peers and ticks check the invariants and follow members and leadership. A turn after a sync
    does so only where the core reports an event."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        checks, seen = 0, set[tuple[bool, int]]()
        check, carry_out = Replica._check, Replica.carry_out

        def checked(self: Replica) -> None:
            nonlocal checks
            checks += 1
            check(self)

        def carried_out(self: Replica, *, is_sync: bool = False) -> None:
            before = checks
            carry_out(self, is_sync=is_sync)
            seen.add((is_sync, checks - before))

        monkeypatch.setattr(Replica, "_check", checked)
        monkeypatch.setattr(Replica, "carry_out", carried_out)
        for number in range(20):
            await nodes.append(leader, b"%d" % number)
        assert seen == {(False, 1), (True, 0)}
