"""Waiting requests: each settled exactly once, with the outcome that is true."""

import asyncio

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.protocol.proposals import DEPOSED_S, Pending
from raftlog.cluster.protocol.request import Inflight, RequestResult
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine import commands
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.effects import Effects, RequestEffect
from tests.cluster.nodes import append_block

LATER = 1e9


def pending_with(**limits: int) -> Pending:
    """Requests of node 1, with these limits."""
    return Pending(LimitSettings(**limits), Metrics(), 1)


def request(*values: bytes, deadline: float = LATER, session: int = 0, sequence: int = 0, peer: int = 0) -> Inflight:
    """A request of this node, or one that `peer` forwarded."""
    future = None if peer else asyncio.get_running_loop().create_future()
    block = append_block(*(values or (b"v",)), session=session, sequence=sequence)
    return Inflight(block, len(values) or 1, deadline, session, sequence, future, peer, 7 if peer else 0)


def nobody_answers(peer: int) -> bool:
    """Every peer is silent."""
    return False


def plain(index: int) -> Effects:
    """An entry of nothing but appends."""
    return Effects(index, 1, (), True)


def applied(pending: Pending, index: int, term: int, *counts: int) -> None:
    """The node applied an entry with requests of so many records."""
    pending.applied(index, term, [commands.RequestBlock(count, ()) for count in counts], plain(index))


def future_of(each: Inflight) -> asyncio.Future[RequestResult]:
    """Its future."""
    assert isinstance(each.future, asyncio.Future)
    return each.future


def code_of(each: Inflight) -> Code:
    """Why it failed."""
    error = future_of(each).exception()
    assert isinstance(error, ApiError)
    return error.code


def propose(pending: Pending, term: int, first: int, *requests: Inflight) -> list[Inflight]:
    """Queues and proposes them as one entry."""
    for each in requests:
        pending.submit(each)
    taken = pending.take(0.0, joining=True)[0]
    if taken:
        pending.proposed(taken, term, first)
    return taken


async def test_an_entry_settles_its_requests_in_one_pass_with_their_indexes() -> None:
    """Each future gets the indexes of its own records and its own effect."""
    pending = pending_with()
    one, two = request(b"a", b"b"), request(b"c")
    propose(pending, 3, 11, one, two)
    effects = [RequestEffect(Result.APPLIED, 5), RequestEffect(Result.COMPARE_FAILED, 5)]
    pending.applied(13, 3, [commands.RequestBlock(2, ()), commands.RequestBlock(1, ())], Effects(13, 5, tuple(effects)))
    assert one.future is not None
    assert two.future is not None
    assert future_of(one).result() == (11, 12, 3, effects[0])
    assert future_of(two).result() == (13, 13, 3, effects[1])
    assert pending.is_empty


async def test_another_term_at_its_index_means_overwritten() -> None:
    """A request proposed in term 3 that finds term 4 committed in its place will never be applied: not_applied."""
    pending = pending_with()
    lost = request()
    propose(pending, 3, 11, lost)
    applied(pending, 12, 4, 2)
    assert code_of(lost) is Code.OVERWRITTEN


async def test_deadline_of_a_queued_request_is_not_applied_and_of_a_proposed_one_unknown() -> None:
    """The three outcomes: before it was queued anywhere DEADLINE or NO_LEADER, afterwards TIMEOUT; each once."""
    pending = pending_with()
    proposed, late, lonely = request(deadline=10.0), request(deadline=11.0), request(deadline=12.0)
    propose(pending, 3, 11, proposed)
    pending.submit(late)
    pending.submit(lonely)
    pending.expire(9.0, leader=1)
    assert not proposed.is_settled
    pending.expire(11.5, leader=1)
    assert (code_of(proposed), code_of(late)) == (Code.TIMEOUT, Code.DEADLINE)
    pending.expire(12.5, leader=0)
    assert code_of(lonely) is Code.NO_LEADER
    applied(pending, 11, 3, 1)  # its outcome comes too late: nothing is settled twice
    assert pending.is_empty


