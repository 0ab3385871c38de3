"""Defines the effects of an entry: results and changes, the bytes of the ledger, and change events for watchers.

A log of commands does not say which compare failed, which branch a transaction took or which keys a range delete
hit. Effects do; they are a pure function of the log and equal on every node, byte for byte. Layouts are in
docs/formats.md. All integers are little-endian.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from raftlog.statemachine.commands import Result

EFFECTS_MAGIC: Final = b"RLFX"
EFFECTS_VERSION: Final = 1
EFFECTS_PLAIN: Final = 1  # every request is appends, applied for the first time, or there is none: no rows follow

# magic, version, flags, reserved, index of the entry, store revision after it, rows, payload bytes, payload CRC; then
# the CRC of these bytes
_HEADER: Final = Struct("<4sBBHQQIII")
_CRC: Final = Struct("<I")
EFFECTS_HEADER_SIZE: Final = _HEADER.size + _CRC.size  # 40

# result, flags, reserved, changes, store revision of the answer, index of the first answer (repeated) or 0
_ROW: Final = Struct("<BBHIQQ")
ROW_SIZE: Final = _ROW.size  # 24
ROW_SUCCEEDED: Final = 1  # a transaction took its `then` branch

# index of the version replaced (0: there was none), create, version, flags, reserved, key length, value length
_CHANGE: Final = Struct("<QQQBBHI")
CHANGE_SIZE: Final = _CHANGE.size  # 32
CHANGE_DELETED: Final = 1
CHANGE_EXPLICIT: Final = 2  # key and value follow, because the command's own bytes do not contain them


class CorruptEffects(ValueError):
    """Ledger bytes that fail their check."""


class UnknownEffects(ValueError):
    """Intact ledger bytes of a version or flag that this code does not know."""


class KeyChange(NamedTuple):
    """One key's change. Its mod revision is the request's revision. For a delete, value is None, create and version 0.

    `is_explicit`: the ledger carries key and value. Otherwise they are the command's own (a put or delete of one key),
    and decoding the ledger alone gives b"" and None for them.
    """

    key: bytes
    value: bytes | None
    prior_index: int  # log index of the request that wrote the version it replaced; 0: there was none
    create: int
    version: int
    is_explicit: bool

    @property
    def is_delete(self) -> bool:
        """Whether the key is gone after it."""
        return self.version == 0


class RequestEffect(NamedTuple):
    """What one request did. `answer` is the answer to its client, as `raftlog.statemachine.answers.encode_answer`
    bytes, or b"" if this effect contains it all (`answers.answer_of` gives either). It is not in the ledger: it reads
    as b"" when decoded."""

    result: Result
    revision: int  # store revision after the request (of the first answer, where repeated)
    succeeded: bool = False
    first_answer_index: int = 0  # repeated: the index (last record) under which it was applied the first time
    changes: tuple[KeyChange, ...] = ()
    answer: bytes = b""


class Effects(NamedTuple):
    """What one entry did, request by request in order. Entries without requests have no rows."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it
    revision: int
    requests: tuple[RequestEffect, ...] = ()
    is_plain: bool = False  # nothing but appends applied for the first time, if anything: `requests` is empty


def encode_effects(effects: Effects) -> bytes:
    """The ledger bytes of one entry: header, then rows, then the changes of all rows in order."""
    rows: list[bytes] = []
    changes: list[bytes] = []
    for request in effects.requests:
        rows.append(
            _ROW.pack(
                request.result,
                ROW_SUCCEEDED * request.succeeded,
                0,
                len(request.changes),
                request.revision,
                request.first_answer_index,
            )
        )
        for change in request.changes:
            flags = CHANGE_DELETED * (change.version == 0) | CHANGE_EXPLICIT * change.is_explicit
            key, value = (change.key, change.value or b"") if change.is_explicit else (b"", b"")
            changes.append(
                _CHANGE.pack(change.prior_index, change.create, change.version, flags, 0, len(key), len(value))
                + key
                + value
            )
    payload = b"".join(rows + changes)
    head = _HEADER.pack(
        EFFECTS_MAGIC,
        EFFECTS_VERSION,
        EFFECTS_PLAIN * effects.is_plain,
        0,
        effects.index,
        effects.revision,
        len(rows),
        len(payload),
        google_crc32c.value(payload),
    )
    return head + _CRC.pack(google_crc32c.value(head)) + payload


