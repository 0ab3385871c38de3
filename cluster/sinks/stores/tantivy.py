"""Writes rows and the position of a sink into a search index of Tantivy, in one commit.

The index is a folder. Each row is a document with a field for each column. `_key` has the primary key as JSON, and
`_row` the exact row as JSON. The position is a document too: the Python API gives a commit no text of its own.
Tantivy's lock lets one process write into a folder at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import tantivy

from raftlog.cluster.runtime.file_errors import replace_file
from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.mapping import RowMapping, SinkColumn
from raftlog.cluster.sinks.store import (
    BESIDE,
    Refusal,
    RowsRefused,
    SinkIdentity,
    StoredRows,
    StoreError,
    StoreUnavailable,
)
from raftlog.cluster.sinks.stores.cells import decode_json, encode_json
from raftlog.cluster.sinks.stores.documents import (
    SinkStanding,
    check_position,
    document_of,
    row_of,
    standing_of,
)
from raftlog.cluster.sinks.stores.sql import as_text

KEY: Final = "_key"
ROW: Final = "_row"
_names_of: Final = msgspec.json.Decoder(list[str]).decode
_META: Final = "meta.json"
_POSITION: Final = "raftlog_sinks"  # the key of the position's document; those of rows are arrays
_KEY_BYTES_MAX: Final = 60_000
"""Longest key as JSON. Tantivy leaves longer terms (65,530 bytes) out of its index without a word."""
_LASTING: Final = ("Schema error", "corrupted", "Permission denied")
"""Parts of errors that last until someone repairs the folder."""

_HEAP_BYTES: Final = 20_000_000
"""Memory of the writer's one thread; Tantivy takes at least 15,000,000. A batch has at most 4 MiB of values."""


