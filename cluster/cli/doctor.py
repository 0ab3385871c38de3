"""Defines the command that looks at a machine before a node runs on it, and says how to improve what it finds."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import typer

from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit
from raftlog.cluster.cli.frame.output import view
from raftlog.cluster.config.cluster_file import split_address
from raftlog.cluster.config.settings import LimitSettings, LoadedSettings, load_settings
from raftlog.cluster.runtime import build, interpreter

commands = Commands()
register = commands.register

FILES: Final = 65_536
"""Open files for all connections that a node takes as shipped (docs/production.md)."""
FREE_BYTES: Final = 2 << 30
"""Below that a log has little room: segments, two snapshots and the reserve."""
SYNCS: Final = 200
SYNC_BYTES: Final = 4_096
JAVA: Final = 17
_TIME_ERROR: Final = 5  # of adjtimex(2): no time server sets this clock
_TIMEX_BYTES: Final = 256  # at least as long as struct timex
_VOLATILE: Final = ("tmpfs", "ramfs", "overlay")
_SHARED: Final = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs")

FINDING: Final = view("check", "state", "found", "do", raw="found")


class CheckFound(NamedTuple):
    """What a check found. A hint costs speed or a feature; a problem keeps a node from working well."""

    check: str
    state: Literal["ok", "hint", "problem"]
    found: str
    do: str = ""


def judged(check: str, found: str, *, is_fine: bool, do: str, state: Literal["hint", "problem"] = "hint") -> CheckFound:
    """A finding: `ok` where it is fine, else of that state with what to do."""
    return CheckFound(check, "ok", found) if is_fine else CheckFound(check, state, found, do)


def look_at_python() -> Iterator[CheckFound]:
    """The interpreter's build, the modules, and the event loop."""
    facts = build.facts()
    yield judged(
        "python",
        interpreter.describe(),
        is_fine=interpreter.is_optimised(),
        do="use a Python of your distribution, or build it with --enable-optimizations: a quarter faster",
    )
    yield judged(
        "modules",
        f"raftlog {facts['version']}, {facts['modules']}",
        is_fine=facts["modules"] == "compiled",
        do="install the wheel with compiled modules for this platform, if there is one",
    )
    has_loop = find_spec("uvloop") is not None
    yield judged(
        "uvloop",
        "installed" if has_loop else "not installed",
        is_fine=has_loop,
        do="pip install 'raftlog[fast]': a quicker event loop",
    )


def look_at_machine() -> Iterator[CheckFound]:
    """Processors, open files, and the clock."""
    processors = len(os.sched_getaffinity(0))
    yield judged(
        "processors",
        str(processors),
        is_fine=processors > 1,
        do="give a node two: the disk and the event loop work at the same time",
    )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    has_no_bound = files == resource.RLIM_INFINITY
    yield judged(
        "open files",
        "no bound" if has_no_bound else str(files),
        is_fine=has_no_bound or files >= FILES,
        do=f"LimitNOFILE={FILES} in the unit, or ulimit -Hn {FILES}: clients wait for a connection else",
    )
    state = clock_state()
    if state is not None:
        is_set = state != _TIME_ERROR
        yield judged(
            "clock",
            "set by a time server" if is_set else "no time server sets it",
            is_fine=is_set,
            do="run chrony or systemd-timesyncd: a leader whose clock is off hands over",
        )


def clock_state() -> int | None:
    """What adjtimex(2) returns; None where there is no such call."""
    with suppress(OSError, AttributeError):
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
        return state if state >= 0 else None
    return None


