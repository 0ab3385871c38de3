"""Tests what clients may make a node hold: incoming bodies and unread answers; real processes and sockets."""

import re
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from raftlog.cluster.admission.budget import LARGE_PERCENT, SMALL_BYTES, Budget, Share
from raftlog.cluster.client.http1 import ResponseParser
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.runtime import freed_memory
from raftlog.cluster.runtime.freed_memory import FreedMemory
from tests.cluster.http.http_probe import Reply
from tests.support import HANG_S, wait_until, wait_until_async

MIB = 1 << 20
BUDGET = 16 * MIB
SLACK = 24 * MIB  # what the node's process grows by besides: buffers of the sockets, parsers, the log of the test
SETTINGS = {
    "limits.memory_bytes": 8 * BUDGET,
    "limits.body_stall_ms": 60_000,
    "limits.stream_stall_ms": 60_000,
}
SENDERS = 40
BODY = 4 * MIB


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node with small budgets, and no deadline that would end an attack before it is looked at."""
    with LocalCluster(tmp_path / "cluster", 1, settings=SETTINGS) as cluster:
        cluster.restore()
        yield cluster


def rss(cluster: LocalCluster) -> int:
    """Bytes of memory that the node's process has."""
    text = Path(f"/proc/{cluster.pid(1)}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


def connect(cluster: LocalCluster) -> socket.socket:
    """A client's connection."""
    where = urlsplit(cluster.url(1))
    assert where.hostname is not None
    assert where.port is not None
    return socket.create_connection((where.hostname, where.port), timeout=HANG_S)


def answer_of(connection: socket.socket) -> Reply:
    """The next answer on it."""
    parser = ResponseParser()
    body = b""
    while not parser.is_done:
        data = connection.recv(1 << 16)
        assert data, "the connection closed before the answer"
        body += parser.feed(data)
    assert parser.head is not None
    return Reply(parser.head.status, parser.head.headers, body)


def push(connection: socket.socket, data: bytes) -> None:
    """Sends as much as the node takes: it may refuse, or read no further."""
    connection.settimeout(0.1)
    view = memoryview(data)
    try:
        while view:
            view = view[connection.send(view) :]
    except OSError:
        return
    finally:
        connection.settimeout(HANG_S)


def head(cluster: LocalCluster, line: str, *fields: str) -> bytes:
    """The head of a request."""
    host = urlsplit(cluster.url(1)).netloc
    return "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", "Raftlog-Deadline-Ms: 100000", *fields, "", ""]).encode()


def half_sent(cluster: LocalCluster) -> bytes:
    return head(cluster, "POST /v1/log", f"Content-Length: {BODY}") + bytes(BODY - 1)


def half_chunked(cluster: LocalCluster) -> bytes:
    return head(cluster, "POST /v1/log", "Transfer-Encoding: chunked") + b"%x\r\n" % BODY + bytes(BODY - 1)


def pipelined(cluster: LocalCluster) -> bytes:
    """Requests behind a body that does not end."""
    small = head(cluster, "PUT /v1/kv/a", "Content-Length: 1000000") + bytes(1_000_000)
    return head(cluster, "GET /v1/log?from=9000000&wait=50000") + small * 4


