"""Reads the lines of files as records, file by file, and puts the lines that have none aside.

`raftlog import` copies this source (`raftlog.cluster.importer.importer`), and so can users. A batch is made from the
input's bytes alone, so that it can be read again: its records need not be kept while it is sent.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec.structs import replace

from raftlog.cluster.api.encoding import as_text, to_b64
from raftlog.cluster.importer.ahead import Ahead
from raftlog.cluster.importer.batches import BatchEnds, Hash, ImportBatch, batches
from raftlog.cluster.importer.files import InputFile, InputFiles
from raftlog.cluster.importer.formats.lines import InputError, RejectedLine
from raftlog.cluster.importer.formats.schema import Schema, schema_of
from raftlog.cluster.importer.inputs import STDIN
from raftlog.cluster.importer.kinds import FilePosition, ImportDecisions, as_decisions, as_position
from raftlog.cluster.importer.plan import ImportPlan
from raftlog.cluster.importer.resuming import input_of, options_of
from raftlog.cluster.importer.session_file import CopyStep
from raftlog.cluster.importer.source import Part, SourceChanged
from raftlog.cluster.runtime.file_errors import naming, sync_folder

BATCH_BYTES_MAX: Final = 2 << 20
"""Most bytes of a batch; a request may have 8 MiB."""

AHEAD: Final = 2
"""How many batches are read while another is being sent."""

STOP_S: Final = 1.0
"""How long the end of an import waits for the thread that reads, in seconds. A pipe may never have another byte."""


class FileSource:
    """The lines of files, read as `raftlog import` reads them; rejected lines are left out, and counted.

    `options` are those of `raftlog.cluster.importer.plan.ImportPlan`. The position is a file, an offset, a line, and
    the hash of what came before.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self._plan = ImportPlan(path, Path(f"{path}.state"), Path(f"{path}.rejected"), **options)
        self._stdin: BinaryIO = io.BytesIO()
        self._is_import = False
        self._decisions: ImportDecisions | None = None
        self._files: InputFiles | None = None
        self.name = input_of(self._plan)
        self.schema: Schema | None = None
        self.at = FilePosition()  # after the part that was given last
        self.share: float | None = None  # of all bytes; None if that is not known

    @classmethod
    def of(cls, plan: ImportPlan, stdin: BinaryIO) -> FileSource:
        """The source of an import: it writes rejected lines into their file, and its last position is `done`."""
        source = cls(plan.source)
        source._plan, source._stdin, source._is_import, source.name = plan, stdin, True, input_of(plan)
        return source

    @property
    def rejected(self) -> int:
        """The number of rejected lines so far."""
        return self.at.rejected

    @property
    def files(self) -> InputFiles:
        """The files that were read last."""
        assert self._files is not None
        return self._files

    @property
    def about(self) -> Any:
        """The decisions of the first run, which `copy` keeps and gives back after a restart."""
        return msgspec.to_builtins(self._decisions)

    @about.setter
    def about(self, kept: Any) -> None:
        self._decisions = as_decisions(kept)

    def read(self, position: Any | None, end: Any | None = None) -> Iterator[Part]:
        """The records after the position; with `end` first those up to that, as one part.

        Raises InputError, OSError, SessionFileError, and SourceChanged for a file that has changed.
        """
        at = self.at = as_position(position)
        until = None if end is None else as_position(end)
        is_begun, place = position is not None, None
        with closing(InputFiles(self._plan, self._decisions, self._stdin, position and at, until)) as files:
            self._files = files
            while (source := files.next()) is not None:
                with closing(source):
                    if source.is_continued:
                        hasher = source.skip_bytes(at)
                        if at.offset and hasher.hexdigest() != at.hash:
                            raise SourceChanged(source.name, at.line)
                    else:
                        at, hasher = source.skip_lines(at, 1 if is_begun else self._plan.from_line)
                    at = replace(at, file=source.number, inode=source.inode)
                    if files.place != place:  # a session has one schema
                        place = files.place
                        self._decide(files)
                        if not source.is_continued:
                            yield Part((), msgspec.to_builtins(at))
                    if not is_begun and self._is_import:
                        self._plan.rejects.unlink(missing_ok=True)  # those of an earlier import
                    is_begun = True
                    for part in self._parts(source, at, hasher, until):
                        at = self.at = part.position
                        yield part._replace(position=msgspec.to_builtins(at), start=msgspec.to_builtins(part.start))
                    until = None
                at = replace(at, file=at.file + 1, inode=0, **_BEGINNING if files.has_more(at.file + 1) else {})
        if self._is_import and not is_begun:
            raise InputError(f"{self._plan.source} is empty")
        if self._is_import:
            self._plan.at(CopyStep.FINISHED)
            if self._plan.source != STDIN:
                yield Part((), msgspec.to_builtins(replace(at, done=True)))

    def _decide(self, files: InputFiles) -> None:
        kinds, places = files.kinds
        self._decisions = ImportDecisions(files.names, kinds, places, options_of(self._plan, kinds[0].reading.format))
        self.schema = schema_of(kinds[files.place].reading, kinds[files.place].source)

    def _parts(self, source: InputFile, at: FilePosition, hasher: Hash, until: FilePosition | None) -> Iterator[Part]:
        """The parts of one file, whose positions are FilePosition."""
        plan, files = self._plan, self.files
        if self._is_import:
            _truncate(plan.rejects, at.rejected_bytes)
        cut = BatchEnds(plan.batch_lines, BATCH_BYTES_MAX, until.offset - at.offset if until else None, plan.strict)
        found = batches(source.lines, files.reading, cut, hasher, source.latest_ms)
        ahead = Ahead(_with_seen(found, source.seen), lambda _: 1, AHEAD)
        try:
            while (batch := ahead.next()) is not None:
                start, at = at, _after(at, batch)
                if until is not None and (at.offset, at.hash) != (until.offset, until.hash):
                    raise SourceChanged(source.name, start.line)
                until = None
                if self._is_import:
                    size = _write_rejected(plan.rejects, start.rejected_bytes, batch.rejected, source.shown)
                    at = replace(at, rejected_bytes=size)
                plan.at(CopyStep.READ)
                self.share = files.share(batch.seen)
                yield Part(batch.records, at, start)
        except InputError as error:
            raise type(error)(f"{source.name}: {error}") from error
        except BaseException:
            files.stop()  # the thread that reads may wait for more
            raise
        finally:
            ahead.close(STOP_S)
        if until is not None:
            raise SourceChanged(source.name, at.line)


