"""Tests the steps of a read round that are easily forgotten: readers of a round that ends wait for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.forward_frames import encode_read_reply
from raftlog.cluster.protocol.waiters import ReadWaiter
from raftlog.cluster.replica.parts import disk_exchange, link_events, reads, writes
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.options import Options
from raftlog.raft.refusals import ReadsFull
from tests.cluster.replica.parts.test_requests import FAR, replica_of


def reader_of(replica: Any) -> asyncio.Future[int]:
    """A linearizable read that waits for the next round."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.reads.rounds.waiting.append(ReadWaiter(future, FAR))
    return future


def refused_by_the_core(replica: Any) -> None:
    """This node leads, and its core takes no further read."""

    def read(context: int, now: object) -> None:
        raise ReadsFull("too many reads wait")

    replica.is_leader, replica.core.read = True, read
    reads.start_reads(replica, 0.0, is_due=True)


def taken_by_no_link(replica: Any) -> None:
    """The link to the leader is full."""
    replica.links.send_bulk = lambda peer, frame: False
    reads.start_reads(replica, 0.0, is_due=True)


def link_closed(replica: Any) -> None:
    """The question is on its way to the leader when the link closes."""
    reads.start_reads(replica, 0.0, is_due=True)
    replica.peer_log = SimpleNamespace(lost=lambda peer: None)
    link_events.bulk_link_closed(replica, 3)


def answered_without_an_index(replica: Any) -> None:
    """The asked node does not lead any more."""
    reads.start_reads(replica, 0.0, is_due=True)
    reads.answer_read(replica, 1, replica.reads.rounds._number, 0)


@pytest.mark.parametrize("end", [refused_by_the_core, taken_by_no_link, link_closed, answered_without_an_index])
async def test_a_round_that_ends_without_an_index_gives_its_readers_back(
    end: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader waits for the next round at once. In a round that never ends it would wait until its deadline."""
    monkeypatch.setattr(disk_exchange, "lost", lambda replica, peer: None)
    replica = replica_of()
    future = reader_of(replica)
    end(replica)
    assert not future.done()
    assert [each.future for each in replica.reads.rounds.waiting] == [future]
    assert len(replica.reads.rounds) == 1, "it counts once towards limits.waiters_max"


async def test_a_round_that_the_leader_does_not_answer_is_asked_for_again() -> None:
    """The leader's answer is lost with a link of its own, of which this node hears nothing. After the longest election
    timeout the readers wait for the next round; the round of a leader itself ends with its core."""
    replica = replica_of()
    replica.options = Options()
    future = reader_of(replica)
    reads.start_reads(replica, 1.0, is_due=True)
    timeout_s = replica.options.election_timeout_max_ms / 1_000
    reads.ask_again(replica, 1.0 + timeout_s)
    assert not replica.reads.rounds.waiting
    reads.ask_again(replica, 1.001 + timeout_s)
    assert [each.future for each in replica.reads.rounds.waiting] == [future]
    replica.reads.rounds.start(replica.identity.node, 1.0)
    reads.ask_again(replica, 100.0)
    assert not replica.reads.rounds.waiting


async def test_readers_of_the_former_leader_ask_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 3 was asked, and node 2 leads now. The link to node 3 stays up, so that no closed link gives them back."""
    replica = replica_of()
    future = reader_of(replica)
    reads.start_reads(replica, 0.0, is_due=True)
    monkeypatch.setattr(
        "raftlog.cluster.replica.replica.invariants",
        SimpleNamespace(observe=lambda core: core, check_state=lambda core: None, check_step=lambda *_: None),
    )
    monkeypatch.setattr("raftlog.cluster.replica.replica.node_members", SimpleNamespace(follow=lambda *_: None))
    monkeypatch.setattr(writes, "leadership_changed", lambda state, leader: None)
    replica.core.state.leader, replica.core.state.term, replica.core.state.node = 2, 5, 1
    driver: Any = SimpleNamespace(state=replica, _observed=None, _seen_leadership=(4, 3), wake=lambda: None)
    Replica._check(driver)
    assert [each.future for each in replica.reads.rounds.waiting] == [future]


async def test_a_follower_that_is_asked_for_a_read_index_says_that_it_has_none() -> None:
    """A peer took it for the leader. Without an answer, the peer's readers would wait until their deadlines."""
    replica = replica_of()
    replica.reads.asked.append((2, 33))
    reads.start_reads(replica, 0.0, is_due=False)
    assert replica.sent == [(2, encode_read_reply(33, 0))]


async def test_a_removed_node_refuses_linearizable_reads() -> None:
    """No leader confirms a round for it any more; another node answers at once."""
    replica = replica_of()
    replica.members.is_removed = True
    with pytest.raises(ApiError) as refused:
        reads.check(replica)
    assert refused.value.code is Code.NO_LEADER