def look_at_disk(folder: Path, slow_s: float) -> Iterator[CheckFound]:
    """Free space, the kind of file system, and the time of a sync, in a folder or the nearest one above it."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    yield judged(
        "disk space",
        f"{free >> 20} MiB free in {folder}",
        is_fine=free >= FREE_BYTES,
        do="give the data folder a file system of its own, with room for the log",
        state="problem",
    )
    kind = file_system(folder.resolve(), Path("/proc/mounts").read_text("utf-8"))
    why = "is lost with the machine or container" if kind in _VOLATILE else "syncs by the network"
    yield judged(
        "file system",
        kind,
        is_fine=kind not in _VOLATILE + _SHARED,
        do=f"put the data folder on a local disk: {kind} {why}",
        state="problem",
    )
    try:
        times = sync_times(folder)
    except OSError as error:
        yield CheckFound(
            "disk syncs", "problem", str(error), f"let this user write into {folder}, or name another --data"
        )
        return
    median, slowest = times[len(times) // 2], times[len(times) * 99 // 100]
    yield judged(
        "disk syncs",
        f"p50 {median * 1e3:.2f} ms, p99 {slowest * 1e3:.2f} ms",
        is_fine=median < slow_s,
        do="use an SSD with power-loss protection: each write waits for a sync of a majority",
        state="problem",
    )


def file_system(folder: Path, mounts: str) -> str:
    """The kind of the file system that a folder is on, by the text of /proc/mounts."""
    places = [line.split()[1:3] for line in mounts.splitlines()]
    found = [(place, kind) for place, kind in places if folder.is_relative_to(place.replace("\\040", " "))]
    return max(found, key=lambda each: len(each[0]), default=("", "unknown"))[1]


def sync_times(folder: Path) -> list[float]:
    """The times of some writes with fdatasync each, in seconds, sorted. Raises OSError."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, SYNCS * SYNC_BYTES)
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), os.urandom(SYNC_BYTES), number * SYNC_BYTES)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return sorted(times)


def look_at_addresses(loaded: LoadedSettings) -> Iterator[CheckFound]:
    """Whether a node with these settings could listen now."""
    own = loaded.cluster.of(loaded.settings.node) if loaded.cluster else None
    addresses = {
        "http.listen": loaded.settings.http.listen,
        "http.probe_listen": loaded.settings.http.probe_listen,
        "peer.listen": loaded.settings.peer.listen or (own.peer if own else ""),
    }
    for key, address in addresses.items():
        if not address:
            continue
        try:
            with socket.create_server(split_address(address, key)):
                yield CheckFound(key, "ok", f"{address} is free")
        except OSError as error:
            reason = error.strerror or str(error)
            yield CheckFound(key, "problem", f"{address}: {reason}", "stop what listens there, or set another address")


def look_at_java() -> Iterator[CheckFound]:
    """Java, for Spark alone."""
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    advice = f"install Java {JAVA} or newer for Spark; `raftlog query` and `raftlog export` need none"
    try:
        said = subprocess.run([path or "java", "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        yield CheckFound("java", "hint", "not found", advice)
        return
    version = said.stderr.partition('"')[2].partition('"')[0]
    first = version.split(".")[0]
    yield judged("java", version, is_fine=first.isdigit() and int(first) >= JAVA, do=advice)


@commands("doctor")
def doctor_command(
    cli: Cli,
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings of a node: its addresses are tried, and its disk.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="A folder on the disk for the data.")] = None,
) -> None:
    """Look at this machine before a node runs on it: Python, files, clock, disk, addresses, Java.

    Each row has a finding and what to do. It writes a small file on the disk for a moment. Exit code 1 if there
    is a problem; a hint is none.
    """
    loaded = load_settings(config, os.environ) if config is not None else None
    folder = data or (loaded.data if loaded is not None else Path.cwd())
    slow_s = (loaded.settings.limits if loaded is not None else LimitSettings()).disk_slow_ms / 1_000
    looks: list[Callable[[], Iterator[CheckFound]]] = [
        look_at_python,
        look_at_machine,
        lambda: look_at_disk(folder.absolute(), slow_s),
        *([lambda: look_at_addresses(loaded)] if loaded is not None else []),
        look_at_java,
    ]
    found = [each for look in looks for each in look()]
    cli.printer.all([each._asdict() for each in found], FINDING)
    problems = [each.check for each in found if each.state == "problem"]
    if problems:
        raise CommandFailed(f"{len(problems)} of {len(found)} need you: {', '.join(problems)}", Exit.FAILURE)
