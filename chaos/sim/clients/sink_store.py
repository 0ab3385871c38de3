"""Provides the store of a simulated sink: SQLite in memory, whose server loses connections and goes back to a copy.

The product's own writer of SQL (`raftlog.cluster.sinks.stores.sql`) writes into it. So a mistake in its transactions
is seen here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from raftlog.cluster.sinks.changes import StorePosition, StoreRow
from raftlog.cluster.sinks.store import StoreUnavailable, position_of
from raftlog.cluster.sinks.stores.sql import POSITIONS
from raftlog.cluster.sinks.stores.sqlite import SqliteDatabase

LOST: Final = 100
"""One statement of so many finds its connection lost."""

ANSWERS_LOST: Final = 20
"""One commit of so many takes effect, and its answer is lost."""


class SinkServer:
    """The server of a store: its rows, the copies that were made of it, and its faults."""

    def __init__(self, random: Random, is_calm: Callable[[], bool]) -> None:
        self._random = random
        self._is_calm = is_calm
        self.memory = _empty()
        self.youngest: dict[str, int] = {}  # of each table the generation that has opened it when it had a position
        self.begins: dict[str, int] = {}  # and the position from which it was filled
        self.commits = 0
        self._copy: tuple[sqlite3.Connection, dict[str, int], dict[str, int]] = (_empty(), {}, {})

    def __del__(self) -> None:
        self.memory.close()
        self._copy[0].close()

    def position(self, name: str) -> StorePosition | None:
        """The position of a sink, as another program reads it."""
        rows = self._asked(f"SELECT next, loaded, revision FROM {POSITIONS} WHERE name = '{name}'")
        return position_of(*rows[0]) if rows else None

    def next_index(self, name: str) -> int:
        """Its index alone; 0 if there is none."""
        found = self.position(name)
        return 0 if found is None else found.next

    def rows(self, table: str) -> dict[Any, StoreRow]:
        """The rows of a table, by their first column."""
        return {row[0]: row for row in self._asked(f"SELECT * FROM {table}")}

    def _asked(self, statement: str) -> list[Any]:
        try:
            return self.memory.execute(statement).fetchall()
        except sqlite3.OperationalError:  # no table yet
            return []

    def copy(self) -> None:
        """Makes the copy to which `restore` goes back."""
        self._copy[0].close()
        self._copy = (_copied(self.memory), dict(self.youngest), dict(self.begins))

    def restore(self) -> None:
        """Goes back to the last copy."""
        self._replace(*self._copy)

    def drop(self) -> None:
        """Deletes everything."""
        self._replace(_empty(), {}, {})

    def _replace(self, source: sqlite3.Connection, youngest: dict[str, int], begins: dict[str, int]) -> None:
        self.memory.close()
        self.memory, self.youngest, self.begins = _copied(source), dict(youngest), dict(begins)

    def is_hit(self, one_of: int) -> bool:
        """Whether a fault falls on this statement."""
        return not self._is_calm() and self._random.randrange(one_of) == 0


class SinkConnection(SqliteDatabase):
    """A runner's connection to the server."""

    def __init__(self, server: SinkServer) -> None:
        super().__init__(Path(":memory:"))
        self._server = server

    def connect(self) -> None:
        """As `Database.connect`."""
        self._connection = self._server.memory

    def close(self) -> None:
        """As `Database.close`."""
        if self._connection is self._server.memory and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[StoreRow]:
        """As `Database.execute`."""
        self._reach()
        rows = super().execute(statement, parameters)
        if statement == "COMMIT":
            self._server.commits += 1
            if self._server.is_hit(ANSWERS_LOST):
                raise StoreUnavailable("the answer was lost")
        return rows

    def _many(self, statement: str, types: Sequence[str], rows: Sequence[StoreRow]) -> None:
        self._reach()
        super()._many(statement, types, rows)

    def _reach(self) -> None:
        if self._connection is not self._server.memory or self._server.is_hit(LOST):
            self.close()
            raise StoreUnavailable("the connection was lost")


def _empty() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def _copied(source: sqlite3.Connection) -> sqlite3.Connection:
    made = _empty()
    source.backup(made)
    return made
