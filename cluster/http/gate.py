"""Passes every HTTP request through one gate and to its route, and turns every failure into one problem.

`raftlog.cluster.http.server` makes it. It is built on aiohttp's low-level server: no application, no middlewares, raw
paths.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web

from raftlog.cluster.admission.access import Denial
from raftlog.cluster.admission.budget import SMALL_BYTES
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import H_PASSED_ON, H_REQUEST_ID, H_SEQUENCE, H_SESSION, H_TRACEPARENT, H_TRACERESPONSE
from raftlog.cluster.http.audit import AUDITED, REFUSALS, AuditLog
from raftlog.cluster.http.exchange.answer import HttpAnswer, StreamedAnswer, forget_frames, problem_answer
from raftlog.cluster.http.exchange.body import SlowSide, drop_body
from raftlog.cluster.http.exchange.call import READS, AskedOfNode, Call, finished
from raftlog.cluster.http.exchange.cookies import credential_of
from raftlog.cluster.http.exchange.query import split_target
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.exchange.traces import TracedAnswer
from raftlog.cluster.http.hosts import HostCheck, check_origin
from raftlog.cluster.http.request_log import FAILED, RequestLog
from raftlog.cluster.http.routes.table import KEY_ROUTES, Route, find_route
from raftlog.cluster.runtime.log_file import LogSink
from raftlog.cluster.runtime.logging import get_logger
from raftlog.cluster.runtime.metrics import READ, WAITS, WRITE
from raftlog.cluster.security.tokens import redacted
from raftlog.statemachine.access.grants import BadGrant
from raftlog.statemachine.store import FutureRevision, RevisionCompacted

if TYPE_CHECKING:
    from raftlog.cluster.http.spans import Tracer  # of the extra `otel`

_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")
"""A client's request id that can stand in a header and a log line."""
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})
"""Methods whose routes take no body."""
_PROBES: Final = frozenset({"/livez", "/readyz", "/metrics", "/v1/status"})
_PROBED: Final = frozenset({200, 503})
"""Statuses with which a probe has no line in the log: probes come again and again, and the metrics count them."""
_COUNTED_AT: Final = 256
"""Answered requests that are counted together: one pass, while their tuples are few."""
_DENIED_S: Final = 5.0
"""Longest wait for the barrier before a refusal that came before the request's deadline was read."""


Begun = AskedOfNode | HttpAnswer | StreamedAnswer | Coroutine[Any, Any, HttpAnswer | StreamedAnswer]
"""A request that is admitted: asked of the node, answered already, or with a handler that waits for more."""


