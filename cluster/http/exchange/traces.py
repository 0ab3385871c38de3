"""Decides which requests are traced, and what the spans of one say: pure, without OpenTelemetry.

The gate notes sampled requests, and `raftlog.cluster.http.spans` makes their spans. Sources: W3C Trace Context (level 2
for `traceresponse`), and OpenTelemetry's semantic conventions of HTTP (stable) and of messaging (`MESSAGING`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from raftlog.cluster.protocol.step_times import WriteSteps

MESSAGING: Final = (
    "messaging.system",
    "messaging.destination.name",
    "messaging.operation.name",
    "messaging.operation.type",
)
"""The names of messaging, which are not stable yet, and their values for the routes of the log."""
_OPERATIONS: Final = {
    ("POST", "/v1/log"): ("raftlog", "log", "append", "send"),
    ("GET", "/v1/log"): ("raftlog", "log", "read", "receive"),
}
_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TracedRequest(NamedTuple):
    """A sampled request: its span (of OpenTelemetry), the `traceparent` that names it, and when it began."""

    span: Any
    header: str
    started: float  # seconds of the clock
    offset_ns: int  # of Unix time to the clock


class TracedAnswer(NamedTuple):
    """What became of a sampled request."""

    traced: TracedRequest
    method: str
    path: str
    route: str  # its pattern; `none` if there is none
    status: int
    code: str  # of the problem; empty: there is none
    applied: int  # index of a write that was applied; 0: another request
    ended: float  # seconds of the clock


class TracedStep(NamedTuple):
    """A span below that of a request; `within`: the name of the one above it, empty for the request itself."""

    name: str
    within: str
    began: float
    ended: float
    node: int


def parent_of(text: str) -> tuple[int, int, bool] | None:
    """The trace and the span that a `traceparent` names, and whether it is sampled; None for one to be ignored."""
    match = _PARENT.fullmatch(text)
    if match is None or (match[1] == "00" and match[5]):
        return None
    return int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & 1)


def attributes_of(answer: TracedAnswer) -> dict[str, str | int]:
    """The attributes of a request's span, by the conventions of HTTP and, for records of the log, of messaging."""
    found: dict[str, str | int] = {
        "http.request.method": answer.method,
        "http.response.status_code": answer.status,
        "url.path": answer.path,
    }
    if answer.route != "none":
        found["http.route"] = answer.route
    if answer.code:
        found["error.type"] = answer.code
    if (values := _OPERATIONS.get((answer.method, answer.route))) is not None:
        found |= dict(zip(MESSAGING, values, strict=True))
    return found


def steps_of(answer: TracedAnswer, steps: WriteSteps, node: int) -> Iterator[TracedStep]:
    """The steps of a write as spans, each after the one above it. A leader knows when it proposed the write, and when
    followers acknowledged it. Another node knows when it had passed the write on and learned of its commit."""
    started, ended, proposed = answer.traced.started, answer.ended, steps.proposed
    if steps.committed is None or not started <= steps.committed <= ended:
        return  # the index is not this request's, or its times are not kept any more
    if proposed is not None and started <= proposed:
        name, began, acknowledged = "raftlog replicate", proposed, steps.acknowledged
        yield TracedStep("raftlog queue", "", started, began, node)
    else:
        name, began, acknowledged = "raftlog forward", started, ()
    yield TracedStep(name, "", began, steps.committed, node)
    if steps.synced is not None and steps.synced[1] >= began:
        yield TracedStep("raftlog disk sync", name, *steps.synced, node)
    for peer, when in acknowledged:
        if when >= began:
            yield TracedStep("raftlog follower", name, began, when, peer)
    yield TracedStep("raftlog apply", "", steps.committed, ended, node)
