"""Remembers the cluster of `raftlog up`, so that the next command in another terminal finds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from raftlog.cluster.security.bearer import TOKEN_FILE_VARIABLE, TOKEN_VARIABLES
from raftlog.cluster.security.tls import TlsFiles

DEFAULT_PORT: Final = 7001
DEFAULT_ENDPOINTS: Final = tuple(f"http://127.0.0.1:{DEFAULT_PORT + number}" for number in range(3))
"""The default ports of `raftlog up` with three nodes."""


class RunningCluster(msgspec.Struct, frozen=True):
    """A cluster that a `raftlog up` runs, as long as that process lives."""

    pid: int
    started: str  # when that process began, by the kernel: the pid may be reused
    endpoints: list[str]
    is_beside: bool = False  # true: an older cluster ran, to which commands go by default
    tls: TlsFiles | None = None  # of a client, for https endpoints
    token_file: str = ""  # of the first admin, with access control

    def use_files(self) -> None:
        """Names the cluster's files in this process's environment. A variable that is set already stays."""
        if self.tls is not None:
            self.tls.to_environment()
        if self.token_file and not any(map(os.environ.get, TOKEN_VARIABLES)):
            os.environ[TOKEN_FILE_VARIABLE] = self.token_file


class Ambiguous(Exception):
    """The cluster that commands found by default has ended, and others run. `endpoints` are theirs."""

    def __init__(self, endpoints: list[str]) -> None:
        super().__init__(
            f"the cluster that commands use by themselves has ended; another one runs at {', '.join(endpoints)}"
        )
        self.endpoints = endpoints


_decode = msgspec.json.Decoder(RunningCluster).decode


def state_folder() -> Path:
    """The folder with a file for each `raftlog up`: below the user's state folder (XDG_STATE_HOME)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "raftlog" / "clusters"


def remember(endpoints: list[str], tls: TlsFiles | None = None, token_file: str = "") -> tuple[str, ...]:
    """This process runs a cluster there, which clients reach with these files. Returns the URLs of an older cluster, to
    which commands still go; none if they go to this one. Raises OSError."""
    file = _own_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    others = [each for each in _alive() if each.pid != pid]
    first = next((tuple(each.endpoints) for each in others if not each.is_beside), ())
    aside = file.with_suffix(".aside")
    running = RunningCluster(pid, _started(pid), endpoints, is_beside=bool(first), tls=tls, token_file=token_file)
    aside.write_bytes(msgspec.json.encode(running) + b"\n")
    aside.replace(file)
    return first


def forget() -> None:
    """The cluster of this process has ended. Leaves another's entry alone."""
    _own_file().unlink(missing_ok=True)


def remembered() -> tuple[RunningCluster | None, list[str]]:
    """The running cluster, None if there is none; and an endpoint of each other one.

    Of several the oldest counts, so that starting another one changes nothing for reads. Raises Ambiguous if only
    clusters run that were started beside one that has ended.
    """
    alive = _alive()
    for running in alive:
        if not running.is_beside:
            return running, [each.endpoints[0] for each in alive if each is not running]
    if alive:
        raise Ambiguous([each.endpoints[0] for each in alive])
    return None, []


def running_at(urls: Sequence[str]) -> RunningCluster | None:
    """The running cluster that has one of these URLs: others may be of nodes that joined it."""
    return next((each for each in _alive() if {*urls} & {*each.endpoints}), None)


def _alive() -> list[RunningCluster]:
    """The running clusters, the oldest first. Removes the files of those that were killed."""
    alive: list[tuple[int, RunningCluster]] = []
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


def _read(file: Path) -> RunningCluster | None:
    try:
        return _decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None  # no file, or a foreign one: no cluster is remembered


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat; "" if there is no such process (or no /proc: then any pid counts as alive)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if Path("/proc/self/stat").exists() else "unknown"
