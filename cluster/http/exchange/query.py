"""Reads the request target as bytes and numbers: raw path keys and query parameters, with errors that name them.

The gate, the call and the routes use it. Paths are never normalised: `/`, `..`, `%2F` and `//` in a key stay as they
are: keys are bytes. In a query `+` is a space, as every form encoder writes it; in a path it is a plus. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from raftlog.cluster.api.encoding import from_b64
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.statemachine.commands import KEY_BYTES_MAX

_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
_TRUE_FALSE: Final = {"true": True, "false": False}


def split_target(target: str) -> tuple[str, str]:
    """Raw path and raw query of a request target (origin form, or absolute form as proxies send it)."""
    if not target.startswith("/") and (absolute := _ABSOLUTE.match(target)):
        target = target[absolute.end() :]
        if not target.startswith("/"):
            target = f"/{target}"
    path, _, query = target.partition("?")
    return path, query


def authority_of(target: str, served: str = "http") -> str | None:
    """The host and port of a target in absolute form; None for any other form.

    Raises ApiError bad_host for another scheme than `served`, bad_request for a user or a missing host (RFC 9110,
    sections 4.2 and 7.4)."""
    if target.startswith("/") or (absolute := _ABSOLUTE.match(target)) is None:
        return None
    scheme, authority = absolute.groups()
    if scheme.lower() != served:
        raise ApiError(Code.BAD_HOST, f"the target has scheme {scheme[:20]!r}: this node serves {served}")
    if not authority or "@" in authority:
        raise ApiError(Code.BAD_REQUEST, f"the target names {authority[:100]!r}: it must be a host, and maybe a port")
    return authority


def unescape(text: str, what: str) -> bytes:
    """Percent-decoded bytes. Raises ApiError bad_request if a `%` is not followed by two hex digits."""
    raw = text.encode("utf-8", "surrogateescape")
    if "%" not in text:
        return raw
    if bad := _BAD_ESCAPE.search(raw):
        raise ApiError(
            Code.BAD_REQUEST,
            f"{what} has a % at byte {bad.start()} that two hex digits do not follow: write %25 for a percent sign",
        )
    return unquote_to_bytes(raw)


def check_key(key: bytes, what: str = "the key") -> bytes:
    """The key, if its length is allowed. Raises ApiError bad_request (empty) or too_large."""
    if not key:
        raise ApiError(Code.BAD_REQUEST, f"{what} is empty: a key has 1 to {KEY_BYTES_MAX} bytes")
    if len(key) > KEY_BYTES_MAX:
        raise ApiError(Code.TOO_LARGE, f"{what} has {len(key)} bytes: the limit is {KEY_BYTES_MAX}")
    return key


def parse_number(text: str, what: str, low: int = 0, high: int = NUMBER_MAX) -> int:
    """A whole number within bounds. Raises ApiError bad_request naming `what`."""
    if _NUMBER.fullmatch(text) and low <= (number := int(text)) <= high:
        return number
    raise ApiError(Code.BAD_REQUEST, f"{what} is {text[:40]!r}: it must be a whole number from {low} to {high}")


def nearest_name(name: str, known: Collection[str]) -> str:
    """The hint after an unknown name: the nearest valid one, else all of them."""
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(sorted(known))}" if known else "none is taken here"


_SECRETS: Final = frozenset({"token", "access_token", "authorization", "api_key"})
_IN_HEADER: Final = (
    "a token goes in the header Authorization: Bearer TOKEN. Revoke this one: proxies and browsers keep URLs in logs"
)


def _unknown(name: str, known: Collection[str]) -> ApiError:
    hint = _IN_HEADER if name in _SECRETS else nearest_name(name, known)
    return ApiError(Code.BAD_REQUEST, f"unknown parameter {name[:60]!r}: {hint}")


class Query:
    """The parameters of one request, by name, as bytes."""

    __slots__ = ("_values",)

    def __init__(self, text: str, known: Collection[str]) -> None:
        """Raises ApiError bad_request for unknown, repeated and badly escaped parameters."""
        self._values: dict[str, bytes] = {}
        is_plain = "%" not in text and text.isascii()  # true for most: nothing to unescape
        for part in text.split("&") if text else ():
            if not part:
                continue
            raw_name, _, raw_value = part.partition("=")
            name = raw_name if is_plain else unescape(raw_name, "a parameter's name").decode("utf-8", "replace")
            if name not in known:
                raise _unknown(name, known)
            if name in self._values:
                raise ApiError(Code.BAD_REQUEST, f"parameter {name} is given twice: give it once")
            value = raw_value.replace("+", " ")
            self._values[name] = value.encode() if is_plain else unescape(value, f"parameter {name}")

    @property
    def is_empty(self) -> bool:
        return not self._values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def check_names(self, known: Collection[str]) -> None:
        """Raises ApiError bad_request for a parameter that is none of these."""
        for name in self._values:
            if name not in known:
                raise _unknown(name, known)

    def has_any(self, names: Sequence[str]) -> bool:
        """Whether one of the parameters is given."""
        return not self._values.keys().isdisjoint(names)

    def text(self, name: str) -> str:
        value = self._values.get(name, b"")
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ApiError(Code.BAD_REQUEST, f"parameter {name} is not UTF-8 text") from error

    def number(self, name: str, low: int = 0) -> int | None:
        """The parameter as a whole number of at least `low`, None if it is not given."""
        if name not in self._values:
            return None
        return parse_number(self.text(name), f"parameter {name}", low, NUMBER_MAX)

    def number_or(self, name: str, default: int, low: int = 0, high: int = NUMBER_MAX) -> int:
        if name not in self._values:
            return default
        return parse_number(self.text(name), f"parameter {name}", low, high)

    def flag(self, name: str) -> bool:
        """The parameter as true or false; false if it is not given."""
        if name not in self._values:
            return False
        text = self.text(name)
        if text not in _TRUE_FALSE:
            raise ApiError(Code.BAD_REQUEST, f"parameter {name} is {text[:40]!r}: it must be true or false")
        return _TRUE_FALSE[text]

    def choice(self, name: str, choices: Sequence[str], code: Code = Code.BAD_REQUEST) -> str:
        """The parameter as one of `choices`, of which the first is the default."""
        if name not in self._values:
            return choices[0]
        text = self.text(name)
        if text not in choices:
            raise ApiError(
                code, f"parameter {name} is {text[:40]!r}: it must be one of {', '.join(filter(None, choices))}"
            )
        return text

    def data(self, name: str) -> bytes | None:
        """The bytes of `name` or of `name_b64`; None if neither is given."""
        plain, coded = self._values.get(name), self._values.get(f"{name}_b64")
        if coded is None:
            return plain
        if plain is not None:
            raise ApiError(Code.BAD_REQUEST, f"both {name} and {name}_b64 are given: give one")
        # An unescaped plus of the standard base64 alphabet has become a space.
        return from_b64(coded.decode("ascii", "replace").replace(" ", "+"), f"parameter {name}_b64")

    def bound(self, name: str) -> bytes | None:
        """As `data`, for the bound of a range: it may be empty, and is never longer than a key."""
        value = self.data(name)
        if value is not None and len(value) > KEY_BYTES_MAX:
            raise ApiError(Code.TOO_LARGE, f"{name} has {len(value)} bytes: the limit is {KEY_BYTES_MAX}")
        return value

    def key(self) -> bytes | None:
        """The parameter `key` (or `key_b64`); None if neither is given."""
        value = self.data("key")
        return None if value is None else check_key(value, "parameter key")


KEY_PATH: Final = "/v1/kv/"
"""Path of a key, up to the key itself."""
NO_PARAMETERS: Final = Query("", ())
"""The query of most requests."""
