"""Makes access tokens, checks their form, and compares them with the hashes that a cluster keeps.

`raftlog token create` makes a token on the user's own machine and sends only its id and hash. The HTTP gate checks the
token of a request. A token is `rl_ID_SECRET`: eight hex digits that name it, then 32 random bytes and their CRC as
base64url. By the CRC a node refuses a token that was cut short or mistyped without a look into its state. It adds no
protection.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import zlib
from typing import Final, NamedTuple

PREFIX: Final = "rl_"
"""How each token begins, so that scanners find one that was left in a file."""
ID_BYTES: Final = 4
SECRET_BYTES: Final = 32
_CRC_BYTES: Final = 4
_SECRET: Final = re.compile(r"(rl_[0-9a-f]{8}_|eyJ)[A-Za-z0-9_.%-]+")
_FORM: Final = re.compile(r"rl_([0-9a-f]{8})_([A-Za-z0-9_-]{48})")


class BadToken(ValueError):
    """The text is no token by its form. The message holds no part of it."""


class NewToken(NamedTuple):
    """A token that was just made. `text` is shown once and kept nowhere."""

    identifier: str  # names it in lists, logs and commands; no secret
    text: str
    digest: bytes  # kept by the cluster

    def __repr__(self) -> str:
        return f"NewToken({self.identifier!r})"


def make_token() -> NewToken:
    identifier = secrets.token_hex(ID_BYTES)
    secret = secrets.token_bytes(SECRET_BYTES)
    text = f"{PREFIX}{identifier}_{base64.urlsafe_b64encode(secret + _crc(identifier, secret)).decode()}"
    return NewToken(identifier, text, digest_of(text))


def token_id(text: str) -> str:
    match = _FORM.fullmatch(text)
    if match is None:
        raise BadToken("the token is cut short, or is none: a token is rl_, 8 hex digits, _ and 48 characters")
    identifier = match[1]
    content = base64.urlsafe_b64decode(match[2])
    if content[SECRET_BYTES:] != _crc(identifier, content[:SECRET_BYTES]):
        raise BadToken("the token has a wrong character: its check part does not fit the rest")
    return identifier


def digest_of(text: str) -> bytes:
    """What a cluster keeps of a token: its SHA-256. A token has 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(text.encode()).digest()


def is_same(text: str, digest: bytes) -> bool:
    """Whether the token has that digest. Takes equally long for every wrong token."""
    return hmac.compare_digest(digest_of(text), digest)


def redacted(text: str) -> str:
    """The text without the secret of any token in it: for answers, logs and messages."""
    return text if "rl_" not in text and "eyJ" not in text else _SECRET.sub(r"\1…", text)


def _crc(identifier: str, secret: bytes) -> bytes:
    return zlib.crc32(identifier.encode() + secret).to_bytes(_CRC_BYTES, "big")