@pytest.mark.parametrize("attack", [half_sent, half_chunked, pipelined], ids=lambda attack: attack.__name__)
def test_request_bodies_stay_within_the_budget_and_are_freed(
    node: LocalCluster, attack: Callable[[LocalCluster], bytes]
) -> None:
    """40 connections send 4 MiB each without an end. The process grows by no more than the budget, small requests are
    served meanwhile, and the memory returns to the system when the connections are closed. Without a budget it grew by
    160 MiB, and kept them. Guard: `limits.bodies_bytes_max`; `FreedMemory`.
    """
    before = rss(node)
    data = attack(node)
    with ExitStack() as stack:
        for _ in range(SENDERS):
            push(stack.enter_context(connect(node)), data)
        with connect(node) as client:
            client.sendall(head(node, "PUT /v1/kv/small", "Content-Length: 1") + b"v")
            assert answer_of(client).status == 200
            client.sendall(head(node, "PUT /v1/kv/small", "Content-Length: 30000") + bytes(10_000))
            client.sendall(bytes(20_000))
            assert answer_of(client).status == 200
        assert rss(node) - before <= BUDGET + SLACK, (rss(node) - before) >> 20
    wait_until(lambda: rss(node) - before <= BUDGET // 2, what="the memory goes back to the system")


def test_a_body_beyond_the_budget_is_refused_as_busy(node: LocalCluster) -> None:
    """Once large bodies hold three quarters of the budget, the one that would hold more is refused: nothing of it is
    applied, and the answer names the setting. When they are gone the next one is taken."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(node)) for _ in range(4)]
        for client in clients:
            push(client, half_sent(node))
        (first, *_), _, _ = select.select(clients, [], [], 20)
        refused = answer_of(first).problem()
    assert (refused.code, refused.status, refused.outcome) == ("busy", 429, "not_applied")
    assert "limits.bodies_bytes_max" in refused.message
    data = b'{"value":"x"}\n' * 40_000
    request = head(node, "POST /v1/log", "Content-Type: application/x-ndjson", f"Content-Length: {len(data)}") + data

    def is_taken() -> bool:
        with connect(node) as client:
            client.sendall(request)
            return answer_of(client).status == 200

    wait_until(is_taken, what="there is room again")


@pytest.mark.parametrize("kind", ["page", "raw", "ndjson"])
def test_unread_answers_stay_within_the_budget(node: LocalCluster, kind: str) -> None:
    """40 readers ask for 3 MB of records, which are in memory, and take nothing: the process grows by no more than the
    budget, and small reads are answered. A page without room is refused as busy. Guard: `limits.answers_bytes_max`."""
    value = bytes(1_000_000)
    with connect(node) as client:
        for _ in range(3):
            client.sendall(head(node, "POST /v1/log", f"Content-Length: {len(value)}") + value)
            assert answer_of(client).status == 200
    before = rss(node)
    line = "GET /v1/log?from=1&limit=10000" + ("" if kind == "page" else f"&format={kind}")
    with ExitStack() as stack:
        readers = []
        for _ in range(SENDERS):
            reader = stack.enter_context(connect(node))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            reader.sendall(head(node, line))
            readers.append(reader)
        with connect(node) as client:
            client.sendall(head(node, "PUT /v1/kv/small", "Content-Length: 1") + b"v")
            assert answer_of(client).status == 200
            client.sendall(head(node, "GET /v1/kv/small"))
            assert answer_of(client).status == 200
        for reader in readers:
            assert reader.recv(9) == b"HTTP/1.1 "
        assert rss(node) - before <= BUDGET + 2 * SLACK, (rss(node) - before) >> 20
        if kind == "page":
            statuses = sorted(reader.recv(3) for reader in readers)
            assert statuses[0] == b"200"
            assert statuses[-1] == b"429"


def test_a_body_that_stops_coming_is_given_up(tmp_path: Path) -> None:
    """A body of which too little comes in `limits.body_stall_ms` is answered `deadline`, and its bytes are free again;
    one that comes slowly, but fast enough, is taken."""
    settings = SETTINGS | {"limits.body_stall_ms": 500}
    with LocalCluster(tmp_path / "cluster", 1, settings=settings) as cluster:
        cluster.restore()
        with connect(cluster) as client:
            push(client, half_sent(cluster))
            given_up = answer_of(client).problem()
    assert (given_up.code, given_up.outcome) == ("deadline", "not_applied")
    assert "limits.body_stall_ms" in given_up.message


def test_a_quarter_of_a_budget_is_kept_for_small_holders() -> None:
    """Large holders get three quarters, small ones all of it; returned bytes are free again."""
    budget = Budget("bodies", 100 * SMALL_BYTES, int)
    large, small = Share(budget), Share(budget)
    assert large.hold(LARGE_PERCENT * SMALL_BYTES)
    assert not Share(budget).hold(SMALL_BYTES + 1)
    assert large.size == LARGE_PERCENT * SMALL_BYTES
    for _ in range(25):
        assert Share(budget).hold(SMALL_BYTES)
    assert not small.hold(1)
    assert not large.hold(large.size + 1)
    large.keep(0)
    assert small.hold(1)
    assert budget.used == 25 * SMALL_BYTES + 1


def test_a_holder_that_is_alone_may_hold_more_than_the_budget() -> None:
    """Else a body or an answer larger than the budget would be refused for ever."""
    alone = Share(budget := Budget("bodies", 1_000, int))
    assert alone.hold(5_000)
    assert alone.hold(6_000)
    assert not Share(budget).hold(1)


async def test_freed_memory_is_returned_once_at_the_end_of_each_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that was high and is low again says so, once; the C library is then asked once, however often that is.
    Guard: `Budget.add`, `FreedMemory.return_soon`."""
    monkeypatch.setattr(freed_memory, "DELAY_S", 0.0)
    freed, asked = FreedMemory(), 0

    def trim(padding: int) -> int:
        nonlocal asked
        asked += 1
        return 1

    monkeypatch.setattr(freed, "_trim", trim)
    budget = Budget("bodies", 100, freed.return_soon)
    share, other = Share(budget), Share(budget)
    for size in (20, 5, 26, 30, 8):
        assert share.hold(size)
        assert freed._timer is None, size
    for _ in range(2):
        assert other.hold(40)
        other.keep(0)
        share.keep(0)
    assert freed._timer is not None
    await wait_until_async(lambda: asked, what="the C library is asked")
    share.keep(0)
    assert asked == 1
