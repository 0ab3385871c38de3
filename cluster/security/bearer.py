"""Finds the token that a client sends, and sends it over no connection that others can read.

Both clients, the commands and Spark's tasks use it. The token comes from a file, or from the environment: never from an
argument, which other users of the machine see. A changed file counts within a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from raftlog.cluster.runtime import clock
from raftlog.cluster.security.addresses import is_loopback_host

TOKEN_VARIABLE: Final = "RAFTLOG_TOKEN"
TOKEN_FILE_VARIABLE: Final = "RAFTLOG_TOKEN_FILE"
TOKEN_VARIABLES: Final = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)
TOKEN_BYTES_MAX: Final = 16 << 10
LOOK_S: Final = 1.0


class TokenError(ValueError):
    """No token can be sent. The message names the file or URL, and holds no part of the token."""


class Bearer:
    """The token of one client. Any thread may use it."""

    def __init__(self, file: str = "", text: str = "") -> None:
        """Either a file or the token itself. Raises TokenError."""
        self._file = file
        self._text = text.strip()
        if text and not _is_token(self._text):
            raise TokenError(f"{TOKEN_VARIABLE} must hold one token and nothing else")
        self._looked_at = 0.0
        if file:
            self._text = _read(file)
            self._looked_at = clock.monotonic()

    def __repr__(self) -> str:
        return f"Bearer({self._file!r})"

    def header(self, url: str) -> tuple[tuple[str, str], ...]:
        """The header for a request to that URL; none if others could read it there."""
        if not is_private(url):
            return ()
        if self._file and clock.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = clock.monotonic()
            try:
                self._text = _read(self._file)
            except TokenError:
                pass  # being replaced just now: the token in use before goes on
        return (("Authorization", f"Bearer {self._text}"),)


def bearer_for(
    urls: Iterable[str], file: str | None = None, environment: Mapping[str, str] | None = None
) -> Bearer | None:
    """What a client of these URLs sends: the token of that file, else of the environment. None: no token.

    Raises TokenError, also for a URL over which the token would go unencrypted.
    """
    found = os.environ if environment is None else environment
    path = file or found.get(TOKEN_FILE_VARIABLE, "")
    text = "" if path else found.get(TOKEN_VARIABLE, "")
    if not path and not text:
        return None
    for url in urls:
        if not is_private(url):
            raise TokenError(f"{url}: a token goes over https alone, except on this machine")
    return Bearer(path, text)


def is_private(url: str) -> bool:
    """Whether no other machine can read requests to that URL: https, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback_host(parts.hostname or "")


def save_token(path: Path, text: str) -> None:
    path.touch(0o600, exist_ok=False)
    path.write_text(f"{text}\n", encoding="ascii")


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}; `raftlog token create USER --out FILE` makes it") from error
    text = content.decode("ascii", "replace").strip()
    if not _is_token(text):
        raise TokenError(f"{path}: it must hold one token and nothing else")
    return text


def _is_token(text: str) -> bool:
    """Whether the text is one word that a header can hold."""
    return len(text) <= TOKEN_BYTES_MAX and text.isascii() and len(text.split()) == 1
