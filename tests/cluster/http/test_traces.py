"""A sampled write is one trace of client, node, leader, followers and disk at a receiver of OTLP; others have none."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from raftlog.cluster.client import trace_context
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.settings import LimitSettings, Settings, TraceSettings
from raftlog.cluster.http.exchange.traces import (
    TracedAnswer,
    TracedRequest,
    TracedStep,
    attributes_of,
    parent_of,
    steps_of,
)
from raftlog.cluster.http.spans import Tracer
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.protocol.step_times import StepTimes, WriteSteps
from raftlog.cluster.runtime.logging import get_logger
from tests.support import HANG_S, free_port, http_served, wait_until

TRACE = "4bf92f3577b34da6a3ce929d0e0e473{}"
SPAN = "00f067aa0ba902b7"
Spans = dict[str, list[Any]]


@contextmanager
def receiver(spans: Spans) -> Iterator[str]:
    """Keeps the spans that it gets by OTLP over HTTP, by their trace; its URL."""

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        spans.setdefault(span.trace_id.hex(), []).append(span)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    with http_served(Collector) as url:
        yield f"{url}/v1/traces"


@contextmanager
def under(trace: str, *, is_sampled: bool = True) -> Iterator[None]:
    """As in a program whose active span that is."""
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    with use_span(NonRecordingSpan(SpanContext(int(trace, 16), int(SPAN, 16), is_remote=False, trace_flags=flags))):
        yield


def sent(url: str, method: str, path: str, trace: str, body: bytes | None = None) -> Mapping[str, str]:
    """The headers of the answer to a plain request with a traceparent."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=HANG_S)
    connection.request(method, path, body, {"traceparent": f"00-{trace}-{SPAN}-01"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status in (200, 404)
    return dict(answer.getheaders())


def tree_of(spans: list[Any]) -> dict[str, list[str]]:
    """The names of the spans, sorted, below the name of the one above them; `client` is the caller's."""
    names = {SPAN: "client"} | {span.span_id.hex(): span.name for span in spans}
    tree: dict[str, list[str]] = {}
    for span in spans:
        tree.setdefault(names[span.parent_span_id.hex()], []).append(span.name)
    return {name: sorted(below) for name, below in tree.items()}


def attributes(span: Any) -> dict[str, Any]:
    """Name to value."""
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


@pytest.mark.serial
def test_a_sampled_write_is_one_trace(tmp_path: Path) -> None:
    """Three nodes. A write of the client under an active span has, at the receiver, the span of the leader below that
    of the client, and below it waiting, replication with the leader's disk and both followers, and applying. A write at
    a follower has its own disk and the time until it knew of the commit. A read has one span. A write whose traceparent
    is not sampled, and one without any, have none."""
    spans: Spans = {}
    write, unsampled, passed_on, read, append, batch, last = map(TRACE.format, "abcdef0")
    with receiver(spans) as endpoint, LocalCluster(tmp_path, 3, settings={"trace.endpoint": endpoint}) as local:
        local.restore()
        leader = local.leader()
        follower = next(node for node in local.nodes if node != leader)
        with SyncClient(local.url(leader), bound=True) as client:
            client.put(b"warm", b"up")
            with under(write):
                index = client.put(b"a", b"1").index
            with under(unsampled, is_sampled=False):
                client.put(b"a", b"2")
            with under(append):
                client.append(b"record")
        answered = sent(local.url(follower), "PUT", "/v1/kv/b", passed_on, b"3")
        assert answered["traceresponse"].startswith(f"00-{passed_on}-")
        sent(local.url(follower), "GET", "/v1/kv/nothing", read)
        asyncio.run(put_two_at_once(local.url(leader), batch))
        sent(local.url(leader), "DELETE", "/v1/kv/a", last)
        wait_until(lambda: {write, append, passed_on, read, batch, last} <= spans.keys(), HANG_S, what="six traces")

    steps = ["raftlog apply", "raftlog queue", "raftlog replicate"]
    below = ["raftlog disk sync", "raftlog follower", "raftlog follower"]
    route = "PUT /v1/kv/{key}"
    assert tree_of(spans[write]) == {"client": [route], route: steps, "raftlog replicate": below}
    by_name = {span.name: span for span in spans[write]}
    told = attributes(by_name[route])
    assert told == {
        "http.request.method": "PUT",
        "http.route": "/v1/kv/{key}",
        "http.response.status_code": 200,
        "url.path": "/v1/kv/a",
    }
    assert all(attributes(span).get("raftlog.index", index) == index for span in spans[write])
    followers = {attributes(span)["raftlog.node.id"] for span in spans[write] if span.name == "raftlog follower"}
    assert followers == {*local.nodes} - {leader}
    root = by_name[route]
    for name in (*steps, "raftlog disk sync"):
        span = by_name[name]
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    assert tree_of(spans[passed_on]) == {
        "client": [route],
        route: ["raftlog apply", "raftlog forward"],
        "raftlog forward": ["raftlog disk sync"],
    }
    (only,) = spans[read]
    assert attributes(only)["error.type"] == "key_not_found"
    (sending,) = (span for span in spans[append] if span.name == "POST /v1/log")
    assert attributes(sending)["messaging.operation.type"] == "send"
    assert tree_of(spans[batch])["client"] == ["POST /v1/kv/batch"]
    assert tree_of(spans[last])["client"] == ["DELETE /v1/kv/{key}"]
    assert spans.keys() == {write, append, passed_on, read, batch, last}


async def put_two_at_once(url: str, trace: str) -> None:
    """Two writes that go in one request; only the first caller has a span."""
    async with Client(url, bound=True) as client:
        await client.put(b"c", b"1")

        async def first() -> None:
            with under(trace):
                await client.put(b"c", b"2")

        await asyncio.gather(first(), client.put(b"d", b"2"))


@pytest.mark.serial
def test_a_receiver_that_is_down_costs_no_write(tmp_path: Path) -> None:
    """Every request is sampled, and no process listens at the endpoint: all writes are acknowledged and there, the
    node's log names the reason, and the node ends cleanly."""
    settings = {"trace.endpoint": f"http://127.0.0.1:{free_port()}/v1/traces", "trace.every": 1}
    with LocalCluster(tmp_path, 1, settings=settings) as local:
        local.restore()
        with SyncClient(local.urls) as client:
            for number in range(100):
                client.put(f"{number}".encode(), b"v")
            assert len(list(client.range())) == 100

        def reasons() -> list[str]:
            lines = map(json.loads, local.log_file(1).read_text().splitlines())
            return [line["reason"] for line in lines if line["event"] == "traces_not_sent"]

        assert "Connection refused" in " ".join(wait_until(reasons, HANG_S, what="a line about the receiver"))
        assert local.stop_node(1) == 0


async def test_requests_are_chosen_and_bounded() -> None:
    """One of `trace.every` without a traceparent, and no more in a second than `limits.traced_requests_max`."""
    settings = Settings(
        trace=TraceSettings(endpoint=f"http://127.0.0.1:{free_port()}/v1/traces", every=3),
        limits=LimitSettings(traced_requests_max=2),
    )
    tracer = Tracer(settings, "log", get_logger())
    node: Any = SimpleNamespace(node_id=1, write_steps=lambda index: None)
    found = [tracer.begin(None, 1.0) for _ in range(6)]
    assert [each is not None for each in found] == [False, False, True] * 2
    sampled = f"00-{TRACE.format(0)}-{SPAN}-01"
    for _ in range(2):
        traced = tracer.begin(sampled, 1.0)
        assert traced is not None
        tracer.end(TracedAnswer(traced, "GET", "/", "/", 200, "", 0, 2.0), node)
    assert tracer.begin(sampled, 1.0) is None
    await tracer.close(node)


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        (f"00-{TRACE.format('a')}-{SPAN}-01", True),
        (f"00-{TRACE.format('a')}-{SPAN}-00", False),
        (f"cc-{TRACE.format('a')}-{SPAN}-03-more", True),
        (f"00-{TRACE.format('a')}-{SPAN}-01-more", None),
        (f"ff-{TRACE.format('a')}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE.format('a')}-{'0' * 16}-01", None),
        (f"00-{TRACE.format('A')}-{SPAN}-01", None),
        ("", None),
    ],
)
def test_a_traceparent_is_valid_or_ignored(text: str, parent: bool | None) -> None:
    """As W3C Trace Context says, also of later versions. `parent`: whether it is sampled; None: it is ignored."""
    wanted = None if parent is None else (int(TRACE.format("a"), 16), int(SPAN, 16), parent)
    assert parent_of(text) == wanted


