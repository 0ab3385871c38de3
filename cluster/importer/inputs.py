"""Opens inputs by name: files, folders, patterns and standard input; compressed, in any charset, in any format.

`raftlog.cluster.importer.importer` calls it. Every input becomes chunks of bytes: lines of UTF-8, or of any bytes where
the format needs no text. An input is read twice only where an import continues.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import lzma
import os
import select
import shlex
import shutil
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from raftlog.cluster.importer.formats import converting
from raftlog.cluster.importer.formats.dialect import UTF8, WINDOWS, charset_of
from raftlog.cluster.importer.formats.lines import InputColumn, InputError, InputFormat, suffix_of

STDIN: Final = "-"
CHUNK_BYTES: Final = 256 << 10
IDLE_S: Final = 0.2
"""How long a pipe or a followed file may have nothing new before a batch is sent as it is, in seconds."""

SAMPLE_BYTES: Final = 256 << 10
"""Bytes at the start of an input that decide its format, dialect and time, if a batch has not fewer."""

_HIDDEN, _LINKS = "hidden files and folders", "symbolic links"

OWN_FILES: Final = (".raftlog-import", ".rejected", ".raftlog-import.new")
"""Ends of the names of files that an import writes itself."""

_COMPRESSIONS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_ZIP: Final = b"PK\x03\x04"
_OLE: Final = b"\xd0\xcf\x11\xe0"  # .xls until 2007
_SPREADSHEETS: Final = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
_PARQUET: Final = b"PAR1"
_ARROW: Final = (b"ARROW1", b"\xff\xff\xff\xff")


def expand(names: Sequence[str], tell: Callable[[str], None] = lambda _: None) -> list[str]:
    """The files of folders and patterns, in the order of their names, each once. Raises InputError, OSError.

    As `rg` and `fd` do, it takes nothing hidden and follows no link inside a folder; `tell` gets how many these are.
    """
    found: list[str] = []
    for name in names:
        path = Path(name)
        left: Counter[str] = Counter()
        if name == STDIN:
            if len(names) > 1:
                raise InputError("- is standard input: it cannot be imported together with files")
            found.append(name)
            continue
        if path.is_dir():
            inside, missing = _inside(path, left), "the folder has no file to import"
        elif not path.exists() and glob.has_magic(name):
            inside, missing = [], "no file matches the pattern"
            for each in glob.glob(name, recursive=True):
                _sort(each, inside, left, may_link=True)
        else:
            found.append(name)
            continue
        left_out = ", ".join(f"{what} ({count})" for what, count in left.items())
        if not inside:
            raise InputError(f"{name}: {missing}{f'; left out: {left_out}' if left_out else ''}")
        if left_out:
            tell(f"{name}: left out: {left_out}; name a path to import it")
        found += sorted(inside)
    return _once(found)


def _inside(folder: Path, left: Counter[str]) -> list[str]:
    def fail(error: OSError) -> None:
        raise error

    inside: list[str] = []
    for place, folders, files in os.walk(folder, onerror=fail):
        hidden = [each for each in folders if each.startswith(".")]
        links = [each for each in folders if each not in hidden and os.path.islink(os.path.join(place, each))]
        left += Counter({_HIDDEN: len(hidden), _LINKS: len(links)})
        folders[:] = [each for each in folders if each not in hidden]
        for each in files:
            if each.startswith("."):
                left[_HIDDEN] += 1
            else:
                _sort(os.path.join(place, each), inside, left, may_link=False)
    return inside


def _sort(path: str, inside: list[str], left: Counter[str], *, may_link: bool) -> None:
    """Puts a path among the files, or counts it among those that are left out."""
    if path.endswith(OWN_FILES):
        left["notes of imports"] += 1
    elif not may_link and os.path.islink(path):
        left[_LINKS] += 1
    elif os.path.isfile(path):
        inside.append(path)
    elif not os.path.isdir(path):
        left["sockets, pipes and devices"] += 1


def _once(names: Sequence[str]) -> list[str]:
    """The names without those of a file that an earlier name means too, by a link or another path."""
    once: dict[Any, str] = {}
    for name in names:
        try:
            status = os.stat(name)
        except OSError:
            once.setdefault(name, name)  # the import says why it cannot be opened
        else:
            once.setdefault((status.st_dev, status.st_ino), name)
    return [*once.values()]


@dataclass(slots=True)
class OpenInput:
    """An open input. `chunks` ends with the input; an empty chunk means that there is no more for now.

    `columns`: of a format that brings its own. `seen` is a function: the bytes of the file that were read, before any
    decompression, of `size`. `latest_ms` gives the age of the file in Unix milliseconds, of a pipe the time of now.
    """

    name: str
    chunks: Iterator[bytes]
    close: Callable[[], None]
    format: InputFormat | None = None
    charset: str = UTF8
    compression: str | None = None
    columns: tuple[InputColumn, ...] = ()
    size: int | None = None
    seen: Callable[[], int] = field(default=lambda: 0)
    latest_ms: Callable[[], int] = field(default=lambda: round(time.time() * 1000))


def open_input(
    name: str, stdin: BinaryIO, format: InputFormat | None, charset: str | None, stopped: threading.Event
) -> OpenInput:
    """Opens a file or standard input. Raises InputError, OSError. Waiting for a pipe ends when `stopped` is set."""
    raw = stdin if name == STDIN else Path(name).open("rb", buffering=0)  # noqa: SIM115  # `OpenInput.close`
    try:
        counted = _CountingStream(raw)
        head = counted.peek(6)
        compression = next((found for mark, found in _COMPRESSIONS.items() if head.startswith(mark)), None)
        if head.startswith((_ZIP, _OLE)) and format is None and Path(name).suffix.lower() in _SPREADSHEETS:
            raise InputError("a spreadsheet: save each sheet as CSV, and import that file")
        if head.startswith(_ZIP) and format is None:
            raise InputError(f"a zip archive: unzip it, or: unzip -p {shlex.quote(name)} | raftlog import - …")
        peeked = _CountingStream(_decompressed(counted, compression))
        with _damage_told():
            first = peeked.peek(6)  # also takes over the bytes of an earlier peek, so that a wait for a pipe sees them
        container = _container(name, first)
        if container is not None and format not in (None, container, InputFormat.LINES):
            raise InputError(f"{container.value} by its first bytes: leave out --format {format.value}")
        format = format or container
        opened = OpenInput(name, iter(()), raw.close, format, UTF8, compression)
        opened.seen = counted.tell
        if name != STDIN:
            with suppress(OSError):
                status = Path(name).stat()
                opened.size, opened.latest_ms = status.st_size, lambda: round(status.st_mtime * 1000)
        if format in (InputFormat.PARQUET, InputFormat.ARROW):
            lines = converting.parquet_lines if format is InputFormat.PARQUET else converting.arrow_lines
            table = _seekable(raw, peeked, compression, name)
            opened.columns, opened.chunks = lines(table)
            opened.close = table.close
            opened.size = None
            return opened
        wait = _waiter(raw) if name == STDIN and compression is None else None
        chunks = _told(_chunks(peeked, wait, stopped))
        opened.charset, opened.chunks = as_utf8(chunks, charset, format)
        return opened
    except BaseException:
        raw.close()
        raise


def _container(name: str, head: bytes) -> InputFormat | None:
    suffix = suffix_of(name)
    if head.startswith(_PARQUET):
        return InputFormat.PARQUET
    if head.startswith(_ARROW[0]) or (suffix in ("arrow", "arrows", "feather", "ipc") and head.startswith(_ARROW)):
        return InputFormat.ARROW
    return None


class _CountingStream(io.RawIOBase):
    """A stream that counts the bytes read, and whose first bytes can be looked at."""

    def __init__(self, source: Any) -> None:
        self._read = getattr(source, "read1", source.read)
        self._head = b""
        self._count = 0

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        """At least `size` bytes from here, unless the stream is shorter."""
        while len(self._head) < size and (more := self._read(CHUNK_BYTES)):
            self._head += more
        return self._head

    @property
    def has_head(self) -> bool:
        """Whether bytes that were looked at are still to be read."""
        return bool(self._head)

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size`; as many as there are at once."""
        if size < 0:
            size = CHUNK_BYTES
        if self._head:
            found, self._head = self._head[:size], self._head[size:]
        else:
            found = self._read(size) or b""
        self._count += len(found)
        return found

    def tell(self) -> int:
        """The number of bytes read."""
        return self._count


