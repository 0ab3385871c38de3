"""Remembers where the cluster of `raftlog up` is, so that the next command in another terminal finds it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_PORT: Final = 7001
DEFAULT_ENDPOINTS: Final = tuple(f"http://127.0.0.1:{DEFAULT_PORT + number}" for number in range(3))
"""Where `raftlog up` puts three nodes if nobody says otherwise."""


class Running(msgspec.Struct, frozen=True):
    """A cluster that some `raftlog up` runs, as long as that process lives."""

    pid: int
    started: str  # when that process began, as the kernel tells it: a pid alone may be somebody else's by now
    endpoints: list[str]


_decode = msgspec.json.Decoder(Running).decode


def state_folder() -> Path:
    """Where it is kept, a file for each `raftlog up`: below the user's state folder (XDG_STATE_HOME)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "raftlog" / "clusters"


def remember(endpoints: list[str]) -> None:
    """This process runs a cluster there. Raises OSError."""
    file = _own_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    aside = file.with_suffix(".aside")
    aside.write_bytes(msgspec.json.encode(Running(pid, _started(pid), endpoints)) + b"\n")
    aside.replace(file)


def forget() -> None:
    """The cluster of this process is gone; another's is left alone."""
    _own_file().unlink(missing_ok=True)


def remembered() -> tuple[str, ...]:
    """The URLs of the cluster that runs, of the newest one if there are several; none if there is none."""
    alive: list[tuple[int, tuple[str, ...]]] = []
    for file in state_folder().glob("*.json"):
        with suppress(OSError):
            running = _read(file)
            if running is not None and _started(running.pid) == running.started:
                alive.append((file.stat().st_mtime_ns, tuple(running.endpoints)))
            else:
                file.unlink()  # of an `up` that was killed
    return max(alive, default=(0, ()))[1]


def _own_file() -> Path:
    return state_folder() / f"{os.getpid()}.json"


def _read(file: Path) -> Running | None:
    try:
        return _decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None  # nothing, or nothing of ours: then there is nothing to remember


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat; "" where there is no such process (or no /proc: then any is believed)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if Path("/proc/self/stat").exists() else "unknown"