async def test_past_its_deadline_a_request_is_not_taken() -> None:
    """The leader drops a request past its deadline, its own and a forwarded one, and answers it."""
    pending = pending_with()
    own, forwarded = request(deadline=1.0), request(deadline=1.0, peer=2)
    pending.submit(own)
    pending.submit(forwarded)
    assert pending.take(2.0, joining=True)[0] == []
    assert code_of(own) is Code.DEADLINE
    assert pending.answers == [(2, 7, 0, Code.DEADLINE)]


async def test_a_repetition_joins_the_first_until_that_is_applied() -> None:
    """The leader does not append a sequence that is in its unapplied tail; both get one answer."""
    pending = pending_with()
    first, again = request(b"a", session=5, sequence=1), request(b"a", session=5, sequence=1)
    forwarded = request(b"a", session=5, sequence=1, peer=2)
    assert propose(pending, 3, 11, first, again) == [first]
    pending.submit(forwarded)
    assert pending.take(0.0, joining=True)[0] == []
    assert pending.answers == [(2, 7, 11, None)]
    applied(pending, 11, 3, 1)
    assert first.future is not None
    assert future_of(first).result() == future_of(again).result()
    later = request(b"a", session=5, sequence=1)
    assert propose(pending, 3, 12, later) == [later], "applied: now the session table answers"


async def test_other_bytes_under_the_same_sequence_do_not_join() -> None:
    """They are appended, and the state machine refuses them: the leader decides nothing that apply must check."""
    pending = pending_with()
    first, other = request(b"a", session=5, sequence=1), request(b"b", session=5, sequence=1)
    assert propose(pending, 3, 11, first, other) == [first, other]


async def test_requests_that_could_not_be_proposed_wait_again_in_order() -> None:
    """Busy, or a hand-over: nothing is lost, the order stays, repetitions follow their first."""
    pending = pending_with()
    one, again = request(b"a", session=5, sequence=1), request(b"a", session=5, sequence=1)
    two = request(b"b")
    for each in (one, again, two):
        pending.submit(each)
    size = pending.queued_bytes
    pending.put_back(pending.take(0.0, joining=True)[0])
    assert pending.queued_bytes == size
    assert pending.take(0.0, joining=True)[0] == [one, two]
    assert one.joined == [again]


@pytest.mark.parametrize("has_older", [False, True])
async def test_a_late_repetition_keeps_its_own_deadline(has_older: bool) -> None:
    """Joined to an entry that never commits, it still fails in time; beside a batch of an earlier term, too, which may
    have higher indexes."""
    pending = pending_with()
    if has_older:
        propose(pending, 2, 99, request(b"old"))
        pending.leadership_changed()
    first = request(b"a", session=5, sequence=1)
    propose(pending, 3, 11, first)
    again = request(b"a", session=5, sequence=1, deadline=5.0)
    pending.submit(again)
    pending.take(0.0, joining=True)[0]
    pending.expire(6.0, leader=1)
    assert code_of(again) is Code.TIMEOUT
    assert not first.is_settled


async def test_a_forwarded_request_is_settled_by_this_nodes_own_apply() -> None:
    """The leader's answer only names the place; the same term there is applied, another one overwritten."""
    pending = pending_with()
    good, bad = request(b"a"), request(b"b")
    number = pending.forwarding([good, bad], 2)
    pending.answered(number, 21, 3)
    pending.answered(number + 1, 22, 3)
    applied(pending, 21, 3, 1)
    applied(pending, 22, 4, 1)
    assert future_of(good).result()[:3] == (21, 21, 3)
    assert code_of(bad) is Code.OVERWRITTEN
    assert pending.is_empty


