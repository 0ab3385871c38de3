"""Tests forwarded writes, writes sent to a former leader, and messages of a leader with a hung disk."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.proposals import DEPOSED_S
from raftlog.cluster.replica.parts import applying, writes
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.ready import Fetch, SyncBatch
from raftlog.raft.types import NOBODY
from tests.cluster.replica.parts.test_requests import replica_of, write


async def test_forwarded_writes_are_refused_while_states_differ() -> None:
    """The leader knows of no majority with one state. A follower that does not know it yet forwards a write: the leader
    refuses it by the same code as its own clients' writes."""
    replica = replica_of(is_leader=True)
    replica.watch.points.differ = 5
    writes.take_forwarded(replica, [write(peer=2, number=70)])
    told = [(each.peer, each.number, each.code) for each in replica.writes.pending.take_answers()]
    assert told == [(2, 70, Code.STATES_DIFFER)]
    assert len(replica.writes.pending.queue) == 0


@pytest.mark.parametrize("is_answering", [True, False])
async def test_writes_sent_to_a_former_leader_do_not_wait_for_their_deadline(is_answering: bool) -> None:
    """Node 3 was sent a write, and node 2 leads now. If node 3 is silent, the outcome is unknown at once; if it still
    answers, it gets a short time for that."""
    replica = replica_of(options=SimpleNamespace(election_timeout_min_ms=300))
    replica.links.is_answering = lambda peer, within_s: is_answering
    own = write()
    replica.writes.pending.forwarding([own], 3)
    replica.core.state.leader = 2
    writes.leadership_changed(replica, 2)
    assert isinstance(own.future, asyncio.Future)
    assert own.future.done() is not is_answering
    replica.writes.pending.expire(clock.monotonic() + DEPOSED_S, leader=2)
    error = own.future.exception()
    assert isinstance(error, ApiError)
    assert error.code is Code.LEADER_LOST
    assert replica.writes.pending.is_empty


async def test_a_muted_leader_sends_nothing_after_a_sync_either() -> None:
    """Its disk hangs and then moves for a moment. A message after that sync would keep the followers from electing a
    leader whose disk works."""
    sent: list[Any] = []
    replica = replica_of()
    replica.disks.is_muted, replica.links.send = True, sent.append
    replica.core.state.is_touched, replica.applier.waiting = False, 0
    driver: Any = SimpleNamespace(state=replica, _leave=lambda: None)
    driver._send = lambda messages: Replica._send(driver, messages)
    message: Any = SimpleNamespace(to=2)
    Replica.synced(driver, SyncBatch(None, None, (), (message,)))
    assert sent == []
    replica.disks.is_muted = False
    Replica.synced(driver, SyncBatch(None, None, (), (message,)))
    assert sent == [message]


@pytest.mark.parametrize(("waiting", "looks"), [(0, 0), (3, 1)])
async def test_entries_that_waited_for_a_sync_are_applied_after_it(waiting: int, looks: int) -> None:
    """A follower does not apply while its disk syncs (`apply_due`). The end of the sync brings the next look, even if
    the core has nothing to say; without it the entries would wait for a tick."""
    looked: list[int] = []
    replica = replica_of()
    replica.disks.is_muted, replica.links.send = False, lambda message: None
    replica.core.state.is_touched, replica.applier.waiting = False, waiting
    driver: Any = SimpleNamespace(
        state=replica, _leave=lambda: None, _send=lambda messages: None, look_soon=lambda: looked.append(1)
    )
    Replica.synced(driver, SyncBatch(None, None, (), ()))
    assert len(looked) == looks


async def test_a_fetch_for_a_follower_leaves_the_held_entries_alone() -> None:
    """Entries that were read for applying wait until the earlier ones are applied. A follower's read that ends
    meanwhile goes to the core at once: in the place of the held one, it would be lost, and no
    entry would be applied any more."""
    given: list[Fetch] = []
    replica = replica_of(
        fetches=SimpleNamespace(held=None), driver=SimpleNamespace(carry_out=lambda: None, fail=lambda error: None)
    )
    replica.applier.waiting = 2
    replica.core.fetched = lambda fetch, entries, now: given.append(fetch)
    own, theirs = Fetch(NOBODY, 7, 9, 100), Fetch(2, 3, 5, 100)
    for fetch in (own, theirs):
        done: asyncio.Future[tuple[()]] = asyncio.get_running_loop().create_future()
        done.set_result(())
        applying._fetched(replica, fetch, done)  # type: ignore[arg-type]  # no entries
    assert given == [theirs]
    assert not applying.release(replica), "two entries are not applied yet"
    replica.applier.waiting = 0
    assert applying.release(replica)
    assert given == [theirs, own]
