"""Sends documents to an index of OpenSearch by bulk requests, and looks at every item of the answers.

A document carries its version, and the server refuses an older one. So a request may be sent twice, and late: but not
later than the server remembers the version of a deleted document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import stamina

from raftlog.cluster.runtime import clock
from raftlog.cluster.sinks.changes import RowChange
from raftlog.cluster.sinks.store import Refusal, RowsRefused, StoreError, StoreUnavailable
from raftlog.cluster.sinks.stores.cells import encode_json
from raftlog.cluster.sinks.stores.http import HttpServer

BULK_BYTES_MAX: Final = 5 << 20
"""Bytes of one request, except for a document that is larger."""

ATTEMPTS_MAX: Final = 8
"""How many times a document is sent that the server rejects because it is busy."""

PAUSE_MAX_S: Final = 5.0
"""Longest pause between two of these times."""

_OF_ROWS: Final = (
    "mapper_parsing_exception",
    "document_parsing_exception",
    "strict_dynamic_mapping_exception",
    "illegal_argument_exception",
)
"""Errors with status 400 that one document causes; others are of the index."""

_GONE: Final = "index_not_found_exception"


class _ErrorCause(msgspec.Struct, frozen=True):
    """The server's reason."""

    type: str = ""
    reason: str = ""
    caused_by: _ErrorCause | None = None

    def __str__(self) -> str:
        inner = "" if self.caused_by is None else f": {self.caused_by}"
        return f"{self.reason or self.type}{inner}"


class _BulkItem(msgspec.Struct, frozen=True):
    """What became of one document."""

    status: int
    error: _ErrorCause | None = None


class _BulkAnswer(msgspec.Struct, frozen=True):
    """The items, in the order of the request; the key of each is its action."""

    items: list[dict[str, _BulkItem]]


_bulk_answer: Final = msgspec.json.Decoder(_BulkAnswer).decode


class BulkLine(NamedTuple):
    """A part of a request, and the change that it carries out; none for a document that a truncate deletes."""

    text: bytes
    change: RowChange | None


class _ServerBusy(StoreUnavailable):
    """Documents are to be sent again."""


def line_of(id: str, version: int, document: bytes | None = None, change: RowChange | None = None) -> BulkLine:
    """Stores a document, or deletes it, if the server has no later version."""
    head = encode_json({"_id": id, "version": version, "version_type": "external_gte"})
    text = b'{"delete":%s}\n' % head if document is None else b'{"index":%s}\n%s\n' % (head, document)
    return BulkLine(text, change)


class BulkRequests:
    """The bulk requests of one index, by an alias that it has. `begin` is called before the position is checked, `send`
    after it."""

    def __init__(self, server: HttpServer, index: str, alias: str) -> None:
        self._server = server
        self._index = index
        self._target = f"/{alias}/_bulk?require_alias=true&filter_path=items.*.status,items.*.error"
        self._began = clock.read()
        self.age_max_ms = 0
        """Longest time between `begin` and a request."""

    def begin(self) -> None:
        """Begins a batch."""
        self._began = clock.read()

    def send(self, lines: Iterable[BulkLine]) -> None:
        """Sends the lines in requests of a bounded size. Raises RowsRefused after the last of them."""
        refusals: list[Refusal] = []
        waiting: list[BulkLine] = []
        size = 0
        for each in lines:
            if waiting and size + len(each.text) > BULK_BYTES_MAX:
                self._send_all(waiting, refusals)
                waiting, size = [], 0
            waiting.append(each)
            size += len(each.text)
        if waiting:
            self._send_all(waiting, refusals)
        if refusals:
            raise RowsRefused(refusals)

    def _send_all(self, lines: Sequence[BulkLine], refusals: list[Refusal]) -> None:
        """Sends the lines, and again those that the server rejects because it is busy."""
        for attempt in stamina.retry_context(on=_ServerBusy, attempts=ATTEMPTS_MAX, timeout=None, wait_max=PAUSE_MAX_S):
            with attempt:
                lines = self._send_once(lines, refusals)
                if lines:
                    raise _ServerBusy(f"{self._index} has rejected {len(lines)} documents because it is busy")

    def _send_once(self, lines: Sequence[BulkLine], refusals: list[Refusal]) -> Sequence[BulkLine]:
        """Sends one request. Returns the lines that the server rejects because it is busy."""
        now = clock.read()  # the wall too: the other clock may stand still while a machine sleeps
        age_ms = max(now.monotonic_ms - self._began.monotonic_ms, now.wall_ms - self._began.wall_ms)
        if age_ms > self.age_max_ms:
            raise StoreUnavailable(f"a batch for {self._index} is {age_ms // 1000} s old, too old to be sent")
        body = b"".join(line.text for line in lines)
        answer = self._server.ask("POST", self._target, body)
        items = [item for each in self._server.read(_bulk_answer, answer).items for item in each.values()]
        if len(items) != len(lines):
            raise StoreUnavailable(f"{self._index} answers {len(items)} of {len(lines)} documents")
        again = []
        for line, item in zip(lines, items, strict=True):
            if item.status in (429, 503):
                again.append(line)
            elif item.error is not None and item.status != 409:  # a conflict: the index has a later version
                self._refuse(line.change, item.status, item.error, refusals)
        return again

    def _refuse(self, change: RowChange | None, status: int, why: _ErrorCause, refusals: list[Refusal]) -> None:
        """Only what one document causes is a refusal of it: no row is rejected for a missing right or a lost shard."""
        if status >= 500 or why.type == _GONE:  # the next `open` says what became of the index
            raise StoreUnavailable(f"{self._index}: {why}")
        if change is None or status != 400 or why.type not in _OF_ROWS:
            raise StoreError(f"{self._index}: {why}")
        refusals.append(Refusal(change, str(why)))
