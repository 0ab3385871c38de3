"""Imports an input line by line, exactly once and in order, even if the importer or a node is killed in between.

`raftlog import` calls it. One batch is in flight at a time. Before it is sent, the session file durably gets the
position and hash of its bytes and its sequence (`raftlog.cluster.importer.session_file`). A restarted import sends the
noted batch again under the same sequence. A batch is made from the input's bytes alone, so the request has the same
bytes, and the state machine recognises the repetition.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace

from raftlog.cluster.api.encoding import as_text, to_b64
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.errors import ClientError, SessionExpired
from raftlog.cluster.client.flow import Ticket
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.batches import Ahead, Cut, Hash, ImportBatch, batches
from raftlog.cluster.importer.files import InputFile, InputFiles, ListedFile
from raftlog.cluster.importer.formats import schema
from raftlog.cluster.importer.formats.lines import InputError, InputOptions, Rejected, read_batch
from raftlog.cluster.importer.inputs import STDIN
from raftlog.cluster.importer.plan import BATCH_LINES, ImportPlan, ImportProgress, ImportStep
from raftlog.cluster.importer.resuming import changed, input_of, more_options, old_note
from raftlog.cluster.importer.session_file import (
    FIRST_VERSION,
    SESSION_FILE_VERSION,
    Acknowledged,
    ImportSession,
    SessionFileError,
    remove_session,
    write_session,
)
from raftlog.cluster.runtime.file_errors import sync_folder

__all__ = [
    "BATCH_BYTES_MAX", "BATCH_LINES", "STDIN", "ImportPlan", "ImportProgress", "ImportStep", "ListedFile", "listed",
    "preview", "run",
]  # fmt: skip

BATCH_BYTES_MAX: Final = 2 << 20
"""Most bytes of a batch; a request may have 8 MiB."""

LISTED_MAX: Final = 100
"""Most files that the end of an import lists."""

_SCHEMA_SEQUENCE: Final = 1
"""The sequence under which the schema is put. Batches follow."""


def run(plan: ImportPlan, client: SyncClient, stdin: BinaryIO) -> Iterator[ImportProgress]:
    """Imports; yields after each acknowledged batch. Raises SessionFileError, InputError, OSError, ClientError."""
    log = client.status().log
    note = old_note(plan, log)
    place = 0  # of the kind of the session
    if note is not None and note.done:
        yield _finished(plan, note, stdin)
        return
    with closing(InputFiles(plan, note, stdin)) as files:
        while (source := files.next()) is not None:
            with closing(source):
                if note is None:
                    at, hasher = source.skip_lines(Acknowledged(file=source.number), plan.from_line)
                    note = _begin(plan, client, log, files, at)
                    place = files.place
                elif source.is_continued:
                    at = note.acknowledged
                    hasher = source.skip_bytes(at)
                    if at.offset and hasher.hexdigest() != at.hash:
                        raise changed(plan, note, source.name)
                    place = files.place
                else:
                    at, hasher = source.skip_lines(note.acknowledged, 1)
                    note = replace(note, acknowledged=at, end=at.offset, end_hash=at.hash)
                    if files.place != place:  # a session has one schema
                        place, note = files.place, _begin(plan, client, log, files, at, note)
                at = replace(note.acknowledged, file=source.number, inode=source.inode)
                note = replace(note, acknowledged=at)
                note = _describe(plan, client, note, files.reading, files.kinds.kinds[place].source)
                for newest, result, share in _import(plan, client, note, source, files, hasher):
                    note, at = newest, newest.acknowledged
                    yield ImportProgress(
                        at.records, at.rejected, at.line - 1, at.offset, at.first, at.last, result, at.without_time,
                        at.file + 1, share,
                    )  # fmt: skip
            ended = replace(note.acknowledged, file=note.acknowledged.file + 1, inode=0)
            if files.has_more(ended.file):
                ended = replace(ended, offset=0, line=1, hash="")
            note = replace(note, acknowledged=ended, end=ended.offset, end_hash=ended.hash)
        if note is None:
            raise InputError(f"{plan.source} is empty")
        plan.at(ImportStep.FINISHED)
        if plan.source == STDIN:
            remove_session(plan.state)
        else:
            write_session(plan.state, replace(note, done=True))
        plan.at(ImportStep.CLOSED)
        for told in _told([*dict.fromkeys(files.listed())]):
            plan.tell(told)
        # Every line is in the log and noted. Without a leader now, the session ends by itself (`SESSION_TTL_MS`).
        with suppress(ClientError):
            client.call(requests.close_session(note.session))


def _finished(plan: ImportPlan, note: ImportSession, stdin: BinaryIO) -> ImportProgress:
    """The progress of an import that an earlier run finished: a start of it again has nothing to do.

    Raises SessionFileError if the input has changed since. Reads the last file again to know.
    """
    at = note.acknowledged
    with closing(InputFiles(plan, None, stdin)) as now:
        names = now.names
    last = replace(at, file=at.file - 1)
    has_grown = note.files != names
    if not has_grown and at.offset:
        with closing(InputFiles(plan, note, stdin, last)) as files:
            source = files.next()
            if source is None:
                raise changed(plan, note, names[-1])
            with closing(source):
                if source.skip_bytes(at).hexdigest() != at.hash:
                    raise changed(plan, note, source.name)
                has_grown = next(source.lines, None) is not None
    if has_grown:
        raise SessionFileError(
            f"{' '.join(plan.sources)} was imported already, and has more now: {at.records} records (index {at.first} "
            f"to {at.last}) are in the log, as {plan.state} says. Choose: --again --from-line {at.line} for the lines "
            "added since to one file; the new files by themselves; or --again to import everything once more"
        )
    return ImportProgress(
        at.records, at.rejected, at.line - 1, at.offset, at.first, at.last, "", at.without_time, at.file, 1.0
    )


def _begin(
    plan: ImportPlan, client: SyncClient, log: str, files: InputFiles, at: Acknowledged,
    before: ImportSession | None = None,
) -> ImportSession:  # fmt: skip
    """Opens a session and notes it, the first one or, after that of `before`, the one of the next kind of files.

    Only now forgets the note and the rejected lines of an earlier import.
    """
    session = client.open_session(plan.session_ttl_ms).session
    plan.at(ImportStep.OPENED)
    if before is None:
        remove_session(plan.state)
        plan.rejects.unlink(missing_ok=True)
    reading, (kinds, places) = files.reading, files.kinds
    note = ImportSession(
        SESSION_FILE_VERSION, input_of(plan), kinds[0].reading.format, plan.key, plan.time, plan.batch_lines, log,
        session, replace(at, sequence=0), next_sequence=_SCHEMA_SEQUENCE, end=at.offset, end_hash=at.hash,
        files=files.names, reading=reading, options=more_options(plan), kinds=kinds, places=places,
    )  # fmt: skip
    write_session(plan.state, note)
    plan.at(ImportStep.BEGUN)
    if before is not None:
        with suppress(ClientError):  # the session ends by itself (`SESSION_TTL_MS`)
            client.call(requests.close_session(before.session))
    return note


def _told(files: Sequence[ListedFile]) -> Iterator[str]:
    """Sentences that list the files of an import; none for a single file."""
    if len(files) > 1:
        yield f"imported {len(files):,} files:"
        yield from (f"  {each.file}: {each.format}, {each.bytes:,} bytes" for each in files[:LISTED_MAX])
    if len(files) > LISTED_MAX:
        yield f"  and {len(files) - LISTED_MAX:,} more, which --dry-run lists"


def _describe(
    plan: ImportPlan, client: SyncClient, note: ImportSession, reading: InputOptions, source: str
) -> ImportSession:
    """Puts the schema, if this was not noted as done. Notes of the first version have no sequence for it."""
    at = note.acknowledged
    if note.version == FIRST_VERSION or at.sequence >= _SCHEMA_SEQUENCE:
        return note
    value = schema.encode(schema.schema_of(reading, source))
    ticket = Ticket(SessionBook(note.session, next=_SCHEMA_SEQUENCE + 1, settled=_SCHEMA_SEQUENCE), _SCHEMA_SEQUENCE)
    try:
        client.call(requests.put(schema.key_of(note.session), value), ticket=ticket)
    except SessionExpired as error:
        raise SessionFileError(
            f"the session {note.session} of this import has expired before anything was imported; give --again"
        ) from error
    plan.at(ImportStep.DESCRIBED)
    return replace(note, acknowledged=replace(at, sequence=_SCHEMA_SEQUENCE))


def _import(
    plan: ImportPlan, client: SyncClient, note: ImportSession, source: InputFile, files: InputFiles, hasher: Hash
) -> Iterator[tuple[ImportSession, str, float | None]]:
    """Sends the batches of one file; yields the note after each, the result, and the share of the input."""
    at = note.acknowledged
    _truncate(plan.rejects, at.rejected_bytes)
    is_noted = note.end > at.offset
    cut = Cut(plan.batch_lines, BATCH_BYTES_MAX, note.end - at.offset if is_noted else None, plan.strict)
    found = batches(source.lines, files.reading, cut, hasher, source.latest_ms)
    with closing(Ahead(_with_seen(found, source.seen))) as ahead:
        try:
            for batch in ahead:
                at = note.acknowledged
                size = _write_rejected(plan.rejects, at.rejected_bytes, batch.rejected, source.shown)
                plan.at(ImportStep.READ)
                answer: Appended | None = None
                if batch.records:
                    end = at.offset + batch.bytes
                    if not is_noted:
                        note = replace(
                            note, next_sequence=at.sequence + 1, end=end, end_hash=batch.hash, reading=batch.reading
                        )
                        write_session(plan.state, note)
                    elif (end, batch.hash) != (note.end, note.end_hash):
                        raise changed(plan, note, source.name)
                    is_noted = False
                    plan.at(ImportStep.NOTED)
                    answer = _send(plan, client, note, batch)
                    plan.at(ImportStep.ANSWERED)
                note = replace(note, acknowledged=_after(at, batch, answer, size))
                yield note, "" if answer is None else answer.result, files.share(batch.seen)
        except InputError as error:
            raise type(error)(f"{source.name}: {error}") from error
        except BaseException:
            files.stop()  # the thread that reads may wait for more
            raise
    if is_noted:
        raise changed(plan, note, source.name)


def _with_seen(source: Iterator[ImportBatch], seen: Callable[[], int]) -> Iterator[ImportBatch]:
    for batch in source:
        batch.seen = seen()
        yield batch


def _send(plan: ImportPlan, client: SyncClient, note: ImportSession, batch: ImportBatch) -> Appended:
    """Sends the noted batch. Raises SessionFileError if the session is gone."""
    sequence = note.next_sequence
    book = SessionBook(note.session, next=sequence + 1, settled=sequence)
    try:
        return client.call(requests.append(batch.records), ticket=Ticket(book, sequence))
    except SessionExpired:
        pass
    # An expired session applies nothing any more, so the log shows whether the batch was applied.
    at = note.acknowledged
    found = _find_batch(client, note)
    last_line = at.line + batch.lines - 1
    told = "not in the log" if found is None else f"in the log, as index {found - len(batch.records) + 1} to {found}"
    rest = at.line if found is None else last_line + 1
    raise SessionFileError(
        f"the session {note.session} of this import has expired, so nothing more can be sent exactly once under it. "
        f"Lines up to {at.line - 1} are in the log; lines {at.line} to {last_line} are {told}. Choose: --again "
        f"--from-line {rest} to import the rest under a new session; or --again to import everything a second time"
    )


def _find_batch(client: SyncClient, note: ImportSession) -> int | None:
    """The index of the last record of the noted batch, None if it is not in the log."""
    found: int | None = None
    for record in client.log((note.acknowledged.last or note.session) + 1):
        if (record.session, record.sequence, record.result) == (note.session, note.next_sequence, "applied"):
            found = record.index
        elif found is not None:
            break  # the records of one request are consecutive
    return found


def _after(at: Acknowledged, batch: ImportBatch, answer: Appended | None, rejected_bytes: int) -> Acknowledged:
    return Acknowledged(
        sequence=at.sequence + (answer is not None),
        offset=at.offset + batch.bytes,
        line=at.line + batch.lines,
        hash=batch.hash,
        records=at.records + len(batch.records),
        rejected=at.rejected + len(batch.rejected),
        rejected_bytes=rejected_bytes,
        first=at.first if at.first is not None or answer is None else answer.first,
        last=at.last if answer is None else answer.last,
        file=at.file,
        inode=at.inode,
        without_time=at.without_time + batch.without_time,
    )


def _truncate(path: Path, size: int) -> None:
    """Drops rejected lines of a batch that was not noted."""
    if path.exists() and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)


def _write_rejected(path: Path, size: int, rejected: list[Rejected], shown: str | None) -> int:
    """Puts rejected lines after the first `size` bytes of the file, durably; returns its new size."""
    if not rejected:
        return size
    with path.open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        for each in rejected:
            file.write(json.dumps(_as_json(each, shown), ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    sync_folder(path.parent)
    return size


def _as_json(rejected: Rejected, shown: str | None) -> dict[str, object]:
    text = as_text(rejected.data)
    value = {"value_b64": to_b64(rejected.data)} if text is None else {"value": text}
    name = {} if shown is None else {"file": shown}
    return {**name, "line": rejected.number, "reason": rejected.reason, **value}


def listed(plan: ImportPlan, stdin: BinaryIO) -> list[ListedFile]:
    """The files of the input; of several with their formats, each looked at. Raises as `run`."""
    with closing(InputFiles(plan, None, stdin)) as files:
        files.look()
        return files.listed()


def preview(plan: ImportPlan, stdin: BinaryIO, limit: int) -> Iterator[tuple[int, NewRecord | Rejected]]:
    """The first lines of the input with their numbers, as an import would store them. Raises as `run`."""
    with closing(InputFiles(plan, None, stdin)) as files:
        if (source := files.next()) is None:
            raise InputError(f"{plan.source} is empty")
        with closing(source):
            source.skip_lines(Acknowledged(), plan.from_line)
            try:
                lines = list(islice((line for line in source.lines if line.raw), limit))
            except InputError as error:
                raise InputError(f"{source.name}: {error}") from error
            yield from zip((line.number for line in lines), read_batch(lines, files.reading), strict=True)
