"""Turns values of answers into text and rows, and names the command that installs a missing package.

The command line, offline tools and explanations call it.
"""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

_CHECKOUT: Final = Path(__file__).resolve().parents[2]


def as_row(value: Any) -> dict[str, Any]:
    """A struct or dataclass as a row: nested ones become mappings, bytes stay bytes."""
    row: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return row


def as_time(ms: object) -> str:
    """Unix milliseconds as ISO 8601 in UTC."""
    if not isinstance(ms, int):
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def how_to_install(*extras: str) -> str:
    """The command that installs the packages of these extras of pyproject.toml in this installation.

    No registry has raftlog itself, so it names the packages: they are what the installed distribution asks for.
    """
    if (_CHECKOUT / "requirements.lock").exists():
        return f"make -C {shlex.quote(str(_CHECKOUT))} setup"
    needed = [re.fullmatch(r"(.+); extra == '(\w+)'", each) for each in metadata.requires("raftlog") or ()]
    packages = sorted({each[1] for each in needed if each is not None and each[2] in extras})
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(packages)}"
