"""Represents one request being served: its raw target, headers and deadline, each read only on demand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from raftlog.cluster.admission.access import Caller, Credential
from raftlog.cluster.admission.budget import SMALL_BYTES, Budget, Share
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import (
    H_DEADLINE,
    H_LOG,
    H_PRINCIPAL,
    H_SEQUENCE,
    H_SESSION,
    H_SETTLED,
    H_TIME,
    REQUEST_HEADERS,
)
from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.http.exchange.answer import HttpAnswer, StreamedAnswer
from raftlog.cluster.http.exchange.query import NO_PARAMETERS, Query, nearest_name, parse_number
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.exchange.traces import TracedRequest
from raftlog.cluster.security.names import Holder

READS: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""
_SCHEME: Final = "bearer "
_OWN_HEADERS: Final = frozenset(name.lower() for name in REQUEST_HEADERS)
CONSISTENCY: Final = ("linearizable", "stale")
READ_PARAMETERS: Final = frozenset({"consistency", "min_index"})


class SessionHeaders(NamedTuple):
    """The session fields of a request; all 0 without a session."""

    session: int = 0
    sequence: int = 0
    settled: int = 0


NO_SESSION: Final = SessionHeaders()


class Call:
    """One request: aiohttp's, or one with its whole body already here (`raftlog.cluster.http.fast.connection`)."""

    request_id = ""
    route = "none"  # its pattern, for metrics
    allowed = ""  # the methods that its path takes, if its own is not among them
    parts: tuple[str, ...] = ()  # the raw variable parts of the path, without the key
    started = 0.0  # seconds of the event loop's clock
    deadline = 0.0
    stream: StreamedAnswer | None = None  # once its head has been sent
    held: dict[Budget, Share] | None = None  # what it has of the budgets
    holder: Holder | None = None  # of the certificate that its client showed
    login: Credential | None = None  # of its cookie, if one of this node's pages sent it
    caller: Caller | None = None  # the sender, while access control is on
    action = ""  # what it changes, for the audit log
    was_denied = False  # the gate has asked again, after a read barrier
    has_waited = False  # for an index, as it asked
    traced: TracedRequest | None = None  # its span, if it is sampled

    def __init__(
        self,
        method: str,
        target: str,
        path: str,
        query_text: str,
        headers: Mapping[str, str],
        request: web.BaseRequest | None = None,
        whole: bytes | None = None,
        has_options: bool = True,
        key: str = "",
    ) -> None:
        """Either aiohttp's `request` or the `whole` body. `has_options` and `key` come from the fast path's parser
        alone: see `raftlog.cluster.http.fast.head.RequestHead`."""
        self._request = request
        self.whole = whole
        self.has_options = has_options
        self.method = method
        self.target = target
        self.path = path
        self.query_text = query_text
        self.headers = headers
        self.key = key  # raw, of /v1/kv/{key}

    @property
    def request(self) -> web.BaseRequest:
        """aiohttp's request, which every stream has."""
        assert self._request is not None, "the fast path serves no streams"
        return self._request

    def credential(self) -> Credential:
        """The proof of its sender: a bearer token, or the certificate of its client. Raises ApiError."""
        headers = self.headers
        text = headers.get("Authorization")
        if text is None and self.login is not None:
            return self.login
        if text is None:
            return Credential(None, self.holder, headers.get(H_PRINCIPAL))
        every = getattr(headers, "getall", None)  # the fast path knows no header twice
        if every is not None and len(every("Authorization")) > 1:  # which counts could differ between proxy and node
            raise ApiError(Code.BAD_REQUEST, "the header Authorization is given twice: give it once")
        if text[: len(_SCHEME)].lower() != _SCHEME:
            raise ApiError(Code.UNAUTHORIZED, "the Authorization header must be: Bearer TOKEN")
        return Credential(text[len(_SCHEME) :].strip(" "))

    @property
    def body_bytes(self) -> int:
        """Bytes of the body, as far as they are known before it is read."""
        if self.whole is not None:
            return len(self.whole)
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def has_session(self) -> bool:
        """Whether it is a write that names a session, so that a copy of it may have been sent before."""
        return self.method not in READS and H_SESSION in self.headers

    def set_deadline(self, service: Service) -> None:
        text = self.headers.get(H_DEADLINE)
        limits = service.limits
        ms = (
            limits.deadline_default_ms
            if text is None
            else parse_number(text, f"header {H_DEADLINE}", 1, limits.deadline_max_ms)
        )
        self.deadline = service.clock() + ms / 1000

    def check_log(self, log_id: str) -> None:
        """A client that names a log means only that log. After a restore, another log with the same keys and indexes
        may have the same address. Raises ApiError foreign_log."""
        named = self.headers.get(H_LOG)
        if named is not None and named != log_id:
            raise ApiError(
                Code.FOREIGN_LOG,
                f"header {H_LOG} names log {named[:40]!r}, this is log {log_id}: it is another cluster, or a "
                "new one in its place (restore, recover). Positions and sessions of the old log are not valid here",
            )

    def query(self, known: Collection[str] = ()) -> Query:
        return Query(self.query_text, known) if self.query_text else NO_PARAMETERS

    def session(self) -> SessionHeaders:
        """The session headers. Raises ApiError bad_request if one of session and sequence is missing."""
        headers = self.headers
        session = headers.get(H_SESSION)
        sequence = headers.get(H_SEQUENCE)
        settled = headers.get(H_SETTLED)
        if session is None and sequence is None and settled is None:
            return NO_SESSION
        if session is None or sequence is None:
            raise ApiError(
                Code.BAD_REQUEST,
                f"{H_SESSION}, {H_SEQUENCE} go together ({H_SETTLED} is optional): give both or none",
            )
        number = parse_number(sequence, f"header {H_SEQUENCE}", 1)
        return SessionHeaders(
            parse_number(session, f"header {H_SESSION}", 1),
            number,
            0 if settled is None else parse_number(settled, f"header {H_SETTLED}", 0, number),
        )

    def check_framing(self) -> None:
        """Raises ApiError for a transfer coding but chunked: the body would be stored compressed (RFC 9112, 6.1)."""
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
        """Raises ApiError for an unknown raftlog header, and for one given twice. A misspelt session header must not
        turn exactly-once into at-least-once without an error."""
        if self._request is None:  # the fast path hands requests with an unknown raftlog header to aiohttp
            return
        seen: set[str] = set()
        for name, _ in self.headers.items():  # noqa: PERF102  # the keys alone would leave out repetitions
            lower = name.lower()
            if not lower.startswith("raftlog-"):
                continue
            if lower not in _OWN_HEADERS:
                raise ApiError(Code.BAD_REQUEST, f"unknown header {name[:60]!r}: {nearest_name(name, REQUEST_HEADERS)}")
            if lower in seen:
                raise ApiError(Code.BAD_REQUEST, f"header {name} is given twice: give it once")
            seen.add(lower)

    def time_ms(self) -> int | None:
        text = self.headers.get(H_TIME)
        return None if text is None else parse_number(text, f"header {H_TIME}", 0, NUMBER_MAX)

    def media_type(self) -> str:
        """The body's media type in lower case without parameters."""
        return _media_type(self.headers.get("Content-Type", ""))

    def hold(self, budget: Budget, size: int) -> None:
        """Counts `size` bytes of this request in the budget until `release`, instead of the bytes before. Raises
        ApiError busy without room; nothing changes then."""
        if self.held is None:
            self.held = {}
        if budget not in self.held:
            self.held[budget] = Share(budget)
        if not self.held[budget].hold(size):
            raise budget.full()

    def hold_answer(self, service: Service, size: int) -> None:
        """As `hold`, for an answer that is being made and has `size` bytes so far; small ones are not counted."""
        if size > SMALL_BYTES:
            self.hold(service.load.answers, size)

    def release(self) -> None:
        """The request is answered: gives its shares of the budgets back."""
        for share in (self.held or {}).values():
            share.keep(0)


