"""Turns values of answers into text and rows, and names the command that installs a missing package."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

_MENDS: Final = {
    errno.ENOSPC: "free disk space, and run the command again",
    errno.EDQUOT: "free disk space of this user",
    errno.EACCES: "check the permissions of this user",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EEXIST: "name another place, or move it away",
    errno.EROFS: "name a place that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
}

_CHECKOUT: Final = Path(__file__).resolve().parents[2]


def as_row(value: Any) -> dict[str, Any]:
    """A struct or dataclass as a row: nested ones become mappings, bytes stay bytes."""
    row: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return row


def as_time(ms: object) -> str:
    if not isinstance(ms, int):
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def how_to_install(*extras: str) -> str:
    """The command that installs the packages of these extras of pyproject.toml in this installation.

    No registry has raftlog itself, so it names the packages: they are what the installed distribution asks for.
    """
    if (_CHECKOUT / "requirements.lock").exists():
        return f"make -C {shlex.quote(str(_CHECKOUT))} setup"
    needed = [re.fullmatch(r"(.+); extra == '(\w+)'", each) for each in metadata.requires("raftlog") or ()]
    packages = sorted({each[1] for each in needed if each is not None and each[2] in extras})
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(packages)}"


def explained(error: OSError | UnicodeEncodeError) -> str:
    """What happened to which file or text, and what to do next."""
    if isinstance(error, UnicodeEncodeError):
        given = os.fsencode(str(error.object)).decode("utf-8", "backslashreplace")
        return f"{given} is not UTF-8: names are; only keys, values and paths of files may be any bytes"
    what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error.strerror or str(error)
    mend = _MENDS.get(error.errno or 0)
    if error.errno == errno.ENOENT and isinstance(error.filename, str | os.PathLike):
        folder = Path(error.filename).parent
        mend = "check the path" if folder.is_dir() else f"the folder {folder} is not there: make it first"
    return what if mend is None else f"{what}; {mend}"
