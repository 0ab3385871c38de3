"""Keeps the consumer groups: the position of each named reader of the log, and the generation of its owner.

The state machine calls it. A group has a position (the next index to read) and a generation. Each claim of a group
makes a new generation. From then on a commit with an older generation is refused, so two owners never both move a
position. A generation is the index of the record that made it, as a session's id is. It only grows, and never repeats,
even if a group is deleted and made again. A position goes forward, unless the client asks for a reset.
docs/promises.md: consumer groups are fenced.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh64_intdigest

from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import (
    LIMIT_MAX,
    ConsumerGroup,
    Limits,
    MalformedCommand,
    Result,
    UnknownCommand,
    share_of,
    unpack_versioned,
)

CONSUMER_VERSION: Final = 1
_ROW: Final = Struct("<QQQQQQ")  # of a group in `ConsumerTable.digest`, before its name and owner


class ConsumerAction(IntEnum):
    """What a CONSUMER record asks for. Numbers are in every log for ever."""

    CLAIM = 1  # a new generation; a new group begins at `next` (0: the oldest index), one that is there stays as it is
    COMMIT = 2  # of the owner: the position, never behind the one before
    RESET = 3  # any position; without a generation it is a claim too (the owner is fenced, a new group is made)
    DELETE = 4  # with a generation: only of the owner


class ConsumerCommand(NamedTuple):
    """The value of a CONSUMER record, whose key is the group's name; 0 and b"" stand for absent fields."""

    action: int
    generation: int = 0
    next: int = 0
    owner: bytes = b""  # free text for people: the claimant


def encode_consumer(command: ConsumerCommand) -> bytes:
    """The value of a CONSUMER record."""
    data: bytes = msgpack.packb([CONSUMER_VERSION, *command], use_bin_type=True)
    return data


def decode_consumer(data: bytes) -> ConsumerCommand:
    """Raises MalformedCommand or UnknownCommand."""
    fields = unpack_versioned(data, "consumer command", CONSUMER_VERSION)
    if len(fields) != len(ConsumerCommand._fields):
        raise MalformedCommand(f"it has {len(fields)} fields, not {len(ConsumerCommand._fields)}")
    action, generation, position, owner = fields
    if not all(type(number) is int and 0 <= number <= LIMIT_MAX for number in (action, generation, position)):
        raise MalformedCommand(f"action, generation and position are {(action, generation, position)!r}")
    if type(owner) is not bytes:
        raise MalformedCommand(f"its owner is {owner!r}")
    command = ConsumerCommand(action, generation, position, owner)
    if command.action not in _ACTIONS:
        raise UnknownCommand(f"consumer command with action {command.action}: upgrade this code")
    return command


_ACTIONS: Final = frozenset(int(action) for action in ConsumerAction)


class ConsumerResult(NamedTuple):
    """What became of a command, and the group as it is now; None: there is none."""

    result: Result
    consumer: ConsumerGroup | None = None
    reason: Reason | None = None
    deleted: int = 0


class ConsumerTable:
    """All groups. It never evicts one: a full table refuses new ones."""

    __slots__ = ("_groups", "_makers")

    def __init__(self) -> None:
        self._groups: dict[bytes, ConsumerGroup] = {}
        self._makers: dict[bytes, str] = {}  # the principals that made them; of older groups it is not known

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: bytes) -> ConsumerGroup | None:
        """The group of that name."""
        return self._groups.get(name)

    def rows(self) -> list[tuple[bytes, ConsumerGroup]]:
        """All groups as they are now, by name."""
        return sorted(self._groups.items())

    def maker(self, name: bytes) -> str:
        """The principal that made the group; "" where that is not known."""
        return self._makers.get(name, "")

    def digest(self, seed: int) -> int:
        """A hash of all groups, for digest points; it goes on from `seed`."""
        for name, (next_, generation, owner, time_ms, clock_ms) in self.rows():
            numbers = _ROW.pack(next_, generation, time_ms, clock_ms, len(name), len(owner))
            seed = xxh64_intdigest(numbers + name + owner + self.maker(name).encode(), seed)
        return seed

    def lowest(self) -> int | None:
        """The lowest position of all groups: some group still reads from there on. None without groups."""
        return min([group.next for group in self._groups.values()], default=None)

    def execute(
        self,
        name: bytes,
        command: ConsumerCommand,
        index: int,
        time_ms: int,
        clock_ms: int,
        limits: Limits,
        oldest: int,
        maker: str = "",
        parts: int = 1,
    ) -> ConsumerResult:
        """Carries out the command of the record at `index`: everything before that is applied, so it is the highest
        position that there can be. `oldest` is the first index that can be read: where a new group begins if its claim
        does not say. A group that it makes is the `maker`'s, which may have one of `parts` of all groups."""
        action, generation, next_, owner = command
        group = self._groups.get(name)
        if not _is_name(name, limits) or len(owner) > limits.consumer_owner_bytes_max or not _is_whole(command):
            return ConsumerResult(Result.REFUSED, group, Reason.MALFORMED)
        if next_ > index:
            return ConsumerResult(Result.REFUSED, group, Reason.POSITION_AHEAD)
        if group is None:
            if action == ConsumerAction.DELETE:
                return ConsumerResult(Result.APPLIED)
            if generation:
                return ConsumerResult(Result.REFUSED, None, Reason.NO_CONSUMER)
            if len(self._groups) >= limits.consumers_max:
                return ConsumerResult(Result.REFUSED, None, Reason.CONSUMERS_FULL)
            if maker:
                if list(self._makers.values()).count(maker) >= share_of(limits.consumers_max, parts):
                    return ConsumerResult(Result.REFUSED, None, Reason.CONSUMERS_SHARE)
                self._makers[name] = maker
        else:
            if generation not in (0, group.generation):
                return ConsumerResult(Result.COMPARE_FAILED, group)
            if action == ConsumerAction.DELETE:
                del self._groups[name]
                self._makers.pop(name, None)
                return ConsumerResult(Result.APPLIED, deleted=1)
            if action == ConsumerAction.COMMIT and next_ < group.next:
                return ConsumerResult(Result.REFUSED, group, Reason.POSITION_BACK)
            if action == ConsumerAction.CLAIM:
                next_ = group.next
            if generation:
                owner = group.owner
        consumer = ConsumerGroup(next_ or oldest, generation or index, owner, time_ms, clock_ms)
        self._groups[name] = consumer
        return ConsumerResult(Result.APPLIED, consumer)

    def load(self, name: Any, consumer: ConsumerGroup, maker: str = "") -> None:
        """Takes back a group from a snapshot; they come in the order of their names. Raises ValueError."""
        if type(name) is not bytes:
            raise ValueError(f"a consumer named {name!r}")
        if self._groups and name <= next(reversed(self._groups)):
            raise ValueError(f"consumer {name!r} comes out of order")
        self._groups[name] = consumer
        if maker:
            self._makers[name] = maker


def _is_name(name: bytes, limits: Limits) -> bool:
    """Names are text: they stand in paths, on terminals and in metrics."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return 1 <= len(name) <= limits.consumer_name_bytes_max


def _is_whole(command: ConsumerCommand) -> bool:
    """Whether the command has the fields that its action needs."""
    match command.action:
        case ConsumerAction.CLAIM:
            return not command.generation
        case ConsumerAction.COMMIT:
            return bool(command.generation and command.next)
        case ConsumerAction.RESET:
            return bool(command.next)
        case _:
            return True
