"""Posts each changed row to a service, in order and at least once; the position is in a file of the runner.

A request that may have arrived is sent again. Its Idempotency-Key is the same if and only if its body is the same: it
has the log's id, the index, and a digest of the body. After a kill of the runner one batch at most is sent again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.runtime.file_errors import replace_file, sync_folder
from raftlog.cluster.sinks.changes import RowChange, RowChanges, StorePosition, StoreRow
from raftlog.cluster.sinks.mapping import RowMapping
from raftlog.cluster.sinks.store import (
    Refusal,
    RowsRefused,
    SinkIdentity,
    StoredRows,
    StoreError,
    StoreUnavailable,
)
from raftlog.cluster.sinks.stores.cells import encode_json, members_of
from raftlog.cluster.sinks.stores.documents import SinkStanding, check_position, standing_of
from raftlog.cluster.sinks.stores.http import HttpServer

_ANSWER_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_SHOWN_MAX: Final = 200  # characters of an answer in a message
_PASSING: Final = (408, 425, 429)  # and 5xx
_OF_THE_URL: Final = (401, 403, 404, 405)  # and 1xx, 3xx: the next change would get the same answer


class _PostedChange(msgspec.Struct, frozen=True):
    """One object of a request: a change, or the truncate before one."""

    index: int
    change: RowChange | None
    body: bytes


class WebhookStore:
    """A service that takes changes. A request has one object, or with `batch` above 1 an array of up to so many."""

    def __init__(self, url: str, secret: str, mapping: RowMapping, folder: Path, *, batch: int = 1) -> None:
        parts = urlsplit(url)
        self._server = HttpServer(f"{parts.scheme}://{parts.netloc}", "the webhook", timeout_s=_ANSWER_S)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret = secret.encode()
        self._columns = mapping.columns
        self._key_columns = mapping.key_columns
        self._folder = folder
        self._batch = batch
        self._sink = SinkIdentity("", "", "")
        self._generation = 0
        self._taken: set[str] = set()  # answered requests of a batch: its next attempt goes on behind them

    def open(self, sink: SinkIdentity, generation: int) -> StorePosition | None:
        self._sink, self._generation = sink, generation
        position = self._position()
        self._keep(position)
        return position

    def write(self, changes: RowChanges, expected: StorePosition | None, next: StorePosition) -> None:
        """As `SinkStore.write`, but the service keeps changes that it took before an error. Raises StoreError too."""
        check_position(self._position(), expected)
        parts = [self._part(each.index, each) for each in changes.rows]
        if changes.truncates:
            parts.insert(0, self._part(parts[0].index if parts else next.next - 1, None))
        for first in range(0, len(parts), self._batch):
            self._send(parts[first : first + self._batch])
        self._keep(next)
        self._taken.clear()

    @contextmanager
    def rows(self, sink: SinkIdentity) -> Iterator[StoredRows | None]:
        """As `SinkStore.rows`, for the position alone: the iterator raises StoreError."""
        found = self._read(sink)
        if found is None or found.position is None:
            yield None
        else:
            yield StoredRows(found.position, map(_unreadable, (None,)))

    def drop(self, sink: SinkIdentity) -> None:
        """As `SinkStore.drop`: deletes the position."""
        self._path(sink).unlink(missing_ok=True)
        sync_folder(self._folder)

    def close(self) -> None:
        self._server.close()

    def _path(self, sink: SinkIdentity) -> Path:
        return self._folder / f"{sink.name}.position"

    def _read(self, sink: SinkIdentity) -> SinkStanding | None:
        try:
            return standing_of(self._path(sink).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"{self._path(sink)} cannot be read: {error}") from error

    def _position(self) -> StorePosition | None:
        """The position that is kept. Raises StoreError, StoreFenced for that of another run."""
        found = self._read(self._sink)
        if found is None:
            return None
        found.check(self._sink, self._generation)
        return found.position

    def _keep(self, position: StorePosition | None) -> None:
        standing = SinkStanding(*self._sink, self._generation, position)
        try:
            replace_file(self._path(self._sink), msgspec.json.encode(standing) + b"\n")
        except OSError as error:
            raise StoreUnavailable(str(error)) from error

    def _part(self, index: int, change: RowChange | None) -> _PostedChange:
        key = row = None
        if change is not None:
            key = members_of(self._key_columns, change.key)
            row = None if change.row is None else members_of(self._columns, change.row)
        return _PostedChange(
            index, change, encode_json({"index": index, "key": key, "row": row, "truncated": change is None})
        )

    def _send(self, parts: Sequence[_PostedChange]) -> None:
        body = b",".join(each.body for each in parts)
        if self._batch > 1:
            body = b"[" + body + b"]"
        index, change = parts[-1].index, parts[0].change
        key = f"{self._sink.log}-{index}-{hashlib.sha256(body).hexdigest()[:16]}"
        if key in self._taken:
            return
        status, text = self._answer(body, key)
        why = f"the webhook answers {status}: {text[:_SHOWN_MAX]}"
        if 200 <= status < 300:
            self._taken.add(key)
        elif status in _PASSING or status >= 500:
            raise StoreUnavailable(f"{why} (index {index})")
        elif status in _OF_THE_URL or status < 400:
            raise StoreError(f"{why}: look at its url and secret")
        elif len(parts) > 1:  # which of them does it refuse?
            for each in parts:
                self._send([each])
        elif change is None:
            raise StoreError(f"index {index}, a truncate: {why}")
        else:
            raise RowsRefused([Refusal(change, why)])

    def _answer(self, body: bytes, key: str) -> tuple[int, str]:
        """Status and text of the answer."""
        signature = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        headers = {"Idempotency-Key": key, "Raftlog-Signature": signature}
        answer = self._server.ask("POST", self._target, body, headers, _ANSWER_BYTES_MAX)
        return answer.status, answer.body.decode("utf-8", "replace")


def _unreadable(_: object) -> StoreRow:
    raise StoreError("a webhook cannot be read back, so there is nothing to compare")