def _decompressed(source: _CountingStream, compression: str | None) -> Any:
    """A stream of the bytes that the source holds. Raises ModuleNotFoundError for zstd without pyarrow."""
    file = cast(BinaryIO, source)
    match compression:
        case "gzip":
            return gzip.GzipFile(fileobj=file, mode="rb")
        case "bzip2":
            return bz2.BZ2File(file)
        case "xz":
            return lzma.LZMAFile(file)
        case "zstd":
            import pyarrow

            return pyarrow.CompressedInputStream(pyarrow.PythonFile(source, mode="r"), "zstd")
        case _:
            return source


def _seekable(raw: BinaryIO, source: _CountingStream, compression: str | None, name: str) -> BinaryIO:
    """The file itself, or a copy of its decompressed bytes. Raises InputError for standard input."""
    if name == STDIN:
        raise InputError("Parquet and Arrow cannot be read from standard input: save the input to a file")
    if compression is None:
        raw.seek(0)
        return raw
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # the same
    shutil.copyfileobj(cast(BinaryIO, source), copy, CHUNK_BYTES)
    copy.seek(0)
    raw.close()
    return cast(BinaryIO, copy)


def _waiter(raw: BinaryIO) -> Callable[[], bool] | None:
    """A function that waits for bytes of a pipe for `IDLE_S`, and returns whether there are some."""
    try:
        descriptor = raw.fileno()
    except (AttributeError, OSError):
        return None
    return lambda: bool(select.select([descriptor], [], [], IDLE_S)[0])


