"""Opens the files of an import one after the other, and skips in each what an earlier run imported.

`raftlog.cluster.importer.importer` asks it for the next file. A single file decides when it is opened how it is read;
several are all looked at before anything is written.
"""

from __future__ import annotations

import hashlib
import shlex
import stat
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from msgspec.structs import replace

from raftlog.cluster.api.text import counted
from raftlog.cluster.importer import following
from raftlog.cluster.importer.batches import Hash, LatestMs
from raftlog.cluster.importer.formats import converting, rows
from raftlog.cluster.importer.formats.deciding import InputDecision, Sample, decide
from raftlog.cluster.importer.formats.dialect import names_of
from raftlog.cluster.importer.formats.lines import (
    TABLES,
    InputError,
    InputFormat,
    InputOptions,
    Line,
    detect,
    holds_several,
    pieces_of,
    split_lines,
    suffix_of,
)
from raftlog.cluster.importer.inputs import STDIN, OpenInput, as_utf8, expand, open_input, sample_of
from raftlog.cluster.importer.kinds import (
    FileKind,
    FileKinds,
    FilePosition,
    ImportDecisions,
    as_decisions,
    sorted_by_kind,
)
from raftlog.cluster.importer.plan import ImportPlan
from raftlog.cluster.importer.session_file import SessionFileError, read_state

_REFUSED_SHOWN: Final = 20
"""Most files that one refusal names."""

_SHOWN_MAX: Final = 200
"""Most characters of a line that a message shows."""


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


class InputFile:
    """One open file of an import, the one after `number` others. `is_continued`: an earlier run has imported its
    beginning.
    """

    def __init__(
        self, opened: OpenInput, reading: InputOptions, number: int, is_continued: bool, shown: str | None
    ) -> None:
        self.name = opened.name
        self.number = number  # counts empty files, which are skipped
        self.shown = shown  # in the file of rejected lines
        self.inode = 0
        self.is_continued = is_continued
        self.seen: Callable[[], int] = opened.seen
        self.latest_ms: LatestMs | None = opened.latest_ms
        self.lines: Iterator[Line] = iter(())
        self._opened = opened
        self._chunks = opened.chunks
        self._reading = reading

    def skip_lines(self, at: FilePosition, from_line: int) -> tuple[FilePosition, Hash]:
        """Skips the line of the columns' names, and everything before `from_line`. Raises InputError."""
        reading = self._reading
        self.lines = split_lines(pieces_of(self._chunks), reading)
        hasher, offset, number = hashlib.sha256(), 0, 1
        has_header = reading.format in TABLES and reading.dialect.header
        start = max(from_line, 2 if has_header else 1)
        while number < start:
            with _named(self.name):
                line = next(self.lines, None)
            if line is None:
                if from_line > number:
                    raise InputError(f"--from-line {from_line}: {self.name} has only {counted(number - 1, 'line')}")
                break
            if number == 1 and has_header:
                self._check_columns(line)
            hasher.update(line.raw)
            offset += len(line.raw)
            number += line.lines
        return replace(at, offset=offset, line=number, hash=hasher.hexdigest()), hasher

    def _check_columns(self, line: Line) -> None:
        """Raises InputError if the first line does not name the columns as it did when the file was looked at."""
        (found,) = rows.csv_rows([line.raw], self._reading.dialect)
        names = () if isinstance(found, ValueError) else names_of(found)
        wanted = self._reading.names or self._reading.columns
        if names != wanted:
            raise other_names(self.name, names or (repr(line.data.decode("utf-8", "replace")),), wanted)

    def skip_bytes(self, at: FilePosition) -> Hash:
        """Skips the acknowledged bytes, and returns their hash."""
        hasher = hashlib.sha256()
        left = at.offset
        rest = b""
        while left and (chunk := next(self._chunks, None)) is not None:
            hasher.update(chunk[:left])
            rest = chunk[left:]
            left = max(0, left - len(chunk))
        self.lines = split_lines(pieces_of(_before(rest, self._chunks)), self._reading, at.line)
        return hasher

    def close(self) -> None:
        """Closes the file."""
        self._opened.close()


