"""Writes rows into Redis 7 or Valkey, one key a row, and the sink's position, in one script.

A script runs alone on its server, and its effects reach the append-only file and the replicas as one transaction. So
the position moves with the rows, and goes back only with them: to the newest fsync, or to what a replica had when it
took over. Redis takes nothing back when a script fails half-way; so all that can fail does so before the first write,
and a batch that is written again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgpack
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.mapping import RowMapping
from raftlog.cluster.sinks.store import (
    BESIDE,
    PositionMoved,
    Refusal,
    RowsRefused,
    SinkIdentity,
    StoredRows,
    StoreError,
    StoreFenced,
    StoreUnavailable,
    certificate_error,
    check_owner,
    place_of,
    position_of,
)
from raftlog.cluster.sinks.stores import redis_scripts as scripts
from raftlog.cluster.sinks.stores.cells import (
    KeyTemplate,
    cell_of_text,
    cells_of_json,
    encode_json,
    members_of,
    text_of,
)

OURS: Final = "raftlog:"
"""How the keys of sinks themselves begin, which rows cannot take. `raftlog:sink:NAME` is the position, and
`raftlog:sink:NAME:keys` has the name of each row, about 100 bytes more a row: a truncate and `verify` need them, and
without them Redis would have to walk over all its keys. `raftlog:sinks` says which sink has which template."""

_PAGE_KEYS: Final = 250  # rows in one answer
_CONNECT_S: Final = 10
_ANSWER_S: Final = 60  # a truncate of some million rows takes seconds

Keep = Literal["hash", "json", "string"]
"""How a row is kept: each column a field, which is missing for NULL; an object of JSON; or the one column that is not
of the primary key, as text."""


class RedisStore:
    """Keys of Redis, named by a template, that a sink keeps up to date. With `ttl` rows expire, in seconds."""

    def __init__(
        self, url: str, template: str, mapping: RowMapping, *, keep: Keep = "hash", ttl: int | None = None
    ) -> None:
        self.notes: tuple[str, ...] = ()
        """What the server's settings mean for the promise, once it is open."""
        self._url = url
        self._mapping = mapping
        self._is_beside = False
        self._template = KeyTemplate(template, mapping.primary_key)
        self._columns = mapping.columns
        self._key_columns = mapping.key_columns
        self._value_at = next((at for at, name in enumerate(mapping.names) if name not in mapping.primary_key), 0)
        self._keep = keep
        self._ttl = ttl
        self._sink = SinkIdentity("", "", "")
        self._generation = 0
        self._client: redis.Redis | None = None
        self._writer: Any = None  # of its own: the answer to a batch comes later
        self._script = ""  # the hash of the script that writes
        self._sent: tuple[StorePosition | None] | None = None  # where the batch without an answer expects the store

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        self._sink, self._generation = sink, generation
        with _errors():
            client = self._connected()
            arguments = (
                sink.name,
                self._template.text,
                sink.log,
                sink.mapping,
                str(generation),
                "rebuild" if self._is_beside else "",
            )
            owner, is_ending, log, mapping, newest, *place = client.register_script(scripts.OPEN)(
                self._keys(sink), arguments
            )
            self.notes = _notes(client)
            self._script = client.script_load(scripts.WRITE)
            self._writer = client.connection_pool.get_connection()
        if owner is not None and owner.decode() != sink.name:
            template = self._template.text
            raise StoreError(f"the sink {owner.decode()} writes into the keys {template} already: name another key")
        if is_ending:
            raise _not_ended(sink)
        position = _position(place)
        if position is not None:
            check_owner(SinkIdentity(sink.name, log.decode(), mapping.decode()), sink)
        if int(newest or 0) > generation:
            raise StoreFenced(self._sink.name, int(newest))
        return position

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        self.send(changes, expected, next)
        self.settle()

    def send(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        """As `SendingStore.send`: one script, with the whole batch as one argument."""
        commands, refusals = [], []
        for change in changes.rows:
            try:
                commands.append(self._command(change))
            except (ValueError, TypeError, OverflowError) as error:
                refusals.append(Refusal(change, str(error)))
        if refusals:
            raise RowsRefused(refusals)
        before = (self._generation, *(place_of(expected) if expected is not None else ("", "", "")))
        texts = ([str(each) for each in before], [str(each) for each in place_of(next)])
        batch = (*texts, changes.truncates, commands, (self._ttl or 0) * 1_000, self._is_beside)
        packed = msgpack.packb(batch, use_bin_type=False)
        self.settle()
        if self._writer is None:
            raise StoreUnavailable("Redis: the connection is closed")
        keys = self._keys(self._sink)
        with _errors():
            self._writer.send_command("EVALSHA", self._script, len(keys), *keys, packed)
        self._sent = (expected,)

    def settle(self) -> None:
        if self._sent is None or self._writer is None:
            return
        (expected,), self._sent = self._sent, None
        with _errors():
            found = self._writer.read_response()
        if found is not None:
            newest, there = found
            if int(newest or 0) > self._generation:
                raise StoreFenced(self._sink.name, int(newest))
            raise PositionMoved(f"the store is at {int(there or 0)}, not at {expected and expected.next}")

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        """As `SinkStore.rows`, page by page and without a lock. The iterator raises PositionMoved once rows have
        changed, and `verify` begins again."""
        with _errors():
            fields = ("generation", "writes", "next", "loaded", "revision")
            keys = self._keys(sink)
            if self._connected().exists(keys[3]):
                raise _not_ended(sink)
            place: list[Any] = self._connected().hmget(keys[0], fields)
        position = _position(place[2:])
        unproven = f"rows expire after {self._ttl} s, so those that the store lacks were not counted as missing"
        if position is None:
            yield None
        else:
            yield StoredRows(position, self._pages(sink, place[:2]), unproven if self._ttl else None)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = self._writer = self._sent = None

    def drop(self, sink: SinkIdentity) -> None:
        with _errors():
            script = scripts.RESTART if self._is_beside else scripts.DROP
            self._connected().register_script(script)(self._keys(sink), [sink.name, self._template.text])

    def beside(self) -> RedisStore:
        """As `RebuiltStore.beside`, but it writes over the rows: a reader sees the old or the new one of each key."""
        beside = RedisStore(self._url, self._template.text, self._mapping, keep=self._keep, ttl=self._ttl)
        beside._is_beside = True
        return beside

    def exchange(self, sink: SinkIdentity, generation: int) -> None:
        """As `RebuiltStore.exchange`, in pages: deletes the keys that are not new, and then moves the position."""
        with _errors():
            page = self._connected().register_script(scripts.EXCHANGE)
            while page(self.beside()._keys(sink), [generation]):
                pass

    def _connected(self) -> redis.Redis:
        if self._client is None:
            try:
                self._client = redis.Redis.from_url(
                    self._url,
                    socket_connect_timeout=_CONNECT_S,
                    socket_timeout=_ANSWER_S,
                    retry=Retry(NoBackoff(), 0),  # the runner tries again, from the position
                )
            except ValueError:  # it may have the password
                raise StoreError("url is none of Redis: redis://HOST:PORT/DATABASE, or rediss:// with TLS") from None
        return self._client

    def _keys(self, sink: SinkIdentity) -> list[str]:
        here, other = f"{OURS}sink:{sink.name}", f"{OURS}sink:{sink.name}{BESIDE}"
        if self._is_beside:
            here, other = other, here
        return [here, f"{here}:keys", f"{OURS}sinks", other, f"{other}:keys"]

    def _command(self, change: RowChange) -> Sequence[object]:
        """What the script does for a change. Raises ValueError, TypeError, OverflowError."""
        name = self._template.name([text_of(*each) for each in zip(change.key, self._key_columns, strict=True)])
        if name.startswith(OURS.encode()):
            raise ValueError(f"its key begins with {OURS}, which is for the positions of sinks")
        row = change.row
        if row is None:
            return "UNLINK", name
        is_part = UNCHANGED in row
        if is_part and (self._keep != "hash" or self._ttl):
            raise ValueError("the record lacks large columns that did not change: set REPLICA IDENTITY FULL")
        if self._keep == "json":
            return "SET", name, encode_json(members_of(self._columns, row))
        if self._keep == "string":
            if row[self._value_at] is None:
                raise ValueError(f'{self._columns[self._value_at].name} is NULL, which keep = "string" has no text for')
            return "SET", name, text_of(row[self._value_at], self._columns[self._value_at])
        missing, fields = [], list[str | bytes]()
        for cell, column in zip(row, self._columns, strict=True):
            if cell is None:
                missing.append(column.name)
            elif cell is not UNCHANGED:
                fields += (column.name, text_of(cell, column))
        return "CHANGED" if is_part else "NEW", name, missing, *fields

    def _pages(self, sink: SinkIdentity, expected: Sequence[object]) -> Iterator[StoreRow]:
        page = self._connected().register_script(scripts.PAGE)
        first, command = 0, "HGETALL" if self._keep == "hash" else "GET"
        while True:
            with _errors():
                there, found = page(self._keys(sink), [first, first + _PAGE_KEYS - 1, command])
            if there != expected:
                raise PositionMoved("the rows changed while they were read")
            yield from (self._row(name, value) for name, value in found if value is not None and value != [])
            if not found:
                return
            first += _PAGE_KEYS

    def _row(self, name: bytes, value: Any) -> StoreRow:
        """A row as it was read; of a key that somebody else wrote the primary key alone."""
        key = zip(self._key_columns, self._template.key_of(name), strict=True)
        cells: dict[str, Any] = {column.name: cell_of_text(text, column) for column, text in key}
        if self._keep == "json":
            cells |= cells_of_json(value, self._columns)
        elif self._keep == "string":
            cells[self._columns[self._value_at].name] = cell_of_text(value, self._columns[self._value_at])
        else:
            fields = dict(zip(value[::2], value[1::2], strict=True))
            texts = ((column, fields.get(column.name.encode())) for column in self._columns)
            cells |= {column.name: cell_of_text(text, column) for column, text in texts if text is not None}
        return tuple(cells.get(column.name) for column in self._columns)


def _not_ended(sink: SinkIdentity) -> StoreError:
    return StoreError(f"a rebuild of {sink.name} has not ended: raftlog sink rebuild {sink.name} goes on with it")


def _position(place: Sequence[bytes | None]) -> StorePosition | None:
    next, loaded, revision = ((each or b"").decode() for each in place)
    return position_of(int(next), loaded, int(revision)) if next else None


def _notes(client: redis.Redis) -> tuple[str, ...]:
    try:
        found = client.config_get("appendonly", "appendfsync", "maxmemory-policy")
    except exceptions.ResponseError:
        return ("Redis does not let this user read its settings, so how durable it is is not known",)
    notes = []
    if found.get("appendonly") != "yes" or found.get("appendfsync") != "always":
        notes.append(
            "Redis does not write each batch to its disk (appendonly yes, appendfsync always): after a crash rows and "
            "position are those of a moment ago, and the sink goes on from there"
        )
    if str(found.get("maxmemory-policy")).startswith("allkeys"):
        notes.append(
            "Redis may evict rows, and the sink's position too: set maxmemory-policy to noeviction, or volatile-ttl"
        )
    return tuple(notes)


_PASSING: Final = ("MISCONF", "NOREPLICAS", "BUSY", "NOSCRIPT")
"""Codes of errors that pass and that have no class."""


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except exceptions.RedisError as error:
        match error:
            case exceptions.AuthenticationError() | exceptions.NoPermissionError():
                raise StoreError(f"Redis refuses the user of the url: {error}") from error
            case exceptions.ConnectionError() if "certificate" in str(error):
                raise certificate_error("Redis", str(error), "its url: ?ssl_ca_certs=FILE") from error
            case (
                exceptions.ConnectionError()
                | exceptions.TimeoutError()
                | exceptions.OutOfMemoryError()
                | exceptions.ReadOnlyError()
                | exceptions.MasterDownError()
            ):
                raise StoreUnavailable(f"Redis: {error}") from error
            case exceptions.ClusterError() | exceptions.ClusterCrossSlotError() | exceptions.AskError():
                raise StoreError(
                    "this is Redis Cluster, where a script has no keys of others: use one server"
                ) from error
            case _ if str(error).startswith(_PASSING):
                raise StoreUnavailable(f"Redis: {error}") from error
        raise StoreError(f"Redis: {error}") from error
