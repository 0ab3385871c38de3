"""Makes OpenTelemetry spans of sampled requests, some time after they were answered (extra `otel`).

The gate calls `begin` and `end`. `end` only notes the request: its spans are made `SETTLE_S` later, when slow followers
have acknowledged, too. A thread of the SDK sends them. It drops them where the receiver does not answer, so that no
request ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from raftlog.cluster.config.settings import Settings
from raftlog.cluster.http.exchange.traces import TracedAnswer, TracedRequest, attributes_of, parent_of, steps_of
from raftlog.cluster.replica.interface import NodeInterface
from raftlog.cluster.runtime import build, clock
from raftlog.cluster.runtime.line_limit import LineLimit
from raftlog.cluster.runtime.logging import Logger

SETTLE_S: Final = 1.0
"""From the answer of a request to its spans: a follower that takes longer has none."""
EXPORT_S: Final = 5.0
"""Longest wait for the receiver, in seconds."""
STOP_S: Final = 1.0
"""Longest wait of a stopping node for the newest spans, in seconds."""
_SERVER_ERROR: Final = 500


class Tracer:
    """Makes the spans of one node. Belongs to the event loop."""

    def __init__(self, settings: Settings, log: str, logger: Logger) -> None:
        version = build.facts()["version"]
        names = {"service.name": "raftlog", "service.version": version, "service.instance.id": str(settings.node)}
        resource = Resource.create(names | {"raftlog.log": log})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(settings.trace.endpoint, timeout=EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=SETTLE_S * 1_000))
        self._tracer = self._provider.get_tracer("raftlog", version)
        self.every, self._count = settings.trace.every, 0
        self._requests_max = settings.limits.traced_requests_max
        self._answered: deque[TracedAnswer] = deque()
        self._timer: asyncio.TimerHandle | None = None
        lines = logging.getLogger("opentelemetry")
        lines.handlers[:], lines.propagate = [_ExporterLines(logger)], False

    def begin(self, traceparent: str | None, started: float) -> TracedRequest | None:
        """The request's span, if its `traceparent` is sampled, or it has none and is one of `trace.every`."""
        parent = None if traceparent is None else parent_of(traceparent)
        self._count += parent is None
        is_chosen = parent[2] if parent is not None else self.every and self._count % self.every == 0
        if not is_chosen or len(self._answered) >= self._requests_max:
            return None
        above = Context()
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED)
            above = set_span_in_context(NonRecordingSpan(SpanContext(*parent[:2], is_remote=True, trace_flags=flags)))
        offset_ns = clock.offset_ns()
        span = self._tracer.start_span("", above, SpanKind.SERVER, start_time=int(started * 1e9) + offset_ns)
        own = span.get_span_context()
        return TracedRequest(span, f"00-{own.trace_id:032x}-{own.span_id:016x}-01", started, offset_ns)

    def end(self, answer: TracedAnswer, node: NodeInterface) -> None:
        """That node answered the request."""
        self._answered.append(answer)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._make_due, node)

    async def close(self, node: NodeInterface) -> None:
        """Sends what it can in a short time. Call it last."""
        if self._timer is not None:
            self._timer.cancel()
        while self._answered:
            self._make(self._answered.popleft(), node)
        ending = threading.Thread(target=self._provider.shutdown, name="trace-stop", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, STOP_S)

    def _make_due(self, node: NodeInterface) -> None:
        until, self._timer = clock.monotonic() - SETTLE_S, None
        while self._answered and self._answered[0].ended <= until:
            self._make(self._answered.popleft(), node)
        if self._answered:
            wait_s = self._answered[0].ended - until
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._make_due, node)

    def _make(self, answer: TracedAnswer, node: NodeInterface) -> None:
        """Ends the request's span, and makes those below it."""
        span, _, _, offset_ns = answer.traced
        span.update_name(answer.method if answer.route == "none" else f"{answer.method} {answer.route}")
        span.set_attributes(attributes_of(answer))
        if answer.status >= _SERVER_ERROR:
            span.set_status(StatusCode.ERROR)
        above = {"": set_span_in_context(span, Context())}
        found = node.write_steps(answer.applied) if answer.applied else None
        for name, within, began, ended, at in steps_of(answer, found, node.node_id) if found is not None else ():
            about = {"raftlog.node.id": at, "raftlog.index": answer.applied}
            start_ns = int(began * 1e9) + offset_ns
            step = self._tracer.start_span(name, above[within], attributes=about, start_time=start_ns)
            above[name] = set_span_in_context(step, Context())
            step.end(int(ended * 1e9) + offset_ns)
        span.end(int(answer.ended * 1e9) + offset_ns)


class _ExporterLines(logging.Handler):
    """Passes the SDK's lines about its receiver on to the node's own log, a few of them."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(logging.WARNING)
        self._logger, self._lines = logger, LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.allows("traces"):
            mend = "start the receiver at trace.endpoint, or take the setting out; no request waits for it"
            left_out = self._lines.take_left_out()
            self._logger.warning("traces_not_sent", reason=record.getMessage(), left_out=left_out, mend=mend)