async def test_a_lost_link_leaves_unanswered_requests_unknown_and_answered_ones_waiting() -> None:
    """Pitfall 30: a sent request without an answer may be in the leader's log. A request with a place waits for
    apply.
    """
    pending = pending_with()
    unanswered, placed = request(b"a"), request(b"b")
    number = pending.forwarding([unanswered, placed], 2)
    pending.answered(number + 1, 31, 3)
    pending.leader_is(2, 0.0, nobody_answers)
    assert not unanswered.is_settled
    pending.leader_is(3, 0.0, nobody_answers)
    assert code_of(unanswered) is Code.LEADER_LOST
    applied(pending, 31, 3, 1)
    assert future_of(placed).result().last == 31
    assert pending.is_empty


async def test_a_deposed_leader_still_answers_its_forwarded_requests() -> None:
    """A hand-over leaves no client without an answer. The old leader refuses the requests it has not proposed and
    places the rest; only requests it does not answer in time are unknown. Found by tests/acceptance/test_stop.py.
    """
    pending = pending_with()
    refused, placed, forgotten = request(b"a"), request(b"b"), request(b"c")
    number = pending.forwarding([refused, placed, forgotten], 2)
    pending.leader_is(3, 10.0, lambda peer: peer == 2)
    pending.expire(10.0, leader=3)
    assert not any(each.is_settled for each in (refused, placed, forgotten))
    pending.refused(number, Code.NO_LEADER, "it does not lead any more")
    pending.answered(number + 1, 31, 3)
    assert code_of(refused) is Code.NO_LEADER
    pending.expire(10.0 + DEPOSED_S, leader=3)
    assert code_of(forgotten) is Code.LEADER_LOST
    applied(pending, 31, 3, 1)
    assert future_of(placed).result().last == 31
    assert pending.is_empty


async def test_a_leader_that_leads_again_is_waited_for() -> None:
    """Deposed and elected again within the time: its requests wait for their deadline as any leader's."""
    pending = pending_with()
    waiting = request(b"a", deadline=20.0)
    pending.forwarding([waiting], 2)
    pending.leader_is(3, 10.0, lambda peer: True)
    pending.leader_is(2, 10.01, lambda peer: True)
    pending.expire(11.0, leader=2)
    assert not waiting.is_settled
    pending.expire(20.0, leader=2)
    assert code_of(waiting) is Code.TIMEOUT


async def test_a_newer_term_decides_everything_older_that_waits() -> None:
    """Terms only rise along the log: once an entry of term 4 is applied, nothing of term 3 can follow, at no index.
    Without this a deposed leader's clients would wait for their deadline and hear unknown."""
    pending = pending_with()
    proposed, forwarded, newer = request(b"a"), request(b"b"), request(b"c")
    propose(pending, 3, 50, proposed)
    number = pending.forwarding([forwarded, newer], 2)
    pending.answered(number, 60, 3)
    pending.answered(number + 1, 61, 4)
    applied(pending, 11, 4, 1)
    assert code_of(proposed) is code_of(forwarded) is Code.OVERWRITTEN
    assert not newer.is_settled
    late = request(b"d")
    assert pending.answered(pending.forwarding([late], 2), 70, 3) is None
    assert code_of(late) is Code.OVERWRITTEN
    applied(pending, 61, 4, 1)
    assert pending.is_empty


async def test_a_place_that_comes_after_the_next_leaders_first_entry_is_looked_up() -> None:
    """A forwarded write was applied here in term 3, then an entry of term 4, and only now the old leader's answer
    comes. The write counts as the one that was applied at its place, and not as overwritten by the newer term.
    """
    pending = pending_with()
    write = request()
    number = pending.forwarding([write], 2)
    applied(pending, 5, 3, 1)
    applied(pending, 6, 4, 1)
    late = pending.answered(number, 5, 3)
    assert late is write
    assert not write.is_settled
    pending.settle_late(write, 3, RequestEffect(Result.APPLIED, 1), 3)
    assert future_of(write).result()[:3] == (5, 5, 3)
    assert pending.is_empty


