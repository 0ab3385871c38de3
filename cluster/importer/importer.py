"""Imports an input line by line, exactly once and in order, even if the importer or a node is killed in between.

`raftlog import` calls it. An import copies a `FileSource` (`raftlog.cluster.importer.sources`). One batch is in flight
at a time. Before it is sent, the session file durably gets the position and hash of its bytes and its sequence. A
restarted import reads the noted batch again, and sends it under the same sequence. A batch is made from the input's
bytes alone, so the request has the same bytes, and the state machine recognises the repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import BinaryIO, Final

from msgspec.structs import replace

from raftlog.cluster.api.text import counted
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.client.once import SessionEnded, end_session
from raftlog.cluster.importer.file_source import FileSource
from raftlog.cluster.importer.files import InputFiles, ListedFile
from raftlog.cluster.importer.formats.lines import InputError, RejectedLine, read_batch
from raftlog.cluster.importer.inputs import STDIN
from raftlog.cluster.importer.kinds import FilePosition, as_decisions, as_position
from raftlog.cluster.importer.plan import BATCH_LINES, ImportPlan, ImportProgress
from raftlog.cluster.importer.resuming import changed, expired, old_state
from raftlog.cluster.importer.session_file import CopyState, CopyStep, SessionFileError, read_state, remove_state
from raftlog.cluster.importer.source import SourceChanged
from raftlog.cluster.importer.sources import CopyProgress, copy

__all__ = ["BATCH_LINES", "STDIN", "CopyStep", "ImportPlan", "ImportProgress", "ListedFile", "listed", "preview", "run"]

LISTED_MAX: Final = 100
"""Most files that the end of an import lists."""


def run(plan: ImportPlan, client: SyncClient, stdin: BinaryIO) -> Iterator[ImportProgress]:
    """Imports; yields after each acknowledged batch. Raises SessionFileError, InputError, OSError, ClientError."""
    state = old_state(plan, client.status().log)
    if state is not None and as_position(state.position).done:
        _check_finished(plan, state, stdin)
        yield _progress(state, as_position(state.position), 1.0)
        return
    source = FileSource.of(plan, stdin)
    shown = FilePosition()
    try:
        for copied in copy(
            source, client, plan.state, session_ttl_ms=plan.session_ttl_ms, at=plan.at, again=plan.again, renews=False
        ):
            shown = source.at
            yield _progress(copied, shown, source.share, copied.result)
    except SourceChanged as error:
        raise changed(plan, _state(plan), error.name) from error
    except SessionEnded as error:
        raise expired(_state(plan), error.applied) from error
    done = _state(plan)
    if source.at != shown:  # the last batch had no records
        yield _progress(done, source.at, source.share)
    if plan.source == STDIN:
        remove_state(plan.state)
    plan.at(CopyStep.CLOSED)
    for sentence in _told([*dict.fromkeys(source.files.listed())]):
        plan.tell(sentence)
    # Every line is in the log and noted. Without a leader now, the session ends by itself (`SESSION_TTL_MS`).
    assert done.session is not None
    end_session(client, done.session.session)


def _state(plan: ImportPlan) -> CopyState:
    state = read_state(plan.state)
    assert state is not None
    return state


def _progress(
    done: CopyState | CopyProgress, at: FilePosition, share: float | None, result: str = ""
) -> ImportProgress:
    """The progress up to a position; `result` is that of a new batch."""
    return ImportProgress(
        done.records,
        at.rejected,
        at.line - 1,
        at.offset,
        done.first,
        done.last,
        result,
        at.without_time,
        at.file + (not at.done),
        share,
    )


def _check_finished(plan: ImportPlan, state: CopyState, stdin: BinaryIO) -> None:
    """Raises SessionFileError if the input of a finished import has changed since. Reads the last file to know."""
    at, decisions = as_position(state.position), as_decisions(state.about)
    with closing(InputFiles(plan, None, stdin)) as now:
        names = now.names
    has_grown = decisions.files != names
    if not has_grown and at.offset:
        with closing(InputFiles(plan, decisions, stdin, replace(at, file=at.file - 1))) as files:
            source = files.next()
            if source is None:
                raise changed(plan, state, names[-1])
            with closing(source):
                if source.skip_bytes(at).hexdigest() != at.hash:
                    raise changed(plan, state, source.name)
                has_grown = next(source.lines, None) is not None
    if has_grown:
        raise SessionFileError(
            f"{' '.join(plan.sources)} was imported already, and has more now: the log has "
            f"{counted(state.records, 'record')} (index {state.first} to {state.last}), as {plan.state} says. Choose: "
            f"--again --from-line {at.line} for the lines added since to one file; the new files by "
            f"themselves; or --again to import everything once more"
        )


def _told(files: Sequence[ListedFile]) -> Iterator[str]:
    """Sentences that list the files of an import; none for a single file."""
    if len(files) > 1:
        yield f"imported {len(files):,} files:"
        yield from (f"  {each.file}: {each.format}, {each.bytes:,} bytes" for each in files[:LISTED_MAX])
    if len(files) > LISTED_MAX:
        yield f"  and {len(files) - LISTED_MAX:,} more, which --dry-run lists"


def listed(plan: ImportPlan, stdin: BinaryIO) -> list[ListedFile]:
    """The files of the input; of several with their formats, each looked at. Raises as `run`."""
    with closing(InputFiles(plan, None, stdin)) as files:
        files.look()
        return files.listed()


def preview(plan: ImportPlan, stdin: BinaryIO, limit: int) -> Iterator[tuple[int, NewRecord | RejectedLine]]:
    """The first lines of the input with their numbers, as an import would store them. Raises as `run`."""
    with closing(InputFiles(plan, None, stdin)) as files:
        if (source := files.next()) is None:
            raise InputError(f"{plan.source} is empty")
        with closing(source):
            source.skip_lines(FilePosition(), plan.from_line)
            try:
                lines = list(islice((line for line in source.lines if line.raw), limit))
            except InputError as error:
                raise InputError(f"{source.name}: {error}") from error
            yield from zip((line.number for line in lines), read_batch(lines, files.reading), strict=True)