class Api:
    """The gate, one per node, shared by all its connections."""

    def __init__(self, service: Service, audit: LogSink | None = None, tracer: Tracer | None = None) -> None:
        """`audit`: the file of the audit log; None: its lines are in the node's own log. `tracer`: None: no traces."""
        self.service = service
        self._tracer = tracer
        self._audit = AuditLog(service.node.node_id, audit)
        node = service.node.node_id
        self._logger = get_logger(node=node)
        self._hosts = HostCheck(service)
        self._id_prefix = f"{node}-{secrets.token_hex(4)}-"
        self._ids = itertools.count(1)
        limits = service.limits
        lines = RequestLog(
            node, limits.request_lines_max, limits.request_slow_ms, has_all=service.settings.http.access_log
        )
        self._lines = lines if lines.is_enabled else None

    async def handle(self, request: web.BaseRequest) -> HttpAnswer | StreamedAnswer:
        connection: SlowSide = cast(Any, request.protocol)
        if request.method in READS:
            connection.read_task = asyncio.current_task()
        path, query = split_target(request.raw_path)
        call = Call(request.method, request.raw_path, path, query, request.headers, request)
        call.holder = connection.holder
        begun = self.begin(call)
        if isinstance(begun, tuple):
            begun = self._ended(call, finished(self.service, call, begun))
        return begun if isinstance(begun, HttpAnswer | StreamedAnswer) else await begun

    def begin(self, call: Call) -> Begun:
        """Admits a request and calls its handler. Failures become problems; raises nothing but a cancellation.
        A tuple continues in `end`, a coroutine returns the answer."""
        service = self.service
        service.load.open_requests += 1
        call.started = service.clock()
        name = call.headers.get(H_REQUEST_ID)
        call.request_id = name if name and _REQUEST_ID.fullmatch(name) else f"{self._id_prefix}{next(self._ids)}"
        tracer = self._tracer
        if tracer is not None and (tracer.every or H_TRACEPARENT in call.headers):
            call.traced = tracer.begin(call.headers.get(H_TRACEPARENT), call.started)
        try:
            route = self._admit(call)
            if call.whole is None and call.method in _BODILESS and not call.request.content.is_eof():
                return self._ended(call, self._without_body(call, route))
            if call.caller is not None and (turn := self._turn(call, route, call.caller.name)) is not None:
                return self._ended(call, self._in_turn(call, route, turn))
            handled = route.handler(service, call)
        except Denial:
            return self._ended(call, self._again(call))
        except Exception as error:
            return self._failed(call, error)
        return handled if isinstance(handled, tuple) else self._ended(call, handled)

    def end(self, call: Call, asked: AskedOfNode) -> HttpAnswer | StreamedAnswer:
        """The answer to a request that the node was asked for, and has settled. Raises nothing but a cancellation."""
        future, finish, what = asked
        try:
            answer = finish(self.service, call, future.result(), what)
        except Exception as error:
            failed = self._failed(call, error)
            forget_frames(error)
            return failed
        except BaseException:
            self._leave(call)
            raise
        return self._end(call, answer)

    async def _again(self, call: Call) -> HttpAnswer | StreamedAnswer:
        """Asks the gate and the handler once more, after a read barrier: what the sender lacked may have been given at
        another node just before. Raises ApiError."""
        call.was_denied = True
        await self.service.node.read_barrier(call.deadline or self.service.clock() + _DENIED_S)
        self.service.access.is_behind = False
        route = self._admit(call)
        return await finished(self.service, call, route.handler(self.service, call))

    async def _ended(self, call: Call, handled: Awaitable[HttpAnswer | StreamedAnswer]) -> HttpAnswer | StreamedAnswer:
        """The same for a handler that is a coroutine."""
        try:
            try:
                answer = await handled
            except Denial:
                if call.was_denied:
                    raise
                answer = await self._again(call)
        except Exception as error:
            answer = self._failed(call, error)
            forget_frames(error)
            return answer
        except BaseException:
            self._leave(call)
            raise
        return self._end(call, answer)

    def _turn(self, call: Call, route: Route, user: str) -> asyncio.Future[None] | None:
        """The turn for which the request waits, if other users send requests, too. Raises ApiError over_quota."""
        if route.serves_fenced or route.for_operators or route.keeps_session:
            return None
        return self.service.load.queue.enter(call, user, call.started)

    async def _in_turn(
        self, call: Call, route: Route, turn: asyncio.Future[None] | None
    ) -> HttpAnswer | StreamedAnswer:
        """Waits for the request's turn, then asks its handler. Raises ApiError."""
        if turn is not None:
            await turn
        return await finished(self.service, call, route.handler(self.service, call))

    async def _without_body(self, call: Call, route: Route) -> HttpAnswer | StreamedAnswer:
        """Drops the body of a request that takes none, then asks its handler. Raises ApiError."""
        await drop_body(self.service, call)
        turn = None if call.caller is None else self._turn(call, route, call.caller.name)
        return await self._in_turn(call, route, turn)

    def _leave(self, call: Call) -> None:
        self.service.load.open_requests -= 1
        if call.caller is not None:
            self.service.load.queue.leave(call)
        call.stream = None  # it has the call: a circle of objects
        if call.held is not None:
            call.release()

    def _end(self, call: Call, answer: HttpAnswer | StreamedAnswer, code: str = "") -> HttpAnswer | StreamedAnswer:
        """Signs the answer, counts the request, writes its line. `code` is that of a problem."""
        service = self.service
        if isinstance(answer, HttpAnswer):
            size = len(answer.body)
            if size > SMALL_BYTES and call.method in READS:  # only reads: a write must be answered
                try:
                    call.hold_answer(service, size)
                except ApiError as full:
                    return self._failed(call, full)
            answer.request_id = call.request_id
            if service.is_leaving:
                answer.keep_alive = False
            if call.caller is not None:
                call.caller.meter.charge(size)
        service.load.open_requests -= 1
        if call.held is not None:
            call.release()
        if call.caller is not None:
            service.load.queue.leave(call)
        seconds = service.clock() - call.started
        http = service.node.metrics.http
        waits = call.stream is not None or call.has_waited
        kind = WAITS if waits else READ if call.method in READS else WRITE
        http.answered.append((call.route, answer.status, seconds, kind))
        if len(http.answered) >= _COUNTED_AT:
            http.count()
        if call.route in AUDITED or (code and code in REFUSALS):
            self._audit.answered(call, answer.status, code)
        lines = self._lines
        if lines is not None and (seconds >= lines.from_s or answer.status >= FAILED):
            if not (call.route in _PROBES and answer.status in _PROBED):
                lines.add(
                    call.method, redacted(call.target), answer.status, seconds, call.request_id, code, waits=waits
                )
        if call.traced is not None:
            self._trace(call, answer, code, seconds)
        call.stream = None  # as in `_leave`
        return answer

    def _trace(self, call: Call, answer: HttpAnswer | StreamedAnswer, code: str, seconds: float) -> None:
        """Names the span in the answer, and has the spans of the request made later."""
        tracer, traced, index = self._tracer, call.traced, 0
        assert tracer is not None
        assert traced is not None
        if isinstance(answer, HttpAnswer):
            answer.extra = [*answer.extra, (H_TRACERESPONSE, traced.header)]
            index = answer.index if not code and call.method not in READS else 0
        path, ended = redacted(call.path), call.started + seconds
        tracer.end(
            TracedAnswer(traced, call.method, path, call.route, answer.status, code, index, ended), self.service.node
        )

    def _failed(self, call: Call, error: Exception) -> HttpAnswer | StreamedAnswer:
        """`_end` for whatever went wrong. A stream that broke off for a bug stays so."""
        request_id, error = call.request_id, _as_api_error(error)
        if isinstance(error, ApiError):
            return self._end(call, self.problem(request_id, error, call), error.code)
        if isinstance(error, ConnectionError):
            gone = ApiError(Code.INTERNAL, "the client is gone")
            return self._end(call, self.problem(request_id, gone), "client_gone")
        self._logger.error("request_failed", request_id=request_id, target=redacted(call.target)[:200], exc_info=error)
        bug = ApiError(Code.INTERNAL, f"an unexpected error, probably a bug: look for {request_id} in the node's log")
        return self._end(call, call.stream or self.problem(request_id, bug), Code.INTERNAL)

    def problem(self, identifier: str, error: ApiError, call: Call | None = None) -> HttpAnswer:
        """The error as an answer. Without a `call` no request was read: its bytes may name a session."""
        self.service.node.metrics.count("raftlog_http_problems_total", error.code)
        error.message = redacted(error.message)  # it may quote what the client sent
        problem = self.service.problem(error, identifier, has_session=call is None or call.has_session)
        extra: list[tuple[str, str]] = []
        if error.code is Code.METHOD_NOT_ALLOWED and call is not None:
            extra.append(("Allow", call.allowed))
        if error.code in (Code.BUSY, Code.DISK_FULL, Code.OVER_QUOTA):
            extra.append(("Retry-After", str(error.more.get("retry_after", 1))))
        if error.code is Code.UNAUTHORIZED:
            extra.append(("WWW-Authenticate", 'Bearer realm="raftlog"'))
        answer = problem_answer(self.service.identity, problem, extra)
        answer.keep_alive = error.code is not Code.UNSUPPORTED  # a transfer coding: others may see another end of it
        return answer

    def _admit(self, call: Call) -> Route:
        """The gate: every request passes all of its checks. Returns the route. Raises ApiError."""
        service, limits = self.service, self.service.limits
        if call.has_options:
            call.check_framing()
        host = call.headers.get("Host")
        if call.has_options or host not in self._hosts.seen:
            host = self._hosts.check(call)
        route = KEY_ROUTES[call.method] if call.key else find_route(call)
        call.route = route.pattern
        access = service.access
        if service.node.machine.access.is_on or access.is_exposed or access.is_behind:
            if "Authorization" not in call.headers and call.holder is None:
                call.login = credential_of(service, call, host or "")
            access.admit(
                call,
                route.need,
                call.body_bytes,
                is_read=call.method in READS,
                is_first_admin=route.is_first_admin,
                is_passed_on=route.is_passed_on and H_PASSED_ON in call.headers,
            )
        if call.has_options:
            call.check_own_headers()
            if not route.takes_session and call.method not in READS:
                self._check_no_session(call)
            if call.method not in READS and (origin := call.headers.get("Origin")) is not None:
                check_origin(origin, host or "")
            call.check_log(service.node.log_id)
            call.set_deadline(service)
        else:
            call.deadline = call.started + limits.deadline_default_ms / 1000
        if not route.serves_fenced:
            if service.is_stopping:
                service.refuse_when_stopping()
            if service.node.is_fenced:
                raise ApiError(
                    Code.FENCED,
                    "this node met a disk error, or its state is wrong, and serves no more: ask another one",
                )
            if service.load.open_requests > limits.open_requests_max:
                service.load.check_requests(for_operators=route.for_operators, keeps_session=route.keeps_session)
        return route

    @staticmethod
    def _check_no_session(call: Call) -> None:
        """Raises ApiError if a write names a session on a route that would carry it out for every copy."""
        if H_SESSION in call.headers or H_SEQUENCE in call.headers:
            raise ApiError(
                Code.BAD_REQUEST,
                f"{call.method} {call.route} takes no session, so that every copy of it would be carried out: send it "
                f"without {H_SESSION} and {H_SEQUENCE}",
            )

    async def close(self) -> None:
        """Writes the last lines of the request log. Call it last."""
        self.service.load.freed.close()
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.close()
        if self._tracer is not None:
            await self._tracer.close(self.service.node)


def _as_api_error(error: Exception) -> Exception:
    """What the state machine raises for a revision or a grant that a client named, as that client's error."""
    match error:
        case RevisionCompacted():
            return ApiError(Code.COMPACTED, str(error), revision=error.oldest)
        case FutureRevision():
            return ApiError(Code.FUTURE_INDEX, str(error), revision=error.newest)
        case BadGrant():
            return ApiError(Code.BAD_REQUEST, str(error))
        case _:
            return error
