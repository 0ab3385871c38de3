"""Copies any source of records into the log, each record exactly once, through kills of either side.

    from raftlog import SyncClient, sources

    with SyncClient(url) as client:
        for progress in sources.copy(sources.Events("http://host/stream"), client, Path("stream.state")):
            print(progress.records)

A source is an object with a name and `read(position)`, which continues after a position that it gave earlier. `copy`
keeps the position in a state file. Before a batch is sent, the state file durably gets the batch itself, its sequence
and the position after it. So a source need not be able to give the same records twice: a restarted copy sends the kept
batch again under the same sequence, and then reads on after it.

All methods of a source run in the caller's thread, and each part is one request. With `reads_ahead = True` a source is
read in a thread of its own: what came while a batch was sent is the next batch.

A source may have `confirm(position)`. `copy` calls it when everything before the position is in the log and the state
file has the position, so that the source may let its sender forget what came before. A part without records moves the
position alone. A source may have `schema`: what its values hold, which `copy` keeps in the log for SQL and Spark.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.errors import SessionExpired
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.batches import Cut, batches
from raftlog.cluster.importer.events import Events
from raftlog.cluster.importer.files import InputFiles
from raftlog.cluster.importer.formats.schema import Schema, encode, key_of
from raftlog.cluster.importer.plan import BATCH_LINES, SESSION_TTL_MS, ImportPlan
from raftlog.cluster.importer.session_file import Acknowledged
from raftlog.cluster.importer.source import Part, Source, SourceError
from raftlog.cluster.runtime.file_errors import replace_file

__all__ = ["Copied", "CopyStep", "Events", "FileSource", "NewRecord", "Part", "Source", "SourceError", "copy"]

STATE_VERSION: Final = 1
BATCH_BYTES_MAX: Final = 2 << 20
_BYTES_AHEAD: Final = 4 * BATCH_BYTES_MAX
"""Most bytes of records that are read and not yet sent, but at least one part."""


def __getattr__(name: str) -> Any:
    """`Postgres`, which needs the package psycopg, is imported when it is asked for."""
    if name != "Postgres":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("raftlog.cluster.importer.postgres.source").Postgres
    except ModuleNotFoundError as error:
        raise ImportError(
            f"sources.Postgres needs the package {error.name}, which is not installed: {how_to_install('postgres')}"
        ) from error


class Copied(NamedTuple):
    """The progress after an acknowledged batch, counted over all runs."""

    records: int
    first: int | None  # index of the first record
    last: int | None
    position: Any
    result: str  # of the newest batch: applied | repeated
    batch: int  # its records


class CopyStep(StrEnum):
    """Points between which a copy may be killed."""

    OPENED = "opened"  # the session is open, nothing is kept
    KEPT = "kept"  # the batch is in the state file
    ANSWERED = "answered"  # the batch is acknowledged, which is kept only with the next


class _SentBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that may have been sent."""

    sequence: int
    records: list[NewRecord]
    position: Any


class _CopyState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    source: str
    log: str
    session: int
    sequence: int = 0  # of the newest batch that was answered
    records: int = 0
    first: int | None = None
    last: int | None = None
    position: Any = None
    kept: _SentBatch | None = None


_decode: Final = msgspec.msgpack.Decoder(_CopyState).decode


