"""Every way to be refused: the table of errors, the gate, and limits."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog

from raftlog.cluster.api.errors import ERRORS, ApiError, Code, Outcome
from raftlog.cluster.config.settings import HttpSettings
from raftlog.cluster.http.routes.table import ROUTES
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.http_probe import ask, exchange, open_stream


@pytest.mark.parametrize("code", list(Code))
async def test_every_code_has_one_row(served: Served, code: Code) -> None:
    """Whatever fails with a code is answered with the status, outcome and retryable of its row, and all that a problem
    has: node, request id, index, term, a message that names the node."""
    served.node.refusal = ApiError(code, "why")
    reply = await ask(served.port, "PUT", "/v1/kv/k", b"v", {"Raftlog-Request-Id": "mine"})
    problem = reply.problem()
    row = ERRORS[code]
    assert (problem.code, reply.status, problem.outcome, problem.retryable) == (
        code,
        row.status,
        row.outcome,
        row.retryable,
    )
    assert (problem.request_id, problem.node, problem.index, problem.term) == ("mine", 1, 2, 1)
    assert problem.message == "node 1: why"
    assert row.outcome is not Outcome.APPLIED
    assert reply.headers["raftlog-log"] == served.node.log_id
    assert reply.headers["raftlog-node"] == "1"


# -- routes and methods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("PATCH", "/v1/log", "GET, HEAD, POST"),
        ("POST", "/v1/kv/k", "DELETE, GET, HEAD, PUT"),
        ("PUT", "/v1/sessions/1", "DELETE"),
        ("GET", "/v1/sessions/1/keepalive", "POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("POST", "/console/app.js", "GET, HEAD"),
        ("OPTIONS", "/v1/watch", "GET, HEAD"),
        ("PROPFIND", "/v1/digest", "GET, HEAD"),
    ],
)
async def test_wrong_methods_are_405(served: Served, method: str, target: str, allow: str) -> None:
    """405 with what the route takes."""
    reply = await ask(served.port, method, target)
    assert reply.problem().code is Code.METHOD_NOT_ALLOWED
    assert reply.headers["allow"] == allow


# -- the gate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "127.9.9.9", "[::1]:80", "LOCALHOST:1", "my.host", "own"])
async def test_allowed_hosts_are_served(host: str) -> None:
    """Loopback names, configured names and the host of the node's own URL, with any port."""
    async with serve(http=HttpSettings(hosts=["My.Host"], access_log=False)) as served:
        served.node.url = "http://own:80"
        assert (await ask(served.port, "GET", "/v1/status", host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "",
        "8.8.8.8",
        "[::1",
        "evil.example@localhost",
        "localhost/evil",
        "localhost?",
        "localhost#evil",
    ],
)
async def test_foreign_hosts_are_refused(served: Served, host: str) -> None:
    """A page that makes a browser believe that its own name is this node (DNS rebinding) is refused."""
    problem = (await ask(served.port, "GET", "/v1/status", host=host)).problem()
    assert (problem.code, problem.status) == (Code.BAD_HOST, 421)


async def test_probes_leave_no_line_unless_they_fail(capfd: pytest.CaptureFixture[str]) -> None:
    """What asks every second whether a node lives (`raftlog up`, Prometheus) must not fill its log; a refusal and every
    other request has its line."""
    async with serve(http=HttpSettings(access_log=True)) as served:
        for target in ("/livez", "/readyz", "/metrics", "/v1/status", "/v1/members"):
            assert (await ask(served.port, "GET", target)).status == 200
        assert (await ask(served.port, "GET", "/livez", host="evil.example")).status == 421
    lines = "".join(capfd.readouterr())
    assert [lines.count(target) for target in ("/livez", "/readyz", "/metrics", "/v1/status", "/v1/members")] == [
        1,
        0,
        0,
        0,
        1,
    ]


