"""Encodes and decodes the frames that peers send each other, and cuts a stream of bytes into frames.

A frame is: length of header and payload, CRC32C of what follows it, header length, version, kind; then a msgpack header
and a payload (entries as on disk, block bytes, a chunk).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
import msgpack

from raftlog.raft.codec.checks import Corrupt, UnknownVersion

FRAME_VERSION: Final = 1
_FRAME: Final = Struct("<IIHBB")
FRAME_SIZE: Final = _FRAME.size
FRAME_BYTES_MAX: Final = 32 << 20
FRAME_HELLO: Final = 1
FRAME_MESSAGE: Final = 2  # consensus: `encode_message`
FRAME_FORWARD: Final = 3  # a request passed to the leader
FRAME_FORWARD_REPLY: Final = 4
FRAME_READ: Final = 5  # a follower asks the leader for a read index
FRAME_READ_REPLY: Final = 6
FRAME_POINTS: Final = 7  # a replica's values at the newest digest points
FRAME_DISK: Final = 8  # a node's report about its disk
FRAME_SHARD: Final = 9  # another frame of the bulk link, of a Raft group that is not group 0
_FRAME_KINDS: Final = range(FRAME_HELLO, FRAME_SHARD + 1)
SHARD_MAX: Final = (1 << 16) - 1
"""The highest number of a Raft group; the files of a group have 16 bits for it or more."""
_SHARD_KINDS: Final = range(FRAME_FORWARD, FRAME_DISK + 1)


class Frame(NamedTuple):
    """A peer frame: its kind, its decoded msgpack header (a tuple), its payload, the Raft group that it is for."""

    kind: int
    header: tuple[object, ...]
    payload: bytes
    shard: int = 0


def encode_frame(kind: int, header: Sequence[object], payload: bytes = b"") -> bytes:
    """A frame as bytes. `header` holds what msgpack takes: integers, booleans, text, bytes, None, lists of them."""
    return b"".join(frame_parts(kind, header, (payload,)))


def encode_for_shard(shard: int, frame: bytes) -> bytes:
    """That frame of the bulk link, for a Raft group. Group 0 needs no envelope: frames had no group before."""
    return encode_frame(FRAME_SHARD, [shard], frame) if shard else frame


def _of_shard(header: tuple[object, ...], payload: bytes) -> Frame:
    """The frame in the envelope of a Raft group. Raises Corrupt or UnknownVersion."""
    match header:
        case (int(shard),) if 0 < shard <= SHARD_MAX:
            pass
        case _:
            raise Corrupt(f"frame for a group with the header {header!r:.200}")
    inside = FrameDecoder()
    frames = inside.feed(payload)
    if len(frames) != 1 or inside.is_unfinished or frames[0].kind not in _SHARD_KINDS or frames[0].shard:
        raise Corrupt(f"frame for group {shard} that does not hold one frame of the bulk link")
    return frames[0]._replace(shard=shard)


def frame_parts(kind: int, header: Sequence[object], payload: Sequence[bytes]) -> list[bytes]:
    """The same in parts: what stands before the payload, and its parts as they are, not copied."""
    packed: bytes = msgpack.packb(header, use_bin_type=True)
    body = _FRAME_REST.pack(len(packed), FRAME_VERSION, kind) + packed
    size, crc = len(packed), google_crc32c.value(body)
    for part in payload:
        size += len(part)
        crc = google_crc32c.extend(crc, part)
    return [_FRAME_START.pack(size, crc) + body, *payload]


_FRAME_START: Final = Struct("<II")
_FRAME_REST: Final = Struct("<HBB")


class FrameDecoder:
    """Cuts a stream of bytes into frames. After Corrupt or UnknownVersion the connection is worthless."""

    __slots__ = ("_max", "_needed", "_parts", "_size")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._max = bytes_max
        self._parts: list[bytes] = []  # what came of a frame that is not whole: put together once
        self._size = self._needed = 0  # their bytes, and how many it takes to go on

    @property
    def is_unfinished(self) -> bool:
        """Whether it waits for the rest of a frame."""
        return bool(self._parts)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames completed by `data`. Raises Corrupt or UnknownVersion."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return []
            data = b"".join(self._parts)
            self._parts = []
        needed = FRAME_SIZE
        frames: list[Frame] = []
        offset, size = 0, len(data)
        while size - offset >= FRAME_SIZE:
            length, crc, header_size, version, kind = _FRAME.unpack_from(data, offset)
            if length > self._max or header_size > length:
                raise Corrupt(f"frame of {length} bytes (header {header_size}): the limit is {self._max}")
            start, end = offset + FRAME_SIZE, offset + FRAME_SIZE + length
            if size < end:
                needed = end - offset
                break
            payload_start = start + header_size
            payload = data[payload_start:end]
            if google_crc32c.extend(google_crc32c.value(data[offset + 8 : payload_start]), payload) != crc:
                raise Corrupt("frame fails its CRC")
            if version != FRAME_VERSION or kind not in _FRAME_KINDS:
                raise UnknownVersion(f"frame of version {version}, kind {kind}")
            try:
                header = msgpack.unpackb(data[start:payload_start], raw=False, use_list=False)
            except Exception as error:
                raise Corrupt(f"frame header: {error}") from error
            if type(header) is not tuple:
                raise Corrupt("frame header is no array")
            frames.append(Frame(kind, header, payload) if kind != FRAME_SHARD else _of_shard(header, payload))
            offset = end
        if offset < size:
            self._parts = [data[offset:]]
            self._size, self._needed = size - offset, needed
        return frames
