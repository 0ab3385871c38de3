"""Looks up what a stream of changes needs in PostgreSQL's catalog: settings, publication, slot, tables.

`raftlog.cluster.importer.postgres.source` calls it before a snapshot and after every connect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.cluster.importer.postgres.connection import PgConnection, identifier, literal
from raftlog.cluster.importer.postgres.messages import PgColumn, Relation
from raftlog.cluster.importer.postgres.values import KeyColumn, lsn_of
from raftlog.cluster.importer.source import SourceError

SERVER_MIN: Final = 150_000
"""PostgreSQL 15: its publications have lists of columns, and it sends no empty transactions."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of the publication: its columns, and the SELECT that gives what the stream would."""

    relation: Relation
    key: tuple[KeyColumn, ...]  # the primary key
    select: str

    @property
    def primary(self) -> tuple[str, ...]:
        """The names of the columns of the primary key."""
        return tuple(each.name for each in self.key)


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """A replication slot, and the position before which PostgreSQL has forgotten."""

    confirmed: int
    is_lost: bool
    is_ours: bool  # of this database and of pgoutput


def check_server(connection: PgConnection) -> None:
    """Raises SourceError for a server that cannot stream changes as text."""
    version = int(connection.value("SELECT current_setting('server_version_num')"))
    if version < SERVER_MIN:
        raise SourceError(f"this is PostgreSQL {version // 10_000}; changes can be copied from version 15 on")
    if (level := connection.value("SELECT current_setting('wal_level')")) != "logical":
        raise SourceError(
            f"PostgreSQL has wal_level {level}, and must have logical: ALTER SYSTEM SET wal_level = logical, then "
            f"restart PostgreSQL"
        )
    if connection.value("SELECT current_setting('server_encoding')") == "SQL_ASCII":
        raise SourceError("the database has no encoding (SQL_ASCII), so its text cannot be written as JSON")


def publish(connection: PgConnection, name: str, tables: Sequence[str]) -> None:
    """Makes the publication of the tables if there is none. Raises SourceError if it has other tables."""
    wanted = {_found(connection, each) for each in tables}
    if connection.query(f"SELECT 1 FROM pg_publication WHERE pubname = {literal(name)}"):
        has = _tables_of(connection, name)
        if not has:
            raise SourceError(f"the publication {name} has no tables: ALTER PUBLICATION {identifier(name)} ADD TABLE …")
        if wanted and has != wanted:
            raise SourceError(
                f"the publication {name} has the tables {_listed(has)}, not {_listed(wanted)}: leave the tables out to "
                f"take those, or name another publication"
            )
        return
    if not wanted:
        raise SourceError(f"there is no publication {name}: name its tables to have it made")
    for schema, table in sorted(wanted):
        _check_identity(connection, schema, table)
    listed = ", ".join(_quoted(*each) for each in sorted(wanted))
    connection.query(
        f"CREATE PUBLICATION {identifier(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"
    )


def check_tables(connection: PgConnection, name: str, tables: Sequence[str]) -> None:
    """Raises SourceError if a copy that goes on names other tables than those of its publication."""
    rest = (
        f"This copy goes on with the tables of the publication {name}: leave the tables out, or copy other ones with "
        f"another slot and another state file"
    )
    try:
        wanted = {_found(connection, each) for each in tables}
    except SourceError as error:
        raise SourceError(f"{error}. {rest}") from None
    if wanted != (has := _tables_of(connection, name)):
        raise SourceError(f"the publication has the tables {_listed(has)}, not {_listed(wanted)}. {rest}")


def _tables_of(connection: PgConnection, publication: str) -> set[tuple[str, str]]:
    return {
        (schema or "", table or "")
        for schema, table in connection.query(
            f"SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = {literal(publication)}"
        )
    }


def _found(connection: PgConnection, name: str) -> tuple[str, str]:
    rows = connection.query(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE c.oid = to_regclass({literal(name)})"
    )
    if not rows:
        raise SourceError(f"there is no table {name}; a table outside the schema public is named SCHEMA.TABLE")
    ((schema, table),) = rows
    return schema or "", table or ""


