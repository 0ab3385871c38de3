"""Keeps two files beside a sink's settings: the changes that its store does not take, and what its newest run does.

NAME.rejected has a line of NDJSON for each change, with index, key and reason. NAME.state has the state of the run, and
why it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from raftlog.cluster.runtime.file_errors import naming, replace_file


class Rejected(msgspec.Struct, frozen=True):
    """A rejected change."""

    index: int
    key: str
    reason: str


_decode: Final = msgspec.json.Decoder(Rejected).decode


class Rejects:
    """The file of rejected changes of one sink. A change is there once, also after a kill and a repetition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[tuple[int, str]] | None = None

    def read(self) -> list[Rejected]:
        """All of them. Raises OSError, ValueError."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [_decode(line) for line in lines[:-1]]  # a torn line has no end

    def add(self, index: int, key: str, reason: str) -> None:
        """Appends one durably. Raises OSError, which names the file."""
        if self._known is None:
            found = self.read()
            self.replace(found)  # without a line that a crash left torn
            self._known = {(each.index, each.key) for each in found}
        if (index, key) in self._known:
            return
        with naming(self.path), self.path.open("ab") as file:
            file.write(msgspec.json.encode(Rejected(index, key, reason)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._known.add((index, key))

    def replace(self, rejected: Iterable[Rejected]) -> None:
        """Keeps these and no others, durably. Raises OSError."""
        replace_file(self.path, b"".join(msgspec.json.encode(each) + b"\n" for each in rejected))
        self._known = None


RunPhase = Literal["running", "retrying", "stopped", "ended", "killed"]


class RunState(msgspec.Struct, frozen=True):
    """What a run in the process `pid` does; with an error if it is retrying or stopped."""

    state: RunPhase
    error: str
    pid: int


_decode_state: Final = msgspec.json.Decoder(RunState).decode


class RunStateFile:
    """The file of one sink."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: tuple[RunPhase, str] | None = None

    def keep(self, state: RunPhase, error: str) -> None:
        """Writes a state that is another one than before. Where the folder takes no file, the sink goes on without."""
        if self._kept != (state, error):
            self._kept = state, error
            made = RunState(state, error, os.getpid())
            with suppress(OSError):
                replace_file(self._path, msgspec.json.encode(made) + b"\n")

    def read(self) -> RunState | None:
        """The newest state; None if no run wrote one here. A run whose process has gone is `killed`."""
        with suppress(OSError, msgspec.MsgspecError):
            found = _decode_state(self._path.read_bytes())
            if found.state in ("running", "retrying") and not _is_alive(found.pid):
                return msgspec.structs.replace(found, state="killed")
            return found
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True