def _chunks(source: _CountingStream, wait: Callable[[], bool] | None, stopped: threading.Event) -> Iterator[bytes]:
    while True:
        if wait is not None and not source.has_head and not wait():
            if stopped.is_set():
                return
            yield b""
            continue
        if not (chunk := source.read(CHUNK_BYTES)):
            return
        yield chunk


@contextmanager
def _damage_told() -> Iterator[None]:
    """Turns an error of decompression into an InputError."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise InputError(f"the compressed file is damaged or cut: {error}; get it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise InputError(f"the compressed file is damaged or cut: {error}; get it again") from error


def _told(chunks: Iterator[bytes]) -> Iterator[bytes]:
    with _damage_told():
        yield from chunks


def as_utf8(chunks: Iterator[bytes], charset: str | None, format: InputFormat | None) -> tuple[str, Iterator[bytes]]:
    """The charset and the chunks in UTF-8, without a byte order mark."""
    sample, chunks, is_whole = sample_of(chunks, lines=0 if format is InputFormat.JSON else 1)
    found, mark = charset_of(sample, is_whole)
    if charset is None and found == WINDOWS and format in (InputFormat.LINES, InputFormat.ACCESS):
        found = UTF8  # these formats keep any bytes
    if charset is not None:
        try:
            with suppress(UnicodeError):
                b"a".decode(charset)  # lookup finds base64 too
            charset = codecs.lookup(charset).name
        except LookupError as error:
            raise InputError(f"--charset {charset}: no such charset; write utf-8, windows-1252, utf-16, …") from error
        mark = mark if found.startswith(charset) else 0  # utf-16 is either order
        found = {"cp1252": WINDOWS}.get(charset, charset)
    if found == UTF8:
        return found, _without(chunks, mark) if mark else chunks
    return found, _decoded(_without(chunks, mark) if found != "utf-16" else chunks, found)


def _without(chunks: Iterator[bytes], mark: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[mark:]
        mark = max(0, mark - len(chunk))


def _decoded(chunks: Iterable[bytes], charset: str) -> Iterator[bytes]:
    errors = "raftlog-undefined" if charset == WINDOWS else "strict"
    decoder = codecs.getincrementaldecoder(charset)(errors)
    lines = 0
    try:
        for chunk in chunks:
            text = decoder.decode(chunk)
            lines += text.count("\n")
            yield text.encode("utf-8", "surrogatepass")
        if rest := decoder.decode(b"", final=True):
            yield rest.encode("utf-8", "surrogatepass")
    except UnicodeError as error:
        raise InputError(f"line {lines + 1} or later is not {charset}: {error}; give --charset") from error


def sample_of(chunks: Iterator[bytes], lines: int) -> tuple[bytes, Iterator[bytes], bool]:
    """The first bytes, all chunks again, and whether the first bytes are the whole input.

    They are `SAMPLE_BYTES`, or all that there is for now, but at least `lines` lines: a pause of the writer in the
    middle of a line, or behind the names of columns, decides nothing.
    """
    first: list[bytes] = []
    total = ends = 0
    for chunk in chunks:
        if chunk:
            first.append(chunk)
            total += len(chunk)
            ends += chunk.count(b"\n")
        if total >= SAMPLE_BYTES or (not chunk and total and ends >= lines):
            return b"".join(first), _again([*first, chunk] if not chunk else first, chunks), False
    return b"".join(first), iter(first), True


def _again(first: Sequence[bytes], chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield from first
    yield from chunks
