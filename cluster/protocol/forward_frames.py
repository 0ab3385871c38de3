"""Encodes requests for the leader, their answers, read indexes and digest points as frames of the bulk link; pure.

`raftlog.cluster.replica.parts.writes`, `reads` and `digest_exchange` call it. The requests of one turn go as few
frames, and a turn's answers to one peer as one frame. Deadlines travel as milliseconds that are left, because nodes
share no clock. `hop` is 1: a forwarded request is never forwarded again (docs/promises.md: forwarded once).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from raftlog.cluster.api.errors import Code
from raftlog.cluster.protocol.digest_points import POINTS_KEPT, DigestReports
from raftlog.cluster.protocol.request import Inflight, PeerReply
from raftlog.cluster.records.entries import check_blocks
from raftlog.raft.codec.block import decode_blocks
from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.codec.frame import (
    FRAME_FORWARD,
    FRAME_FORWARD_REPLY,
    FRAME_POINTS,
    FRAME_READ,
    FRAME_READ_REPLY,
    Frame,
    encode_frame,
)
from raftlog.raft.types import NodeId
from raftlog.statemachine.digest import POINT_BYTES

FORWARD_FRAME_BYTES_MAX: Final = 256 << 10  # a single larger request makes a frame by itself
FORWARD_FRAME_REQUESTS_MAX: Final = 4_096
HOP: Final = 1
NUMBER_MAX: Final = 1 << 62
"""Highest number of a request or a read of a peer. msgpack has no numbers from 2**64 on for the ones behind it."""
_CODES: Final = {str(code): code for code in Code}


def frames_of(requests: Sequence[Inflight]) -> list[Sequence[Inflight]]:
    """Splits the requests into runs that each fit into a frame."""
    runs: list[Sequence[Inflight]] = []
    start = size = 0
    for position, request in enumerate(requests):
        length = len(request.block)
        if position > start and (
            size + length > FORWARD_FRAME_BYTES_MAX or position - start >= FORWARD_FRAME_REQUESTS_MAX
        ):
            runs.append(requests[start:position])
            start, size = position, 0
        size += length
    runs.append(requests[start:])
    return runs


def encode_forward(first_number: int, requests: Sequence[Inflight], now: float) -> bytes:
    """The frame for the leader; the requests have the numbers from `first_number` on."""
    left_ms = [max(1, int((request.deadline - now) * 1_000)) for request in requests]
    return encode_frame(FRAME_FORWARD, [HOP, first_number, left_ms], b"".join([request.block for request in requests]))


def decode_forward(frame: Frame, peer: NodeId, now: float) -> list[Inflight]:
    """The requests of such a frame. Their counts and sessions are read from the blocks. Raises Corrupt."""
    match frame.header:
        case (int(hop), int(number), tuple(left_ms)) if hop == HOP and 0 <= number <= NUMBER_MAX:
            pass
        case _:
            raise Corrupt(f"forward with the header {frame.header!r:.200}")
    blocks = decode_blocks(frame.payload)
    if len(blocks) != len(left_ms):
        raise Corrupt(f"forward of {len(blocks)} requests with {len(left_ms)} deadlines")
    check_blocks(frame.payload, sum([block.count for block in blocks]))
    requests: list[Inflight] = []
    for block, left in zip(blocks, left_ms, strict=True):
        if type(left) is not int or not 0 <= left <= INDEX_MAX:
            raise Corrupt(f"forward with the deadline {left!r}")
        data = frame.payload[block.position : block.end]
        requests.append(
            Inflight(data, block.count, now + left / 1_000, block.session, block.sequence, None, peer, number)
        )
        number += 1
    return requests


ANSWERS_MAX: Final = 1_024
"""Most answers in one frame. They are its header, which has at most 65,535 bytes; the longest answer has 24."""


def answer_frames(answers: list[PeerReply], term: int) -> Iterator[tuple[NodeId, bytes]]:
    """The answers to forwarded requests, in frames of at most ANSWERS_MAX. `term` is the term of the indexes."""
    answers.sort(key=attrgetter("peer"))
    for peer, group in groupby(answers, key=attrgetter("peer")):
        each = list(group)
        for start in range(0, len(each), ANSWERS_MAX):
            yield peer, encode_answers(each[start : start + ANSWERS_MAX], term)


def encode_answers(answers: Iterable[PeerReply], term: int) -> bytes:
    """The frame for one peer."""
    numbers: list[int] = []
    firsts: list[int] = []
    refused: list[list[object]] = []
    for answer in answers:
        if answer.code is None:
            numbers.append(answer.number)
            firsts.append(answer.first)
        else:
            refused.append([answer.number, str(answer.code)])
    return encode_frame(FRAME_FORWARD_REPLY, [term, numbers, firsts, refused])


class Answers(NamedTuple):
    """A decoded answer frame: (number, first index) of accepted requests, (number, code) of refused ones."""

    term: int
    placed: list[tuple[int, int]]
    refused: list[tuple[int, Code]]


def decode_answers(frame: Frame) -> Answers:
    """The answers of such a frame. Raises Corrupt."""
    match frame.header:
        case (int(term), tuple(numbers), tuple(firsts), tuple(refused)) if (
            len(numbers) == len(firsts) and 0 <= term <= INDEX_MAX
        ):
            pass
        case _:
            raise Corrupt(f"forward reply with the header {frame.header!r:.200}")
    if any(type(value) is not int or not 0 <= value <= NUMBER_MAX for value in (*numbers, *firsts)):
        raise Corrupt("forward reply whose numbers or indexes cannot be any")
    pairs: list[tuple[int, Code]] = []
    for pair in refused:
        match pair:
            case (int(number), str(code)) if code in _CODES:
                pairs.append((number, _CODES[code]))
            case _:
                raise Corrupt(f"forward reply with the refusal {pair!r:.200}")
    return Answers(term, list(zip(numbers, firsts, strict=True)), pairs)


def encode_read(number: int) -> bytes:
    """A follower's question for a read index. All its readers of one turn share one number."""
    return encode_frame(FRAME_READ, [number])


