"""Reads the trace files of the preload library: one value for each call.

A process that was killed may leave half a record at the end of its file: its caller never learned of that call.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

MAGIC: Final = 0x314D4853
_HEAD: Final = Struct("<IIQIIiIIIQQIIQ")  # struct head of shim.c
_BEGIN, _INJECTED, _ZEROS = 1, 2, 4


class CallKind(IntEnum):
    """The recorded calls. The numbers are those of shim.c; pwritev counts as pwrite, writev as write."""

    PWRITE = 1
    WRITE = 2
    FTRUNCATE = 3
    ALLOCATE = 4  # posix_fallocate
    FSYNC = 5
    FDATASYNC = 6
    RENAME = 7
    UNLINK = 8
    CREATE = 9
    MKDIR = 10
    RMDIR = 11


class Action(IntEnum):
    """What a rule did to a call. The numbers are those of shim.c."""

    NONE = 0
    ERROR = 1
    DELAY = 2
    HANG = 3
    KILL_BEFORE = 4
    KILL_AFTER = 5
    KILL_HALF = 6


class Call(NamedTuple):
    """One call on a watched file."""

    time_ns: int  # CLOCK_MONOTONIC, of all processes
    pid: int
    kind: CallKind
    path: str
    to: str  # of a rename
    offset: int
    length: int
    error: int  # errno, 0 where it succeeded
    is_begin: bool  # a sync that begins, a delay that begins, or a kill before the call
    rule: int  # of the driver's rules, 0: none
    action: Action
    serial: int  # joins the begin and the end of a sync
    data: bytes | None  # the written bytes; None: zeros, or nothing


def read_trace(file: Path) -> Iterator[Call]:
    """The whole records of one trace file, in the order in which the calls took effect."""
    pid = int(file.stem.partition("-")[0])
    with file.open("rb") as trace:
        while len(packed := trace.read(_HEAD.size)) == _HEAD.size:
            head = _HEAD.unpack(packed)
            magic, size, path, to, data = head[0], head[1], *head[11:]
            rest = trace.read(size - _HEAD.size + data)
            if magic != MAGIC or len(rest) != path + to + data:
                return
            yield _call(pid, head, rest)


def _call(pid: int, head: tuple[Any, ...], rest: bytes) -> Call:
    """From the head of a record and what follows it: two paths, and the bytes written unless they are left out."""
    _, _, time_ns, kind, flags, error, rule, action, serial, offset, length, path, to, _ = head
    return Call(
        time_ns,
        pid,
        CallKind(kind),
        _text(rest[:path]),
        _text(rest[path : path + to]),
        offset,
        length,
        error,
        bool(flags & _BEGIN),
        rule,
        Action(action),
        serial,
        rest[path + to :] or None,
    )


class Cursor:
    """Reads trace files that still grow, each from its last position: the changed calls, without the bytes written."""

    def __init__(self) -> None:
        self._at: dict[Path, int] = {}

    def injected(self, file: Path) -> list[Call]:
        """The calls to which a rule did something, since it was last asked for."""
        pid = int(file.stem.partition("-")[0])
        found: list[Call] = []
        position, end = self._at.get(file, 0), file.stat().st_size
        with file.open("rb") as trace:
            while position + _HEAD.size <= end:
                trace.seek(position)
                head = _HEAD.unpack(trace.read(_HEAD.size))
                magic, size, data = head[0], head[1], head[13]
                if magic != MAGIC or position + size + data > end:
                    break
                if head[4] & _INJECTED:
                    found.append(_call(pid, head, trace.read(size - _HEAD.size)))
                position += size + data
        self._at[file] = position
        return found


def in_order(folder: Path) -> list[Path]:
    """The trace files of a folder, by the time of their first record: a process is started after the one before."""
    firsts = [(next(read_trace(file), None), file) for file in folder.glob("*.trace")]
    return [file for call, file in sorted(((call.time_ns, file) for call, file in firsts if call is not None))]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
