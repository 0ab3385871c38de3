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
    started: str  # when that process began, as the kernel says: the same pid may be another process by now
    endpoints: list[str]
    is_beside: bool = False  # another one ran already: commands go to that one, and reach this one only by its URL


class Ambiguous(Exception):
    """The cluster that commands found by themselves has ended, and others run. `endpoints` are theirs."""

    def __init__(self, endpoints: list[str]) -> None:
        super().__init__(
            f"the cluster that commands use by themselves has ended; another one runs at {', '.join(endpoints)}"
        )
        self.endpoints = endpoints


_decode = msgspec.json.Decoder(Running).decode


def state_folder() -> Path:
    """Where it is kept, a file for each `raftlog up`: below the user's state folder (XDG_STATE_HOME)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "raftlog" / "clusters"


def remember(endpoints: list[str]) -> tuple[str, ...]:
    """This process runs a cluster there. Returns the URLs of an older one, with which commands stay; none where they go
    to this one. Raises OSError."""
    file = _own_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    others = [each for each in _alive() if each.pid != pid]
    first = next((tuple(each.endpoints) for each in others if not each.is_beside), ())
    aside = file.with_suffix(".aside")
    running = Running(pid, _started(pid), endpoints, is_beside=bool(first))
    aside.write_bytes(msgspec.json.encode(running) + b"\n")
    aside.replace(file)
    return first


def forget() -> None:
    """The cluster of this process is gone; another's is left alone."""
    _own_file().unlink(missing_ok=True)


def remembered() -> tuple[str, ...]:
    """The URLs of the cluster that runs; of several the oldest one, so that starting another one changes nothing. None
    if there is none. Raises Ambiguous where only clusters run that were started beside one that has ended."""
    alive = _alive()
    for running in alive:
        if not running.is_beside:
            return tuple(running.endpoints)
    if alive:
        raise Ambiguous([each.endpoints[0] for each in alive])
    return ()


def _alive() -> list[Running]:
    """The clusters that run, the oldest first; files of those that were killed are removed."""
    alive: list[tuple[int, Running]] = []
    for file in state_folder().glob("*.json"):
        with suppress(OSError):
            running = _read(file)
            if running is not None and _started(running.pid) == running.started:
                alive.append((file.stat().st_mtime_ns, running))
            else:
                file.unlink()
    return [running for _, running in sorted(alive, key=lambda each: each[0])]


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
