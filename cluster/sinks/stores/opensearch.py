"""Writes rows into an index of OpenSearch or Elasticsearch, and the position of a sink after them.

A batch is no transaction there, so it may come twice. Each document has its log index as external version, so it never
goes backwards: the server refuses an older one. The position is a document of the index `raftlog-sinks`. It is moved
by a compare-and-set. Before the data of a batch the same document says how far the data may be: so a runner that was
taken over learns it before it writes, and `rows` never takes half a batch for a whole one.

The server forgets the version of a deleted document after `index.gc_deletes`. So no request is sent whose position was
checked longer ago than half of that. A request may also arrive after a rebuild. So it names its index by an alias that
no other index gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, TypedDict

import msgspec
import stamina
from msgspec import structs

from raftlog.cluster.sinks.changes import RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.mapping import RowMapping, SinkColumn
from raftlog.cluster.sinks.store import (
    BESIDE,
    WRITTEN_ON,
    PositionMoved,
    Refusal,
    RowsRefused,
    SinkIdentity,
    StoredRows,
    StoreError,
    StoreUnavailable,
)
from raftlog.cluster.sinks.stores.bulk import BulkLine, BulkRequests, line_of
from raftlog.cluster.sinks.stores.cells import encode_json
from raftlog.cluster.sinks.stores.documents import SinkStanding, check_position, document_of, row_of
from raftlog.cluster.sinks.stores.http import HttpServer, ServerAnswer

_OWNER: Final = "raftlog"  # the member of an index's _meta that names its sink
_MADE: Final = "raftlog_made"  # and the one of an index that a sink has made by its columns
_OF_ONE: Final = ("creation_date", "uuid", "version", "provided_name")  # settings that no other index has
POSITIONS: Final = "raftlog-sinks"
"""The index of positions, one document a sink."""

READ_S: Final = 15.0
"""How long `rows` waits for a moment between two batches."""

_GC_DELETES: Final = "1h"
_ID_BYTES_MAX: Final = 512  # the server's limit
_PAGE_ROWS: Final = 500
_TIME: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "int": {"type": "integer"},
    "bigint": {"type": "long"},
    "double": {"type": "double"},
    "decimal": {"type": "double"},
    "boolean": {"type": "boolean"},
    "date": {"type": "date"},
    "timestamp": {"type": "date"},
    "binary": {"type": "binary"},
    "json": {"type": "object", "enabled": False},
}
_SCROLL: Final = "5m"
_TEXT: Final = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


class _Mark(msgspec.Struct, frozen=True):
    """By what the server compares a document with the one that a client knows."""

    sequence: int = msgspec.field(name="_seq_no")
    term: int = msgspec.field(name="_primary_term")


class _Found(_Mark, frozen=True):
    """A position as it is stored."""

    standing: SinkStanding = msgspec.field(name="_source")

    @property
    def mark(self) -> _Mark:
        """Its mark alone."""
        return _Mark(self.sequence, self.term)


class _Hit(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="_id")
    source: msgspec.Raw = msgspec.field(name="_source", default=msgspec.Raw(b"{}"))


class _Hits(msgspec.Struct, frozen=True):
    hits: list[_Hit]


class _Page(msgspec.Struct, frozen=True):
    hits: _Hits
    scroll: str = msgspec.field(name="_scroll_id")


class _IndexSettings(TypedDict):
    index: dict[str, Any]


class _Index(TypedDict):
    """An index as a server describes it."""

    aliases: dict[str, Any]
    mappings: dict[str, Any]
    settings: _IndexSettings


_found_of: Final = msgspec.json.Decoder(_Found).decode
_page: Final = msgspec.json.Decoder(_Page).decode
_indexes_of: Final = msgspec.json.Decoder(dict[str, _Index]).decode
_mark_of: Final = msgspec.json.Decoder(_Mark).decode


class _Between(StoreUnavailable):
    """A batch is being written."""


class OpenSearchStore:
    """An index that a sink keeps up to date."""

    def __init__(self, url: str, index: str, mapping: RowMapping, *, beside: OpenSearchStore | None = None) -> None:
        """Raises ValueError."""
        if index == POSITIONS:
            raise ValueError(f"index is {POSITIONS}, which has the positions of sinks: name another one")
        self._server = HttpServer(url)
        self._url, self._name, self._index = url, index, index  # the name may be an alias of the index
        self._mapping = mapping
        self._main = beside
        self._standing = SinkStanding("", "", "", 0, None)
        self._mark: _Mark | None = None  # of the position's document; none before there is one
        self._bulk = BulkRequests(self._server, index, index)

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        """Makes the index if it is not there; takes one that no other sink has."""
        found = self._found(sink)
        if found is None:
            made = {"settings": {"auto_expand_replicas": "0-1"}, "mappings": {"dynamic": False}}
            self._made(POSITIONS, made)
            self._choose(sink)
            self._standing, self._mark = SinkStanding(*sink, generation, None, self._index), None
        else:
            found.standing.check(sink, generation)
            self._standing, self._mark = structs.replace(found.standing, generation=generation), found.mark
        position = self._standing.position
        self._claim(sink, is_new=position is None)
        if found is not None:
            self._move(position, self._standing.ahead)
        if self._main is None:
            self._point(sink)
        return position

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        """As `SinkStore.write`, but at least once: after an error some of the batch may be written."""
        check_position(self._standing.position, expected)
        ahead = max(self._standing.ahead, next.next)
        if changes.rows or changes.truncates:
            lines = self._lines(changes)
            self._bulk.begin()
            self._move(expected, ahead)
            if changes.truncates:
                first = min((change.index for change in changes.rows), default=next.next)
                self._bulk.send(self._deletions(first - 1))
            self._bulk.send(lines)
        self._move(next, ahead)

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        """As `SinkStore.rows`: a scroll over what the index had between two equal positions."""
        found = self._snapshot(sink)
        if found is None:
            yield None
            return
        position, page = found
        try:
            yield StoredRows(position, self._rest(page))
        finally:
            self._forget(page)

    def drop(self, sink: SinkIdentity) -> None:
        """Deletes the index, if it is this sink's, and then the position."""
        if self._found(sink) is None:
            self._choose(sink)
        else:
            self._delete_index(sink)
        if self._main is None:
            with closing(self.beside()) as beside:
                beside.drop(sink)
        self._delete_position(sink)

    def beside(self) -> OpenSearchStore:
        """As `RebuiltStore.beside`: another index, whose name is that of this one with a number."""
        return OpenSearchStore(self._url, self._name, self._mapping, beside=self)

    def exchange(self, sink: SinkIdentity, generation: int) -> None:
        """As `RebuiltStore.exchange`: the position names the new index, and then the name becomes an alias of it.

        The position is what decides: `open` ends an exchange that was killed after it.
        """
        with closing(self.beside()) as beside:
            if (new := beside._found(sink)) is None:
                raise StoreError(f"nothing was filled beside the index {self._name}")
            old = self._found(sink)
            if old is not None and old.standing.log == sink.log and old.standing.ahead > new.standing.ahead:
                raise PositionMoved(WRITTEN_ON)
            self._index = new.standing.target
            self._standing, self._mark = structs.replace(new.standing, generation=generation), old and old.mark
            self._move(self._standing.position, self._standing.ahead)
            self._point(sink)
            beside._delete_position(sink)

    def close(self) -> None:
        self._server.close()
        if self._main is not None:
            self._main.close()

    # -- the index beside, and the name that readers know ----------------------------------------------------------
    def _choose(self, sink: SinkIdentity) -> None:
        """Chooses the index of a new position: the one of the name, or beside it one that is empty."""
        if self._main is None:
            self._index = next(iter(self._meant(sink)), self._name)
            return
        main = self._main._found(sink)
        now = next(iter(self._meant(sink)), self._name) if main is None else main.standing.target
        self._main._index = now
        self._index = f"{self._name}-{2 if now == f'{self._name}-1' else 1}"
        self._delete_index(sink)

    def _meant(self, sink: SinkIdentity) -> dict[str, _Index]:
        """The indexes that the name means: none, or one. Raises StoreError for an alias of an index of others."""
        answer = self._server.ask("GET", f"/{self._name}")
        if answer.status == 404:
            return {}
        found = self._server.read(_indexes_of, answer)
        if self._name not in found and {_owner(each) for each in found.values()} != {sink.name}:
            raise StoreError(f"{self._name} is another name of the index {', '.join(found)}: name that one")
        return found

    def _point(self, sink: SinkIdentity) -> None:
        """Lets the name mean the index of the position, and deletes the one that it meant, in one request."""
        found = self._meant(sink)
        if [*found] == [self._index]:
            return
        actions: list[Any] = [{"add": {"index": self._index, "alias": self._name}}]
        for index, described in found.items():
            if _owner(described) != sink.name:
                raise StoreError(f"the index {index} is of {_owner(described) or 'no sink'}, not of {sink.name}")
            actions.append({"remove_index": {"index": index}})
        self._asked("POST", "/_aliases", {"actions": actions})

    def _delete_index(self, sink: SinkIdentity) -> None:
        """Deletes the index if there is one of this sink."""
        if (found := self._described()) is not None:
            if (owner := _owner(found)) != sink.name:
                raise StoreError(f"the index {self._index} is of {owner or 'no sink'}, not of {sink.name}")
            self._asked("DELETE", f"/{self._index}")

    # -- the index ------------------------------------------------------------------------------------------------
    def _claim(self, sink: SinkIdentity, *, is_new: bool) -> None:
        """Makes the index of a new sink or takes it, and checks it."""
        found = self._described()
        if found is None and is_new:
            self._made(self._index, self._wanted(sink))
            found = self._described()
        owner = None if found is None else _owner(found)
        if found is None or (owner is None and not is_new):
            raise StoreError(
                f"the index {self._index} is gone, or was deleted and made again, and {POSITIONS} has the position "
                f"of the old one: raftlog sink drop {sink.name}, and begin again"
            )
        if owner is None:
            meta = found["mappings"].get("_meta", {}) | {_OWNER: sink.name}
            self._asked("PUT", f"/{self._index}/_mapping", {"_meta": meta})
        elif owner != sink.name:
            raise StoreError(f"the sink {owner} writes into the index {self._index} already: name another index")
        self._bulk = BulkRequests(self._server, self._index, self._alias_of(found))
        self._check_settings(found["settings"]["index"])

    def _alias_of(self, described: _Index) -> str:
        """The name by which rows are written into this very index, and into none that takes its place."""
        alias = f"raftlog-{described['settings']['index']['uuid']}"
        if alias not in described["aliases"]:
            self._asked("PUT", f"/{self._index}/_alias/{alias}")
        return alias

    def _wanted(self, sink: SinkIdentity) -> dict[str, Any]:
        """How the index is made: by the columns, or like the user's own that a rebuild replaces."""
        fields = {column.name: _type_of(column, self._mapping.primary_key) for column in self._mapping.columns}
        like = None if self._main is None else self._main._described()
        if like is not None and _MADE not in like["mappings"].get("_meta", {}):
            settings = {name: each for name, each in like["settings"]["index"].items() if name not in _OF_ONE}
            mappings = like["mappings"] | {"properties": fields | like["mappings"].get("properties", {})}
            return {"settings": {"index": settings}, "mappings": mappings}
        mappings = {"dynamic": False, "properties": fields, "_meta": {_OWNER: sink.name, _MADE: True}}
        return {"settings": {"index.gc_deletes": _GC_DELETES}, "mappings": mappings}

    def _made(self, index: str, given: Mapping[str, Any]) -> None:
        answer = self._server.ask("PUT", f"/{index}", encode_json(given))
        if b"resource_already_exists_exception" not in answer.body:
            self._server.good(answer)

    def _described(self) -> _Index | None:
        answer = self._server.ask("GET", f"/{self._index}")
        if answer.status == 404:
            return None
        return self._server.read(_indexes_of, answer).get(self._index)  # not there: the name is an alias by now

    def _check_settings(self, index: Mapping[str, Any]) -> None:
        given = index.get("gc_deletes", "60s")
        found = _TIME.fullmatch(given)
        kept_ms = 0 if found is None else int(found[1]) * _MS[found[2]]
        if kept_ms < _MS["h"]:
            raise StoreError(
                f"index.gc_deletes of {self._index} is {given}, and must be 1h or more, else a late request could "
                f'bring a deleted row back: PUT /{self._index}/_settings {{"index.gc_deletes": "1h"}}'
            )
        if index.get("translog", {}).get("durability", "request").lower() != "request":
            raise StoreError(
                f"index.translog.durability of {self._index} is async, and a crash would lose rows below the position: "
                f'PUT /{self._index}/_settings {{"index.translog.durability": "request"}}'
            )
        self._bulk.age_max_ms = kept_ms // 2

    # -- the position ---------------------------------------------------------------------------------------------
    def _found(self, sink: SinkIdentity) -> _Found | None:
        """The position of the sink, whose index is that of the store then."""
        answer = self._server.ask("GET", self._place(sink.name))
        if answer.status == 404:
            return None
        found = self._server.read(_found_of, answer)
        target = found.standing.target
        if target not in (self._name, f"{self._name}-1", f"{self._name}-2"):
            raise StoreError(
                f"the sink {sink.name} has its rows in the index {target}, not in {self._name}: name "
                f"that one, or raftlog sink drop {sink.name} while it is named"
            )
        if self._main is not None and (main := self._main._found(sink)) is not None and main.standing.target == target:
            self._main._point(sink)  # an exchange was killed
            self._delete_position(sink)
            return None
        self._index = target
        return found

    def _place(self, sink: str) -> str:
        return f"/{POSITIONS}/_doc/{sink}{'' if self._main is None else BESIDE}"

    def _delete_position(self, sink: SinkIdentity) -> None:
        answer = self._server.ask("DELETE", self._place(sink.name))
        if answer.status != 404:
            self._server.good(answer)

    def _move(self, position: StorePosition | None, ahead: int) -> None:
        """Writes the position, if its document is as it was read or written last."""
        standing = structs.replace(self._standing, position=position, ahead=ahead, target=self._index)
        condition = "op_type=create"
        if self._mark is not None:
            condition = f"if_seq_no={self._mark.sequence}&if_primary_term={self._mark.term}"
        answer = self._server.ask("PUT", f"{self._place(standing.sink)}?{condition}", encode_json(standing))
        if answer.status == 409:
            sink = SinkIdentity(standing.sink, standing.log, standing.mapping)
            if (found := self._found(sink)) is not None:
                found.standing.check(sink, standing.generation)
            raise PositionMoved(f"another runner of {standing.sink} wrote, or its position was restored")
        self._mark = self._server.read(_mark_of, answer)
        self._standing = standing

    # -- the rows -------------------------------------------------------------------------------------------------
    def _lines(self, changes: RowChanges) -> list[BulkLine]:
        """The lines of bulk requests for the changes. Raises RowsRefused."""
        refusals, lines = [], []
        for change in changes.rows:
            try:
                document = None if change.row is None else document_of(self._mapping.columns, change.row)
                lines.append(line_of(_id_of(change.key), change.index, document, change))
            except ValueError as error:
                refusals.append(Refusal(change, str(error)))
        if refusals:
            raise RowsRefused(refusals)
        return lines

    def _deletions(self, version: int) -> Iterator[BulkLine]:
        """Deletes each document of the index by its id, for a truncate. A query that deletes has no versions.

        The version is below that of each row behind the truncate: such a row, of an earlier attempt, stays. It is not
        below that of a row before the truncate, also of one that an earlier attempt wrote behind the position.
        """
        self._asked("POST", f"/{self._index}/_refresh")
        page = self._searched({"_source": False})
        try:
            for hit in self._hits(page):
                yield line_of(hit.id, version)
        finally:
            self._forget(page)

    # -- reading --------------------------------------------------------------------------------------------------
    def _snapshot(self, sink: SinkIdentity) -> tuple[StorePosition, _Page] | None:
        for attempt in stamina.retry_context(on=_Between, attempts=None, timeout=READ_S, wait_max=0.5):
            with attempt:
                before = self._found(sink)
                if before is None or before.standing.position is None:
                    return None
                position = before.standing.position
                if before.standing.ahead <= position.next:
                    self._asked("POST", f"/{self._index}/_refresh")
                    page = self._searched({})
                    if self._found(sink) == before:
                        return position, page
                    self._forget(page)
                raise _Between(
                    f"{self._index} has part of a batch behind index {position.next}: try again; if no raftlog sink "
                    f"run {sink.name} is at work, start it"
                )
        raise AssertionError

    def _rest(self, page: _Page) -> Iterator[StoreRow]:
        return (row_of(self._mapping.columns, hit.source) for hit in self._hits(page))

    def _searched(self, more: Mapping[str, Any]) -> _Page:
        wanted = {"size": _PAGE_ROWS, "sort": ["_doc"], **more}
        return self._server.read(_page, self._asked("POST", f"/{self._index}/_search?scroll={_SCROLL}", wanted))

    def _hits(self, page: _Page) -> Iterator[_Hit]:
        while page.hits.hits:
            yield from page.hits.hits
            wanted = {"scroll": _SCROLL, "scroll_id": page.scroll}
            page = self._server.read(_page, self._asked("POST", "/_search/scroll", wanted))

    def _forget(self, page: _Page) -> None:
        with suppress(StoreError):
            self._server.ask("DELETE", "/_search/scroll", encode_json({"scroll_id": page.scroll}))

    def _asked(self, method: str, target: str, body: bytes | Mapping[str, Any] | None = None) -> ServerAnswer:
        sent = encode_json(body) if isinstance(body, Mapping) else body
        return self._server.good(self._server.ask(method, target, sent))


def _owner(described: _Index) -> str | None:
    """The sink that an index says it belongs to."""
    owner: str | None = described["mappings"].get("_meta", {}).get(_OWNER)
    return owner


def _type_of(column: SinkColumn, primary_key: Sequence[str]) -> Mapping[str, Any]:
    text = {"type": "keyword"} if column.name in primary_key else _TEXT
    return _TYPES.get((column.kind or "").partition("(")[0], text)


def _id_of(key: StoreRow) -> str:
    """A key of one text as it is, another as a JSON array. Raises ValueError."""
    first = key[0]
    is_text = len(key) == 1 and isinstance(first, str) and first[:1] not in ("", "[")
    found = first if is_text else encode_json(key).decode()
    if (size := len(found.encode())) > _ID_BYTES_MAX:
        raise ValueError(f"its key has {size} bytes, and an id has at most {_ID_BYTES_MAX}")
    return str(found)
