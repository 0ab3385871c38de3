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

A source whose parts have a `start` can give the same records again: the state file keeps the positions alone.

A source may have `confirm(position)`. `copy` calls it when everything before the position is in the log and the state
file has the position, so that the source may let its sender forget what came before. A part without records moves the
position alone. A source may have `schema`: what its values hold, which `copy` keeps in the log for SQL and Spark;
and `about`: what it decided when it began, which `copy` gives back to it after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.client.once import OnceWriter
from raftlog.cluster.importer.ahead import Ahead
from raftlog.cluster.importer.events import Events
from raftlog.cluster.importer.file_source import BATCH_BYTES_MAX, FileSource
from raftlog.cluster.importer.formats.schema import Schema, encode, key_of
from raftlog.cluster.importer.plan import BATCH_LINES, SESSION_TTL_MS
from raftlog.cluster.importer.session_file import (
    SCHEMA_SEQUENCE,
    SESSION_FILE_VERSION,
    CopyNotes,
    CopyState,
    CopyStep,
    SentBatch,
    read_state,
)
from raftlog.cluster.importer.source import Part, Source, SourceError

__all__ = ["CopyProgress", "CopyStep", "Events", "FileSource", "NewRecord", "Part", "Source", "SourceError", "copy"]

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


class CopyProgress(NamedTuple):
    """The progress after an acknowledged batch, counted over all runs."""

    records: int
    first: int | None  # index of the first record
    last: int | None
    position: Any
    result: str  # of the newest batch: applied | repeated
    batch: int  # its records


def copy(
    source: Source,
    client: SyncClient,
    state: Path,
    *,
    batch_records: int = BATCH_LINES,
    session_ttl_ms: int = SESSION_TTL_MS,
    at: Callable[[CopyStep], None] = lambda _: None,
    again: bool = False,
    renews: bool = True,
) -> Iterator[CopyProgress]:
    """Copies a source into the log; yields after each batch. Raises SourceError, ClientError, OSError.

    A source that `reads_ahead` is read in a thread: then records that are there go together, at most `batch_records` in
    a request. `again` forgets an earlier copy, once a new one has begun. The session may expire: then the log itself
    shows whether the kept batch is in it. Without `renews`, SessionEnded says so, and no other session is opened.
    """
    begun = None if again else read_state(state)
    if begun is None:
        begun = CopyState(SESSION_FILE_VERSION, source.name, client.status().log)
    elif (begun.source, begun.log) != (source.name, log := client.status().log):
        raise SourceError(
            f"{state} is of the source {begun.source} into the log {begun.log}, not of {source.name} into {log}; name "
            f"another state file"
        )
    elif begun.about is not None:
        source.about = begun.about  # type: ignore[attr-defined]  # it gave this
    notes = CopyNotes(state, begun, at)
    work = _CopyRun(source, client, notes, at)
    work.writer = OnceWriter(client, notes, ttl_ms=session_ttl_ms, prepare=work.describe, renews=renews)
    kept = begun.kept
    if kept is not None and kept.records is not None:
        yield work.sent(kept, kept.records)
        kept = None
    ahead = getattr(source, "reads_ahead", False)
    reader = _ReaderAhead(source, notes.state.position) if ahead else _Reader(source, notes.state.position, kept)
    with closing(reader):
        while part := reader.next(batch_records):
            work.begin(part)
            if part.records:
                yield work.sent(kept or work.keep(part), part.records)
                kept = None
            elif part.position != notes.state.position:
                notes.keep(position=part.position)
                work.confirm(part.position)
    if work.writer.noted is not None:
        notes.keep()


class _CopyRun:
    """One run of a copy: its source, its notes, and the writer."""

    writer: OnceWriter

    def __init__(self, source: Source, client: SyncClient, notes: CopyNotes, at: Callable[[CopyStep], None]) -> None:
        self._source = source
        self._client = client
        self._notes = notes
        self._at = at
        self.confirm: Callable[[Any], None] = getattr(source, "confirm", lambda _: None)

    def describe(self, session: int) -> None:
        """Puts the schema of a source that has one, before anything else is written under the session."""
        now = self._notes.state
        if now.schema is None or now.described == session:
            return
        ticket = Ticket(SessionBook(session, SCHEMA_SEQUENCE + 1, SCHEMA_SEQUENCE), SCHEMA_SEQUENCE)
        self._client.call(requests.put(key_of(session), encode(now.schema)), ticket=ticket)
        self._at(CopyStep.DESCRIBED)
        self._notes.state = replace(now, described=session)

    def begin(self, part: Part) -> None:
        """Opens the first session, and one for each further schema."""
        schema: Schema | None = getattr(self._source, "schema", None)
        now = self._notes.state
        if self.writer.noted is None or schema != now.schema:
            position = _before(part, now.position) if part.records else part.position
            about = getattr(self._source, "about", None)
            self._notes.state = replace(now, schema=schema, about=about, position=position)
            self.writer.open()
            if not part.records:
                self.confirm(position)

    def keep(self, part: Part) -> SentBatch:
        """Keeps the batch that is sent next."""
        now = self._notes.state
        kept = SentBatch(now.sequence + 1, part.position, [*part.records] if part.start is None else None)
        self._notes.keep(position=_before(part, now.position), kept=kept)
        return kept

    def sent(self, kept: SentBatch, records: Sequence[NewRecord]) -> CopyProgress:
        """Sends the kept batch. That it is answered is kept with the next change of the notes."""
        self._at(CopyStep.NOTED)
        now = self._notes.state
        self.writer.since = now.last or 0
        answer = self.writer.write(requests.append(records), kept.sequence)
        self._at(CopyStep.ANSWERED)
        result = "repeated" if answer is None else str(answer.result)
        placed = answer or self.writer.noted
        assert placed is not None
        self._notes.state = replace(
            self._notes.state,
            sequence=kept.sequence,
            records=now.records + len(records),
            first=placed.first if now.first is None else now.first,
            last=placed.last,
            position=kept.position,
            kept=None,
        )
        self.confirm(kept.position)
        done = self._notes.state
        return CopyProgress(done.records, done.first, done.last, done.position, result, len(records))


def _before(part: Part, position: Any) -> Any:
    """The position before the records of the part."""
    return position if part.start is None else part.start


class _Reader:
    """Reads a source in the caller's thread: objects such as an SQLite connection serve the thread that made them.

    A batch of which the records were not kept is read again first.
    """

    def __init__(self, source: Source, position: Any | None, kept: SentBatch | None) -> None:
        self._source = source
        read: Any = source.read
        self._parts: Iterator[Part] = iter(read(position) if kept is None else read(position, kept.position))

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
        self._ahead = Ahead(source.read(position), _size, _BYTES_AHEAD)

    def next(self, records_max: int) -> Part | None:
        """The next records that are there, at least one part; None at the end. Raises what the source raised."""
        if (part := self._ahead.next()) is None:
            return None
        taken, size = [*part.records], _size(part)

        def fits(more: Part) -> bool:
            return not taken or (
                len(taken) + len(more.records) <= records_max and size + _size(more) <= BATCH_BYTES_MAX
            )

        while (more := self._ahead.next(fits)) is not None:
            taken += more.records
            size, part = size + _size(more), more
        return Part(taken, part.position)

    def close(self) -> None:
        """Ends the thread at its next part."""
        self._ahead.close()
        if (close := getattr(self._source, "close", None)) is not None:
            close()


def _size(part: Part) -> int:
    return sum(len(record.value or b"") + len(record.key or b"") for record in part.records)
