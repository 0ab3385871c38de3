"""What of a node goes into a snapshot beside the state machine, when one is due, and how it is restored.

The first chunk is the node's own: the index of the newest user record, which the state machine does not keep. The
others are the state machine's canonical bytes, made slice by slice on the event loop while applying goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from raft.codec import Corrupt, UnknownVersion, crc32c
from statemachine.machine import StateMachine
from statemachine.snapshot import SnapshotWalk

MAGIC: Final = b"RLND"
VERSION: Final = 1
_PREAMBLE: Final = Struct("<4sB3xQI")  # magic, version, last user index, reserved; then the CRC of these
_CRC: Final = Struct("<I")
PREAMBLE_SIZE: Final = _PREAMBLE.size + _CRC.size


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


def restore(chunks: Iterator[bytes]) -> tuple[StateMachine, int]:
    """The state machine and the last user index. Raises Corrupt, UnknownVersion, or what the state machine raises."""
    try:
        first = next(chunks)
    except StopIteration:
        raise Corrupt("the snapshot is empty") from None
    return StateMachine.restore(chunks), decode_preamble(first)