def test_the_steps_of_an_entry_are_found_by_its_index() -> None:
    """The first that reach it, on this node and on each follower; after a cut of the log those of the newer entry."""
    times = StepTimes()
    for last, at in ((5, 1.0), (9, 2.0), (7, 3.0), (9, 4.0)):
        times.synced(last, at, at + 0.1)
        times.committed(last, at + 0.3)
    for match, at in ((5, 1.2), (7, 3.2), (9, 4.2), (7, 5.0), (9, 9.0)):
        times.acknowledged(2, match, at)
    times.acknowledged(3, 7, 3.5)
    found = times.of(8, [(7, 2.9), (9, 3.9)])
    assert found == WriteSteps(3.9, (4.0, 4.1), ((2, 4.2),), 4.3)
    assert times.of(7, []) == WriteSteps(None, (3.0, 3.1), ((2, 3.2), (3, 3.5)), 3.3)
    assert times.of(10, [(9, 3.9)]) == WriteSteps(None, None, (), None)


def test_times_of_another_write_make_no_steps() -> None:
    """A commit outside the request is not the request's: a repeated write names the index of the first."""
    answer = TracedAnswer(TracedRequest(None, "", 10.0, 0), "PUT", "/v1/kv/a", "/v1/kv/{key}", 200, "", 8, 11.0)
    assert list(steps_of(answer, WriteSteps(3.9, (4.0, 4.1), (), 4.3), 1)) == []
    assert list(steps_of(answer, WriteSteps(None, None, (), None), 1)) == []
    late = steps_of(answer, WriteSteps(10.1, (10.2, 10.3), ((2, 12.0),), 10.4), 1)
    assert TracedStep("raftlog follower", "raftlog replicate", 10.1, 12.0, 2) in [*late]
    failed = attributes_of(answer._replace(status=503, code="no_leader", route="none"))
    assert (failed["error.type"], "http.route" in failed) == ("no_leader", False)


def test_without_an_active_span_the_client_sends_none() -> None:
    """Nor under one that is not valid."""
    assert trace_context.of_request() == ""
    with under(TRACE.format("a")):
        assert trace_context.of_request() == f"00-{TRACE.format('a')}-{SPAN}-01"
