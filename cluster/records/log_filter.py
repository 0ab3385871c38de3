"""Decides which records of the log a reader asked for: by operation, key, session, user and header.

`raftlog.cluster.http.routes.log` asks it for each row that the reader may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.digest import LogRow
from raftlog.statemachine.effects import Effects

APPEND: Final = Operation.APPEND.name.lower()


@dataclass(frozen=True, slots=True)
class LogFilter:
    """What a record must have. None, and no sessions: anything."""

    operation: str | None  # or the kind of an entry without operations
    prefix: bytes | None  # of its key, or of a key that it changed
    sessions: frozenset[int]  # one of these
    user: str | None  # that wrote it
    header: tuple[str, bytes | None] | None  # a name, and its value

    def takes(self, row: LogRow, user: str | None) -> bool:
        """Whether the record passes. `user`: that wrote it, None if that is not known."""
        return (
            (self.operation is None or self.operation == (row.operation or row.kind))
            and (self.prefix is None or any(key.startswith(self.prefix) for key in _keys(row)))
            and (not self.sessions or row.session in self.sessions)
            and (self.user is None or user == self.user)
            and (self.header is None or any(map(self._is_wanted, row.headers or ())))
        )

    def _is_wanted(self, header: tuple[str, bytes]) -> bool:
        assert self.header is not None
        name, value = self.header
        return header[0] == name and value in (None, header[1])

    def leaves_out(self, entry: Entry, effects: Effects) -> bool:
        """Whether none of the entry's records passes, as far as that is known without decoding them."""
        is_plain = effects.is_plain and entry.kind is EntryKind.COMMANDS  # appends alone
        return is_plain and self.operation not in (None, APPEND)

    @property
    def takes_values(self) -> bool:
        """Whether a record that is nothing but a value may pass."""
        return self.operation in (None, APPEND) and self.prefix is None and self.header is None


def _keys(row: LogRow) -> Iterator[bytes]:
    if row.key is not None:
        yield row.key
    for change in row.changes or ():
        yield change.key
