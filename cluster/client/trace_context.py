"""Finds the span of OpenTelemetry under which a request is made, so that a node can continue its trace.

`raftlog.cluster.client.flow` sends it as `traceparent` (W3C Trace Context). A span can only be active in a program that
has imported OpenTelemetry: without it nothing is looked for, and nothing imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

CARRIED: Final = ContextVar[str | None]("raftlog_trace", default=None)
"""That of the batch which this task sends: its calls come from other tasks. None: no batch is sent."""


def active() -> str:
    """The `traceparent` of the active span; empty if there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def of_request() -> str:
    """The `traceparent` of the request that is made now; empty if there is none."""
    carried = CARRIED.get()
    return active() if carried is None else carried


def carry(traces: Iterable[str]) -> None:
    """The next request of this task is a batch of calls with these: it has the first that is not empty."""
    CARRIED.set(next(filter(None, traces), ""))
