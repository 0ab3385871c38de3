"""Keeps the session file of an import or of a copy, which is written durably before each batch is sent.

`raftlog.cluster.importer.sources` writes it. A copy that was killed at any point continues exactly once: it sends the
noted batch again under the same session and sequence. If the batch had been applied, the state machine returns its
first answer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.client.once import WriterSession
from raftlog.cluster.importer.formats.schema import Schema
from raftlog.cluster.importer.source import SourceError
from raftlog.cluster.runtime.file_errors import replace_file, sync_folder

SESSION_FILE_VERSION: Final = 1

SCHEMA_SEQUENCE: Final = 1
"""The sequence under which each session puts its schema. Batches follow."""


class CopyStep(StrEnum):
    """Points between which a copy or an import may be killed, in their order."""

    OPENED = "opened"  # the session is open, nothing is noted
    BEGUN = "begun"  # the session is noted, the schema is not in the log
    DESCRIBED = "described"  # the schema is in the log, which is noted only with the next batch
    READ = "read"  # a batch is read and its rejected lines are written, nothing is noted
    NOTED = "noted"
    ANSWERED = "answered"  # the batch is acknowledged, which is noted only with the next
    FINISHED = "finished"  # everything is acknowledged, which is not noted
    CLOSED = "closed"


class SessionFileError(SourceError):
    """The import cannot continue with this session file. The message says why, and what the choices are."""


class SentBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that may have been sent. Without `records` the source gives them again, up to the position."""

    sequence: int
    position: Any
    records: list[NewRecord] | None = None


class CopyState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The acknowledged part of one copy, and the batch after it, counted over all runs."""

    version: int
    source: str
    log: str
    session: WriterSession | None = None
    described: int = 0  # the session whose schema is in the log
    schema: Schema | None = None  # of the session
    about: Any = None  # what the source decided when it began
    sequence: int = SCHEMA_SEQUENCE  # of the newest batch that was answered
    records: int = 0
    first: int | None = None  # index of the first record
    last: int | None = None  # index of the newest
    position: Any = None
    kept: SentBatch | None = None


_decode: Final = msgspec.json.Decoder(CopyState).decode


def read_state(path: Path) -> CopyState | None:
    """The state in the file; None if there is no file. Raises SessionFileError."""
    try:
        state = _decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise SessionFileError(
            f"{path} is not the session file of an import or a copy ({error}); name another, an import with --state"
        ) from error
    if state.version != SESSION_FILE_VERSION:
        raise SessionFileError(
            f"{path} is of version {state.version}, this raftlog knows {SESSION_FILE_VERSION}; upgrade it"
        )
    return state


class CopyNotes:
    """The state of a copy in memory, and in its file: `raftlog.cluster.client.once.Notes`."""

    def __init__(self, path: Path, state: CopyState, at: Callable[[CopyStep], None]) -> None:
        self._path = path
        self._at = at
        self.state = state

    def keep(self, **changed: Any) -> None:
        """Changes the state, and writes it durably, as a whole or not at all."""
        self.state = msgspec.structs.replace(self.state, **changed)
        try:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(self.state)) + b"\n", is_private=True)
        except FileNotFoundError as error:
            folder = self._path.parent
            why = f"{folder} takes no new files" if folder.is_dir() else f"there is no folder {folder}"
            raise SessionFileError(
                f"{self._path} cannot be written: {why}; name another, an import with --state"
            ) from error

    def read(self) -> WriterSession | None:
        """The session."""
        return self.state.session

    def replace(self, old: WriterSession | None, new: WriterSession) -> WriterSession:
        """Keeps a new session."""
        self._at(CopyStep.OPENED)
        self.keep(session=new)
        self._at(CopyStep.BEGUN)
        return new


def remove_state(path: Path) -> None:
    """Deletes the session file."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
