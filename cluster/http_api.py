"""The HTTP server of a node: every request passes one gate, then its route; every failure becomes one problem.

Built on aiohttp's low-level server: no application, no middlewares, raw paths. `cluster.http_server` starts it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from cluster import clock, wire
from cluster.budget import SMALL_BYTES
from cluster.fast_head import Head, HeadParser, Kind, Short, is_ordinary, short_of
from cluster.fast_path import FastConnection
from cluster.fast_short import ShortWay, route_of
from cluster.fast_turns import Turns
from cluster.http_answer import Answer, make_problem, problem_answer
from cluster.http_call import Call, Service, answers_full, is_request_id
from cluster.http_framing import ChunkOverhead
from cluster.http_query import authority_of
from cluster.http_routes import Route, allowed_methods, find_route
from cluster.http_stream import Stream
from cluster.logging import get_logger
from cluster.request_log import RequestLog
from cluster.wire import ApiError, Code, Principal, authorise

_ANYONE: Final = Principal()
_READS: Final = frozenset({"GET", "HEAD"})
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})
"""Methods whose routes take no body."""
_HOSTS_SEEN_MAX: Final = 64
"""Host values remembered as good; a client may come by any number of proxies' ports."""
_HEADERS_MAX: Final = 256
_HEADERS_BYTES_MAX: Final = 1 << 10
"""Sets of header lines that clients repeat: of so many, no longer than this, is remembered whether they are
ordinary."""
_PROBES: Final = frozenset({"/livez", "/readyz", "/metrics", "/v1/status"})
_PROBED: Final = frozenset({200, 503})
"""What is asked again and again says nothing in the log by answering as it should; the metrics count it."""
KEEPALIVE_SECONDS: Final = 75.0
"""How long a connection without a request is kept, in seconds."""
_NOT_HTTP: Final = b"\0\r\n\r\n\0"
"""What no parser takes, wherever in a request it stands."""
_PROBE_PATHS: Final = frozenset({"/livez", "/readyz"})
_DEFAULT_NAMESPACE: Final = 0


