"""Reads sinks.toml: one table for each sink, checked before anything is opened.

    [sink.customers]
    from = { keys = "customer/" }
    to = "postgresql"
    url = "@shop.url"
    table = "customers"
    columns = { id = "key", name = "value.name", born = "value.born:date" }
    primary_key = ["id"]

A secret is never in the file itself: `url = "@shop.url"` reads it from a file beside sinks.toml, `url = "$SHOP_URL"`
from the environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.runtime.file_errors import replace_file
from raftlog.cluster.sinks.columns import ColumnError
from raftlog.cluster.sinks.mapping import RowMapping, SinkSource
from raftlog.cluster.sinks.store import DroppableStore, SinkIdentity
from raftlog.cluster.sinks.stores.cells import KeyTemplate
from raftlog.cluster.sinks.stores.sql import SqlStore
from raftlog.cluster.sinks.stores.sqlite import SqliteDatabase

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_INDEX: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_SECRET_BYTES_MAX: Final = 64 << 10
_PASSWORD: Final = re.compile(r"\bpassword\s*=", re.IGNORECASE)


class SinkSettingsError(ValueError):
    """Settings of sinks that cannot be. The message names the file, the sink and the field."""


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="to"):
    """One sink, as its table in the file says. Subclasses are the stores."""

    source: SinkSource = msgspec.field(name="from")
    columns: dict[str, str] | Literal["all"]
    primary_key: tuple[str, ...]
    new_columns: Literal["stop", "rescue", "add"] | None = None
    start: Literal["oldest", "newest", "state"] | int = "oldest"
    refused: Literal["stop", "reject"] = "stop"

    extra: ClassVar[str | None] = None
    """The extra of the package that the store needs."""
    can_add_columns: ClassVar[bool] = True
    """Whether the store takes a column that comes later."""

    def __post_init__(self) -> None:
        if self.start == "state" and not self.source.has_keys:
            raise ValueError('start = "state" reads the keys of the store: it needs from = { keys = "…" }')
        if isinstance(self.start, int) and self.start < 1:
            raise ValueError("start is an index from 1")
        if self.new_columns == "add" and not self.can_add_columns:
            raise ValueError('this store cannot add a column: new_columns is "stop" or "rescue", then sink rebuild')

    def mapping(self) -> RowMapping:
        """The mapping of its records. Raises ColumnError, also for columns = "all" that are not known yet."""
        if self.columns == "all":
            raise ColumnError('columns = "all" are known once the sink has run: raftlog sink run')
        return RowMapping(self.source, self.columns, self.primary_key, self.new_columns)

    def identity(self, name: str, log: str) -> SinkIdentity:
        """Under which name, and for which rows, the store keeps the position."""
        columns: object = self.new_columns
        if columns is None and isinstance(self.columns, dict):
            columns = [*self.columns.items()]
        shape = msgspec.json.encode((self.source, columns, self.primary_key, *self.looks()))
        return SinkIdentity(name, log, hashlib.sha256(shape).hexdigest()[:16])

    def looks(self) -> tuple[object, ...]:
        """What else decides how rows look in the store."""
        return ()

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        """The store, not yet opened; paths are relative to `folder`. Raises SinkSettingsError, ImportError."""
        raise NotImplementedError


class PostgresSettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="postgresql"):
    """A table of PostgreSQL."""

    extra: ClassVar[str | None] = "postgres"
    url: str
    table: str

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        from raftlog.cluster.sinks.stores.postgres import PostgresDatabase

        return SqlStore(PostgresDatabase(secret(self.url, folder)), self.table, mapping)


class SqliteSettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sqlite"):
    """A table of an SQLite file."""

    path: str
    table: str

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        return SqlStore(SqliteDatabase(folder / self.path), self.table, mapping)


class DuckSettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="duckdb"):
    """A table of a DuckDB file."""

    extra: ClassVar[str | None] = "query"
    path: str
    table: str

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        from raftlog.cluster.sinks.stores.duckdb import DuckDatabase

        return SqlStore(DuckDatabase(folder / self.path), self.table, mapping)


class RedisSettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="redis"):
    """Keys of Redis or Valkey. `key` names them by the primary key: customer:{id}; `ttl` is in seconds."""

    extra: ClassVar[str | None] = "redis"
    url: str
    key: str
    keep: Literal["hash", "json", "string"] = "hash"
    ttl: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        KeyTemplate(self.key, self.primary_key)
        if self.keep == "string" and (self.columns == "all" or len(self.columns) != len(self.primary_key) + 1):
            raise ValueError('keep = "string" needs exactly one column that is not of the primary key')
        if self.ttl is not None and self.ttl < 1:
            raise ValueError("ttl is a number of seconds from 1")

    def looks(self) -> tuple[object, ...]:
        return (self.key, self.keep)

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        from raftlog.cluster.sinks.stores.redis import RedisStore

        return RedisStore(secret(self.url, folder), self.key, mapping, keep=self.keep, ttl=self.ttl)


class WebhookSettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="webhook"):
    """A service that gets each change by POST, signed with the secret. `batch` is the most changes in a request."""

    url: str
    secret: str
    batch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.secret.startswith(("@", "$")):
            raise ValueError('secret is not in sinks.toml: secret = "@FILE", or "$NAME" of the environment')
        if self.batch < 1:
            raise ValueError("batch is a number of changes from 1")

    def looks(self) -> tuple[object, ...]:
        return (self.batch > 1,)

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        from raftlog.cluster.sinks.stores.webhook import WebhookStore

        url = secret(self.url, folder)
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
        if not is_whole or not url.isascii() or " " in url:
            raise SinkSettingsError("url is http://HOST/PATH or https://HOST/PATH, in ASCII and without a user")
        return WebhookStore(url, secret(self.secret, folder), mapping, folder, batch=self.batch)


class TantivySettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="tantivy"):
    """A folder with a search index of Tantivy."""

    extra: ClassVar[str | None] = "search"
    can_add_columns: ClassVar[bool] = False
    path: str

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        from raftlog.cluster.sinks.stores.tantivy import TantivyStore

        return TantivyStore(folder / self.path, mapping)


class OpenSearchSettings(SinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="opensearch"):
    """An index of OpenSearch or Elasticsearch."""

    can_add_columns: ClassVar[bool] = False
    url: str
    index: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _INDEX.fullmatch(self.index):
            raise ValueError(f"index is of small letters, digits, _, - and points: not {self.index!r}")

    def store(self, folder: Path, mapping: RowMapping) -> DroppableStore:
        from raftlog.cluster.sinks.stores.opensearch import OpenSearchStore

        try:
            return OpenSearchStore(secret(self.url, folder), self.index, mapping)
        except ValueError as error:
            raise SinkSettingsError(str(error)) from error


STORES: Final[tuple[type[SinkSettings], ...]] = (
    PostgresSettings,
    SqliteSettings,
    DuckSettings,
    RedisSettings,
    WebhookSettings,
    TantivySettings,
    OpenSearchSettings,
)


class SinkFile:
    """The sinks of a file, by name."""

    def __init__(self, path: Path, sinks: dict[str, SinkSettings]) -> None:
        self.path = path
        self.sinks = sinks

    def chosen(self, names: list[str]) -> dict[str, SinkSettings]:
        """The sinks of these names, all for none. Raises SinkSettingsError."""
        for name in names:
            if name not in self.sinks:
                raise SinkSettingsError(f"{self.path} has no sink {name}; it has {', '.join(self.sinks)}")
        return {name: sink for name, sink in self.sinks.items() if not names or name in names}

    def beside(self, name: str, kind: str) -> Path:
        """The sink's own file of that kind, beside the settings: NAME.columns, NAME.rejected, NAME.state."""
        return self.path.with_name(f"{name}.{kind}")

    def learn(self, name: str, columns: Mapping[str, str]) -> None:
        """Keeps the columns of a sink with columns = "all", durably. Raises SinkSettingsError, OSError."""
        replace_file(self.beside(name, "columns"), msgspec.json.format(msgspec.json.encode(columns)) + b"\n")
        self.sinks[name] = msgspec.structs.replace(self.sinks[name], columns={**columns})

    def open_store(self, name: str) -> DroppableStore:
        """The store of a sink, not yet connected. Raises SinkSettingsError."""
        sink = self.sinks[name]
        try:
            return sink.store(self.path.parent, sink.mapping())
        except ColumnError as error:
            raise SinkSettingsError(f"the sink {name}: {error}") from error
        except ModuleNotFoundError as error:
            assert sink.extra is not None
            raise SinkSettingsError(
                f"the sink {name} needs the package {error.name}, which is not installed: {how_to_install(sink.extra)}"
            ) from error