def _check_identity(connection: PgConnection, schema: str, table: str) -> None:
    """Refuses a table whose updates PostgreSQL would refuse from then on."""
    has_one = connection.value(
        "SELECT c.relreplident IN ('f', 'i') OR c.relreplident = 'd' AND EXISTS (SELECT 1 FROM pg_index i "
        "WHERE i.indrelid = c.oid AND i.indisprimary) FROM pg_class c "
        f"WHERE c.oid = {literal(_quoted(schema, table))}::regclass"
    )
    if has_one != "t":
        raise SourceError(
            f"the table {schema}.{table} has no primary key, so PostgreSQL would refuse its updates once it is "
            f"published. Give it one, or ALTER TABLE {_quoted(schema, table)} REPLICA IDENTITY FULL"
        )


def find_slot(connection: PgConnection, name: str) -> ReplicationSlot | None:
    """The slot; None if there is none."""
    rows = connection.query(
        "SELECT confirmed_flush_lsn, wal_status = 'lost', plugin = 'pgoutput' AND database = current_database() "
        f"FROM pg_replication_slots WHERE slot_name = {literal(name)}"
    )
    for confirmed, is_lost, is_ours in rows:
        return ReplicationSlot(lsn_of(confirmed or "0/0"), is_lost == "t", is_ours == "t")
    return None


def published(connection: PgConnection, publication: str) -> list[PublishedTable]:
    """The tables of the publication, as the stream would give them."""
    tables = connection.query(
        "SELECT c.oid, p.schemaname, p.tablename, c.relreplident, c.relkind, p.rowfilter FROM pg_publication_tables p "
        "JOIN pg_namespace n ON n.nspname = p.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND "
        f"c.relname = p.tablename WHERE p.pubname = {literal(publication)} ORDER BY 2, 3"
    )
    return [_published(connection, publication, *(each or "" for each in row)) for row in tables]


def _published(
    connection: PgConnection,
    publication: str,
    number: str,
    schema: str,
    table: str,
    identity: str,
    kind: str,
    rows: str,
) -> PublishedTable:
    columns = connection.query(
        "SELECT a.attname, a.atttypid, i.indisprimary IS TRUE, i.indisreplident IS TRUE, a.attnum "
        f"FROM pg_publication_tables p JOIN pg_attribute a ON a.attrelid = {number} AND a.attname = ANY(p.attnames) "
        f"LEFT JOIN pg_index i ON i.indrelid = {number} AND (i.indisprimary OR i.indisreplident) "
        "AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
        f"WHERE p.pubname = {literal(publication)} AND p.schemaname = {literal(schema)} "
        f"AND p.tablename = {literal(table)} ORDER BY a.attnum"
    )
    found: dict[str, tuple[int, bool, bool, int]] = {}
    for name, type, is_primary, is_identity, number_in_table in columns:  # a column may be in both indexes
        _, before_primary, before_identity, _ = found.get(name or "", (0, False, False, 0))
        found[name or ""] = (
            int(type or 0),
            before_primary or is_primary == "t",
            before_identity or is_identity == "t",
            int(number_in_table or 0),
        )
    is_key = {"d": 1, "i": 2}.get(identity)
    relation = Relation(
        int(number),
        f"{schema}.{table}",
        identity,
        tuple(
            PgColumn(name, each[0], identity == "f" or (is_key is not None and bool(each[is_key])))
            for name, each in found.items()
        ),
    )
    names = ", ".join(map(identifier, found))
    only = "" if kind == "p" else "ONLY "
    where = f" WHERE {rows}" if rows else ""
    select = f"SELECT {names} FROM {only}{_quoted(schema, table)}{where}"
    # New columns come at the end. So a column's place never changed if none before it was dropped or left out.
    key = tuple(
        KeyColumn(name, each[0], place if each[3] == place + 1 else None)
        for place, (name, each) in enumerate(found.items())
        if each[1]
    )
    return PublishedTable(relation, key, select)


def _quoted(schema: str, table: str) -> str:
    return f"{identifier(schema)}.{identifier(table)}"


def _listed(tables: set[tuple[str, str]]) -> str:
    return ", ".join(".".join(each) for each in sorted(tables))