class Api:
    """The gate, one per node, shared by all its connections."""

    def __init__(self, service: Service) -> None:
        self.service = service
        node = service.node.node_id
        self._logger = get_logger(node=node)
        self._hosts_seen: set[str] = set()
        self._id_prefix = f"{node}-{secrets.token_hex(4)}-"
        self._ids = itertools.count(1)
        limits = service.limits
        lines = RequestLog(node, limits.request_lines_max, limits.request_slow_ms, has_all=service.http.access_log)
        self._lines = lines if lines.is_enabled else None
        self._short = ShortWay(service)
        self._ordinary: dict[tuple[tuple[bytes, bytes], ...], bool] = {}  # what is known of sets of header lines

    async def handle(self, request: web.BaseRequest) -> Answer | Stream:
        """Serves one request of aiohttp's."""
        headers = request.headers
        if isinstance(protocol := request.protocol, _Handler):
            protocol.began()
        if (head := self._short_head(request)) is not None:
            body, now = request.content.read_nowait(), clock.monotonic()
            if (asked := self.begin(head, body, now)) is None:
                return await self.serve(Call(head.method, head.target, headers, self.identify(headers), whole=body))
            try:
                await asked
            except Exception:
                pass  # `end` tells of it
            except BaseException:
                self.service.open_requests -= 1
                raise
            return self.end(head, asked, clock.monotonic() - now)
        return await self.serve(Call(request.method, request.raw_path, headers, self.identify(headers), request))

    def _short_head(self, request: web.BaseRequest) -> Head | None:
        """The head of a request that may go the short way, and whose body is there as a whole."""
        if not request.content.is_eof():
            return None
        raw = request.raw_headers
        is_short = self._ordinary.get(raw)
        if is_short is None:
            is_short = is_ordinary(raw)
            if len(self._ordinary) >= _HEADERS_MAX:
                self._ordinary.clear()
            if sum([len(name) + len(value) for name, value in raw]) <= _HEADERS_BYTES_MAX:
                self._ordinary[raw] = is_short
        method, target = request.method, request.raw_path
        if not is_short or (short := short_of(method, target)) is Short.NO or (method == "GET" and request.body_exists):
            return None
        return Head(Kind.HOT, method, target, request.headers, short=short)

    def identify(self, headers: Mapping[str, str]) -> str:
        """The client's id of the request, or a new one."""
        text = headers.get(wire.H_REQUEST_ID)
        return text if text is not None and is_request_id(text) else f"{self._id_prefix}{next(self._ids)}"

    async def serve(self, call: Call) -> Answer | Stream:
        """Serves one request; whatever goes wrong becomes a problem."""
        service = self.service
        started = service.clock()
        code = ""
        service.open_requests += 1
        answer: Answer | Stream
        try:
            route = self._admit(call)
            if call.method in _BODILESS:
                await call.drop_body(service)
            answer = await route.handler(service, call)
            if call.method in _READS and isinstance(answer, Answer) and not call.hold_answer(service, len(answer.body)):
                raise answers_full(service.answers)  # only to a read: what a write did must be told
        except Exception as error:
            code, told = self._failed(error, call.request_id, call.target, call)
            answer = told if call.stream is None or code != Code.INTERNAL else call.stream
        finally:
            service.open_requests -= 1
            call.release()
        if isinstance(answer, Answer):
            self._sign(answer, call.request_id)
        self._note(
            call.method, call.target, call.route, call.request_id, answer.status, service.clock() - started, code,
            waits=call.stream is not None or "wait=" in call.query_text or "min_index=" in call.query_text,
        )  # fmt: skip
        return answer

    def begin(self, head: Head, body: bytes, now: float) -> asyncio.Future[Any] | None:
        """Asks the node what a simple request wants (`end` goes on from there), or None: `serve` is to see to it."""
        if head.headers["Host"] not in self._hosts_seen:
            return None
        try:
            authorise(_ANYONE, route_of(head).verb, _DEFAULT_NAMESPACE, None)
            asked = self._short.begin(head, body, now)
        except ApiError:  # which `serve` meets too, and explains
            return None
        if asked is not None:
            self.service.open_requests += 1
        return asked

    def end(self, head: Head, asked: asyncio.Future[Any], seconds: float) -> Answer:
        """The answer to what `begin` asked so long ago; raises nothing but a cancellation."""
        self.service.open_requests -= 1
        code, request_id = "", f"{self._id_prefix}{next(self._ids)}"
        try:
            answer = self._short.end(head, asked.result())
            size = len(answer.body)
            if size > SMALL_BYTES and head.method == "GET" and not self.service.answers.has_room(size, size):
                raise answers_full(self.service.answers)
        except Exception as error:
            code, answer = self._failed(error, request_id, head.target)
        self._sign(answer, request_id)
        self._note(head.method, head.target, route_of(head).pattern, request_id, answer.status, seconds, code)
        return answer

    def _sign(self, answer: Answer, request_id: str) -> None:
        answer.request_id = request_id
        if self.service.is_leaving:
            answer.keep_alive = False

    def _failed(self, error: Exception, request_id: str, target: str, call: Call | None = None) -> tuple[str, Answer]:
        """Whatever went wrong, as the code of a problem and the answer."""
        if isinstance(error, ApiError):
            return error.code, self.problem(request_id, error, call)
        if isinstance(error, ConnectionError):
            return "client_gone", self.problem(request_id, ApiError(Code.INTERNAL, "the client is gone"))
        self._logger.error("request_failed", request_id=request_id, target=target[:200], exc_info=error)
        bug = ApiError(Code.INTERNAL, f"a bug, or something nobody foresaw: see the log for {request_id}")
        return Code.INTERNAL, self.problem(request_id, bug)

    def problem(self, identifier: str, error: ApiError, call: Call | None = None) -> Answer:
        """The error as an answer."""
        service = self.service
        node = service.node
        problem = make_problem(
            error, identity=service.identity, request_id=identifier, leader=node.leader_hint(), index=node.applied,
            term=node.term,
            has_session=call is not None and call.has_session,
        )  # fmt: skip
        extra: list[tuple[str, str]] = []
        if error.code is Code.METHOD_NOT_ALLOWED and call is not None:
            extra.append(("Allow", allowed_methods(call)))
        if error.code in (Code.BUSY, Code.DISK_FULL):
            extra.append(("Retry-After", "1"))
        answer = problem_answer(service.identity, problem, extra)
        answer.keep_alive = error.code is not Code.UNSUPPORTED  # a transfer coding: others may see another end of it
        return answer

    def _admit(self, call: Call) -> Route:
        """What every request passes: Host, route, Origin, authorise, deadline, bounds. Raises ApiError."""
        service = self.service
        call.check_framing()
        host = self._check_target(call)
        route = find_route(call)
        call.route = route.pattern
        call.check_own_headers()
        if call.method not in _READS and (origin := call.headers.get("Origin")) is not None:
            self._check_origin(origin, host)
        authorise(_ANYONE, route.verb, _DEFAULT_NAMESPACE, None)
        call.check_log(service.node.log_id)
        call.set_deadline(service)
        if not route.serves_fenced:
            service.refuse_when_stopping()
            if service.node.is_fenced:
                raise ApiError(
                    Code.FENCED,
                    "this node met a disk error, or its state is wrong, and serves no more: ask another one",
                )
            limits = service.limits
            reserve = limits.operator_requests_max if route.for_operators else 0
            if route.keeps_session:
                reserve = limits.keepalives_max
            if service.open_requests > limits.open_requests_max + reserve:
                raise ApiError(
                    Code.BUSY,
                    f"{limits.open_requests_max} requests are being served (limits.open_requests_max): "
                    "try again, or another node",
                )
        return route

    def _check_target(self, call: Call) -> str:
        """The host that the request means: by its Host header and by its target, if that has one. Raises ApiError.
        A load balancer's plain check is HTTP/1.0 without a Host header, and may ask whether the node serves."""
        host = call.headers.get("Host")
        is_probe = call.path in _PROBE_PATHS or (call.method, call.path) == ("OPTIONS", "/")
        if host not in self._hosts_seen and not (host is None and is_probe):
            self._check_host(host or "")
        authority = authority_of(call.target)
        if authority is None:
            return host or ""
        if authority not in self._hosts_seen:
            self._check_host(authority)
        return authority

    def _check_host(self, host: str) -> None:
        """Refuses what a browser was tricked into sending here under somebody else's name (DNS rebinding)."""
        name = _hostname(host)
        if name is None or not (_is_loopback(name) or name in self._own_hosts()):
            raise ApiError(
                Code.BAD_HOST,
                f"Host {host[:100]!r} is not a name of this node: use its advertised URL, or add it to http.hosts",
            )
        if len(self._hosts_seen) < _HOSTS_SEEN_MAX:
            self._hosts_seen.add(host)

    def _own_hosts(self) -> set[str]:
        service = self.service
        urls = [member.url for member in service.node.members().members if member.node == service.node.node_id]
        return {host.lower() for host in service.http.hosts} | {urlsplit(url).hostname or "" for url in urls}

    @staticmethod
    def _check_origin(origin: str, host: str) -> None:
        if origin.partition("://")[2].lower() != host.lower():
            raise ApiError(
                Code.FORBIDDEN, f"a write from a page of {origin[:100]!r}: only this node's own pages may write"
            )

    def _note(
        self, method: str, target: str, route: str, request_id: str, status: int, seconds: float, code: str,
        *, waits: bool = False,
    ) -> None:  # fmt: skip
        """Counts it, and writes its line."""
        self.service.counts.add(route, status, seconds)
        if self._lines is not None and not (route in _PROBES and status in _PROBED):
            self._lines.add(method, target, status, seconds, request_id, code, waits=waits)

    async def close(self) -> None:
        """Writes the last lines of the request log; nothing is to be done later."""
        self.service.freed.close()
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.close()


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Handler(RequestHandler):
    """A connection; what is not even HTTP gets a problem too. It tells `front`, if there is one, of each answer."""

    __slots__ = ("_api", "_front", "_overhead", "reading", "refusal")

    def __init__(self, manager: Server, front: FastConnection | None, **options: Any) -> None:
        super().__init__(manager, **options)
        self._api = manager.api
        self._front = front
        self._overhead = ChunkOverhead(manager.api.service.limits.head_bytes_max)
        self.refusal: ApiError | None = None  # why nothing more of what comes is read
        self.reading: StreamReader | None = None  # the body that a request waits for

    def data_received(self, data: bytes) -> None:
        """What the client sends. The first malformed chunk, or one too many of what is beside the body, is the last:
        the request that waits for it is told; where none waits yet, the parser meets bytes that end it."""
        if self.refusal is not None:
            return
        try:
            self._overhead.check(data)
        except ApiError as refusal:
            self.refusal = refusal
            if self.reading is not None:
                self.reading.set_exception(web.RequestPayloadError(refusal.message))
                self.close()
                return
            data += _NOT_HTTP
        super().data_received(data)

    def began(self) -> None:
        """The whole head of a request is here."""
        if self._front is not None:
            self._front.began()

    def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """aiohttp calls this to send an answer."""
        sending = super().finish_response(request, resp, start_time)
        return sending if self._front is None else self._finish(sending, self._front, request)

    @staticmethod
    async def _finish(
        sending: Coroutine[Any, Any, tuple[web.StreamResponse, bool]], front: FastConnection, request: web.BaseRequest
    ) -> tuple[web.StreamResponse, bool]:
        sent = await sending
        front.answered(is_whole=request.content.is_eof())
        return sent

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp calls this for bytes that its parser refuses; the connection ends."""
        code = Code.TOO_LARGE if isinstance(exc, LineTooLong) else Code.BAD_REQUEST
        text = " ".join((message or "malformed HTTP").split())[:300]
        error = self.refusal or ApiError(code, f"this is not a request that HTTP/1.1 knows: {text}")
        answer = self._api.problem("malformed", error)
        answer.keep_alive = False
        return answer  # type: ignore[return-value]  # has what aiohttp calls of a response


class Server(web.Server):
    """Makes those connections; with a `parser`, each behind the fast path."""

    def __init__(self, api: Api, parser: HeadParser | None, **options: Any) -> None:
        super().__init__(api.handle, **options)  # type: ignore[arg-type]  # answers have what aiohttp calls
        self.api = api
        self.fast: set[FastConnection] = set()
        self.turns = Turns()
        self.refusing_until = 0.0
        self._parser = parser
        self._options = options

    def __call__(self) -> RequestHandler:
        if self._parser is None:
            return self.make_handler(None)
        fast = FastConnection(self, self.api, self._parser, KEEPALIVE_SECONDS)
        return fast  # type: ignore[return-value]  # asyncio asks for no more than a protocol

    def make_handler(self, front: FastConnection | None) -> RequestHandler:
        """aiohttp's side of a connection."""
        return _Handler(self, front, loop=self._loop, **self._options)

    def pre_shutdown(self) -> None:
        """No further request on any connection."""
        super().pre_shutdown()
        for connection in list(self.fast):
            connection.close()

    async def shutdown(self, timeout: float | None = None) -> None:
        """Closes every connection; what is under way gets `timeout` seconds."""
        busy = [connection for connection in self.fast if connection.is_busy]
        for connection in busy:
            connection.ended = self._loop.create_future()
        waits = [connection.ended for connection in busy if connection.ended is not None]
        if waits:
            await asyncio.gather(super().shutdown(timeout), asyncio.wait(waits, timeout=timeout))
        else:
            await super().shutdown(timeout)
        for connection in list(self.fast):
            connection.abort()