def read_sinks(path: Path) -> SinkFile:
    """The sinks of the file. Raises SinkSettingsError."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SinkSettingsError(f"{path} cannot be read: {error}") from error
    tables = given.pop("sink", None)
    if given or not isinstance(tables, dict) or not tables:
        more = f"; it has {', '.join(given)}" if given else ""
        raise SinkSettingsError(f"{path} has tables [sink.NAME], at least one, and nothing else{more}")
    sinks = {}
    for name, table in tables.items():
        if not NAME.fullmatch(name):
            raise SinkSettingsError(f"{path}: the name of a sink is of letters, digits, _, - and points: not {name!r}")
        try:
            sinks[name] = sink = _sink(table)
            if sink.columns != "all":
                if sink.new_columns is not None:
                    raise ValueError('new_columns belongs to columns = "all"')
                sink.mapping()
        except (msgspec.MsgspecError, ColumnError, ValueError) as error:
            raise SinkSettingsError(f"{path}: [sink.{name}]: {error}") from error
    file = SinkFile(path, sinks)
    for name, sink in sinks.items():
        if sink.columns == "all":
            sinks[name] = _with_found(file.beside(name, "columns"), sink)
    return file


def _with_found(path: Path, sink: SinkSettings) -> SinkSettings:
    """The settings with the columns that were found before, if there are any."""
    sink = msgspec.structs.replace(sink, new_columns=sink.new_columns or "stop")
    try:
        made = msgspec.structs.replace(sink, columns=msgspec.json.decode(path.read_bytes(), type=dict[str, str]))
        made.mapping()
    except FileNotFoundError:
        return sink
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise SinkSettingsError(
            f"{path}: {error}: correct it, or delete it and let raftlog sink rebuild find the columns again"
        ) from error
    return made


def _sink(table: Any) -> SinkSettings:
    if not isinstance(table, dict):
        raise ValueError("it is a table of settings")
    known = {each.__struct_config__.tag: each for each in STORES}
    kind = known.get(table.get("to"))
    if kind is None:
        raise ValueError(f"to = {table.get('to')!r} is no store: it is one of {', '.join(map(str, known))}")
    return msgspec.convert(table, kind)


def secret(given: str, folder: Path) -> str:
    """A setting that may be a secret: @FILE, $NAME of the environment, or as it is without a password.

    Raises SinkSettingsError.
    """
    if given.startswith("@"):
        try:
            return (folder / given[1:]).read_bytes()[:_SECRET_BYTES_MAX].decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SinkSettingsError(f"{given[1:]} cannot be read: {error}") from error
    if given.startswith("$"):
        found = os.environ.get(given[1:])
        if found is None:
            raise SinkSettingsError(f"the environment has no {given[1:]}")
        return found
    if _PASSWORD.search(given) or ("://" in given and urlsplit(given).password):
        raise SinkSettingsError(
            "url has a password, and sinks.toml is no place for one: put the whole into a file that only you can read, "
            'and write url = "@FILE", or url = "$NAME" for a variable of the environment'
        )
    return given
