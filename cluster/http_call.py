"""One request being served: its raw target, headers, deadline and body, each read only when it is asked for."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
from aiohttp import StreamReader, web

from cluster import wire
from cluster.budget import SMALL_BYTES, Budget, Share
from cluster.consumer_lag import Lags
from cluster.freed_memory import FreedMemory
from cluster.http_answer import Answer, Identity, encode_answer
from cluster.http_counts import RequestCounts
from cluster.http_query import NO_PARAMETERS, Query, nearest_name, parse_number, split_target
from cluster.http_tail import LogTail
from cluster.node_face import NodeFace
from cluster.settings import HttpSettings, LimitSettings
from cluster.wire import NUMBER_MAX, ApiError, Code

if TYPE_CHECKING:
    from cluster.http_stream import Stream

T = TypeVar("T")
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")
_OWN_NAMES: Final = (
    wire.H_SESSION, wire.H_SEQUENCE, wire.H_SETTLED, wire.H_DEADLINE, wire.H_REQUEST_ID, wire.H_KEY, wire.H_TIME,
    wire.H_LOG, wire.H_PASSED_ON,
)  # fmt: skip
_OWN_HEADERS: Final = frozenset(name.lower() for name in _OWN_NAMES)
_TRUNCATED: Final = "Input data was truncated"
CONSISTENCY: Final = ("linearizable", "stale")
READ_PARAMETERS: Final = frozenset({"consistency", "min_index"})


@dataclass(slots=True)
class Service:
    """What all handlers share."""

    node: NodeFace
    http: HttpSettings
    limits: LimitSettings
    entry_bytes_max: int
    clock: Callable[[], float]  # seconds of the event loop
    identity: Identity
    lags: Lags
    open_requests: int = 0
    open_streams: int = 0
    open_digests: int = 0
    open_backups: int = 0
    is_leaving: bool = False  # every answer ends its connection
    is_stopping: bool = False  # nothing new is taken
    routes: list[str] = field(default_factory=list)  # what `/` lists
    tail: LogTail = field(init=False)
    bodies: Budget = field(init=False)  # bytes of requests that are not answered yet
    answers: Budget = field(init=False)  # bytes that the readers of answers have not taken yet
    freed: FreedMemory = field(init=False)
    counts: RequestCounts = field(init=False)
    _waits: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.limits
        self.counts = RequestCounts(self.node.metrics)
        self.freed = FreedMemory()
        self.bodies = Budget(limits.bodies_bytes_max, self.freed.return_soon)
        self.answers = Budget(limits.answers_bytes_max, self.freed.return_soon)
        self.tail = LogTail(
            self.node, self.clock, self.wait_beyond, limits.stream_gather_ms / 1000, limits.progress_ms / 1000
        )

    def answer(self, body: Any, index: int | None = None, term: int | None = None) -> Answer:
        """A struct as JSON; index and term are the node's if they are not given."""
        node = self.node
        return encode_answer(
            self.identity, body, node.applied if index is None else index, node.term if term is None else term
        )

    async def wait_beyond(self, index: int, deadline: float) -> None:
        """Until something after `index` is applied, or the deadline. Raises ApiError shutting_down at a stop."""
        self.refuse_when_stopping()
        wait = asyncio.ensure_future(self.node.wait_beyond(index, deadline))
        self._waits.add(wait)
        try:
            await wait
        except asyncio.CancelledError:
            self.refuse_when_stopping()
            raise
        finally:
            self._waits.discard(wait)
            wait.cancel()

    def refuse_when_stopping(self) -> None:
        """Raises ApiError shutting_down once `stop` was called."""
        if self.is_stopping:
            raise ApiError(Code.SHUTTING_DOWN, "this node is being stopped: ask another one")

    def stop(self) -> None:
        """No new request is taken; long polls and streams end with what they have."""
        self.is_stopping = True
        for wait in self._waits:
            wait.cancel()


