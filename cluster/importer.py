"""Imports an input line by line, exactly once and in order, whatever is killed in between.

One batch is in flight. Before it is sent its bytes' position and hash are noted durably with the sequence it will have
(`cluster.import_note`); whoever starts again sends the noted batch under the same sequence. A batch is made from the
input's bytes alone, so it is the same request again, and the state machine tells a repetition from a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace

from cluster import client_requests as requests
from cluster.client_core import SessionBook
from cluster.client_errors import ClientError, SessionExpired
from cluster.client_flow import Ticket
from cluster.client_requests import NewRecord
from cluster.client_sync import SyncClient
from cluster.import_lines import InputError, InputFormat, Line, Reading, Rejected, begin, detect, read, split_lines
from cluster.import_note import (
    NOTE_VERSION,
    Acknowledged,
    Note,
    NoteError,
    read_note,
    remove_note,
    sync_folder,
    write_note,
)
from cluster.wire import Appended, as_text, to_b64

BATCH_LINES: Final = 500
BATCH_BYTES_MAX: Final = 2 << 20
"""A batch ends before it gets larger; a request may have 8 MiB."""

SESSION_TTL_MS: Final = 24 * 3_600_000
"""How long an import that was killed may wait before it goes on."""

STDIN: Final = "-"


class Step(StrEnum):
    """Points between which an import may be killed; `Plan.at` is told each as it is reached."""

    OPENED = "opened"  # the session is open, nothing is noted
    READ = "read"  # a batch is read and its rejected lines are written, nothing is noted
    NOTED = "noted"
    ANSWERED = "answered"  # the batch is acknowledged, which is noted only with the next
    FINISHED = "finished"  # everything is acknowledged, which is not noted
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to import, and how. `again` forgets an earlier import of the same input."""

    source: str  # path, or "-"
    state: Path
    rejects: Path
    format: InputFormat | None = None
    key: str | None = None
    time: str | None = None
    batch_lines: int = BATCH_LINES
    session_ttl_ms: int = SESSION_TTL_MS
    again: bool = False
    from_line: int = 1
    at: Callable[[Step], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is, after each acknowledged batch."""

    records: int
    rejected: int
    lines: int
    bytes: int
    first: int | None  # index of the first record
    last: int | None
    result: str  # of the newest batch: applied | repeated


@dataclass(slots=True)
class _Batch:
    """Lines read for one request, and the hash of the input up to their end."""

    records: list[NewRecord] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    hash: str = ""


def run(plan: Plan, client: SyncClient, stdin: BinaryIO) -> Iterator[Progress]:
    """Imports; yields after each acknowledged batch. Raises NoteError, InputError, OSError, ClientError."""
    log = client.status().log
    note = old_note(plan, log)
    with stdin if plan.source == STDIN else Path(plan.source).open("rb") as file:
        first_line = file.readline()
        if not first_line:
            raise InputError(f"{plan.source} is empty")
        format = InputFormat(note.format) if note else plan.format or detect(plan.source, first_line)
        reading = begin(format, plan.key, plan.time, first_line)
        if note is None:
            lines = split_lines(chain([first_line], file), reading)
            at, hasher = _skip_lines(plan, reading, lines)
            note = _new_note(plan, client, format, log, at)
            is_noted = False
        else:
            hasher = _skip_bytes(plan, note, file)
            lines = split_lines(file, reading, note.acknowledged.line)
            is_noted = True
        for batch in _batches(lines, reading, plan.batch_lines, hasher):
            at = note.acknowledged
            rejected_bytes = _write_rejected(plan.rejects, at.rejected_bytes, batch.rejected)
            plan.at(Step.READ)
            answer: Appended | None = None
            if batch.records:
                end = at.offset + batch.bytes
                if not is_noted:
                    note = replace(note, next_sequence=at.sequence + 1, end=end, end_hash=batch.hash)
                    write_note(plan.state, note)
                elif (end, batch.hash) != (note.end, note.end_hash):
                    raise _changed(plan, note)
                is_noted = False
                plan.at(Step.NOTED)
                answer = _send(plan, client, note, batch)
                plan.at(Step.ANSWERED)
            at = _after(at, batch, answer, rejected_bytes)
            note = replace(note, acknowledged=at)
            result = "" if answer is None else answer.result
            yield Progress(at.records, at.rejected, at.line - 1, at.offset, at.first, at.last, result)
        plan.at(Step.FINISHED)
        if plan.source == STDIN:
            remove_note(plan.state)
        else:
            write_note(plan.state, replace(note, done=True))
        plan.at(Step.CLOSED)
        # Every line is in the log and noted. Without a leader now, the session ends by itself (`SESSION_TTL_MS`).
        with suppress(ClientError):
            client.call(requests.close_session(note.session))


def old_note(plan: Plan, log: str) -> Note | None:
    """The note of an import to go on with, None to begin anew. Raises NoteError where the choice is the user's."""
    note = None if plan.again else read_note(plan.state)
    if note is None:
        return None
    at = note.acknowledged
    done = f"{at.records} records (index {at.first} to {at.last})" if at.records else "no record"
    if note.done:
        raise NoteError(
            f"{plan.source} was imported already: {done}, as {plan.state} says. To import it once more, give --again; "
            f"to import what was added to it since, --again --from-line {at.line}"
        )
    if plan.source == STDIN:
        raise NoteError(
            f"an import from standard input was broken off after line {at.line - 1}, {done}; the batch after it may "
            f"be in the log too. What came through a pipe cannot be read again, so this cannot go on by itself. "
            f"Choose: save the input to a file and import what is missing with --again --from-line (raftlog log "
            f"--from {(at.last or 0) + 1} shows whether the batch is there); or give --again to import all that "
            f"comes now as new"
        )
    if note.log != log:
        raise NoteError(
            f"{plan.state} is of an import into the log {note.log}, but this cluster's log is {log}. Choose: "
            f"--endpoints of the other cluster to go on there; --again to import all of it here; or another --state"
        )
    given = (plan.format or note.format, plan.key, plan.time, plan.batch_lines, str(Path(plan.source).resolve()))
    if given != (note.format, note.key, note.time, note.batch_lines, note.input) or plan.from_line != 1:
        options = "".join(
            f" --{name} {value}"
            for name, value in (("format", note.format), ("key", note.key), ("time", note.time))
            if value is not None
        )
        raise NoteError(
            f"{plan.state} is of an unfinished import of {note.input} with{options} --batch {note.batch_lines}. "
            f"Choose: the very same to go on; --again to begin anew; or another --state"
        )
    return note


def _new_note(plan: Plan, client: SyncClient, format: InputFormat, log: str, at: Acknowledged) -> Note:
    """Opens a session; what was noted or rejected before is forgotten only now."""
    session = client.open_session(plan.session_ttl_ms).session
    plan.at(Step.OPENED)
    remove_note(plan.state)
    plan.rejects.unlink(missing_ok=True)
    source = STDIN if plan.source == STDIN else str(Path(plan.source).resolve())
    return Note(
        NOTE_VERSION, source, format, plan.key, plan.time, plan.batch_lines, log, session, at, next_sequence=1,
        end=at.offset, end_hash=at.hash,
    )  # fmt: skip


def _skip_lines(plan: Plan, reading: Reading, lines: Iterator[Line]) -> tuple[Acknowledged, hashlib._Hash]:
    """Passes over a CSV file's first line and everything before --from-line."""
    hasher, offset, number = hashlib.sha256(), 0, 1
    start = max(plan.from_line, 2 if reading.format is InputFormat.CSV else 1)
    while number < start:
        if (line := next(lines, None)) is None:
            if plan.from_line > number:
                raise InputError(f"--from-line {plan.from_line}: {plan.source} has only {number - 1} lines")
            break
        hasher.update(line.raw)
        offset += len(line.raw)
        number += line.lines
    return Acknowledged(offset=offset, line=number, hash=hasher.hexdigest()), hasher


def _skip_bytes(plan: Plan, note: Note, file: BinaryIO) -> hashlib._Hash:
    """Passes over what is acknowledged. Raises NoteError if it is not what it was."""
    file.seek(0)
    hasher = hashlib.sha256()
    left = note.acknowledged.offset
    while left and (piece := file.read(min(left, 1 << 20))):
        hasher.update(piece)
        left -= len(piece)
    if left or hasher.hexdigest() != note.acknowledged.hash:
        raise _changed(plan, note)
    return hasher


def _changed(plan: Plan, note: Note) -> NoteError:
    at = note.acknowledged
    return NoteError(
        f"{plan.source} is not what it was: its first {note.end} bytes have changed since they were imported (up to "
        f"line {at.line - 1} they are in the log, as index {at.first} to {at.last}). Choose: bring the old content "
        f"back to go on; or --again to import the new content as a whole; or --again --from-line {at.line} for what "
        f"follows"
    )


def _batches(lines: Iterator[Line], reading: Reading, lines_max: int, hasher: hashlib._Hash) -> Iterator[_Batch]:
    """Up to `lines_max` records each; only the last can be without any."""
    batch = _Batch()
    for line in lines:
        hasher.update(line.raw)
        batch.bytes += len(line.raw)
        batch.lines += line.lines
        told = read(line, reading)
        if isinstance(told, Rejected):
            batch.rejected.append(told)
        else:
            batch.records.append(told)
        if batch.records and (len(batch.records) >= lines_max or batch.bytes >= BATCH_BYTES_MAX):
            batch.hash = hasher.hexdigest()
            yield batch
            batch = _Batch()
    if batch.lines:
        batch.hash = hasher.hexdigest()
        yield batch


def _send(plan: Plan, client: SyncClient, note: Note, batch: _Batch) -> Appended:
    """Sends the noted batch. Raises NoteError if the session is gone."""
    sequence = note.next_sequence
    book = SessionBook(note.session, next=sequence + 1, settled=sequence)
    try:
        return client.call(requests.append(batch.records), ticket=Ticket(book, sequence))
    except SessionExpired:
        pass
    # What an expired session has not applied by now it never will: so the log tells what became of the batch.
    at = note.acknowledged
    found = _find_batch(client, note)
    last_line = at.line + batch.lines - 1
    told = "not in the log" if found is None else f"in the log, as index {found - len(batch.records) + 1} to {found}"
    rest = at.line if found is None else last_line + 1
    raise NoteError(
        f"the session {note.session} of this import has expired, so nothing more can be sent exactly once under it. "
        f"Lines up to {at.line - 1} are in the log; lines {at.line} to {last_line} are {told}. Choose: --again "
        f"--from-line {rest} to import the rest under a new session; or --again to import everything a second time"
    )


def _find_batch(client: SyncClient, note: Note) -> int | None:
    """The index of the last record of the noted batch, None if it is not in the log."""
    found: int | None = None
    for record in client.log((note.acknowledged.last or note.session) + 1):
        if (record.session, record.sequence, record.result) == (note.session, note.next_sequence, "applied"):
            found = record.index
        elif found is not None:
            break  # the records of one request stand together
    return found


def _after(at: Acknowledged, batch: _Batch, answer: Appended | None, rejected_bytes: int) -> Acknowledged:
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
    )


def _write_rejected(path: Path, size: int, rejected: list[Rejected]) -> int:
    """Puts rejected lines after the first `size` bytes of the file, durably; returns its new size."""
    if not rejected and not size:
        return 0
    with path.open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        for each in rejected:
            file.write(json.dumps(_as_json(each), ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    sync_folder(path.parent)
    return size


def _as_json(rejected: Rejected) -> dict[str, object]:
    text = as_text(rejected.data)
    value = {"value_b64": to_b64(rejected.data)} if text is None else {"value": text}
    return {"line": rejected.number, "reason": rejected.reason, **value}