def copy(
    source: Source,
    client: SyncClient,
    state: Path,
    *,
    batch_records: int = BATCH_LINES,
    session_ttl_ms: int = SESSION_TTL_MS,
    at: Callable[[CopyStep], None] = lambda _: None,
) -> Iterator[Copied]:
    """Copies a source into the log; yields after each batch. Raises SourceError, ClientError, OSError.

    A source that `reads_ahead` is read in a thread: then records that are there go together, at most `batch_records` in
    a request. The session may expire: then the log itself shows whether the kept batch is in it.
    """
    log = client.status().log
    now = _read(state, source.name, log)
    confirm: Callable[[Any], None] = getattr(source, "confirm", lambda _: None)

    def opened() -> tuple[int, int]:
        """A new session, and the sequence of what it has sent: the schema, if the source has one."""
        session = client.open_session(session_ttl_ms).session
        schema: Schema | None = getattr(source, "schema", None)
        if schema is None:
            return session, 0
        client.call(requests.put(key_of(session), encode(schema)), ticket=Ticket(SessionBook(session, 2, 1), 1))
        return session, 1

    if now is None:
        session, sequence = opened()
        at(CopyStep.OPENED)
        now = _CopyState(STATE_VERSION, source.name, log, session, sequence)
    elif now.kept is not None:
        kept = now.kept
        now, answer = _send(client, state, now, kept, opened)
        at(CopyStep.ANSWERED)
        confirm(now.position)
        yield _copied(now, answer, len(kept.records))
    read = _ReaderAhead if getattr(source, "reads_ahead", False) else _Reader
    with closing(read(source, now.position)) as reader:
        while part := reader.next(batch_records):
            if not part.records:
                now = replace(now, position=part.position)
                replace_file(state, msgspec.msgpack.encode(now), is_private=True)
                confirm(now.position)
                continue
            kept = _SentBatch(now.sequence + 1, [*part.records], part.position)
            now = replace(now, kept=kept)
            replace_file(state, msgspec.msgpack.encode(now), is_private=True)
            at(CopyStep.KEPT)
            now, answer = _send(client, state, now, kept, opened)
            at(CopyStep.ANSWERED)
            confirm(now.position)
            yield _copied(now, answer, len(kept.records))
    replace_file(state, msgspec.msgpack.encode(now), is_private=True)


