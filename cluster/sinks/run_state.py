"""Keeps what the newest run of a sink does, and why it stopped, in a file beside its settings: NAME.state."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from raftlog.cluster.runtime.file_errors import replace_file

RunPhase = Literal["running", "retrying", "stopped", "ended", "killed"]


class RunState(msgspec.Struct, frozen=True):
    """What a run in the process `pid` does; with an error if it is retrying or stopped."""

    state: RunPhase
    error: str
    pid: int


_decode: Final = msgspec.json.Decoder(RunState).decode


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
            found = _decode(self._path.read_bytes())
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
