"""Decodes the body of a request from JSON or MessagePack."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from raftlog.cluster.api.errors import ApiError, Code

T = TypeVar("T")
_TRUNCATED: Final = "Input data was truncated"


def decode(decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T], body: bytes, what: str) -> T:
    """The body as that type. Raises ApiError bad_request with msgspec's message: what it expected, and where.

    Positions count bytes from the start of `body`."""
    try:
        return decoder.decode(body)
    except UnicodeDecodeError as error:  # its position counts within that one string
        at = max(body.find(error.object), 0) + error.start
        if isinstance(decoder, msgspec.json.Decoder):
            at = _not_utf8_at(body)
        raise ApiError(
            Code.BAD_REQUEST, f"{what}: byte {at} is not UTF-8 text ({error.reason}): give such bytes as base64"
        ) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        why = str(error)
        if not body:
            why = "it is empty"
        elif why == _TRUNCATED:
            why = f"it ends too early (byte {len(body)})"
        raise ApiError(Code.BAD_REQUEST, f"{what}: {why}") from error


def _not_utf8_at(body: bytes) -> int:
    """The position at which the body stops being UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)
