"""The session file of an import: what is noted, durably, before each batch is sent.

With it an import that was killed at any point goes on exactly once: the noted batch is sent again under the same
session and sequence, and the state machine returns its first answer if it had been applied.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

NOTE_VERSION: Final = 1


class NoteError(Exception):
    """A session file that cannot be gone on with: says why, and what the choices are."""


class Acknowledged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far an import is certain. Offsets are bytes of the input, hashes SHA-256 (hex)."""

    sequence: int = 0  # of the newest batch that was answered
    offset: int = 0  # everything before it is answered
    line: int = 1  # the first line after it
    hash: str = ""  # of the input up to `offset`
    records: int = 0
    rejected: int = 0
    rejected_bytes: int = 0  # size of the file of rejected lines
    first: int | None = None  # index of the first record
    last: int | None = None  # index of the newest


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One import, and the batch that follows what is acknowledged: perhaps sent, perhaps not."""

    version: int
    input: str  # absolute path, or "-"
    format: str
    key: str | None
    time: str | None
    batch_lines: int
    log: str
    session: int
    acknowledged: Acknowledged
    next_sequence: int  # of the batch under way
    end: int  # where the batch ends
    end_hash: str  # of the input up to `end`
    done: bool = False


_decode = msgspec.json.Decoder(Note).decode


def read_note(path: Path) -> Note | None:
    """The note in the file, None without one. Raises NoteError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        note = _decode(data)
    except msgspec.MsgspecError as error:
        raise NoteError(f"{path} is not the session file of an import ({error}); name another with --state") from error
    if note.version != NOTE_VERSION:
        raise NoteError(f"{path} is of version {note.version}, this raftlog knows {NOTE_VERSION}; upgrade it")
    return note


def write_note(path: Path, note: Note) -> None:
    """Puts the note in the file, whole or not at all, and durably."""
    aside = path.with_name(f"{path.name}.new")
    with aside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(note)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def remove_note(path: Path) -> None:
    """Forgets the import."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes a rename or removal in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