class TantivyStore:
    """A folder with an index that a sink keeps up to date."""

    def __init__(self, path: Path, mapping: RowMapping) -> None:
        self._path = path
        self._mapping = mapping
        self._columns = mapping.columns
        self._adding = [(column.name, _ADD.get(_kind(column), _add_text)) for column in mapping.columns]
        self._sink = SinkIdentity("", "", "")
        self._generation = 0
        self._index: tantivy.Index | None = None
        self._writer: tantivy.IndexWriter | None = None

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        """Makes the index if the folder has none; a folder with other files is refused."""
        self.close()
        self._sink, self._generation = sink, generation
        with self._errors():
            self._index = self._opened()
            self._writer = self._index.writer(_HEAP_BYTES, 1)
        found = self._found(self._searcher())
        if found is None:
            return None
        found.check(sink, generation)
        if found.generation < generation:
            self._commit(RowChanges(()), found.position)
        return found.position

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        found = self._found(self._searcher())
        if found is not None:
            found.check(self._sink, self._generation)
        check_position(None if found is None else found.position, expected)
        self._commit(changes, next)

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        """As `SinkStore.rows`: of the newest commit."""
        searcher = None
        with self._errors():
            if self._has_index:
                searcher = tantivy.Index.open(str(self._path)).searcher()
        found = None if searcher is None else self._found(searcher)
        if searcher is None or found is None or found.position is None:
            yield None
        else:
            yield StoredRows(found.position, self._read(searcher))

    def drop(self, sink: SinkIdentity) -> None:
        """Deletes the folder, if its index is this sink's and no process writes into it."""
        with self._errors():
            if not self._has_index:
                return
            self._index = self._existing()
            self._writer = self._index.writer(_HEAP_BYTES, 1)
            found = self._found(self._index.searcher())
            if found is not None and found.sink != sink.name:
                raise StoreError(f"the index in {self._path} is of the sink {found.sink}, not of {sink.name}")
            self._delete()
        self._index = self._writer = None

    def beside(self) -> TantivyStore:
        """As `RebuiltStore.beside`: a folder in this one, so that it is on the same file system."""
        return TantivyStore(self._path / BESIDE, self._mapping)

    def exchange(self, sink: SinkIdentity, generation: int) -> None:
        """As `RebuiltStore.exchange`: meta.json says which files are the index, so a new one in its place is the step.

        Tantivy deletes the old files with its next commit, because .managed.json names them.
        """
        with closing(self.beside()) as beside:
            beside.open(sink, generation)
        with closing(self), self._errors():
            self._writer = self._opened().writer(_HEAP_BYTES, 1)  # no other process writes meanwhile
            new = [each.name for each in beside._path.iterdir() if each.name[0] != "." and each.name != _META]
            managed = self._path / ".managed.json"
            old = _names_of(managed.read_bytes()) if managed.exists() else []
            replace_file(managed, msgspec.json.encode(sorted({*old, *new, _META})))
            for name in new:
                with suppress(FileExistsError):  # of an exchange that was killed
                    os.link(beside._path / name, self._path / name)
            replace_file(self._path / _META, (beside._path / _META).read_bytes())
            beside._delete()

    def close(self) -> None:
        """Waits for merges that run, else an index of many short runs would never be merged."""
        writer, self._writer, self._index = self._writer, None, None
        if writer is not None:
            with suppress(ValueError):  # of a writer that failed before, and has said so
                writer.wait_merging_threads()

    @property
    def _has_index(self) -> bool:
        return (self._path / _META).exists()

    def _delete(self) -> None:
        """Deletes the folder, and first what makes it an index."""
        (self._path / _META).unlink()
        shutil.rmtree(self._path)

    def _opened(self) -> tantivy.Index:
        if self._has_index:
            if (index := self._existing()).searcher().num_docs:
                return index
        elif self._path.name == BESIDE:
            shutil.rmtree(self._path, ignore_errors=True)  # half deleted
        elif self._path.exists() and any(not each.name.startswith(".") for each in self._path.iterdir()):
            raise StoreError(f"{self._path} has files and no index: name a folder of its own")
        self._path.mkdir(parents=True, exist_ok=True)
        return tantivy.Index(self._schema, path=str(self._path))

    def _existing(self) -> tantivy.Index:
        index = tantivy.Index.open(str(self._path))
        searcher = index.searcher()
        if searcher.num_docs and self._found(searcher) is None:
            raise StoreError(f"{self._path} has an index that no sink made: name another folder")
        return index

    @cached_property
    def _schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(KEY, stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(ROW, stored=True)
        for column in self._columns:
            name = column.name
            if name in (KEY, ROW) or not builder.is_valid_field_name(name):
                raise StoreError(f"columns: {name} cannot be the name of a field of Tantivy: choose another one")
            match _kind(column):
                case "int" | "bigint":
                    builder.add_integer_field(name, stored=True, indexed=True, fast=True)
                case "double" | "decimal":
                    builder.add_float_field(name, stored=True, indexed=True, fast=True)
                case "boolean":
                    builder.add_boolean_field(name, stored=True, indexed=True, fast=True)
                case "date" | "timestamp":
                    builder.add_date_field(name, stored=True, indexed=True, fast=True)
                case "binary":
                    builder.add_bytes_field(name, stored=True)
                case "json":
                    builder.add_json_field(name, stored=True)
                case _:
                    whole = "raw" if name in self._mapping.primary_key else "default"
                    builder.add_text_field(name, stored=True, tokenizer_name=whole)
        return builder.build()

    def _searcher(self) -> tantivy.Searcher:
        if self._index is None:
            raise StoreUnavailable(f"{self._path} is closed")
        with self._errors():
            self._index.reload()
            return self._index.searcher()

    def _stored(self, searcher: tantivy.Searcher, key: str) -> bytes | None:
        with self._errors():
            query = tantivy.Query.term_query(self._schema, KEY, key)
            hits = searcher.search(query, 1, count=False).hits
            return bytes(searcher.doc(hits[0][1])[ROW][0]) if hits else None

    def _found(self, searcher: tantivy.Searcher) -> SinkStanding | None:
        found = self._stored(searcher, _POSITION)
        return None if found is None else standing_of(found)

    def _read(self, searcher: tantivy.Searcher) -> Iterator[StoreRow]:
        with self._errors():
            for _, address in searcher.search(tantivy.Query.all_query(), searcher.num_docs, count=False).hits:
                document = searcher.doc(address)
                if document.get_first(KEY) != _POSITION:
                    yield row_of(self._columns, bytes(document[ROW][0]))

    def _commit(self, changes: RowChanges, next: StorePosition | None) -> None:
        """Commits the changes and the position, or nothing. Raises RowsRefused."""
        writer = self._writer
        assert writer is not None
        with self._errors():
            try:
                self._put(writer, changes)
                standing = SinkStanding(*self._sink, self._generation, next)
                writer.delete_documents_by_term(KEY, _POSITION)
                writer.add_document(_bare(_POSITION, encode_json(standing)))
                writer.commit()
            except BaseException:
                writer.rollback()
                raise

    def _put(self, writer: tantivy.IndexWriter, changes: RowChanges) -> None:
        refusals = []
        if changes.truncates:
            writer.delete_all_documents()
        for change in changes.rows:
            try:
                key = _key_text(change.key)
                document = self._document(change, key, is_alone=changes.truncates)
            except (ValueError, OverflowError) as error:
                refusals.append(Refusal(change, str(error)))
                continue
            writer.delete_documents_by_term(KEY, key)
            if document is not None:
                writer.add_document(document)
        if refusals:
            raise RowsRefused(refusals)

    def _document(self, change: RowChange, key: str, *, is_alone: bool) -> tantivy.Document | None:
        row = change.row
        if row is None:
            return None
        if UNCHANGED in row and not is_alone and (stored := self._stored(self._searcher(), key)) is not None:
            before = row_of(self._columns, stored)
            row = tuple(old if new is UNCHANGED else new for old, new in zip(before, row, strict=True))
        document = _bare(key, document_of(self._columns, row))
        for (name, add), value in zip(self._adding, row, strict=True):
            if value is not None:
                add(document, name, value)
        return document

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Tantivy's own errors are ValueErrors."""
        try:
            yield
        except (ValueError, OSError) as error:
            if _is_held(error):
                raise StoreUnavailable(f"another process writes into {self._path}: stop it, or wait") from error
            kind = StoreError if any(each in str(error) for each in _LASTING) else StoreUnavailable
            raise kind(f"{self._path}: {error}") from error


def _is_held(error: Exception) -> bool:
    """Whether another process holds the lock of a folder; else the lock's file cannot be made or opened."""
    return "LockBusy" in str(error)


def _kind(column: SinkColumn) -> str:
    return (column.kind or "").partition("(")[0]


def _key_text(key: StoreRow) -> str:
    text = encode_json(key).decode()
    if len(text.encode()) > _KEY_BYTES_MAX:
        raise ValueError(f"its key has more than {_KEY_BYTES_MAX} bytes")
    return text


def _bare(key: str, row: bytes) -> tantivy.Document:
    document = tantivy.Document()
    document.add_text(KEY, key)
    document.add_bytes(ROW, row)
    return document


def _add_text(document: tantivy.Document, name: str, value: Any) -> None:
    document.add_text(name, as_text(value) or "")


def _add_time(document: tantivy.Document, name: str, value: date) -> None:
    when = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not tantivy.MIN_DATETIME <= when <= tantivy.MAX_DATETIME:
        raise ValueError(f"{name} is {value}, which is no time between 1678 and 2261")
    document.add_date(name, when)


def _add_json(document: tantivy.Document, name: str, value: str) -> None:
    if not isinstance(decode_json(value), dict):
        raise ValueError(f"{name} is no JSON object, which the index needs: give it the type string")
    document.add_json(name, value)


_ADD: Final[Mapping[str, Callable[[tantivy.Document, str, Any], None]]] = {
    "int": tantivy.Document.add_integer,
    "bigint": tantivy.Document.add_integer,
    "double": tantivy.Document.add_float,
    "decimal": lambda document, name, value: document.add_float(name, float(value)),
    "boolean": tantivy.Document.add_boolean,
    "date": _add_time,
    "timestamp": _add_time,
    "binary": tantivy.Document.add_bytes,
    "json": _add_json,
}