def _before(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from chunks


def other_names(name: str, has: Sequence[str], wanted: Sequence[str]) -> InputError:
    """The refusal of a file of CSV whose first line has other names than it must have."""
    return InputError(
        f"{name}: line 1 has not the {len(wanted)} columns {', '.join(wanted)}, but {len(has)}: "
        f"{', '.join(has)[:_SHOWN_MAX]}. Import {name} by itself, with --columns NAME,… if its line 1 is data; or give "
        f"--no-header if no file has a line of names"
    )


class ListedFile(NamedTuple):
    """A file of an import."""

    file: str
    format: str
    bytes: int


class InputFiles:
    """The files of an import, from the one where it stands."""

    def __init__(
        self,
        plan: ImportPlan,
        decisions: ImportDecisions | None,
        stdin: BinaryIO,
        at: FilePosition | None = None,
        until: FilePosition | None = None,
    ) -> None:
        self._plan = plan
        self._stdin = stdin
        self._stopped = threading.Event()
        self._at = at or FilePosition()
        self._until = until  # the end of the batch that is read again
        self._next = self._at.file
        self._is_continued = at is not None
        self._tail: following.Tail | None = None
        self._reading: InputOptions | None = None  # of the current file
        self._kinds = FileKinds((), ())
        if decisions is not None:
            self.names = decisions.files
            self._kinds = FileKinds(decisions.kinds, decisions.places)
        elif plan.rejected_of is not None:
            self._kinds = _kinds_of_rejected(plan.rejected_of)
            self.names = (plan.source,) * len(self._kinds.kinds)
        else:
            self.names = self._expand()
        self._sizes = [Path(name).stat().st_size if name != STDIN and Path(name).exists() else 0 for name in self.names]

    def _expand(self) -> tuple[str, ...]:
        if self._plan.follow:
            if len(self._plan.sources) > 1 or Path(self._plan.source).is_dir() or self._plan.source == STDIN:
                raise InputError("--follow is of one file; start one import for each")
            return (self._plan.source,)
        return tuple(expand(self._plan.sources, self._plan.tell))

    @property
    def reading(self) -> InputOptions:
        """How the current file is read."""
        assert self._reading is not None
        return self._reading

    @property
    def kinds(self) -> FileKinds:
        """How all files are read, as far as that is decided: of several files before the first is opened."""
        return self._kinds

    @property
    def place(self) -> int:
        """The place of the current file's kind."""
        return self._kinds.places[min(self._next, len(self.names)) - 1]

    def listed(self) -> list[ListedFile]:
        """Every file with its format and its size, in bytes."""
        kinds, places = self._kinds
        formats = [kinds[place].reading.format.value for place in places] if kinds else ["empty"] * len(self.names)
        return [
            ListedFile(name, format if size else "empty", size)
            for name, format, size in zip(self.names, formats, self._sizes, strict=True)
        ]

    def has_more(self, number: int) -> bool:
        """Whether there is a file after the first `number`."""
        return number < len(self.names) or (self._plan.follow and not self._stopped.is_set())

    def share(self, seen: int) -> float | None:
        """The share of all bytes that is read, with `seen` bytes of the current file; None if that is not known."""
        formats = {kind.reading.format for kind in self._kinds.kinds}
        if self._plan.follow or not sum(self._sizes) or formats & {InputFormat.PARQUET, InputFormat.ARROW}:
            return None
        return min(1.0, (sum(self._sizes[: self._next - 1]) + seen) / sum(self._sizes))

    def next(self) -> InputFile | None:
        """The next file that is not empty; None after the last. Raises InputError, OSError, SessionFileError."""
        self.look()
        while self.has_more(self._next):
            number, self._next = self._next, self._next + 1
            is_continued = self._is_continued
            name = self.names[min(number, len(self.names) - 1)]
            if self._kinds.kinds:
                self._reading = self._kinds.kinds[self.place].reading
                if is_continued and self._until is not None:
                    self._reading = _as_of(self._until, self._reading)
            opened, first, is_whole = self._sampled(name)
            if not first:
                opened.close()
                if len({*self.names}) > 1:
                    self._plan.tell(f"{name}: the file is empty, and was skipped")
                continue
            self._is_continued = False
            try:
                if self._reading is None:
                    decided = self._decided(opened, first, is_whole)
                    self._reading = decided.reading
                    self._kinds = FileKinds((FileKind(decided.reading, source_of(self._plan)),), (0,) * len(self.names))
                    self._tell(decided)
            except BaseException:
                opened.close()
                raise
            shown = name if len(self.names) > 1 else None
            source = InputFile(opened, self.reading, number, is_continued, shown)
            source.inode = self._tail.inode if self._tail is not None else 0
            if self._plan.rejected_of is not None:
                source.latest_ms = None  # the rejected lines are as old as the file that they are of
            return source
        return None

    def look(self) -> None:
        """Decides how each of several files is read. Raises one InputError that names all files that cannot be."""
        if self._kinds.kinds or len(self.names) < 2:
            return
        found: list[InputDecision | None] = []
        refused: list[str] = []
        others: list[str] = []
        for name in self.names:
            try:
                if not stat.S_ISREG(Path(name).stat().st_mode):
                    raise InputError(f"{name} is no regular file, so it can be read only once: import it by itself")
                opened, first, is_whole = self._sampled(name)
                with closing(opened):
                    found.append(self._decided(opened, first, is_whole) if first else None)
                self._check_names(name, found)
                others.append(name)
            except InputError as error:
                refused.append(str(error))
        if refused:
            named = f": {shlex.join(others)}" if len(others) <= _REFUSED_SHOWN else ""
            more = f"\nand {len(refused) - _REFUSED_SHOWN:,} more" if len(refused) > _REFUSED_SHOWN else ""
            raise InputError(
                f"{len(refused):,} of {counted(len(self.names), 'file')} cannot be imported so, and nothing is written."
                f" Move them away, or name the others{named}\n" + "\n".join(refused[:_REFUSED_SHOWN]) + more
            )
        self._kinds = sorted_by_kind(self.names, found, source_of(self._plan))
        for place in range(len(self._kinds.kinds)):
            number = self._kinds.places.index(place)
            while found[number] is None:  # an empty file goes with the kind before it
                number += 1
            self._tell(cast(InputDecision, found[number]))

    def _check_names(self, name: str, found: Sequence[InputDecision | None]) -> None:
        """Raises InputError where --columns names the columns of files whose first lines differ."""
        names = [each.reading.names for each in found if each is not None]
        if self._plan.columns and names and names[0] != names[-1]:
            raise other_names(name, names[-1], names[0])

    def _tell(self, decided: InputDecision) -> None:
        for notice in decided.notices:
            self._plan.tell(notice)

    def _sampled(self, name: str) -> tuple[OpenInput, bytes, bool]:
        """The open file, its first bytes, and whether they are all."""
        with _named(name):
            opened = self._follow() if self._plan.follow else self._open(name)
            try:
                first, opened.chunks, is_whole = sample_of(opened.chunks, lines=0 if self._reading else 1)
                if self._reading is None and self._may_name_columns(opened, first):
                    first, opened.chunks, is_whole = sample_of(opened.chunks, lines=2)
            except BaseException:
                opened.close()
                raise
        return opened, first, is_whole

    def _open(self, name: str) -> OpenInput:
        opened = open_input(name, self._stdin, self._plan.format, self._plan.charset, self._stopped)
        known = self._reading.format if self._reading is not None else opened.format
        try:
            if self._plan.rejected_of is not None:
                opened.chunks = converting.rejected_lines(opened.chunks, self._files_of_rejected())
            elif known is InputFormat.JSON or (known is None and self._is_json(opened)):
                opened.format = InputFormat.JSON
                opened.chunks = converting.json_lines(opened.chunks)
        except BaseException:
            opened.close()
            raise
        return opened

    def _files_of_rejected(self) -> Container[str] | None:
        """The files whose rejected lines are read now; None for all. Each kind has its turn."""
        if self._plan.rejected_of is None or len(self._kinds.kinds) < 2:
            return None
        decisions = _decisions_of_rejected(self._plan.rejected_of)
        return [name for name, place in zip(decisions.files, decisions.places, strict=True) if place == self.place]

    def _is_json(self, opened: OpenInput) -> bool:
        """Whether the text is an array of objects, or has objects over several lines, or several on a line."""
        first, opened.chunks, _ = sample_of(opened.chunks, lines=1)
        if first.strip() == b"[":
            first, opened.chunks, _ = sample_of(opened.chunks, lines=2)
        text = first.lstrip()
        if text.startswith(b"["):
            return text[1:].lstrip()[:1] in (b"{", b"]") or suffix_of(opened.name) == "json"
        line = text.partition(b"\n")[0].rstrip()
        if not text.startswith(b"{"):
            return False
        return (b"\n" in text and not _is_object(line)) or any(map(holds_several, text.split(b"\n")))

    def _follow(self) -> OpenInput:
        path = Path(self._plan.source)
        if self._tail is None:
            found = following.find(path, self._at.inode)
            if found is None:
                raise SessionFileError(
                    f"the file that {self._plan.state} continues was rotated and is gone or compressed: {path.name} up "
                    f"to line {self._at.line - 1} is in the log. Choose: put it back under its name with .1 added; or "
                    f"--again to begin with what {path} has now"
                )
        else:
            before = following.find(path, self._tail.inode)
            found = path if before is None else following.after(path, before)
        self._tail = tail = following.Tail(path, found, self._stopped.wait)
        charset, chunks = as_utf8(tail.chunks(), self._plan.charset, self._plan.format)
        return OpenInput(self._plan.source, chunks, tail.close, self._plan.format, charset, latest_ms=tail.latest_ms)

    def _may_name_columns(self, opened: OpenInput, first: bytes) -> bool:
        """Whether the first line may have the names of columns, so that only the second shows what they hold."""
        if self._plan.header is False or (self._plan.columns and not self._plan.header):
            return False
        try:
            return (opened.format or detect(opened.name, first.partition(b"\n")[0])) in TABLES
        except InputError:
            return True

    def _decided(self, opened: OpenInput, first: bytes, is_whole: bool) -> InputDecision:
        pieces = [*pieces_of([first])]
        if len(pieces) > 1 and not is_whole and not pieces[-1].endswith(b"\n"):
            pieces.pop()
        sample = Sample(
            opened.name,
            pieces,
            opened.format,
            opened.charset,
            opened.compression,
            opened.columns,
            opened.latest_ms(),
            is_found=opened.name not in self._plan.sources,
            has_others=len(self.names) > 1,
        )
        return decide(sample, self._plan)

    def stop(self) -> None:
        """Ends waiting for more input."""
        self._stopped.set()

    close = stop


def _is_object(line: bytes) -> bool:
    try:
        rows.json_object(line)
    except ValueError as error:
        return str(error) == rows.TOO_DEEP
    return True


def source_of(plan: ImportPlan) -> str:
    """The name by which queries find the records: that of the first file or folder."""
    return plan.source if plan.source == STDIN else Path(plan.source).resolve().name


def _as_of(until: FilePosition, reading: InputOptions) -> InputOptions:
    """The reading of a batch that was read before, whose times without a year are not after those of then."""
    return (
        reading if reading.times is None else replace(reading, times=replace(reading.times, latest_ms=until.latest_ms))
    )


def _decisions_of_rejected(path: Path) -> ImportDecisions:
    """How the input was read whose rejected lines are to be imported. Raises SessionFileError."""
    state = read_state(path)
    if state is None:
        raise SessionFileError(f"{path} is not there: it says how the rejected lines are read")
    return as_decisions(state.about)


def _kinds_of_rejected(path: Path) -> FileKinds:
    found = [
        replace(kind, reading=replace(kind.reading, dialect=replace(kind.reading.dialect, header=False)))
        for kind in _decisions_of_rejected(path).kinds
    ]
    return FileKinds(tuple(found), tuple(range(len(found))))
