"""Makes records of PostgreSQL's stream of changes, and says after each how far it has come.

`raftlog.cluster.importer.postgres.source` feeds it. A position is the end of the last whole transaction, and the number
of records of the next one that are done. A transaction has the same changes in the same order whenever it is read, so
the reading can go on in its middle. The newest record waits for the next message: the last one of a transaction says
so, and a reader can show whole transactions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from raftlog.cluster.api.text import counted
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.postgres.messages import (
    FULL,
    Begin,
    Commit,
    Message,
    MessageError,
    Relation,
    Row,
    RowDeleted,
    RowInserted,
    RowUpdated,
    TablesTruncated,
)
from raftlog.cluster.importer.postgres.values import KeyColumn, PgTable, Place, as_lsn, names_of_key, place_of
from raftlog.cluster.importer.source import SourceError

PrimaryKeys: TypeAlias = Mapping[int, Sequence[KeyColumn]]
RowChange: TypeAlias = RowInserted | RowUpdated | RowDeleted | TablesTruncated


def _before(table: PgTable, old: Row, is_full: bool) -> bytes:
    """The row before the change as JSON; its key alone if the rest is not logged."""
    table.check(old)
    return table.image(old)[0] if is_full else table.key_image(old)


class Changes:
    """The changes after a position. `lsn`, `commit` and `done` are the position after the newest record given.

    `keys` has the primary keys of the published tables by the tables' numbers. `look_up` gives them as they are now.
    """

    def __init__(self, lsn: int, commit: int, done: int, keys: PrimaryKeys, look_up: Callable[[], PrimaryKeys]) -> None:
        self.lsn = lsn
        self.commit = commit  # of the transaction that has begun; 0 between transactions
        self.done = done  # its records that were given
        self._made = 0  # its records so far
        self._waiting: NewRecord | None = None  # the newest record of the transaction
        self._skip_of, self._skip = (commit, done) if done else (0, 0)
        self._look_up = look_up
        self._keys = keys
        self._tables: dict[int, PgTable] = {}
        self._place: Place | None = None
        if not self._skip:
            self.commit = self.done = 0

    def feed(self, message: Message) -> list[NewRecord]:
        """The records of the message. Raises MessageError, and SourceError if another transaction came."""
        if isinstance(message, Begin):
            if self._place is not None:
                raise MessageError("PostgreSQL began a transaction within another")
            self._place = place_of(message.lsn, message.xid, message.time_us)
            self.commit, self.done, self._made = message.lsn, 0, 0
        elif isinstance(message, Commit):
            return self._committed(message)
        elif isinstance(message, Relation):
            primary = self._primary_of(message) if message.identity == FULL else ()
            self._tables[message.number] = PgTable(message, primary)
        elif self._place is None:
            raise MessageError("PostgreSQL sent a change outside a transaction")
        else:
            records = self._changed(message, self._place)
            if self._skip:
                if self.commit != self._skip_of:
                    raise self._another(0)
                records = records[max(0, self._skip - self._made + len(records)) :]
            found = [*([] if self._waiting is None else [self._waiting]), *records]
            self._waiting = found.pop() if found else None
            self.done = self._made - (self._waiting is not None)
            return found
        return []

    def _primary_of(self, relation: Relation) -> tuple[str, ...]:
        """The names of the primary key, which a message of a table with a full identity does not say."""
        if (names := self._certain_names(relation)) is None:
            self._keys = self._look_up()
            names = self._certain_names(relation)
        if names is not None:
            return names
        again = "begin again with another state file: the log gets all rows once more, as a new snapshot"
        if (key := self._keys.get(relation.number)) is None:
            raise SourceError(
                f"a change came of {relation.name}, which has REPLICA IDENTITY FULL and is not in the publication now, "
                f"so its primary key is not known. If the table is still there, add it to the publication again; else "
                f"{again}"
            )
        had, has = (", ".join(each.name for each in columns) for columns in (relation.columns, key))
        raise SourceError(
            f"a change of {relation.name} came with the columns {had}, and its primary key is now {has}: columns were "
            f"renamed or dropped since, so it is not certain which of them is the key. To go on, {again}"
        )

    def _certain_names(self, relation: Relation) -> tuple[str, ...] | None:
        key = self._keys.get(relation.number)
        return None if key is None else names_of_key(relation, key)

    def _committed(self, message: Commit) -> list[NewRecord]:
        """The last record of the transaction."""
        if self._place is None or message.lsn != self.commit:
            raise MessageError(f"PostgreSQL sent a commit at {as_lsn(message.lsn)} without its beginning")
        if message.lsn == self._skip_of:
            if self._made < self._skip:
                raise self._another(self._made)
            self._skip_of = self._skip = 0
        self._place = None
        self.lsn, self.commit, self.done = max(self.lsn, message.end), 0, 0
        last, self._waiting = self._waiting, None
        return [] if last is None else [last._replace(value=b'%b,"last":true}' % (last.value or b"")[:-1])]

    def passed(self, lsn: int) -> None:
        """PostgreSQL has sent everything whose commit is before the position."""
        if not self.commit:
            self.lsn = max(self.lsn, lsn)

    def _another(self, found: int) -> SourceError:
        return SourceError(
            f"the log has {counted(self._skip, 'record')} of the transaction at {as_lsn(self._skip_of)}, and "
            f"PostgreSQL now sends {found} of it: this is another history. Begin again with other state file and slot"
        )

    def _changed(self, message: RowChange, place: Place) -> list[NewRecord]:
        if isinstance(message, TablesTruncated):
            cascade, restart = (b"true" if each else b"false" for each in (message.cascade, message.restart_identity))
            flags = b'"cascade":%b,"restart_identity":%b' % (cascade, restart)
            tables = [self._table(each) for each in message.relations]
            return [table.record(table.key(None), b"truncate", place, self._next(), flags) for table in tables]
        table = self._table(message.relation)
        if isinstance(message, RowInserted):
            return [self._record(table, b"insert", place, b"null", message.new)]
        old, new = message.old, message.new if isinstance(message, RowUpdated) else None
        before = b"null" if old is None else _before(table, old, message.is_full)
        if new is None:
            return [self._record(table, b"delete", place, before, None, old)]
        table.check(new)
        if old is not None:
            new = table.filled(new, old, message.is_full)
            if not table.has_same_key(old, new):
                # A reader that keeps the newest record of each key must see the old row go.
                moved_to, moved_from = table.key_image(new), table.key_image(old)
                return [
                    self._record(table, b"delete", place, before, None, old, b',"moved_to":%b' % moved_to),
                    self._record(table, b"insert", place, b"null", new, None, b',"moved_from":%b' % moved_from),
                ]
        return [self._record(table, b"update", place, before, new)]

    def _record(
        self,
        table: PgTable,
        op: bytes,
        place: Place,
        before: bytes,
        new: Row | None,
        key: Row | None = None,
        more: bytes = b"",
    ) -> NewRecord:
        after, unchanged = (b"null", []) if new is None else table.image(new)
        if unchanged:
            more += b',"unchanged":%b' % msgspec.json.encode(unchanged)
        members = b'"before":%b,"after":%b%b' % (before, after, more)
        return table.record(table.key(new if key is None else key), op, place, self._next(), members)

    def _table(self, number: int) -> PgTable:
        if (table := self._tables.get(number)) is None:
            raise MessageError(f"PostgreSQL sent a change of the table number {number} without its columns")
        return table

    def _next(self) -> int:
        self._made += 1
        return self._made