def _read(state: Path, name: str, log: str) -> _CopyState | None:
    try:
        found = _decode(state.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise SourceError(f"{state} is not the state file of a copy ({error}); name another") from error
    if found.version != STATE_VERSION:
        raise SourceError(f"{state} is of version {found.version}, this raftlog knows {STATE_VERSION}; upgrade it")
    if (found.source, found.log) != (name, log):
        raise SourceError(
            f"{state} is of the source {found.source} into the log {found.log}, not of {name} into {log}; name another "
            f"state file"
        )
    return found


def _send(
    client: SyncClient, state: Path, now: _CopyState, kept: _SentBatch, opened: Callable[[], tuple[int, int]]
) -> tuple[_CopyState, str]:
    """Sends the kept batch, under a new session if the old one has expired without it."""
    sequence, session = kept.sequence, now.session
    while True:
        book = SessionBook(session, next=sequence + 1, settled=sequence)
        try:
            answer = client.call(requests.append(kept.records), ticket=Ticket(book, sequence))
            first, last, result = answer.first, answer.last, str(answer.result)
            break
        except SessionExpired:
            pass
        # An expired session applies nothing any more, so the log shows whether the batch was applied.
        found = [
            record.index for record in client.log((now.last or session) + 1)
            if (record.session, record.sequence, record.result) == (session, sequence, "applied")
        ]  # fmt: skip
        if found:
            first, last, result = found[0], found[-1], "repeated"
            break
        session, before = opened()
        sequence = before + 1
        now = replace(now, session=session, kept=replace(kept, sequence=sequence))
        replace_file(state, msgspec.msgpack.encode(now), is_private=True)
    done = replace(
        now, sequence=sequence, records=now.records + len(kept.records),
        first=first if now.first is None else now.first, last=last, position=kept.position, kept=None,
    )  # fmt: skip
    return done, result


def _copied(now: _CopyState, result: str, batch: int) -> Copied:
    return Copied(now.records, now.first, now.last, now.position, result, batch)


class _Reader:
    """Reads a source in the caller's thread: objects such as an SQLite connection serve the thread that made them."""

    def __init__(self, source: Source, position: Any | None) -> None:
        self._source = source
        self._parts = iter(source.read(position))

    def next(self, _: int) -> Part | None:
        """The next part; None at the end. Raises what the source raises."""
        return next(self._parts, None)

    def close(self) -> None:
        """Ends the generator, then the source, if they can be closed."""
        for each in (self._parts, self._source):
            if (close := getattr(each, "close", None)) is not None:
                close()


class _ReaderAhead:
    """Reads a source in a thread, so that a batch is what came while the one before was sent."""

    def __init__(self, source: Source, position: Any | None) -> None:
        self._source = source
        self._changed = threading.Condition()  # guards all below
        self._parts: deque[Part] = deque()
        self._bytes = 0  # of their records
        self._end: BaseException | None = None
        self._has_ended = False
        self._is_closed = False
        threading.Thread(target=self._run, args=(position,), name="source-reader", daemon=True).start()

    def _run(self, position: Any | None) -> None:
        parts = self._source.read(position)
        end: BaseException | None = None
        try:
            for part in parts:
                if not self._put(part):
                    break
        except BaseException as error:  # `next` raises it
            end = error
        finally:
            with self._changed:
                self._has_ended, self._end = True, end
                self._changed.notify_all()
            if (close := getattr(parts, "close", None)) is not None:  # a generator
                close()

    def _put(self, part: Part) -> bool:
        """Waits for room; returns whether the reader still wants parts."""
        size = _size(part)
        with self._changed:
            while self._parts and self._bytes + size > _BYTES_AHEAD and not self._is_closed:
                self._changed.wait()
            self._parts.append(part)
            self._bytes += size
            self._changed.notify_all()
            return not self._is_closed

    def next(self, records_max: int) -> Part | None:
        """The next records that are there, at least one part; None at the end. Raises what the source raised."""
        taken: list[NewRecord] = []
        position: Any = None
        has_part, size = False, 0
        with self._changed:
            while not self._parts and not self._has_ended:
                self._changed.wait()
            while self._parts:
                part = self._parts[0]
                more = _size(part)
                if taken and (len(taken) + len(part.records) > records_max or size + more > BATCH_BYTES_MAX):
                    break
                self._parts.popleft()
                self._bytes -= more
                taken += part.records
                position, size, has_part = part.position, size + more, True
            self._changed.notify_all()
            if has_part:
                return Part(taken, position)
            if self._end is not None:
                raise self._end
            return None

    def close(self) -> None:
        """Ends the thread at its next part."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if (close := getattr(self._source, "close", None)) is not None:
            close()


def _size(part: Part) -> int:
    return sum(len(record.value or b"") + len(record.key or b"") for record in part.records)


class FileSource:
    """The lines of files, read as `raftlog import` reads them; rejected lines are left out, and counted.

    `options` are those of `raftlog.cluster.importer.plan.ImportPlan`. The position is a file, an offset, a line, and
    the hash of what came before.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self._plan = ImportPlan(path, Path(f"{path}.state"), Path(f"{path}.rejected"), **options)
        self.name = str(Path(path).resolve())
        self.reads_ahead = True
        self.rejected = 0

    def read(self, position: Any | None) -> Iterator[Part]:
        """The records after the position. Raises InputError, and SourceError for a file that has changed."""
        done = Acknowledged(**(position or {}))
        with closing(InputFiles(self._plan, None, io.BytesIO(), done)) as files:
            while (source := files.next()) is not None:
                with closing(source):
                    if source.is_continued:
                        hasher = source.skip_bytes(done)
                        if done.offset and hasher.hexdigest() != done.hash:
                            raise SourceError(f"{source.name} has changed before line {done.line}")
                    else:
                        done, hasher = source.skip_lines(done, 1)
                    done = replace(done, file=source.number, inode=source.inode)
                    cut = Cut(BATCH_LINES, BATCH_BYTES_MAX)
                    for batch in batches(source.lines, files.reading, cut, hasher, source.latest_ms):
                        self.rejected += len(batch.rejected)
                        done = replace(
                            done, offset=done.offset + batch.bytes, line=done.line + batch.lines, hash=batch.hash
                        )
                        if batch.records:
                            yield Part(batch.records, msgspec.to_builtins(done))
                done = Acknowledged(file=done.file + 1)
