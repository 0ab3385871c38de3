"""Reads the body of a request: within its limits, its budget and its deadline, or drops it; and decodes it.

The fast path has most bodies whole already. Handlers read the others from aiohttp here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast, get_args

import msgspec
from aiohttp import StreamReader, web

from raftlog.cluster.admission.budget import SMALL_BYTES
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.answer import HttpAnswer, StreamedAnswer
from raftlog.cluster.http.exchange.call import Call, Handled, finished
from raftlog.cluster.http.exchange.query import nearest_name
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.security.names import Holder

T = TypeVar("T")
_TRUNCATED: Final = "Input data was truncated"
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)


class SlowSide(Protocol):
    """aiohttp's side of a connection (`raftlog.cluster.http.connections`), as its requests use it."""

    refusal: ApiError | None  # why no further bytes are read
    reading: StreamReader | None  # the body that a request waits for
    read_task: asyncio.Task[Any] | None  # serves the present request, which changes nothing

    @property
    def holder(self) -> Holder | None: ...


async def read_body(service: Service, call: Call) -> bytes:
    """The whole body. Raises ApiError too_large, busy, bad_request (cut short) or deadline."""
    bytes_max = service.limits.body_bytes_max
    if (coding := call.headers.get("Content-Encoding")) is not None and coding.lower() != "identity":
        raise ApiError(Code.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {coding[:40]!r}: send the body as it is")
    if call.whole is not None:
        return call.whole
    length = call.headers.get("Content-Length")
    if length is not None and int(length) > bytes_max:  # aiohttp's parser accepts only digits
        raise _body_too_large(length, bytes_max)
    content = call.request.content
    if content.is_eof():
        whole = content.read_nowait()
        _charge(call, len(whole))
        if len(whole) > bytes_max:
            raise _body_too_large(str(len(whole)), bytes_max)
        call.hold(service.load.bodies, len(whole))
        call.whole = whole
        return whole
    parts: list[bytes] = []
    try:
        await _read(service, call, parts, bytes_max)
        call.whole = b"".join(parts)
        return call.whole
    finally:
        parts.clear()  # an exception's traceback would hold the parts until the garbage collector runs


async def drop_body(service: Service, call: Call) -> None:
    """Reads and drops the body of a request whose route needs none. Unread it would stay in memory until the
    answer, which a long poll delays. Raises as `read_body` does."""
    if call.whole is None and not call.request.content.is_eof():
        await _read(service, call, None, service.limits.body_bytes_max)


async def _read(service: Service, call: Call, parts: list[bytes] | None, bytes_max: int) -> None:
    """Reads the body into `parts`, and counts it in the budget until `Call.release`; without `parts` drops it."""
    content = call.request.content
    size = since = 0
    stall_s = service.limits.body_stall_ms / 1_000
    due = service.clock() + stall_s
    if call.headers.get("Expect", "").lower() == "100-continue" and call.request.transport is not None:
        call.request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    connection: SlowSide = cast(Any, call.request.protocol)
    refused = connection.refusal  # by a name: the compiler would take the attribute for None from here on
    if refused is not None:
        raise refused
    connection.reading = content
    try:
        async with asyncio.timeout_at(min(call.deadline, due)) as timeout:
            while part := await content.readany():
                size += len(part)
                since += len(part)
                if size > bytes_max:
                    raise _body_too_large(f"more than {bytes_max}", bytes_max)
                if parts is not None:
                    call.hold(service.load.bodies, size)
                    parts.append(part)
                if since >= SMALL_BYTES:
                    since, due = 0, service.clock() + stall_s
                    timeout.reschedule(min(call.deadline, due))
    except TimeoutError:
        why = "the deadline passed while the body was read"
        if due < call.deadline:
            why = f"less than {SMALL_BYTES} bytes of the body came in limits.body_stall_ms"
        raise ApiError(Code.DEADLINE, f"{why}, after {size} bytes") from None
    except (web.RequestPayloadError, asyncio.IncompleteReadError) as error:
        if connection.refusal is not None:
            raise connection.refusal from error
        raise ApiError(Code.BAD_REQUEST, f"the body ended before its end: {error}") from error
    finally:
        connection.reading = None
        _charge(call, size)


def _charge(call: Call, size: int) -> None:
    """Counts the bytes of a body without Content-Length. The gate has counted those of all others."""
    if call.caller is not None and "Content-Length" not in call.headers:
        call.caller.meter.charge(size)


async def with_body(
    service: Service, call: Call, handler: Callable[[Service, Call], Handled]
) -> HttpAnswer | StreamedAnswer:
    """Reads the body that aiohttp still has, then asks the handler again. Raises ApiError."""
    call.whole = await read_body(service, call)
    return await finished(service, call, handler(service, call))


def _body_too_large(size: str, bytes_max: int) -> ApiError:
    return ApiError(Code.TOO_LARGE, f"the body has {size} bytes: the limit is {bytes_max} (limits.body_bytes_max)")


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
        elif (unknown := _UNKNOWN.fullmatch(why)) is not None:
            why += f": {nearest_name(unknown[1], _fields_at(decoder.type, unknown[2] or ''))}"
        raise ApiError(Code.BAD_REQUEST, f"{what}: {why}") from error


def _fields_at(kind: Any, path: str) -> list[str]:
    """The fields of the struct at a place of a body that msgspec names, as `.compare[0]`."""
    for name in ("", *re.findall(r"\.(\w+)", path)):
        if name:
            kind = next(each.type for each in msgspec.structs.fields(kind) if each.encode_name == name)
        while parts := [each for each in get_args(kind) if each is not type(None)]:  # list[KIND], KIND | None
            kind = parts[-1]
    return [each.encode_name for each in msgspec.structs.fields(kind)]


def _not_utf8_at(body: bytes) -> int:
    """The position at which the body stops being UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)