AskedOfNode = tuple[asyncio.Future[Any], Callable[["Service", Call, Any, Any], HttpAnswer], Any]
"""A question to the node: the future, `finish`, and the handler's own value. The answer is
`finish(service, call, future.result(), value)`. The hot handlers are plain functions that return this, because a
coroutine would cost as much as all of HTTP around it."""
Handled = AskedOfNode | Awaitable[HttpAnswer | StreamedAnswer]
"""The result of a handler."""


async def finished(service: Service, call: Call, handled: Handled) -> HttpAnswer | StreamedAnswer:
    """The answer, once it can be made. Raises ApiError."""
    if isinstance(handled, tuple):
        future, finish, what = handled
        return finish(service, call, await future, what)
    return await handled


def checked_value(service: Service, value: bytes, what: str) -> bytes:
    """The value of a key or record. Raises ApiError too_large."""
    limit = service.limits.value_bytes_max
    if len(value) > limit:
        raise ApiError(Code.TOO_LARGE, f"{what} has {len(value)} bytes: the limit is {limit} (limits.value_bytes_max)")
    return value


@functools.lru_cache(256)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def read_index(service: Service, call: Call, query: Query) -> Awaitable[Any]:
    """Waits until this node may answer: for the read barrier, or, for a stale read, only for its `min_index`."""
    return _read_index(service, call, query) if call.query_text else service.node.read_barrier(call.deadline)


async def _read_index(service: Service, call: Call, query: Query) -> None:
    node = service.node
    minimum = query.number("min_index")
    if query.choice("consistency", CONSISTENCY) == "linearizable":
        await node.read_barrier(call.deadline)
    if minimum is not None:
        await wait_applied(service, call, minimum)


async def long_wait(service: Service, call: Call, wait: Callable[[], Awaitable[None]]) -> None:
    """Waits for an index that may come much later. Meanwhile the request counts as a stream of its user, and has no
    turn; behind the wait it takes one. Raises ApiError over_quota, and what `wait` raises."""
    call.has_waited = True
    caller = call.caller
    if caller is None:
        await wait()
        return
    with caller.meter.streams:
        service.load.queue.leave(call)
        await wait()
    turn = service.load.queue.enter(call, caller.name, service.clock())
    if turn is not None:
        await turn


async def wait_applied(service: Service, call: Call, index: int) -> None:
    """Waits for an index that another node may have named. Raises ApiError future_index at the deadline."""
    node = service.node
    if index <= node.applied:
        return
    try:
        await long_wait(service, call, functools.partial(node.wait_applied, index, call.deadline))
    except ApiError as error:
        if error.code is not Code.DEADLINE:
            raise
        here = f"this node has applied {service.node.applied}"
        raise ApiError(Code.FUTURE_INDEX, f"index {index} was not reached within the deadline: {here}") from error
