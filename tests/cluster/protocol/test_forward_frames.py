"""The frames of the bulk link and the reads that wait: there and back, and nothing but Corrupt for nonsense."""

import asyncio

import hypothesis
import hypothesis.strategies as st
import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.digest_points import POINTS_KEPT
from raftlog.cluster.protocol.forward_frames import (
    FORWARD_FRAME_BYTES_MAX,
    answer_frames,
    decode_answers,
    decode_forward,
    decode_points,
    decode_read,
    decode_read_reply,
    encode_forward,
    encode_points,
    frames_of,
)
from raftlog.cluster.protocol.request import Inflight, PeerReply
from raftlog.cluster.protocol.waiters import IndexWaiters, Reads, ReadWaiter
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.frame import FRAME_FORWARD, FRAME_FORWARD_REPLY, FRAME_POINTS, FRAME_READ, Frame, FrameDecoder
from raftlog.statemachine.digest import POINT_BYTES
from tests.cluster.nodes import append_block


def request(block: bytes, count: int = 1, deadline: float = 12.0) -> Inflight:
    """A request that somebody waits for."""
    return Inflight(block, count, deadline, 0, 0, None)


def one(data: bytes) -> Frame:
    """The only frame in there."""
    (frame,) = FrameDecoder().feed(data)
    return frame


@pytest.mark.parametrize("code", [None, Code.STATES_DIFFER])
def test_any_number_of_answers_of_a_turn_fits_its_frames(code: Code | None) -> None:
    """A follower forwards thousands of small requests at once after an election; a frame's header has 64 KiB."""
    answers = [PeerReply(2, number, 2**40 + number, code) for number in range(2**40, 2**40 + 20_000)]
    told = [decode_answers(one(frame)) for _, frame in answer_frames(list(answers), 3)]
    if code is None:
        assert [each for part in told for each in part.placed] == [(each.number, each.first) for each in answers]
    else:
        assert [each for part in told for each in part.refused] == [(each.number, code) for each in answers]


def test_forwarded_requests_arrive_unchanged() -> None:
    """Count, session and sequence come from the block itself; the deadline as time that is left."""
    admitted = encode_block([BlockRecord(1, None, b"d")], admission=b"who")
    blocks = [append_block(b"a", b"b"), append_block(b"c", session=5, sequence=6), admitted]
    sent = [request(blocks[0], 2), request(blocks[1], 1, deadline=10.5), request(admitted)]
    got = decode_forward(one(encode_forward(40, sent, now=10.0)), 3, now=100.0)
    assert [each.block for each in got] == blocks
    assert [(each.count, each.session, each.sequence, each.peer, each.number) for each in got] == [
        (2, 0, 0, 3, 40),
        (1, 5, 6, 3, 41),
        (1, 0, 0, 3, 42),
    ]
    assert [each.deadline for each in got] == [102.0, 100.5, 102.0]


def test_a_turns_requests_fill_frames_up_to_their_limit() -> None:
    """Frames stay small, so that bulk never delays for long; one large request makes a frame by itself."""
    block = append_block(b"x" * 60_000)
    large = append_block(b"y" * (FORWARD_FRAME_BYTES_MAX + 1))
    requests = [request(block) for _ in range(6)]
    requests.insert(5, request(large))
    assert [len(run) for run in frames_of(requests)] == [4, 1, 1, 1]
    assert [each for run in frames_of(requests) for each in run] == requests


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.tuples(inner) | st.tuples(inner, inner),
    max_leaves=5,
)


@hypothesis.given(st.lists(NONSENSE, max_size=5).map(tuple), st.binary(max_size=80))
@hypothesis.settings(max_examples=200)
def test_a_frame_is_taken_or_corrupt(header: tuple[object, ...], payload: bytes) -> None:
    """Whatever a peer sends: accepted, or Corrupt (its connection ends); nothing else is raised."""
    for kind, decode in (
        (FRAME_FORWARD, lambda frame: decode_forward(frame, 2, 0.0)),
        (FRAME_FORWARD_REPLY, decode_answers),
        (FRAME_READ, decode_read),
        (FRAME_READ, decode_read_reply),
    ):
        try:
            decode(Frame(kind, header, payload))
        except (Corrupt, UnknownVersion):
            pass


def test_a_forwarded_request_is_not_forwarded_again() -> None:
    """Hop 1 is the only one there is."""
    frame = one(encode_forward(1, [request(append_block(b"a"))], 0.0))
    with pytest.raises(Corrupt):
        decode_forward(frame._replace(header=(2, *frame.header[1:])), 2, 0.0)


async def test_waiters_are_woken_in_order_of_their_index() -> None:
    """Only due ones are woken; the end of the node fails the others."""
    waiters = IndexWaiters()
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for index, future in zip((10, 20, 10), futures, strict=True):
        waiters.add(index, ReadWaiter(future, 100.0))
    waiters.applied(19)
    assert [future.done() for future in futures] == [True, False, True]
    waiters.fail_all(ApiError(Code.SHUTTING_DOWN, "bye"))
    assert isinstance(futures[1].exception(), ApiError)