class Connection(Protocol):
    """What a body needs of its connection (`http_api`)."""

    refusal: ApiError | None  # why nothing more of what comes is read
    reading: StreamReader | None  # the body that a request waits for


class SessionHeaders(NamedTuple):
    """What a request says of its session; all 0 without one."""

    session: int = 0
    sequence: int = 0
    settled: int = 0


NO_SESSION: Final = SessionHeaders()


class Call:
    """One request: aiohttp's, or one whose body is `whole` here already (`cluster.fast_path`)."""

    __slots__ = (
        "_answer", "_request", "_share", "_whole", "deadline", "headers", "method", "parts", "path", "query_text",
        "request_id", "route", "stream", "target",
    )  # fmt: skip

    def __init__(
        self, method: str, target: str, headers: Mapping[str, str], request_id: str,
        request: web.BaseRequest | None = None, whole: bytes = b"",
    ) -> None:  # fmt: skip
        self._request = request
        self._whole = whole
        self._share: Share | None = None  # of the budget for bodies, while aiohttp's request is served
        self._answer: Share | None = None  # of the budget for answers, while a large one is made
        self.method = method
        self.target = target
        self.headers = headers
        self.path, self.query_text = split_target(target)
        self.request_id = request_id
        self.route = "none"  # its pattern, for metrics
        self.stream: Stream | None = None  # once its head has been sent
        self.parts: tuple[str, ...] = ()  # the raw variable parts of the path
        self.deadline = 0.0

    @property
    def request(self) -> web.BaseRequest:
        """aiohttp's request, which every stream has."""
        assert self._request is not None, "the fast path serves no streams"
        return self._request

    @property
    def has_session(self) -> bool:
        """Whether it is a write that names a session: a copy of it may have been sent before."""
        return self.method not in ("GET", "HEAD") and wire.H_SESSION in self.headers

    def set_deadline(self, service: Service) -> None:
        """From the header, else the default. Raises ApiError bad_request."""
        text = self.headers.get(wire.H_DEADLINE)
        limits = service.limits
        ms = (
            limits.deadline_default_ms
            if text is None
            else parse_number(text, f"header {wire.H_DEADLINE}", 1, limits.deadline_max_ms)
        )
        self.deadline = service.clock() + ms / 1000

    def check_log(self, log_id: str) -> None:
        """Whoever names a log means that one: after a restore there is another at the same place, with the same keys
        and indexes. Raises ApiError foreign_log."""
        named = self.headers.get(wire.H_LOG)
        if named is not None and named != log_id:
            raise ApiError(
                Code.FOREIGN_LOG,
                f"header {wire.H_LOG} names log {named[:40]!r}, this is log {log_id}: another cluster, or a new one in "
                "its place (restore, recover); what was kept of the old one means nothing here",
            )

    def query(self, known: Collection[str] = ()) -> Query:
        """The parameters, of which only those known may be given."""
        return Query(self.query_text, known) if self.query_text else NO_PARAMETERS

    def session(self) -> SessionHeaders:
        """The session headers. Raises ApiError bad_request if one of session and sequence is missing."""
        headers = self.headers
        session = headers.get(wire.H_SESSION)
        sequence = headers.get(wire.H_SEQUENCE)
        settled = headers.get(wire.H_SETTLED)
        if session is None and sequence is None and settled is None:
            return NO_SESSION
        if session is None or sequence is None:
            raise ApiError(
                Code.BAD_REQUEST,
                f"{wire.H_SESSION}, {wire.H_SEQUENCE} go together ({wire.H_SETTLED} is optional): give both or none",
            )
        number = parse_number(sequence, f"header {wire.H_SEQUENCE}", 1)
        return SessionHeaders(
            parse_number(session, f"header {wire.H_SESSION}", 1),
            number,
            0 if settled is None else parse_number(settled, f"header {wire.H_SETTLED}", 0, number),
        )

    def check_framing(self) -> None:
        """Raises ApiError for a transfer coding other than chunked: the body would be stored packed (RFC 9112, section
        6.1)."""
        coding = self.headers.get("Transfer-Encoding")
        if coding is None:
            return
        if coding.strip().lower() != "chunked":
            raise ApiError(
                Code.UNSUPPORTED,
                f"Transfer-Encoding {coding[:60]!r}: send the body as it is, with Content-Length or chunked alone",
            )
        if self.request.version.minor == 0:
            raise ApiError(Code.BAD_REQUEST, "Transfer-Encoding in an HTTP/1.0 request: send Content-Length")

    def check_own_headers(self) -> None:
        """Raises ApiError for an unknown header of raftlog's, and for one given twice: a misspelt session header must
        not turn exactly-once into at-least-once without a word."""
        if self._request is None:  # the fast path takes none whose headers it does not know
            return
        seen: set[str] = set()
        for name, _ in self.headers.items():  # noqa: PERF102  # the names alone leave out repetitions
            lower = name.lower()
            if not lower.startswith("raftlog-"):
                continue
            if lower not in _OWN_HEADERS:
                raise ApiError(Code.BAD_REQUEST, f"unknown header {name[:60]!r}: {nearest_name(name, _OWN_NAMES)}")
            if lower in seen:
                raise ApiError(Code.BAD_REQUEST, f"header {name} is given twice: give it once")
            seen.add(lower)

    def time_ms(self) -> int | None:
        """The client's time header, if any."""
        text = self.headers.get(wire.H_TIME)
        return None if text is None else parse_number(text, f"header {wire.H_TIME}", 0, NUMBER_MAX)

    def media_type(self) -> str:
        """The body's media type in lower case without parameters."""
        return _media_type(self.headers.get("Content-Type", ""))

    async def body(self, service: Service) -> bytes:
        """The whole body. Raises ApiError too_large, busy, bad_request (cut short) or deadline."""
        bytes_max = service.limits.body_bytes_max
        if (coding := self.headers.get("Content-Encoding")) is not None and coding.lower() != "identity":
            raise ApiError(Code.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {coding[:40]!r}: send the body as it is")
        if self._request is None:
            return self._checked(self._whole, bytes_max)
        length = self.headers.get("Content-Length")
        if length is not None and int(length) > bytes_max:  # aiohttp's parser let only digits through
            raise _body_too_large(length, bytes_max)
        content = self.request.content
        if content.is_eof():
            whole = self._checked(content.read_nowait(), bytes_max)
            self._share = Share(service.bodies)
            if not self._share.hold(len(whole)):
                raise bodies_full(service.bodies)
            return whole
        parts: list[bytes] = []
        try:
            await self._read(service, parts, bytes_max)
            return b"".join(parts)
        finally:
            parts.clear()  # an exception's traceback would hold them until the garbage collector finds it

    async def drop_body(self, service: Service) -> None:
        """Reads and drops the body of a request whose route takes none: unread it would stay in memory until the
        answer, which a long poll makes late. Raises as `body` does."""
        if self._request is not None and not self._request.content.is_eof():
            await self._read(service, None, service.limits.body_bytes_max)

    async def _read(self, service: Service, parts: list[bytes] | None, bytes_max: int) -> None:
        """Puts what comes into `parts`, and counts it in the budget until `release`; without `parts` drops it."""
        content = self.request.content
        share = self._share = Share(service.bodies)
        size = since = 0
        stall_s = service.limits.body_stall_ms / 1_000
        due = service.clock() + stall_s
        if self.headers.get("Expect", "").lower() == "100-continue" and self.request.transport is not None:
            self.request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection: Connection = cast(Any, self.request.protocol)
        if connection.refusal is not None:
            raise connection.refusal
        connection.reading = content
        try:
            async with asyncio.timeout_at(min(self.deadline, due)) as timeout:
                while part := await content.readany():
                    size += len(part)
                    since += len(part)
                    if size > bytes_max:
                        raise _body_too_large(f"more than {bytes_max}", bytes_max)
                    if parts is not None:
                        if not share.hold(size):
                            raise bodies_full(service.bodies)
                        parts.append(part)
                    if since >= SMALL_BYTES:
                        since, due = 0, service.clock() + stall_s
                        timeout.reschedule(min(self.deadline, due))
        except TimeoutError:
            why = "the deadline passed while the body was read"
            if due < self.deadline:
                why = f"less than {SMALL_BYTES} bytes of the body came in limits.body_stall_ms"
            raise ApiError(Code.DEADLINE, f"{why}, after {size} bytes") from None
        except (web.RequestPayloadError, asyncio.IncompleteReadError) as error:
            if connection.refusal is not None:
                raise connection.refusal from error
            raise ApiError(Code.BAD_REQUEST, f"the body ended before its end: {error}") from error
        finally:
            connection.reading = None

    def release(self) -> None:
        """The request is answered: its body is not held any more."""
        self._whole = b""
        for share in (self._share, self._answer):
            if share is not None:
                share.keep(0)

    def hold_answer(self, service: Service, size: int) -> bool:
        """Counts an answer that is being made and has `size` bytes so far, until `release`; whether there is room."""
        if size <= SMALL_BYTES:
            return True
        if self._answer is None:
            self._answer = Share(service.answers)
        return self._answer.hold(size)

    @staticmethod
    def _checked(body: bytes, bytes_max: int) -> bytes:
        if len(body) > bytes_max:
            raise _body_too_large(str(len(body)), bytes_max)
        return body


@functools.lru_cache(256)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def bodies_full(bodies: Budget) -> ApiError:
    """What a request is told whose body there is no room for."""
    return ApiError(
        Code.BUSY,
        f"{bodies.used} bytes of request bodies are held, of {bodies.bytes_max} (limits.bodies_bytes_max; a quarter is "
        f"kept for bodies up to {SMALL_BYTES} bytes): try again, or another node",
    )


def answers_full(answers: Budget) -> ApiError:
    """What a reader is told whose answer there is no room for."""
    return ApiError(
        Code.BUSY,
        f"{answers.used} bytes of answers wait for their readers, of {answers.bytes_max} (limits.answers_bytes_max; a "
        f"quarter is kept for answers up to {SMALL_BYTES} bytes): try again, ask for less, or another node",
    )


def _body_too_large(size: str, bytes_max: int) -> ApiError:
    return ApiError(Code.TOO_LARGE, f"the body has {size} bytes: the limit is {bytes_max} (limits.body_bytes_max)")


def is_request_id(text: str) -> bool:
    """Whether a client's request id can stand in a header and a log line."""
    return _REQUEST_ID.fullmatch(text) is not None


def decode(decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T], body: bytes, what: str) -> T:
    """The body as that type. Raises ApiError bad_request with msgspec's words: what was expected, and where. Positions
    count bytes from the start of `body`."""
    try:
        return decoder.decode(body)
    except UnicodeDecodeError as error:  # whose position is that within the one string
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
    """Where the body stops being UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)


async def read_index(service: Service, call: Call, query: Query) -> None:
    """Waits until this node may answer: by the barrier, or, for a stale read, by its `min_index` alone."""
    node = service.node
    minimum = query.number("min_index")
    if query.choice("consistency", CONSISTENCY) == "linearizable":
        await node.read_barrier(call.deadline)
    if minimum is not None and minimum > node.applied:
        await wait_applied(service, call, minimum)


async def wait_applied(service: Service, call: Call, index: int) -> None:
    """Waits for an index that another node may have named. Raises ApiError future_index at the deadline."""
    try:
        await service.node.wait_applied(index, call.deadline)
    except ApiError as error:
        if error.code is not Code.DEADLINE:
            raise
        raise ApiError(
            Code.FUTURE_INDEX,
            f"index {index} was not reached within the deadline: this node has applied {service.node.applied}",
        ) from error