async def test_an_answer_that_is_slower_than_the_commit_is_looked_up() -> None:
    """The answer travels on another connection than the commit: the entry applied at that place decides."""
    pending = pending_with()
    same, other, forgotten = request(b"a"), request(b"b"), request(b"c")
    number = pending.forwarding([same, other, forgotten], 2)
    applied(pending, 20, 3, 1)
    for position, each in enumerate((same, other, forgotten)):
        assert pending.answered(number + position, 18 + position, 3) is each
    effect = RequestEffect(Result.APPLIED, 1)
    pending.settle_late(same, 3, effect, 3)
    pending.settle_late(other, 3, None, 2)
    pending.settle_late(forgotten, 3, None, 0)
    headless = request(b"d")
    assert pending.answered(pending.forwarding([headless], 2), 20, 3) is headless
    pending.settle_late(headless, 3, None, 3)
    assert code_of(headless) is Code.TIMEOUT, "that term's entry is there, and no request ends at that place"
    assert future_of(same).result() == (18, 18, 3, effect)
    assert (code_of(other), code_of(forgotten)) == (Code.OVERWRITTEN, Code.TIMEOUT)
    assert pending.is_empty


async def test_a_refused_forward_is_not_applied() -> None:
    """The leader's refusal comes with its code; a later word about it changes nothing, and no leader is waited for."""
    pending = pending_with()
    refused = request()
    number = pending.forwarding([refused], 2)
    pending.refused(number, Code.BUSY, "full")
    pending.answered(number, 5, 3)
    assert code_of(refused) is Code.BUSY
    assert pending.is_empty
    assert not pending._flights


async def test_a_full_queue_is_busy_at_once() -> None:
    """Promise 6: the limit has a name, and nothing is queued beyond it, in number or in bytes."""
    pending = pending_with(inbox_requests_max=1)
    pending.submit(request())
    with pytest.raises(ApiError, match=r"limits\.inbox_requests_max"):
        pending.submit(request())
    pending = pending_with(inbox_bytes_max=100)
    pending.submit(request())
    with pytest.raises(ApiError, match=r"limits\.inbox_bytes_max"):
        pending.submit(request())


async def test_an_entry_is_packed_up_to_its_limits_and_one_large_request_goes_alone() -> None:
    """Bytes and records bound a packed entry, never one request alone; flight bounds the rest."""
    size = len(append_block(b"v"))
    pending = pending_with(batch_bytes_max=2 * size, batch_records_max=3, inflight_requests_max=5)
    for each in (request(), request(), request(b"1", b"2", b"3", b"4"), request(), request(), request()):
        pending.submit(each)
    counts = []
    while taken := pending.take(0.0, joining=True)[0]:
        pending.proposed(taken, 1, 1)
        counts.append([each.count for each in taken])
    assert counts == [[1, 1], [4], [1, 1]]
    assert len(pending.queue) == 1, "limits.inflight_requests_max holds the last one back"


async def test_at_the_end_every_request_is_settled() -> None:
    """Queued requests get not_applied, all others unknown."""
    pending = pending_with()
    proposed, forwarded, placed, queued = request(), request(), request(), request()
    propose(pending, 3, 11, proposed)
    number = pending.forwarding([forwarded, placed], 2)
    pending.answered(number + 1, 40, 3)
    pending.submit(queued)
    pending.fail_all(Code.SHUTTING_DOWN, Code.LEADER_LOST, "bye")
    assert code_of(queued) is Code.SHUTTING_DOWN
    assert [code_of(each) for each in (proposed, forwarded, placed)] == [Code.LEADER_LOST] * 3
    assert pending.is_empty


async def test_a_cancelled_request_is_not_proposed() -> None:
    """A client that hung up while its request was queued costs no entry."""
    pending = pending_with()
    gone = request()
    pending.submit(gone)
    future_of(gone).cancel()
    assert pending.take(0.0, joining=True)[0] == []
    assert pending.is_empty


