"""The address of probes: three routes without TLS and users, on few connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from raftlog.cluster.config.settings import HttpSettings, Settings
from raftlog.cluster.http.probes import ProbeServer
from raftlog.cluster.http.server import build_runner
from raftlog.cluster.runtime.door import listen
from tests.cluster.fake_node import FakeNode
from tests.cluster.http.http_probe import ask
from tests.support import hang_s


@asynccontextmanager
async def probed(node: FakeNode, *, probe_metrics: bool = True) -> AsyncIterator[int]:
    """The port at which that node answers probes; its API listens nowhere."""
    settings = Settings(http=HttpSettings(probe_metrics=probe_metrics))
    runner = build_runner(node, settings)
    probes = ProbeServer(runner.service)
    door = await listen(probes, "127.0.0.1", 0, 100, linger_s=0)
    try:
        yield door.sockets[0].getsockname()[1]
    finally:
        await door.close()
        await probes.shutdown()
        await runner.cleanup()


async def test_probes_get_three_routes_and_nothing_else() -> None:
    """Whatever host the probe names. Any other request is answered with one sentence."""
    node = FakeNode()
    before = node.applied
    async with probed(node) as port:
        for path, body in (("/livez", b"ok\n"), ("/readyz", b"ok\n"), ("/livez?verbose=1", b"ok\n")):
            assert (answer := await ask(port, "GET", path, host="10.1.2.3:7201")).status == 200
            assert answer.body == body
        metrics = await ask(port, "GET", "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"raftlog_submits_total" in metrics.body
        assert (await ask(port, "HEAD", "/readyz")).status == 200
        for method, path in (("GET", "/v1/status"), ("GET", "/"), ("GET", "/livez/"), ("PUT", "/v1/kv/a")):
            refused = await ask(port, method, path)
            assert refused.status == 404
            assert refused.body == (
                b"only GET of /livez, /readyz, /metrics is served here: send other requests to http.listen\n"
            )
        assert (await ask(port, "POST", "/livez", b"x")).status == 404
        assert node.applied == before
        node.is_ready = False
        assert [(await ask(port, "GET", path)).status for path in ("/livez", "/readyz")] == [200, 503]


async def test_metrics_can_be_kept_from_probes() -> None:
    """They name the consumer groups, so an operator may want to keep them to users."""
    async with probed(FakeNode(), probe_metrics=False) as port:
        answer = await ask(port, "GET", "/metrics")
        assert answer.status == 404
        assert b"only GET of /livez, /readyz is served here" in answer.body


async def test_silent_connections_keep_no_probe_out() -> None:
    """The oldest give way to the next one, which is answered."""
    limit = Settings().limits.probe_connections_max
    async with probed(FakeNode()) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(limit + 3)]
        try:
            async with asyncio.timeout(hang_s()):
                assert [await reader.read() for reader, _ in silent[:3]] == [b""] * 3
            assert (await ask(port, "GET", "/livez")).status == 200
            async with asyncio.timeout(hang_s()):
                assert await silent[3][0].read() == b""
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(silent[-1][0].read(), 0.01)
        finally:
            for _, writer in silent:
                writer.close()


async def test_a_client_that_keeps_its_connection_holds_no_end_up() -> None:
    """Prometheus between two scrapes, and the first admin's command while a new node waits for the others. Guard:
    aiohttp takes 0 seconds for no bound, reads nothing more, and waited until the client gave up."""
    async with probed(FakeNode()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"ok\n")
    async with asyncio.timeout(hang_s()):
        assert await reader.read() == b""
    writer.close()
