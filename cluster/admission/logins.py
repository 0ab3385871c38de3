"""Keeps logins of browsers: a secret stands for the token that a user has shown once, in this node's memory alone.

Each request with the secret is decided again by the token behind it. So a login ends at once with its token or user,
and can do nothing that the token could not.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code

LOGINS_MAX: Final = 1_000
"""Most logins of one node; one more ends the one that was silent longest."""
USER_MAX: Final = LOGINS_MAX // 8
"""Most logins of one user; one more ends its own that was silent longest, so that it ends no other user's."""
LIFE_S: Final = 12 * 3_600.0
"""Longest life of a login, in seconds: a working day."""
SILENCE_S: Final = 1_800.0
"""A login that was not used for so long has ended, in seconds."""
WRONG_MAX: Final = 5
WRONG_S: Final = 60.0
"""Most wrong tokens from one address within so many seconds."""
ADDRESSES_MAX: Final = 1_000
"""Most addresses whose wrong tokens are counted; beyond that the oldest is forgotten."""


@dataclass(slots=True)
class _Login:
    user: str
    token: str
    began_s: float
    used_s: float


class Logins:
    """The logins of one node. Belongs to the event loop. Times are seconds of a steady clock."""

    def __init__(self) -> None:
        self._logins: dict[bytes, _Login] = {}  # by the hash of the secret, the longest silent first
        self._wrong: dict[str, deque[float]] = {}  # by address, when the newest wrong tokens came

    def open(self, user: str, token: str, now_s: float) -> str:
        """A new login. Returns its secret, with 256 random bits."""
        own = [key for key, login in self._logins.items() if login.user == user]
        if len(own) >= USER_MAX:
            del self._logins[own[0]]
        elif len(self._logins) >= LOGINS_MAX:
            del self._logins[next(iter(self._logins))]
        secret = secrets.token_urlsafe(32)
        self._logins[_hash(secret)] = _Login(user, token, now_s, now_s)
        return secret

    def token(self, secret: str, now_s: float) -> str | None:
        """The token of a login; None if it has ended."""
        key = _hash(secret)
        login = self._logins.pop(key, None)
        if login is None or now_s >= login.began_s + LIFE_S or now_s >= login.used_s + SILENCE_S:
            return None
        login.used_s = now_s
        self._logins[key] = login
        return login.token

    def close(self, secret: str) -> None:
        """Ends a login."""
        self._logins.pop(_hash(secret), None)

    def check(self, address: str, now_s: float) -> None:
        """Raises ApiError over_quota for an address that has shown too many wrong tokens lately."""
        times = self._wrong.get(address)
        if times is not None and len(times) == WRONG_MAX and now_s < times[0] + WRONG_S:
            left_s = int(times[0] + WRONG_S - now_s) + 1
            raise ApiError(
                Code.OVER_QUOTA,
                f"{WRONG_MAX} wrong tokens came from {address} within {WRONG_S:.0f} s: log in again after {left_s} s",
                retry_after=left_s,
            )

    def wrong(self, address: str, now_s: float) -> None:
        """Notes a wrong token from that address."""
        times = self._wrong.pop(address, None) or deque(maxlen=WRONG_MAX)
        if len(self._wrong) >= ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]
        times.append(now_s)
        self._wrong[address] = times


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
