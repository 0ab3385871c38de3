"""Builds the content of a snapshot beside the state machine, paces the work, and restores the content.

`raftlog.cluster.replica.upkeep.snapshots` and a starting replica call it. The node makes the first chunk itself: the
index of the newest user record, which the state machine does not keep. The others are the state machine's canonical
bytes. They are made slice by slice on the event loop while applying goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from struct import Struct
from typing import Final

from raftlog.cluster.runtime import clock
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.snapshot import SnapshotWalk

MAGIC: Final = b"RLND"
VERSION: Final = 1
_PREAMBLE: Final = Struct("<4sB3xQI")  # magic, version, last user index, reserved; then the CRC of these
_CRC: Final = Struct("<I")
PREAMBLE_SIZE: Final = _PREAMBLE.size + _CRC.size

REST_TIMES: Final = 9
"""Longest rest, in times of the work before it: a busy event loop gives a tenth of its time to a snapshot."""
LATE_TIMES: Final = 1
"""The rest while the snapshot is late, and the shortest while there is other work: half of the loop's time is used."""
BUSY_WEIGHT: Final = 0.2
"""Weight of the newest rest in the average that says how busy the event loop is: about ten rests are remembered."""
REST_MIN_S: Final = 0.002  # seconds; shorter rests are added up, because a timer is not more exact
REST_MAX_S: Final = 0.1  # seconds; bounds the rest after work that waited for the processor


def encode_preamble(last_user_index: int) -> bytes:
    """The node's own first chunk."""
    head = _PREAMBLE.pack(MAGIC, VERSION, last_user_index, 0)
    return head + _CRC.pack(crc32c(head))


def decode_preamble(chunk: bytes) -> int:
    """The last user index of such a chunk. Raises Corrupt or UnknownVersion."""
    if len(chunk) != PREAMBLE_SIZE or chunk[:4] != MAGIC:
        raise Corrupt("the first chunk of the snapshot is no preamble of a node")
    _, version, last_user_index, _ = _PREAMBLE.unpack_from(chunk)
    (crc,) = _CRC.unpack_from(chunk, _PREAMBLE.size)
    if crc != crc32c(chunk[: _PREAMBLE.size]):
        raise Corrupt("the preamble of the snapshot fails its CRC")
    if version != VERSION:
        raise UnknownVersion(f"preamble of a snapshot of version {version}")
    return int(last_user_index)


def chunks_of(last_user_index: int, walk: SnapshotWalk) -> Iterator[bytes]:
    """All chunks of a snapshot. Each `next` takes a few milliseconds and belongs to the event loop.

    An empty chunk means that there is nothing yet: other work may run, and the chunk is not kept.
    """
    yield encode_preamble(last_user_index)
    yield from walk


def rest_times(busy: float) -> float:
    """How long to rest, in times of the work, if other work takes the share `busy` (0 to 1) of the loop's time.

    The snapshot takes half of the remaining time, and at least a tenth of the whole.
    """
    share = max((1 - busy) / 2, 1 / (1 + REST_TIMES))
    return min((1 - share) / share, REST_TIMES)


async def paced(
    chunks: Iterator[bytes], applied: Callable[[], int], is_late: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The chunks without the empty ones. Rests between two chunks while entries are applied (`applied` moves).

    Rests are short if the event loop is otherwise idle, or if the snapshot is late. A large state takes many seconds,
    and all nodes of a cluster save at about the same time.
    """
    spent, seen, busy = 0.0, applied(), 1.0
    while True:
        began = clock.monotonic()
        chunk = next(chunks, None)
        spent += clock.monotonic() - began
        if chunk is None:
            return
        if chunk:
            yield chunk
        rest = min((LATE_TIMES if is_late() else rest_times(busy)) * spent, REST_MAX_S)
        if applied() == seen:
            spent = rest = 0.0
        if rest >= REST_MIN_S or not chunk:
            spent, seen = 0.0, applied()
            began, used = clock.monotonic(), clock.thread_s()
            await asyncio.sleep(rest)
            if (rested := clock.monotonic() - began) >= REST_MIN_S:
                now = min((clock.thread_s() - used) / rested, 1.0)
                busy += BUSY_WEIGHT * (now - busy)


def restore(chunks: Iterator[bytes], machine: type[StateMachine] = StateMachine) -> tuple[StateMachine, int]:
    """The state machine and the last user index. Raises Corrupt, UnknownVersion, or what the state machine raises."""
    try:
        first = next(chunks)
    except StopIteration:
        raise Corrupt("the snapshot is empty") from None
    return machine.restore(chunks), decode_preamble(first)
