"""A turn does what its cause needs: a batch is looked at once, and a sync checks nothing that it cannot change."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.host import TICK_S
from raftlog.cluster.protocol.batching import BatchDecision, BatchWindow
from raftlog.cluster.replica.replica import RESTING_S, Replica
from raftlog.cluster.runtime import clock
from tests.cluster.nodes import append_block, cluster_of, deadline, host_of
from tests.support import wait_until_async


async def test_batch_of_one_client_is_asked_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write of a client that writes alone is a batch, and each batch is looked at exactly once."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        asked: list[int] = []
        real = BatchWindow.look

        def counted(self: BatchWindow, waiting: int, now: float) -> BatchDecision:
            if self is leader.state.writes.batching:
                asked.append(waiting)
            return real(self, waiting, now)

        monkeypatch.setattr(BatchWindow, "look", counted)
        for number in range(20):
            await nodes.append(leader, b"%d" % number)
        assert asked == [1] * 20


async def test_turn_of_own_requests_or_of_a_sync_checks_nothing_that_it_cannot_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of peers and ticks check the invariants and follow members and leadership. A turn of own requests, and one
    after a sync, do so only where the core reports an event."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        checks, seen = 0, set[tuple[bool, int]]()
        check, carry_out = Replica._check, Replica.carry_out

        def checked(self: Replica) -> None:
            nonlocal checks
            checks += 1
            check(self)

        def carried_out(self: Replica, *, must_check: bool = True) -> None:
            before = checks
            carry_out(self, must_check=must_check)
            seen.add((must_check, checks - before))

        monkeypatch.setattr(Replica, "_check", checked)
        monkeypatch.setattr(Replica, "carry_out", carried_out)
        for number in range(20):
            await nodes.append(leader, b"%d" % number)
        leader.turn()
        assert seen == {(True, 1), (False, 0)}


async def test_a_node_ticks_often_while_something_is_under_way(tmp_path: Path) -> None:
    """A write whose outcome is not known, a read that waits, a node without a leader. Else ticks come seldom: each one
    wakes the process."""
    async with cluster_of(2, tmp_path) as nodes:
        leader, (follower,) = await nodes.leader(), await nodes.followers()
        await nodes.append(leader, b"x")
        await wait_until_async(lambda: not (leader.is_busy or follower.is_busy), what="two idle nodes")
        await nodes.kill(follower.node_id)
        write = leader.submit(append_block(b"y"), 1, deadline=deadline(60))
        assert leader.is_busy
        await wait_until_async(lambda: not leader.is_leader, what="the leader steps down")
        write.cancel()
        assert leader.is_busy, "no leader is known"
        await nodes.start(follower.node_id)
        again = await nodes.leader()
        await wait_until_async(lambda: not again.is_busy, what="an idle leader")
        read = again.read_barrier(deadline(60))
        assert again.is_busy
        await read


async def test_a_node_at_rest_ticks_at_its_next_deadline_and_at_once_when_it_gets_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core's deadline is kept to the millisecond, however long a node may rest. A write that comes meanwhile does not
    wait for the end of the rest: a batch that is late goes with a tick."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()
        host, core = host_of(leader), leader.state.core
        await nodes.append(leader, b"x")
        await wait_until_async(lambda: not leader.is_busy, what="an idle leader")
        with monkeypatch.context() as patched:
            began_ms = clock.read().monotonic_ms
            patched.setattr(type(core), "next_deadline_ms", lambda core: began_ms + 40)
            rests_s, late_ms = leader.may_rest_s(), clock.read().monotonic_ms - began_ms
            assert 41 - late_ms <= 1_000 * rests_s <= 41
            patched.setattr(type(core), "next_deadline_ms", lambda core: began_ms + 600_000)
            assert leader.may_rest_s() == RESTING_S
            armed = clock.monotonic()
            host._ticked()
            assert host._tick_due >= armed + RESTING_S
            write = leader.submit(append_block(b"y"), 1, deadline=deadline(60))
            leader.turn()
            assert leader.may_rest_s() == 0.0
            assert host._tick_due <= clock.monotonic() + TICK_S
        await write


async def test_an_error_early_in_a_tick_ends_the_node_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticker calls it: the node says the error, and its task does not end with another one."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()

        def broken() -> int:
            raise RuntimeError("a bug")

        monkeypatch.setattr(type(leader.state.core), "next_deadline_ms", lambda core: broken())
        leader.tick(clock.read(), clock.monotonic())
        assert host_of(leader).ended.result() is NodeExit.FAILURE
        host_of(leader).begin_stop()
