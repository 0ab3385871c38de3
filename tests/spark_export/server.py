"""A node in a thread that serves one log from memory as the real one does, and misbehaves on request."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from raftlog.cluster.api.encoding import from_b64, to_b64
from raftlog.cluster.api.errors import ERRORS, Code, Problem
from raftlog.cluster.api.headers import H_LOG
from raftlog.cluster.api.kv import KeyValue, RangeAnswer
from raftlog.cluster.api.records import ChangeJson, LogPageJson, LogRecord
from raftlog.cluster.api.status import DIGEST_FORMAT, DigestAnswer, SetDigestHex
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.digest import ChangeRow, LogRow, log_digest, set_digest, state_row_hash
from raftlog.statemachine.effects import EFFECTS_HEADER_SIZE
from tests.spark_export import logs
from tests.spark_export.logs import Log, Row

LOG_ID = "0123456789abcdef0123456789abcdef"


@dataclass
class Served:
    """What the node serves, and how it fails: each fault is taken for one raw answer, in order."""

    log: Log
    log_id: str = LOG_ID
    oldest: int = 1
    entries_per_chunk: int = 3
    chunks_per_answer: int = 1000
    faults: list[Callable[[bytes], bytes | Code]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    brief_chunks: int = 0  # sent
    digest: DigestAnswer | Code | None = None  # None: the right one
    has_leader: bool = True
    committed: int | None = None  # an end of an entry; None: everything is
    sees: Permissions | None = None  # of the reader that gets raw chunks; None: everything
    kept_revision: int = 1  # the oldest revision of the state that it returns
    grown: threading.Condition = field(default_factory=threading.Condition)

    @property
    def last(self) -> int:
        """The newest index that is committed."""
        return self.log.last.index if self.committed is None else self.committed

    @property
    def rows(self) -> list[Row]:
        """The committed rows."""
        return [row for row in logs.naive_rows(self.log.entries, self.log.effects) if row["index"] <= self.last]

    def commit(self, entry: int) -> int:
        """Commits the log up to the end of its entry of this number; the index."""
        with self.grown:
            self.committed = self.log.entries[entry].index
            self.grown.notify_all()
            return self.committed

    def page(self, query: dict[str, str]) -> LogPageJson:
        """At most one record from an index or a time on, once there is one or the time to wait is over."""
        if "from_time" in query:
            times = ((row["index"], _ms(row["time"])) for row in self.rows)
            start = next((index for index, ms in times if (ms or 0) >= int(query["from_time"])), self.last + 1)
        else:
            start = int(query.get("from", self.oldest))
        with self.grown:
            self.grown.wait_for(lambda: self.last >= start, int(query.get("wait", 0)) / 1000)
            rows = self.rows
        shown = [as_record(row) for row in rows if row["index"] == start and "internal" in query]
        users = [row["index"] for row in rows if logs.is_user(row)]
        following = start + (start <= self.last)
        return LogPageJson(
            self.log_id, shown, following, self.oldest, self.last, max(users, default=0), self.last, self.log.last.term
        )

    def state(self, query: dict[str, str]) -> RangeAnswer | Code:
        """Two keys of the state as of a revision, or of now."""
        rows = self.rows
        newest = max(row["revision"] for row in rows)
        revision = int(query.get("at", newest))
        if revision < self.kept_revision:
            return Code.COMPACTED
        prefix = from_b64(query.get("prefix_b64", ""), "prefix")
        live = sorted(folded([row for row in rows if row["revision"] <= revision]))
        live = [each for each in live if each[0].startswith(prefix)]
        first = int(query.get("continuation", 0))
        page = [KeyValue(*each[2:], key_b64=to_b64(each[0]), value_b64=to_b64(each[1])) for each in live]
        more = first + 2 < len(page)
        return RangeAnswer(
            page[first : first + 2], more, len(page), str(first + 2) if more else None, revision, self.last, 1
        )

    def raw(self, start: int, stop: int, *, brief: bool = False) -> bytes:
        """Whole entries from the one that holds `start`, in chunks, and the progress mark that ends an answer; `brief`:
        with brief effects where they can be."""
        log = self.log
        stop = min(stop, self.last + 1)
        first = next((n for n, entry in enumerate(log.entries) if entry.index >= start), len(log.entries))
        last = next((n for n, entry in enumerate(log.entries) if entry.index >= stop - 1), len(log.entries) - 1) + 1
        parts = []
        for number, place in enumerate(range(first, last, self.entries_per_chunk)):
            if number == self.chunks_per_answer:
                break
            end = min(place + self.entries_per_chunk, last)
            bare = all(len(effects) == EFFECTS_HEADER_SIZE for effects in log.effects[place:end])
            is_brief = brief and bare and end - place > 2 and all(entry.count == 1 for entry in log.entries[place:end])
            self.brief_chunks += is_brief
            chunk = log.chunk(place, end, marks=True, base=1000 * place, brief=is_brief)
            parts.append(chunk if self.sees is None else logs.blank(chunk, self.sees))
            start = log.entries[end - 1].index + 1
        return b"".join(parts) + logs.progress_chunk(start, oldest=self.oldest, committed=log.last.index)


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """The URL of a node that serves this."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.asked.append(self.path)
            path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            if self.headers.get(H_LOG) not in (None, served.log_id):
                self._problem(Code.FOREIGN_LOG)
            elif not served.has_leader and path in ("/v1/log", "/v1/kv") and query.get("consistency") != "stale":
                self._problem(Code.NO_LEADER)
            elif path == "/v1/digest":
                self._digest(int(query["index"]), int(query.get("log_from", 0)))
            elif path == "/v1/kv":
                state = served.state(query)
                if isinstance(state, Code):
                    self._problem(state)
                else:
                    self._json(200, state)
            elif path != "/v1/log":
                self.send_error(404)
            elif int(query.get("from", served.oldest)) < served.oldest:
                self._problem(Code.COMPACTED)
            elif query.get("format") != "raw":
                self._json(200, served.page(query))
            else:
                body: bytes | Code = served.raw(
                    int(query["from"]), int(query["to"]), brief=query.get("effects") == "brief"
                )
                if served.faults:
                    body = served.faults.pop(0)(body)  # type: ignore[arg-type]  # bytes until then
                if isinstance(body, Code):
                    self._problem(body)
                else:
                    self._stream(body)

        def _digest(self, index: int, log_from: int) -> None:
            entry = next(entry for entry in served.log.entries if entry.index >= index)
            if isinstance(served.digest, Code):
                self._problem(served.digest)
            elif not log_from and entry.index != index:
                self._problem(Code.INSIDE_ENTRY, nearest=(entry.before, entry.index))
            else:
                self._json(200, served.digest or right_digest(served.log, index, log_from or index, served.log_id))

        def _stream(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header(H_LOG, served.log_id)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            parts = [body[start : start + 1000] for start in range(0, len(body), 1000)]
            with suppress(ConnectionError):  # a reader that has seen enough
                for part in [*parts, b""]:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

        def _problem(self, code: Code, nearest: tuple[int, int] | None = None) -> None:
            row = ERRORS[code]
            self._json(
                row.status,
                Problem(
                    code,
                    f"node 1: {code}",
                    row.status,
                    row.outcome,
                    row.retryable,
                    "r",
                    1,
                    oldest=served.oldest,
                    nearest=nearest,
                ),
            )

        def _json(self, status: int, value: object) -> None:
            body = msgspec.json.encode(value)
            self.send_response(status)
            self.send_header(H_LOG, served.log_id)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # a reader that has seen enough
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def as_record(row: Row) -> LogRecord:
    """A row as the log's JSON pages show it, as far as the source looks."""
    changes = [
        ChangeJson(
            change["deleted"],
            change["create"],
            change["mod"],
            change["version"],
            key_b64=to_b64(change["key"]),
            value_b64=to_b64(change["value"] or b""),
        )
        for change in row["changes"] or ()
    ]
    return LogRecord(
        row["index"],
        row["term"],
        _ms(row["time"]) or 0,
        row["kind"],
        row["operation"] or "",
        row["result"],
        value_b64=to_b64(row["value"] or b""),
        revision=row["revision"],
        changes=changes or None,
    )


def right_digest(log: Log, index: int, log_from: int, log_id: str = LOG_ID) -> DigestAnswer:
    """What the cluster would answer, computed row by row with the state machine's own digests."""
    rows = [row for row in logs.naive_rows(log.entries, log.effects) if row["index"] <= index]
    entry = next(entry for entry in log.entries if entry.index >= index)
    state = _answer(set_digest(state_row_hash(*row) for row in folded(rows))) if entry.index == index else None
    of_log = _answer(log_digest(log_row(row) for row in rows if row["index"] >= log_from))
    return DigestAnswer(
        log_id, index, entry.term, log.revision, state, DIGEST_FORMAT, log_from=log_from, log_digest=of_log
    )


def _answer(digest: Any) -> SetDigestHex:
    return SetDigestHex(*digest.as_hex())


def log_row(row: Row) -> LogRow:
    """A row as the digest takes it."""
    values = {name: value for name, value in row.items() if name not in ("time", "client_time")}
    values["time_ms"], values["client_time_ms"] = _ms(row["time"]), _ms(row["client_time"])
    if row["headers"] is not None:
        values["headers"] = tuple((header["name"], header["value"]) for header in row["headers"])
    if row["changes"] is not None:
        values["changes"] = tuple(ChangeRow(**change) for change in row["changes"])
    return LogRow(**values)


def _ms(time: Any) -> int | None:
    return None if time is None else round((time - logs.EPOCH).total_seconds() * 1000)


def folded(rows: list[Row]) -> Iterator[tuple[bytes, bytes, int, int, int]]:
    """The live keys after these rows: key, value, create, mod, version."""
    live: dict[bytes, tuple[bytes, int, int, int]] = {}
    for row in rows:
        changes = row["changes"] or []
        if row["version"] is not None:
            changes = [row | {"mod": row["revision"]}]
        for change in changes:
            live.pop(change["key"], None)
            if change["version"]:
                live[change["key"]] = (change["value"], change["create"], change["mod"], change["version"])
    return ((key, *rest) for key, rest in live.items())
