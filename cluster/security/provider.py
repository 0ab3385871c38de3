"""Checks tokens of an identity provider (JWT) with its keys, which come from a file or a URL and may change.

A node has one if `security.jwt_keys` is set. A changed file counts within LOOK_S seconds. Keys of a URL are fetched
again every REFRESH_S seconds, and sooner when a token names a key that is not known. Keys that cannot be fetched stay
in use for STALE_S seconds. `raftlog.cluster.security.jwt_tokens` decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.file_errors import file_stamp
from raftlog.cluster.security.jwt_names import BadJwt, JwtHolder
from raftlog.cluster.security.jwt_tokens import BadKeys, JwtPolicy, ProviderKey, decide, parse_keys

KEYS_BYTES_MAX: Final = 256 << 10
FETCH_S: Final = 5.0
"""Longest wait for the provider, in seconds."""
LOOK_S: Final = 1.0
REFRESH_S: Final = 300.0
UNKNOWN_KEY_S: Final = 30.0
"""Least seconds between two fetches because of unknown keys: anybody can make up a key's name."""
STALE_S: Final = 86_400.0
HOLDERS_MAX: Final = 1_024
"""Most checked tokens that are remembered, because a check of a signature takes some 0.1 ms."""


class Provider:
    """One identity provider. Belongs to the event loop."""

    def __init__(self, policy: JwtPolicy, source: str, report: Callable[[str], None] = lambda trouble: None) -> None:
        """`source`: a file or a URL. `report` gets the trouble with the keys, and "" once they serve again.

        Raises BadKeys for a file that does not serve.
        """
        self._policy = policy
        self._source = source
        self._is_url = "://" in source
        self._report = report
        self._keys: Mapping[str, ProviderKey] = {}
        self._text = b""  # what they were read from
        self._generation = 1
        self._looked_at = clock.monotonic()
        self._taken_at = self._asked_at = self._looked_at - UNKNOWN_KEY_S
        self._stamp: tuple[int, int, int] | None = None
        self._trouble = ""
        self._holders: dict[bytes, JwtHolder] = {}
        self._fetching: asyncio.Task[None] | None = None
        if self._is_url:
            self._fetch()
        else:
            self._stamp = file_stamp(source)
            self._take(_file(source))

    def holder(self, text: str) -> JwtHolder:
        """The holder of a token. Raises BadJwt."""
        self._look()
        now_s = clock.wall_ms() / 1_000
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        known = self._holders.get(digest)
        if known is not None and now_s < known.expires_s:
            return known
        if not self._keys:
            raise BadJwt(
                f"the keys of the identity provider are not known: {self._trouble or 'they are being fetched'}"
            )
        try:
            holder = decide(text, self._keys, self._policy, now_s)
        except BadJwt as error:
            if error.is_key_unknown and self._is_url and clock.monotonic() - self._asked_at >= UNKNOWN_KEY_S:
                self._fetch()
            raise
        if len(self._holders) >= HOLDERS_MAX:
            self._holders.clear()
        self._holders[digest] = holder
        return holder

    def generation(self) -> int:
        """A number that rises when the keys change. A holder that was found before may be none any more."""
        self._look()
        return self._generation

    def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()

    def _look(self) -> None:
        now = clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if self._is_url:
            if now - self._taken_at >= STALE_S:
                self._replace({}, b"")
            if now - self._taken_at >= REFRESH_S and now - self._asked_at >= UNKNOWN_KEY_S:
                self._fetch()
            return
        stamp = file_stamp(self._source)
        if stamp == self._stamp:
            return
        try:
            self._take(_file(self._source))
        except BadKeys as error:
            self._tell(str(error))
        else:
            self._stamp = stamp

    def _fetch(self) -> None:
        if self._fetching is None or self._fetching.done():
            self._asked_at = clock.monotonic()
            self._fetching = asyncio.get_running_loop().create_task(self._fetched())

    async def _fetched(self) -> None:
        try:
            self._take(await asyncio.to_thread(_get, self._source))
        except BadKeys as error:
            self._tell(f"{self._source}: {error}")

    def _take(self, text: bytes) -> None:
        self._replace(parse_keys(text), text)
        self._taken_at = clock.monotonic()
        self._tell("")

    def _replace(self, keys: Mapping[str, ProviderKey], text: bytes) -> None:
        if text != self._text:
            self._keys, self._text, self._holders = keys, text, {}
            self._generation += 1

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._report(trouble)


def _file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _bounded(file.read(KEYS_BYTES_MAX + 1))
    except OSError as error:
        raise BadKeys(f"{path}: {error.strerror}") from error


def _get(url: str) -> bytes:
    """The document at that URL; a redirection is not followed, because it may lead anywhere. Raises BadKeys."""
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler())
    try:
        with opener.open(url, timeout=FETCH_S) as answer:
            return _bounded(answer.read(KEYS_BYTES_MAX + 1))
    except (OSError, ValueError) as error:  # urllib's own errors are OSErrors
        raise BadKeys(f"the keys cannot be fetched: {error}") from error


def _bounded(text: bytes) -> bytes:
    if len(text) > KEYS_BYTES_MAX:
        raise BadKeys(f"it has more than {KEYS_BYTES_MAX} bytes")
    return text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
