"""The frames of the bulk link: requests passed to the leader, their answers, read indexes, digest points; pure.

A turn's requests go as few frames, a turn's answers to one peer as one. Deadlines travel as milliseconds that are
left, because nodes share no clock. `hop` is 1: what was passed on once is never passed on again (DESIGN section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from cluster.points import POINTS_KEPT, Reports
from cluster.requests import Answer, Request
from cluster.wire import Code
from raft.codec import (
    BLOCK_SIZE,
    FRAME_FORWARD,
    FRAME_FORWARD_REPLY,
    FRAME_POINTS,
    FRAME_READ,
    FRAME_READ_REPLY,
    INDEX_MAX,
    Corrupt,
    Frame,
    decode_blocks,
    encode_frame,
)
from raft.types import NodeId
from statemachine.digest import POINT_BYTES

FORWARD_FRAME_BYTES_MAX: Final = 256 << 10  # a single larger request makes a frame by itself
FORWARD_FRAME_REQUESTS_MAX: Final = 4_096
HOP: Final = 1
_CODES: Final = {str(code): code for code in Code}
_NEW_CODES: Final[dict[Code | None, tuple[int, Code | None]]] = {Code.DISK_FULL: (4, Code.BUSY)}
"""Code -> the version of the peer protocol that brought it, and the one of the same outcome that older peers are told:
they close the connection at a code that they do not know."""


def frames_of(requests: Sequence[Request]) -> list[Sequence[Request]]:
    """The requests in runs that each fit a frame."""
    runs: list[Sequence[Request]] = []
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


def encode_forward(first_number: int, requests: Sequence[Request], now: float) -> bytes:
    """Requests with the numbers from `first_number` on, for the leader."""
    left_ms = [max(1, int((request.deadline - now) * 1_000)) for request in requests]
    return encode_frame(FRAME_FORWARD, [HOP, first_number, left_ms], b"".join([request.block for request in requests]))


def decode_forward(frame: Frame, peer: NodeId, now: float) -> list[Request]:
    """The requests of such a frame; what a block says of itself is taken from its bytes. Raises Corrupt."""
    match frame.header:
        case (int(hop), int(number), tuple(left_ms)) if hop == HOP:
            pass
        case _:
            raise Corrupt(f"forward with the header {frame.header!r:.200}")
    blocks = decode_blocks(frame.payload)
    if len(blocks) != len(left_ms):
        raise Corrupt(f"forward of {len(blocks)} requests with {len(left_ms)} deadlines")
    requests: list[Request] = []
    for block, left in zip(blocks, left_ms, strict=True):
        if type(left) is not int or not 0 <= left <= INDEX_MAX:
            raise Corrupt(f"forward with the deadline {left!r}")
        end = block.position + BLOCK_SIZE + len(block.body)
        data = frame.payload[block.position : end]
        requests.append(
            Request(data, block.count, now + left / 1_000, block.session, block.sequence, None, peer, number)
        )
        number += 1
    return requests


def answer_frames(
    answers: list[Answer], term: int, version_of: Callable[[NodeId], int]
) -> Iterator[tuple[NodeId, bytes]]:
    """What became of requests that peers forwarded, a frame for each of them; `term` is that of the indexes given.
    `version_of` gives the version of the peer protocol that a peer speaks."""
    answers.sort(key=attrgetter("peer"))
    for peer, each in groupby(answers, key=attrgetter("peer")):
        version = version_of(peer)
        yield peer, encode_answers([_known_to(version, answer) for answer in each], term)


def _known_to(version: int, answer: Answer) -> Answer:
    """The answer with a code that a peer of that protocol version knows."""
    since, instead = _NEW_CODES.get(answer.code, (0, None))
    return answer._replace(code=instead) if version < since else answer


def encode_answers(answers: Iterable[Answer], term: int) -> bytes:
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
    """A decoded answer frame: (number, first index) of what was taken, (number, code) of what was not."""

    term: int
    placed: list[tuple[int, int]]
    refused: list[tuple[int, Code]]


def decode_answers(frame: Frame) -> Answers:
    """The answers of such a frame. Raises Corrupt."""
    match frame.header:
        case (int(term), tuple(numbers), tuple(firsts), tuple(refused)) if len(numbers) == len(firsts):
            pass
        case _:
            raise Corrupt(f"forward reply with the header {frame.header!r:.200}")
    if any(type(value) is not int for value in (*numbers, *firsts)):
        raise Corrupt("forward reply whose numbers or indexes are no integers")
    pairs: list[tuple[int, Code]] = []
    for pair in refused:
        match pair:
            case (int(number), str(code)) if code in _CODES:
                pairs.append((number, _CODES[code]))
            case _:
                raise Corrupt(f"forward reply with the refusal {pair!r:.200}")
    return Answers(term, list(zip(numbers, firsts, strict=True)), pairs)


def encode_read(number: int) -> bytes:
    """A follower asks for a read index; all its readers of one turn share one number."""
    return encode_frame(FRAME_READ, [number])


def decode_read(frame: Frame) -> int:
    """The number of such a frame. Raises Corrupt."""
    match frame.header:
        case (int(number),):
            return number
        case _:
            raise Corrupt(f"read with the header {frame.header!r:.200}")


def encode_read_reply(number: int, index: int) -> bytes:
    """The read index for that number; index 0: there is none, ask again."""
    return encode_frame(FRAME_READ_REPLY, [number, index])


def decode_read_reply(frame: Frame) -> tuple[int, int]:
    """number and index of such a frame. Raises Corrupt."""
    match frame.header:
        case (int(number), int(index)):
            return number, index
        case _:
            raise Corrupt(f"read reply with the header {frame.header!r:.200}")


def encode_points(incarnation: str, *, is_asking: bool, reports: Reports) -> bytes:
    """A replica's values at its newest digest points; whoever asks wants the receiver's."""
    return encode_frame(FRAME_POINTS, [incarnation, is_asking, reports])


def decode_points(frame: Frame) -> tuple[str, bool, Reports]:
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
