"""Any state machine under the simulator: the one raftlog ships, or your own, named as module:Class.

Your machine follows the log beside the shipped one, whose sessions have already kept repeated records from it: it sees
every record that clients append, once, in the order of the log, and must be deterministic. `Machine` is all it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol, Self, cast

import xxhash

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.raft.codec.block import decode_records
from raftlog.raft.types import Entry
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.snapshot import SnapshotWalk


class NotAMachine(ValueError):
    """The named class is no state machine: it does not exist, or a method is missing."""


class Machine(Protocol):
    """A state machine of your own. One that raises in `apply` breaks the property "apply never raises".

    Optionally, `record(random: Random) -> bytes` makes a record for clients to append; without it they append theirs.
    """

    def __init__(self) -> None:
        """The state before the first record."""

    def apply(self, index: int, record: bytes) -> object:
        """The next record, with its index in the log. The result must be equal on every node."""

    def digest(self) -> object:
        """A value that is equal if and only if two states are."""

    def snapshot(self) -> Iterable[bytes]:
        """The whole state, in chunks."""

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> Self:
        """The machine of those chunks, with the same digest."""


class MachinePair:
    """Your machine beside the shipped one of a simulated node."""

    def __init__(self, inner: StateMachine, yours: Machine, answers: int = 0) -> None:
        """`inner` is the shipped machine, which the server drives."""
        self.inner = inner
        self.yours = yours
        self._answers = answers  # a hash over all that `yours.apply` returned

    def follow(self, entry: Entry, effects: Effects) -> None:
        """Give your machine the records of that entry which took effect. Raises Failure."""
        for last, block, effect in requests_of(entry, effects):
            is_applied = effect is None or effect.result == Result.APPLIED
            for index, record in enumerate(decode_records(block), last - block.count + 1):
                if is_applied and record.operation == Operation.APPEND:
                    self._take(index, record.value or b"")

    def _take(self, index: int, record: bytes) -> None:
        try:
            said = self.yours.apply(index, record)
        except Exception as error:
            detail = f"{type(self.yours).__name__} at index {index}, {record!r}: {type(error).__name__}: {error}"
            raise Failure("apply never raises", detail) from error
        self._answers = xxhash.xxh64_intdigest(repr((index, said)).encode(), self._answers)

    def digest(self) -> object:
        """Of both, and of what yours returned."""
        return self.inner.digest(), self.yours.digest(), self._answers

    def chunks(self) -> list[bytes]:
        """Your machine as it is now, after a chunk with the hash of its answers."""
        return [self._answers.to_bytes(8, "little"), *self.yours.snapshot()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ShippedMachine(StateMachine):
    """The shipped machine; the snapshots that are taken of it are shown to a Host."""

    hosted: MachinePair | None = None
    host: Host | None = None

    def snapshot(self) -> SnapshotWalk:
        """As StateMachine: the snapshot of your machine is taken in the same moment."""
        if self.host is not None and self.hosted is not None:
            self.host.keep(self.applied_index, self.applied_term, self.hosted.chunks())
        return super().snapshot()


class Host:
    """Runs your machine beside the shipped ones of a world, and keeps its snapshots by the entry that they end with.

    The server's snapshots hold the shipped machine alone: those of yours go beside them.
    """

    def __init__(self, yours: type[Machine]) -> None:
        self.yours = yours
        self._kept: dict[tuple[int, int], list[bytes]] = {}

    def keep(self, index: int, term: int, chunks: list[bytes]) -> None:
        """Keeps a snapshot of your machine after the entry (index, term)."""
        self._kept[index, term] = chunks

    def beside(self, inner: ShippedMachine) -> MachinePair:
        """Your machine as it was when that shipped one was saved; an empty one beside an empty one."""
        hosted = MachinePair(inner, self.yours())
        if inner.applied_index:
            head, *chunks = self._kept[inner.applied_index, inner.applied_term]
            hosted = MachinePair(inner, self.yours.restore(iter(chunks)), int.from_bytes(head, "little"))
        inner.hosted, inner.host = hosted, self
        return hosted


def load_machine(name: str) -> type[StateMachine] | Host:
    """What `module:Class` names. Raises NotAMachine."""
    module, colon, class_name = name.partition(":")
    if not colon or not module or not class_name:
        raise NotAMachine(f"{name!r}: name a state machine as module:Class")
    try:
        found = getattr(import_module(module), class_name, None)
    except ImportError as error:
        raise NotAMachine(f"{name!r}: {error}") from error
    if not isinstance(found, type):
        raise NotAMachine(f"{name!r}: there is no class {class_name} in {module}")
    if issubclass(found, StateMachine):
        return found
    missing = [each for each in ("apply", "digest", "snapshot", "restore") if not callable(getattr(found, each, None))]
    if missing:
        raise NotAMachine(f"{name!r} has no {', '.join(missing)}: see raftlog.chaos.sim.ground.machines.Machine")
    return Host(cast(type[Machine], found))
