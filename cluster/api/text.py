"""Turns values of answers into text and rows, for the command line, offline tools and explanations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec


def as_row(value: Any) -> dict[str, Any]:
    """A struct or dataclass as a row: nested ones become mappings, bytes stay bytes."""
    row: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return row


def as_time(ms: object) -> str:
    """Unix milliseconds as ISO 8601 in UTC."""
    if not isinstance(ms, int):
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