async def test_pitfall_86_readers_of_an_index_that_is_not_applied_in_time_are_answered() -> None:
    """A follower that is cut off has the read index, and not the entries. Cancelled readers are removed with them."""
    waiters = IndexWaiters()
    due, cancelled, later = (asyncio.get_running_loop().create_future() for _ in range(3))
    for future, deadline in ((due, 5.0), (cancelled, 50.0), (later, 50.0)):
        waiters.add(10, ReadWaiter(future, deadline))
    cancelled.cancel()
    waiters.expire(4.0, "node 1")
    assert not due.done()
    waiters.expire(5.0, "node 1")
    with pytest.raises(ApiError, match="node 1: the index of the read is not applied here") as failed:
        await due
    assert failed.value.code is Code.DEADLINE
    assert len(waiters) == 1
    waiters.applied(10)
    assert later.result() == 10


async def test_a_lost_read_round_is_asked_for_under_a_new_number() -> None:
    """Pitfall 33: a late answer to the first round must not serve the repeated reads."""
    reads = Reads()
    reader = ReadWaiter(asyncio.get_running_loop().create_future(), 100.0)
    reads.waiting.append(reader)
    assert reads.may_start(0.0, 1.0)
    first = reads.start(2, 0.0)
    reads.lost(2)
    assert reads.waiting == [reader]
    second = reads.start(3, 0.5)
    assert second != first
    assert reads.take(first) == []
    assert reads.take(second) == [reader]


async def test_readers_gather_while_a_round_is_young_and_pass_an_old_one() -> None:
    """One round at a time keeps messages few; a round that was lost on the way delays no reader for long."""
    reads = Reads()
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[int]] = [loop.create_future(), loop.create_future()]
    readers = [ReadWaiter(futures[0], 5.0), ReadWaiter(futures[1], 50.0)]
    reads.waiting.append(readers[0])
    reads.start(2, 10.0)
    reads.waiting.append(readers[1])
    assert not reads.may_start(10.5, 1.0)
    assert reads.may_start(11.0, 1.0)
    reads.expire(6.0, "late", has_leader=True)
    error = futures[0].exception()
    assert isinstance(error, ApiError)
    assert error.code is Code.DEADLINE
    assert not readers[1].future.done()
    reads.expire(60.0, "late", has_leader=False)
    error = futures[1].exception()
    assert isinstance(error, ApiError)
    assert error.code is Code.NO_LEADER
    assert reads.is_empty


async def test_every_reader_is_counted_from_its_start_to_its_end() -> None:
    """In no round, in one, in one that came to nothing, past its deadline: `len` is how many there are."""
    reads, loop = Reads(), asyncio.get_running_loop()

    def ask(until: float) -> None:
        reads.waiting.append(ReadWaiter(loop.create_future(), until))

    for until in (5.0, 50.0, 50.0):
        ask(until)
    assert len(reads) == 3
    number = reads.start(2, 0.0)
    ask(50.0)
    assert len(reads) == 4
    reads.expire(6.0, "late", has_leader=True)
    assert len(reads) == 3
    reads.again(number)
    assert len(reads) == 3
    assert len(reads.take(reads.start(2, 7.0))) == 3
    assert len(reads) == 0
    ask(50.0)
    reads.start(2, 8.0)
    reads.fail_all(ApiError(Code.SHUTTING_DOWN, "bye"))
    assert (len(reads), reads.is_empty) == (0, True)


async def test_a_read_index_for_an_earlier_process_serves_no_reader() -> None:
    """As with forwarded writes: the numbers of two processes of one node never meet, or a read would be stale."""
    before, now = Reads(1), Reads(2)
    old, new = [ReadWaiter(asyncio.get_running_loop().create_future(), 5.0) for _ in range(2)]
    before.waiting.append(old)
    now.waiting.append(new)
    number = before.start(2, 0.0)
    now.start(2, 0.0)
    assert now.take(number) == []


def test_digest_points_travel_and_nonsense_is_corrupt() -> None:
    """A replica's values with the incarnation of its disk; a bounded number, each of the known length."""
    reports = tuple((index, bytes([index]) * POINT_BYTES) for index in range(1, POINTS_KEPT + 1))
    assert decode_points(one(encode_points("ab", is_asking=True, reports=reports))) == ("ab", True, reports)
    assert decode_points(one(encode_points("ab", is_asking=False, reports=()))) == ("ab", False, ())
    wrong = (*reports, (99, bytes(POINT_BYTES))), ((1, b"short"),), ((0, bytes(POINT_BYTES)),), (("1", b""),)
    for each in wrong:
        with pytest.raises(Corrupt):
            decode_points(one(encode_points("ab", is_asking=True, reports=each)))  # type: ignore[arg-type]
    with pytest.raises(Corrupt):
        decode_points(Frame(FRAME_POINTS, (1, 2), b""))
