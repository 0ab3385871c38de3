"""Defines what a sink asks of a store: four methods, and the errors that they raise.

The store keeps the sink's position beside its rows. `write` applies all of a batch or nothing, and only if the position
is the expected one and no younger generation has opened the store. This one compare-and-set makes writing exactly
once, lets a second runner take over, fences a runner that slept, and shows a store that was restored from a backup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition, StoreRow


class StoreError(Exception):
    """The store cannot be written to as things are, and no waiting helps. The message says why and what to do."""

    exit_code = 1  # of the command line


class StoreUnavailable(StoreError):
    """The store does not answer, or has no room: it may later. The outcome of a write is not known."""


class StoreFenced(StoreError):
    """A younger runner of the sink has opened the store. `generation`: its claim's index in the log; 0: unknown."""

    def __init__(self, sink: str, generation: int = 0) -> None:
        self.generation = generation
        super().__init__(f"another runner of {sink} has taken over: this one stops")


class PositionMoved(StoreError):
    """The store is at another position than the batch expects: another runner wrote, or the store was restored."""


class Refusal(NamedTuple):
    """A change that the store does not take, and its reason."""

    change: RowChange
    reason: str


class RowsRefused(StoreError):
    """The store refuses rows, and has written nothing of the batch."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        first = self.refusals[0]
        more = f"; and {len(self.refusals) - 1} more" if self.refusals[1:] else ""
        super().__init__(f"index {first.change.index}, key {shown_key(first.change.key)}: {first.reason}{more}")


class SinkIdentity(NamedTuple):
    """Whose rows a store has: the sink's name, the log's id, and a digest of what decides how rows look."""

    name: str
    log: str
    mapping: str


class StoredRows(NamedTuple):
    """The rows of a store as of one moment, and its position then. Each row has the sink's columns in their order."""

    position: StorePosition
    rows: Iterator[StoreRow]
    unproven: str | None = None
    """Why rows may be missing though the log has them."""


class SinkStore(Protocol):
    """A store as a sink sees it. One thread calls it; the thread that opens it is the one that writes."""

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        """Claims the store for a generation. Returns the position, None before the first write.

        Raises StoreUnavailable; StoreFenced by a younger generation; StoreError for a store that this sink cannot
        write into: of another log or sink, with another mapping, or without the columns.
        """

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        """Applies the changes and moves the position from `expected` to `next`, at once.

        Raises StoreUnavailable, RowsRefused, StoreFenced, PositionMoved.
        """

    def rows(self, sink: SinkIdentity) -> AbstractContextManager[StoredRows | None]:
        """The rows as of one moment; None before the first write. Raises StoreUnavailable, StoreError.

        The iterator of a store without such moments raises PositionMoved when the rows change meanwhile.
        """

    def close(self) -> None:
        """Ends the connection. The store may be opened again."""


class SendingStore(SinkStore, Protocol):
    """A store whose server writes one batch while the runner reads and maps the next."""

    def send(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        """Begins a `write`, and ends the one before. Raises what they raise."""

    def settle(self) -> None:
        """Ends the `write` that was begun, if there is one. Raises what it raises."""


class DroppableStore(SinkStore, Protocol):
    """A store that the commands can also empty."""

    def drop(self, sink: SinkIdentity) -> None:
        """Deletes the rows and the position. Raises StoreUnavailable, StoreError."""


class RebuiltStore(DroppableStore, Protocol):
    """A store that can be filled again beside the old rows, while its readers go on."""

    def beside(self) -> DroppableStore:
        """An empty store of the same kind beside this one, or the one that a killed rebuild has left."""

    def exchange(self, sink: SinkIdentity, generation: int) -> None:
        """Puts the rows and the position that were filled beside into the place of this store's, in one step.

        Raises StoreUnavailable, StoreError; PositionMoved where the old rows are those of a later index. It may be
        killed, and called again.
        """


BESIDE: Final = ".rebuild"
"""End of the name under which a store that is filled beside another one keeps its position."""

WRITTEN_ON: Final = "the old rows are of a later index: their runner has written meanwhile, or the log has gone back"
"""Why an exchange does not take place."""

_SHOWN_MAX: Final = 100
_ALL_LOADED: Final = "all"
"""A position's `loaded` that is None, in a store. The others are hex, and one that has begun again has no digit yet."""


def place_of(position: StorePosition) -> tuple[int, str, int]:
    """A position as the three columns of a store."""
    return position.next, _ALL_LOADED if position.loaded is None else position.loaded, position.revision


def position_of(next: int, loaded: str, revision: int) -> StorePosition:
    """The position that `place_of` wrote."""
    return StorePosition(next, None if loaded == _ALL_LOADED else loaded, revision)


def certificate_error(server: str, why: str, authority: str) -> StoreError:
    """The error of a server's certificate that is not accepted; `authority` is where the file of one is named."""
    if "expired" in why:
        return StoreError(f"the certificate of {server} has expired: renew it there, and start the sink again")
    choices = f"renew it, or name the file of its authority in {authority}"
    return StoreError(f"the certificate of {server} is not accepted ({why}): {choices}")


def shown_key(key: StoreRow) -> str:
    """The values of a key for a message, the beginning of a long one."""
    text = ", ".join(map(str, key))
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def check_owner(found: SinkIdentity, wanted: SinkIdentity) -> None:
    """Raises StoreError if the store's position is of another log, or of rows that look different."""
    if found.log != wanted.log:
        raise StoreError(
            f"the store has rows of the log {found.log}, and this cluster's log is {wanted.log}: name another target, "
            f"or drop this one with raftlog sink drop {wanted.name}"
        )
    if found.mapping != wanted.mapping:
        raise StoreError(
            f"the settings of {wanted.name} map records to other rows than those in the store: raftlog sink rebuild "
            f"{wanted.name} fills it again, or take the change back"
        )