def decode_read(frame: Frame) -> int:
    """The number of such a frame. Raises Corrupt."""
    match frame.header:
        case (int(number),) if 0 <= number <= NUMBER_MAX:
            return number
        case _:
            raise Corrupt(f"read with the header {frame.header!r:.200}")


def encode_read_reply(number: int, index: int) -> bytes:
    """The read index for that number. Index 0: the leader has none, so the follower asks again."""
    return encode_frame(FRAME_READ_REPLY, [number, index])


def decode_read_reply(frame: Frame) -> tuple[int, int]:
    """number and index of such a frame. Raises Corrupt."""
    match frame.header:
        case (int(number), int(index)) if 0 <= index <= INDEX_MAX:
            return number, index
        case _:
            raise Corrupt(f"read reply with the header {frame.header!r:.200}")


def encode_points(incarnation: str, *, is_asking: bool, reports: DigestReports) -> bytes:
    """A replica's values at its newest digest points. `is_asking`: the sender wants the receiver's values."""
    return encode_frame(FRAME_POINTS, [incarnation, is_asking, reports])


def decode_points(frame: Frame) -> tuple[str, bool, DigestReports]:
    """Incarnation, whether an answer is wanted, and the values of such a frame. Raises Corrupt."""
    match frame.header:
        case (str(incarnation), bool(is_asking), tuple(rows)) if len(rows) <= POINTS_KEPT:
            pass
        case _:
            raise Corrupt(f"digest points with the header {frame.header!r:.200}")
    reports: list[tuple[int, bytes]] = []
    for row in rows:
        match row:
            case (int(index), bytes(value)) if 0 < index <= INDEX_MAX and len(value) == POINT_BYTES:
                reports.append((index, value))
            case _:
                raise Corrupt(f"digest points with the value {row!r:.200}")
    return incarnation, is_asking, tuple(reports)