async def test_foreign_origins_may_not_write(served: Served) -> None:
    """A write with the Origin of another page is refused; the node's own page, and programs, may."""
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        problem = (await ask(served.port, "PUT", "/v1/kv/k", b"v", {"Origin": origin})).problem()
        assert problem.code is Code.FORBIDDEN
    assert (await ask(served.port, "PUT", "/v1/kv/k", b"v", {"Origin": "http://127.0.0.1"})).status == 200
    reply = await ask(served.port, "GET", "/v1/kv/k", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in reply.headers


async def test_request_ids_are_returned_or_made(served: Served) -> None:
    """A client's id comes back; one that could break a header or a log line is replaced; ids made here differ."""
    reply = await ask(served.port, "GET", "/livez", headers={"Raftlog-Request-Id": "abc-1"})
    assert reply.headers["raftlog-request-id"] == "abc-1"
    made = {
        (await ask(served.port, "GET", "/livez", headers=headers)).headers["raftlog-request-id"]
        for headers in ({}, {"Raftlog-Request-Id": "a b"}, {"Raftlog-Request-Id": "x" * 129})
    }
    assert len(made) == 3
    assert all(identifier.startswith("1-") for identifier in made)


async def test_deadline_of_a_write_and_of_a_body(served: Served) -> None:
    """A write without an outcome by then is unknown; a body that does not come is refused, not waited for."""
    served.node.held = asyncio.Event()
    problem = (await ask(served.port, "PUT", "/v1/kv/k", b"v", {"Raftlog-Deadline-Ms": "30"})).problem()
    assert (problem.code, problem.outcome) == (Code.TIMEOUT, "unknown")
    half = b"PUT /v1/kv/k HTTP/1.1\r\nHost: localhost\r\nRaftlog-Deadline-Ms: 30\r\nContent-Length: 9\r\n\r\nx"
    problem = (await exchange(served.port, half)).problem()
    assert (problem.code, problem.outcome) == (Code.DEADLINE, "not_applied")


async def test_fenced_node_serves_only_its_status(served: Served) -> None:
    """After a disk error: no read, no write; status, health and metrics say so."""
    served.node.is_fenced = True
    for method, target in (("PUT", "/v1/kv/k"), ("GET", "/v1/kv/k?consistency=stale"), ("GET", "/v1/log")):
        assert (await ask(served.port, method, target)).problem().code is Code.FENCED
    for target in ("/v1/status", "/livez", "/metrics", "/"):
        assert (await ask(served.port, "GET", target)).status == 200
    assert (await ask(served.port, "GET", "/readyz")).status == 503


async def test_http_10_gets_whole_answers_and_closed_connections(served: Served) -> None:
    """An old client: no chunks, the end of the connection is the end of the answer."""
    async with open_stream(served.port, b"GET /v1/log?format=ndjson HTTP/1.0\r\nHost: localhost\r\n\r\n") as stream:
        data = await stream.reader.read()
    assert b"Transfer-Encoding" not in data
    assert json.loads(data.partition(b"\r\n\r\n")[2])["next"] == 3
    alive = b"GET /livez HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n"
    async with open_stream(served.port, alive) as stream:
        assert (await stream.reply()).headers["connection"] == "keep-alive"


async def test_each_request_has_one_line_in_the_log(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """With http.access_log every request has its line, malformed ones aside: method, target, status, time, id, code."""
    from raftlog.cluster.runtime import logging

    logging.configure("info", "json")
    try:
        async with serve(http=HttpSettings(access_log=True)) as served:
            await ask(served.port, "PUT", "/v1/kv/k", b"v", {"Raftlog-Request-Id": "one"})
            await ask(served.port, "GET", "/nothing", headers={"Raftlog-Request-Id": "two"})
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in capsysbinary.readouterr().err.splitlines()]
    told = [(line["method"], line["target"], line["status"], line["request_id"], line.get("code")) for line in lines]
    assert told == [("PUT", "/v1/kv/k", 200, "one", None), ("GET", "/nothing", 404, "two", "not_found")]
    assert all(line["event"] == "request" and line["level"] == "info" and line["node"] == 1 for line in lines)
    assert all(line["timestamp"].endswith("Z") and line["ms"] >= 0 for line in lines)


async def test_metrics_count_requests_by_route_and_problems_by_code(served: Served) -> None:
    """Counted by pattern, not by path: a client cannot make new series."""
    for key in ("a", "b"):
        await ask(served.port, "PUT", f"/v1/kv/{key}", b"v")
    await ask(served.port, "GET", "/x")
    lines = (await ask(served.port, "GET", "/metrics")).body.decode().splitlines()
    assert 'raftlog_http_requests_total{route="/v1/kv/{key}",status="2xx"} 2.0' in lines
    assert 'raftlog_http_requests_total{route="none",status="4xx"} 1.0' in lines
    assert 'raftlog_http_request_seconds_count{route="/v1/kv/{key}"} 2.0' in lines
    assert 'raftlog_http_problems_total{code="not_found"} 1.0' in lines
    for route in ROUTES:
        for status in ("2xx", "4xx", "5xx"):
            start = f'raftlog_http_requests_total{{route="{route.pattern}",status="{status}"}} '
            assert any(line.startswith(start) for line in lines), "from the start on"


async def test_the_routes_and_the_version_are_served(served: Served) -> None:
    """`/` lists every route, /version says which raftlog this is, /openapi.yaml is the document."""
    listed = (await ask(served.port, "GET", "/")).body.decode()
    assert "PUT    /v1/kv/{key}" in listed
    assert (await ask(served.port, "GET", "/version")).json()["log"] == served.node.log_id
    reply = await ask(served.port, "GET", "/openapi.yaml")
    assert reply.headers["content-type"] == "application/yaml"
    assert reply.body.startswith(b"openapi: 3.1.0")
    assert (await ask(served.port, "GET", "/v1/members")).json()["members"][0]["node"] == 1


@pytest.mark.parametrize("fast_path", [True, False])
async def test_a_request_that_means_another_log_changes_nothing(fast_path: bool) -> None:
    """After a restore there is another log at the same place, with keys, sessions and indexes of the same names."""
    async with serve(fast_path=fast_path) as served:
        before = served.node.applied
        for method, target in (("PUT", "/v1/kv/k"), ("POST", "/v1/log"), ("GET", "/v1/kv/k"), ("GET", "/v1/status")):
            reply = await ask(served.port, method, target, b"v" if method != "GET" else b"", {"Raftlog-Log": "ff" * 16})
            problem = reply.problem()
            assert (problem.code, problem.outcome, reply.status) == (Code.FOREIGN_LOG, Outcome.NOT_APPLIED, 409)
            assert f"this is log {served.node.log_id}" in problem.message
        assert served.node.applied == before
        reply = await ask(served.port, "PUT", "/v1/kv/k", b"v", {"Raftlog-Log": served.node.log_id})
        assert reply.status == 200
