"""Turns bytes into text or base64, and back."""

from __future__ import annotations

import base64
import binascii
from typing import Literal

from raftlog.cluster.api.errors import ApiError, Code

Encoding = Literal["auto", "base64"]
"""auto: text where valid UTF-8; base64: always the `_b64` fields."""


def as_text(data: bytes, encoding: Encoding = "auto") -> str | None:
    """The bytes as text, or None where the `_b64` field must be used."""
    if encoding == "base64":
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def to_b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_b64(text: str, what: str) -> bytes:
    """Strict base64 (standard or URL alphabet). Raises ApiError bad_request naming `what`."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(Code.BAD_REQUEST, f"{what} is not base64: {error}") from error
