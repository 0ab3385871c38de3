"""Encodes and decodes consensus messages, each in a frame."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt, UnknownVersion
from raftlog.raft.codec.entry import decode_entries
from raftlog.raft.codec.frame import FRAME_MESSAGE, Frame, frame_parts
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    Recall,
    RecallReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)

_MESSAGE_FIELDS: Final[dict[int, tuple[type, tuple[str, ...]]]] = {
    1: (RequestVote, ("last_index", "last_term", "pre", "transfer", "link_closed")),
    2: (RequestVoteReply, ("request_term", "granted", "pre")),
    3: (AppendEntries, ("prev_index", "prev_term", "commit", "round")),
    4: (AppendEntriesReply, ("success", "match", "prev_index", "round", "hint_index", "hint_term")),
    5: (InstallSnapshot, ("snapshot_index", "snapshot_term", "offset", "total", "crc", "done")),
    6: (InstallSnapshotReply, ("snapshot_index", "snapshot_term", "offset", "accepted")),
    7: (TimeoutNow, ("last_index",)),
    8: (Recall, ("run", "floor")),
    9: (
        RecallReply,
        (
            "run",
            "promised_term",
            "acked_term",
            "acked_index",
            "led_term",
            "led_index",
            "healed_index",
            "is_alone",
            "is_lost",
        ),
    ),
}
_MESSAGE_NUMBERS: Final = {kind: number for number, (kind, _) in _MESSAGE_FIELDS.items()}
_BOOLEANS: Final = frozenset(
    {"pre", "transfer", "link_closed", "granted", "success", "done", "accepted", "is_alone", "is_lost"}
)
_NAMES: Final = {number: ("shard", "sender", "to", "term", *names) for number, (_, names) in _MESSAGE_FIELDS.items()}
_VALUES: Final = {number: attrgetter(*names) for number, names in _NAMES.items()}
_TYPES: Final = {
    number: tuple(bool if name in _BOOLEANS else int for name in names) for number, names in _NAMES.items()
}


def encode_message(message: Message) -> bytes:
    """A consensus message as a whole frame."""
    return b"".join(message_parts(message))


def message_parts(message: Message) -> list[bytes]:
    """The same in parts: entries are large, and go to several peers."""
    number = _MESSAGE_NUMBERS[type(message)]
    header = (number, *_VALUES[number](message))
    payload: Sequence[bytes] = ()
    if type(message) is AppendEntries:
        payload = [part for entry in message.entries for part in (entry.header, entry.data)]
    elif type(message) is InstallSnapshot:
        payload = (message.data,)
    return frame_parts(FRAME_MESSAGE, header, payload)


def decode_message(frame: Frame) -> Message:
    """The message of a FRAME_MESSAGE frame. Raises Corrupt or UnknownVersion."""
    number, *values = frame.header or (0,)
    if type(number) is not int or number not in _MESSAGE_FIELDS:
        raise UnknownVersion(f"message number {number!r}")
    kind, names = _MESSAGE_FIELDS[number][0], _NAMES[number]
    numbers: list[Any] = values  # as the first look makes sure
    if tuple(map(type, values)) != _TYPES[number] or min(numbers) < 0 or max(numbers) > INDEX_MAX:
        raise _malformed(kind, names, values)
    fields: dict[str, Any] = dict(zip(names, values, strict=True))
    if kind is AppendEntries:
        fields["entries"] = decode_entries(frame.payload) if frame.payload else ()
    elif kind is InstallSnapshot:
        fields["data"] = frame.payload
    message: Message = kind(**fields)
    return message


def _malformed(kind: type, names: Sequence[str], values: Sequence[object]) -> Corrupt:
    """The error in the fields of a message."""
    if len(values) != len(names):
        return Corrupt(f"{kind.__name__} has {len(values)} fields, not {len(names)}")
    name, value = next(
        (name, value)
        for name, value in zip(names, values, strict=True)
        if type(value) is not (bool if name in _BOOLEANS else int)
        or (type(value) is int and not 0 <= value <= INDEX_MAX)
    )
    return Corrupt(f"{kind.__name__}.{name} is {value!r}")