_BEGINNING: Final[dict[str, Any]] = {"offset": 0, "line": 1, "hash": ""}
"""The fields of the position at the beginning of a file."""


def _with_seen(source: Iterator[ImportBatch], seen: Callable[[], int]) -> Iterator[ImportBatch]:
    for batch in source:
        batch.seen = seen()
        yield batch


def _after(at: FilePosition, batch: ImportBatch) -> FilePosition:
    times = batch.reading.times if batch.reading is not None else None
    return replace(
        at,
        offset=at.offset + batch.bytes,
        line=at.line + batch.lines,
        hash=batch.hash,
        rejected=at.rejected + len(batch.rejected),
        without_time=at.without_time + batch.without_time,
        latest_ms=None if times is None else times.latest_ms,
    )


def _truncate(path: Path, size: int) -> None:
    """Drops rejected lines of a batch that was not noted."""
    if path.exists() and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)


def _write_rejected(path: Path, size: int, rejected: list[RejectedLine], shown: str | None) -> int:
    """Puts rejected lines after the first `size` bytes of the file, durably; returns its new size."""
    if not rejected:
        return size
    with naming(path), path.open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        for each in rejected:
            file.write(json.dumps(_as_json(each, shown), ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
        sync_folder(path.parent)
    return size


def _as_json(rejected: RejectedLine, shown: str | None) -> dict[str, object]:
    text = as_text(rejected.data)
    value = {"value_b64": to_b64(rejected.data)} if text is None else {"value": text}
    name = {} if shown is None else {"file": shown}
    return {**name, "line": rejected.number, "reason": rejected.reason, **value}
