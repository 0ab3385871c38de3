"""Any state machine under the simulator: the one raftlog ships, or your own, named as module:Class.

Your machine follows the log beside the shipped one, whose sessions have already kept repeated records from it: it sees
every record that clients append, once, in the order of the log, and must be deterministic. `Machine` is all it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

import xxhash

from chaos.sim.failure import Failure
from raft.codec import Record, decode_blocks, decode_records, encode_block
from raft.types import Entry, EntryKind
from statemachine.commands import LogEntry, Operation, Result
from statemachine.effects import Effects
from statemachine.machine import StateMachine
from statemachine.snapshot import SnapshotWalk

if TYPE_CHECKING:
    from chaos.sim.world import World

RECORD_EVERY_US: Final = 250_000
"""How often, on average, a record of the machine's own making is appended."""

PATIENCE_US: Final = 3_000_000
"""How long whoever appends it waits for an answer."""

_OURS: Final = b"\0"
_YOURS: Final = b"\1"
"""First byte of each chunk of a snapshot: of the shipped machine, or of yours."""


class NotAMachine(ValueError):
    """What was named is no state machine: not there, or it lacks something."""


class Machine(Protocol):
    """A state machine of your own. One that raises in `apply` breaks the property "apply never raises".

    Optionally, `record(random: Random) -> bytes` makes a record for clients to append; without it they append theirs.
    """

    def __init__(self) -> None:
        """The state before the first record."""

    def apply(self, index: int, record: bytes) -> object:
        """The next record, with its index in the log. What is returned must be equal on every node."""

    def digest(self) -> object:
        """A value that is equal if and only if two states are."""

    def snapshot(self) -> Iterable[bytes]:
        """The whole state, in chunks."""

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> Self:
        """The machine of those chunks, with the same digest."""


class Walk:
    """The chunks of a snapshot of both machines; must be closed, as the shipped machine's own."""

    def __init__(self, yours: list[bytes], inner: SnapshotWalk) -> None:
        self._yours = iter(yours)
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        chunk = next(self._yours, None)
        return _OURS + next(self._inner) if chunk is None else chunk

    def close(self) -> None:
        """The snapshot is done, or given up."""
        self._inner.close()


class Hosted:
    """Your machine and the shipped one, as one that a simulated node can run."""

    def __init__(self, inner: StateMachine, yours: Machine, answers: int = 0) -> None:
        self.inner = inner
        self.yours = yours
        self._answers = answers  # a hash over all that `yours.apply` returned

    def apply(self, entry: LogEntry) -> Effects:
        """What the shipped machine makes of an entry."""
        return self.inner.apply(entry)

    def follow(self, entry: Entry, effects: Effects) -> None:
        """Give your machine the records of that entry which took effect. Raises Failure."""
        if entry.kind is not EntryKind.COMMANDS:
            return
        index = entry.index - entry.count
        for nth, block in enumerate(decode_blocks(entry.data)):
            is_applied = not effects.requests or effects.requests[nth].result == Result.APPLIED
            for record in decode_records(block):
                index += 1
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

    def snapshot(self) -> Walk:
        """The chunks of both as they are now, after one with the hash; apply may go on between two of them."""
        head = self._answers.to_bytes(8, "little")
        return Walk([head, *(_YOURS + chunk for chunk in self.yours.snapshot())], self.inner.snapshot())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass(frozen=True, slots=True)
class Host:
    """Makes Hosted machines around a class of yours; World uses it as it uses the class StateMachine."""

    yours: type[Machine]

    def __call__(self) -> Hosted:
        """An empty one."""
        return Hosted(StateMachine(), self.yours())

    def restore(self, chunks: Iterable[bytes]) -> Hosted:
        """The one of a snapshot."""
        head, *rest = chunks
        yours = self.yours.restore(chunk[1:] for chunk in rest if chunk[:1] == _YOURS)
        inner = StateMachine.restore(chunk[1:] for chunk in rest if chunk[:1] == _OURS)
        return Hosted(inner, yours, int.from_bytes(head, "little"))


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
        raise NotAMachine(f"{name!r} has no {', '.join(missing)}: see chaos.sim.machines.Machine")
    return Host(cast(type[Machine], found))


def feed(world: World) -> None:
    """Have a client append records that your machine makes, if it makes any, until the end of the run."""
    if not isinstance(world.machine_class, Host):
        return
    make: Callable[[Random], bytes] | None = getattr(world.machine_class.yours, "record", None)
    if make is None:
        return
    random = world.random_of("records")

    def append() -> None:
        block = encode_block([Record(Operation.APPEND, None, make(random))], plain=True)
        node = random.choice(list(world.replicas))
        world.replicas[node].submit(block, 1, 0, 0, world.now_us + PATIENCE_US, lambda _: world.count("records made"))
        world.after(random.randint(1, 2 * RECORD_EVERY_US), append)

    world.after(0, append)
