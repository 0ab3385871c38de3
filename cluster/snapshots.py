"""What of a node goes into a snapshot beside the state machine, when one is due, and how it is restored.

The first chunk is the node's own: the index of the newest user record, which the state machine does not keep. The
others are the state machine's canonical bytes, made slice by slice on the event loop while applying goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from struct import Struct
from typing import Final

from cluster import clock
from raft.codec import Corrupt, UnknownVersion, crc32c
from statemachine.machine import StateMachine
from statemachine.snapshot import SnapshotWalk

MAGIC: Final = b"RLND"
VERSION: Final = 1
_PREAMBLE: Final = Struct("<4sB3xQI")  # magic, version, last user index, reserved; then the CRC of these
_CRC: Final = Struct("<I")
PREAMBLE_SIZE: Final = _PREAMBLE.size + _CRC.size

REST_TIMES: Final = 9  # as long as the work was others have the event loop, while there is other work: a tenth is taken
LATE_TIMES: Final = 1  # the same when it is late: half is taken
REST_MIN_S: Final = 0.002  # shorter rests are saved up: a timer is not more exact
REST_MAX_S: Final = 0.1  # where the work took long because somebody else had the processor


def encode_preamble(last_user_index: int) -> bytes:
    """The node's own chunk."""
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
    """All chunks of a snapshot; each `next` is a few milliseconds of work and belongs to the event loop. An empty one
    says that there is nothing yet: others may run, and it is not kept."""
    yield encode_preamble(last_user_index)
    yield from walk


async def paced(
    chunks: Iterator[bytes], applied: Callable[[], int], is_late: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The chunks but the empty ones, with rests between them while entries are applied (`applied` moves), shorter ones
    when it is late: a large state takes many seconds, and all nodes of a cluster do this at about the same time."""
    spent, seen = 0.0, applied()
    while True:
        began = clock.monotonic()
        chunk = next(chunks, None)
        spent += clock.monotonic() - began
        if chunk is None:
            return
        if chunk:
            yield chunk
        rest = min((LATE_TIMES if is_late() else REST_TIMES) * spent, REST_MAX_S)
        if applied() == seen:
            spent = rest = 0.0
        if rest >= REST_MIN_S or not chunk:
            spent, seen = 0.0, applied()
            await asyncio.sleep(rest)


def restore(chunks: Iterator[bytes]) -> tuple[StateMachine, int]:
    """The state machine and the last user index. Raises Corrupt, UnknownVersion, or what the state machine raises."""
    try:
        first = next(chunks)
    except StopIteration:
        raise Corrupt("the snapshot is empty") from None
    return StateMachine.restore(chunks), decode_preamble(first)
