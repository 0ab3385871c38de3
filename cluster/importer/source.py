"""Defines a source of records: anything that can be read on after a position that it gave earlier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from raftlog.cluster.client.new_records import NewRecord


class SourceError(Exception):
    """A source that cannot be copied. The message says why and what to do."""

    exit_code = 1  # of the command line


class SourceChanged(SourceError):
    """What was copied of a file of a source has changed."""

    def __init__(self, name: str, line: int) -> None:
        super().__init__(f"{name} has changed before line {line}")
        self.name = name


class Part(NamedTuple):
    """Records that follow each other, and the position after them: any value that JSON can hold.

    With `start`, the position before them, the source can give the same records again, by `read(start, position)`. Then
    they are not kept.
    """

    records: Sequence[NewRecord]
    position: Any
    start: Any = None


class Source(Protocol):
    """Anything that can be read on after a position. `name` is kept, and must be the same after a restart.

    A source may have `reads_ahead = True`: then it is read in a thread of its own, while a batch is sent. Without it
    each of its parts is one request, and all its methods run in the thread of the caller of `copy`.
    """

    @property
    def name(self) -> str:
        """The name of the source."""

    def read(self, position: Any | None) -> Iterator[Part]:
        """The records after the position, from the beginning for None. May wait for more without end."""