class EffectsHeader(NamedTuple):
    """The head of one entry's effects in a ledger."""

    is_plain: bool
    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it
    revision: int
    rows: int
    payload_bytes: int
    payload_crc: int


def decode_effects_header(buffer: bytes | memoryview, offset: int = 0) -> EffectsHeader:
    """The effects header at `offset`. Raises CorruptEffects or UnknownEffects."""
    if len(buffer) - offset < EFFECTS_HEADER_SIZE:
        raise CorruptEffects("effects header cut short")
    magic, version, flags, reserved, index, revision, rows, size, crc = _HEADER.unpack_from(buffer, offset)
    own = _CRC.unpack_from(buffer, offset + _HEADER.size)[0]
    if magic != EFFECTS_MAGIC or own != google_crc32c.value(bytes(buffer[offset : offset + _HEADER.size])):
        raise CorruptEffects("effects header fails its CRC")
    if version != EFFECTS_VERSION or flags & ~EFFECTS_PLAIN or reserved:
        raise UnknownEffects(f"effects of entry {index}: version {version}, flags {flags:#x}")
    return EffectsHeader(bool(flags & EFFECTS_PLAIN), index, revision, rows, size, crc)


def decode_effects(buffer: bytes | memoryview, offset: int = 0) -> Effects:
    """The effects at `offset`, all CRCs checked. Raises CorruptEffects or UnknownEffects."""
    return effects_of(decode_effects_header(buffer, offset), buffer, offset)


def effects_of(header: EffectsHeader, buffer: bytes | memoryview, offset: int) -> Effects:
    """The effects at `offset`, whose header was decoded already. Raises CorruptEffects or UnknownEffects."""
    if not (header.payload_bytes or header.payload_crc or header.rows):  # most: of appends
        return Effects(header.index, header.revision, (), header.is_plain)
    start = offset + EFFECTS_HEADER_SIZE
    payload = bytes(buffer[start : start + header.payload_bytes])
    if len(payload) != header.payload_bytes or google_crc32c.value(payload) != header.payload_crc:
        raise CorruptEffects(f"effects of entry {header.index} fail their CRC")
    requests: list[RequestEffect] = []
    position = header.rows * ROW_SIZE
    try:
        for row in range(header.rows):
            result, flags, reserved, count, revision, first = _ROW.unpack_from(payload, row * ROW_SIZE)
            if flags & ~ROW_SUCCEEDED or reserved:
                raise UnknownEffects(f"effects of entry {header.index}: row flags {flags:#x}")
            changes: list[KeyChange] = []
            for _ in range(count):
                prior, create, version, change_flags, _, key_size, value_size = _CHANGE.unpack_from(payload, position)
                if change_flags & ~(CHANGE_DELETED | CHANGE_EXPLICIT):
                    raise UnknownEffects(f"effects of entry {header.index}: change flags {change_flags:#x}")
                position += CHANGE_SIZE
                explicit = bool(change_flags & CHANGE_EXPLICIT)
                key = payload[position : position + key_size]
                value = payload[position + key_size : position + key_size + value_size]
                position += key_size + value_size
                gone = bool(change_flags & CHANGE_DELETED)
                changes.append(
                    KeyChange(key, value if explicit and not gone else None, prior, create, version, explicit)
                )
            requests.append(RequestEffect(Result(result), revision, bool(flags & ROW_SUCCEEDED), first, tuple(changes)))
    except UnknownEffects:
        raise
    except Exception as error:
        raise CorruptEffects(f"effects of entry {header.index}: {error}") from error
    if position != len(payload):
        raise CorruptEffects(f"effects of entry {header.index}: {len(payload) - position} bytes too many")
    return Effects(header.index, header.revision, tuple(requests), header.is_plain)