async def test_requests_covered_by_a_snapshot_are_unknown_and_later_ones_wait() -> None:
    """A leader's snapshot replaced entries that were never applied here one by one. Requests with a place among them
    get `unknown` at once, and the next applied entry finds only its own.
    """
    pending = pending_with()
    mine, forwarded, later = request(b"a", session=5, sequence=1), request(b"b"), request(b"c")
    propose(pending, 3, 11, mine)
    number = pending.forwarding([forwarded, later], 2)
    pending.answered(number, 12, 3)
    pending.answered(number + 1, 21, 3)
    pending.skipped(20, 3)
    assert code_of(mine) is Code.LEADER_LOST
    assert code_of(forwarded) is Code.LEADER_LOST
    applied(pending, 21, 3, 1)
    assert future_of(later).result().last == 21
    assert pending.is_empty


async def test_an_answer_to_the_process_before_is_not_taken_for_one_to_this() -> None:
    """A node forwarded, died, started again and forwards something else: the leader's late answer to the first process
    named a place that is not the second one's, and would have acknowledged it."""
    before, now = Pending(LimitSettings(), Metrics(), 1, 1), Pending(LimitSettings(), Metrics(), 1, 2)
    old, new = request(b"a"), request(b"b")
    number = before.forwarding([old], 2)
    now.forwarding([new], 2)
    assert now.answered(number, 254, 10) is None
    applied(now, 254, 10, 1)
    assert not new.is_settled


async def test_a_place_in_the_snapshot_that_a_node_started_from_is_looked_up_not_waited_for() -> None:
    """A retry at a node that started from a snapshot joined its first attempt, which that snapshot covers (the leader's
    own disk was behind): nothing will be applied there any more. It ended the node. Found by the simulator."""
    pending = pending_with()
    pending.skipped(255, 10)
    retry = request(b"a", b"b", session=4, sequence=47)
    number = pending.forwarding([retry], 4)
    late = pending.answered(number, 254, 10)
    assert late is retry
    pending.settle_late(retry, 10, None, 0)
    assert code_of(retry) is Code.TIMEOUT
    applied(pending, 256, 10, 1)
    assert pending.is_empty


async def test_keepalives_are_taken_where_other_writes_are_refused_as_busy() -> None:
    """Else sessions would expire because the node is busy; so many more of them wait at most."""
    keepalive = encode_block([BlockRecord(int(Operation.SESSION_KEEPALIVE), argument=7)])
    close = encode_block([BlockRecord(int(Operation.SESSION_CLOSE), argument=7)])
    for limits in ({"inbox_requests_max": 1}, {"inbox_bytes_max": 100}):
        pending = pending_with(**limits, keepalives_max=2)
        pending.submit(request(b"v" * 100))
        for block in (close, append_block(b"v" * 10), encode_block([BlockRecord(int(Operation.PUT), b"k", b"v")])):
            with pytest.raises(ApiError, match=r"limits\.inbox"):
                pending.submit(Inflight(block, 1, LATER, 0, 0, None, 2, 7))
        for peer in (0, 2):  # of a client, or passed on by another node
            pending.submit(Inflight(keepalive, 1, LATER, 0, 0, None, peer, 7))
        assert len(pending.queue) == 3
    pending = pending_with(inbox_requests_max=1, keepalives_max=1)
    pending.submit(request())
    pending.submit(Inflight(keepalive, 1, LATER, 0, 0, None, 2, 7))
    with pytest.raises(ApiError, match=r"limits\.inbox_requests_max"):
        pending.submit(Inflight(keepalive, 1, LATER, 0, 0, None, 2, 7))


async def test_a_repetition_in_a_new_term_joins_no_proposal_of_the_term_before() -> None:
    """The first copy may be overwritten in the new term. The repetition is then a request of its own, with its own
    outcome."""
    pending = pending_with()
    first, again = request(b"a", session=5, sequence=1), request(b"a", session=5, sequence=1)
    propose(pending, 1, 10, first)
    pending.leadership_changed()
    assert propose(pending, 3, 11, again) == [again]
    applied(pending, 10, 2, 1)
    assert code_of(first) is Code.OVERWRITTEN
    applied(pending, 11, 3, 1)
    assert future_of(again).result().term == 3
