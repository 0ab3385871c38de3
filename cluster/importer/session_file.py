"""Keeps the session file of an import, which is written durably before each batch is sent.

`raftlog.cluster.importer.importer` uses it. An import that was killed at any point continues exactly once: it sends the
noted batch again under the same session and sequence. If the batch had been applied, the state machine returns its
first answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.cluster.importer.formats.lines import InputOptions
from raftlog.cluster.importer.kinds import FileKind
from raftlog.cluster.runtime.file_errors import replace_file, sync_folder

SESSION_FILE_VERSION: Final = 2
"""Version 1 has neither files nor a reading: the import of one file, without a schema in the log."""

FIRST_VERSION: Final = 1


class SessionFileError(Exception):
    """The import cannot continue with this session file. The message says why, and what the choices are."""


class Acknowledged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The acknowledged part of an import. Offsets are bytes of the current file, hashes SHA-256 (hex)."""

    sequence: int = 0  # of the newest batch that was answered
    offset: int = 0  # everything before it is answered
    line: int = 1  # the first line after it
    hash: str = ""  # of the file up to `offset`
    records: int = 0
    rejected: int = 0
    rejected_bytes: int = 0  # size of the file of rejected lines
    first: int | None = None  # index of the first record
    last: int | None = None  # index of the newest
    file: int = 0  # the number of files that are acknowledged to their ends
    inode: int = 0  # of the current file, while it is followed
    without_time: int = 0  # records whose time could not be read


class ImportSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One import, and the batch after the acknowledged part; that batch may have been sent."""

    version: int
    input: str  # absolute path, or "-"; several with line feeds between them
    format: str
    key: str | None
    time: str | None
    batch_lines: int
    log: str
    session: int
    acknowledged: Acknowledged
    next_sequence: int  # of the batch under way
    end: int  # where the batch ends
    end_hash: str  # of the file up to `end`
    done: bool = False
    files: tuple[str, ...] = ()  # as they were when the import began
    reading: InputOptions | None = None  # as it was decided; its `times.latest_ms` is of the batch under way
    options: dict[str, Any] = {}  # further options that the same command must have
    kinds: tuple[FileKind, ...] = ()  # how the files are read
    places: tuple[int, ...] = ()  # the kind of each file


_decode = msgspec.json.Decoder(ImportSession).decode


def read_session(path: Path) -> ImportSession | None:
    """The note in the file; None if there is no file. Raises SessionFileError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        note = _decode(data)
    except msgspec.MsgspecError as error:
        raise SessionFileError(
            f"{path} is not the session file of an import ({error}); name another with --state"
        ) from error
    if not FIRST_VERSION <= note.version <= SESSION_FILE_VERSION:
        raise SessionFileError(
            f"{path} is of version {note.version}, this raftlog knows {SESSION_FILE_VERSION}; upgrade it"
        )
    return note


def write_session(path: Path, note: ImportSession) -> None:
    """Writes the note into the file durably, as a whole or not at all."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(note)) + b"\n", is_private=True)


def remove_session(path: Path) -> None:
    """Deletes the session file."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
