"""Defines the words between the gate and the check of an identity provider's token, without the library that checks."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from raftlog.cluster.security.addresses import is_loopback_host


class BadJwt(Exception):
    """The token does not count. The message says why, without any part of the token that is secret."""

    def __init__(self, reason: str, *, is_key_unknown: bool = False) -> None:
        """`is_key_unknown`: a newer key set may have the key."""
        super().__init__(reason)
        self.is_key_unknown = is_key_unknown


class JwtHolder(NamedTuple):
    name: str
    roles: tuple[str, ...]
    expires_s: float  # Unix time; the token counts for LEEWAY_S longer


def source_refusal(source: str) -> str | None:
    """Why keys cannot come from there. None: they can, by https, or from a file."""
    if "://" not in source:
        return None
    parts = urlsplit(source)
    if parts.scheme == "https" and parts.hostname:
        return None
    if parts.scheme == "http" and parts.hostname and is_loopback_host(parts.hostname):
        return None
    return f"{source} is neither a file nor an https URL"
