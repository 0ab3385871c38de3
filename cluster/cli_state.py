"""Remembers where the cluster of `raftlog up` is, so that the next command in another terminal finds it."""

from __future__ import annotations

import os
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


def state_file() -> Path:
    """Where it is kept: the user's state folder (XDG_STATE_HOME)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "raftlog" / "cluster.json"


def remember(endpoints: list[str]) -> None:
    """This process runs a cluster there."""
    file = state_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    aside = file.with_name(f"{file.name}.{pid}")
    aside.write_bytes(msgspec.json.encode(Running(pid, _started(pid), endpoints)) + b"\n")
    aside.replace(file)


def forget() -> None:
    """The cluster of this process is gone; another's is left alone."""
    if (running := _read()) is not None and running.pid == os.getpid():
        state_file().unlink(missing_ok=True)


def remembered() -> tuple[str, ...]:
    """The URLs of the cluster that runs, none if there is none."""
    running = _read()
    if running is None or _started(running.pid) != running.started:
        return ()
    return tuple(running.endpoints)


def _read() -> Running | None:
    try:
        return msgspec.json.decode(state_file().read_bytes(), type=Running)
    except (OSError, msgspec.MsgspecError):
        return None  # nothing, or nothing of ours: then there is nothing to remember


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat; "" where there is no such process (or no /proc: then any is believed)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if Path("/proc/self/stat").exists() else "unknown"
