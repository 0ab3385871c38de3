"""Tests turns of the hot routes: a limited number in each, then the rest of the loop, then the waiting ones."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.http.fast import bounds
from raftlog.cluster.http.fast.bounds import AdmissionQueue
from raftlog.cluster.http.fast.byte_flow import ConnectionState
from tests.cluster.http.fast.fast_wire import Server, Wire, request, turns

FAST = ConnectionState.FAST
PUT = request("PUT", "/v1/kv/k", body=b"v")
LIVE = request("GET", "/livez")
STATUS = request("GET", "/v1/status")
TRANSFER = request("POST", "/v1/leader/transfer", "Content-Type: application/json", body=b'{"to":9}')


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four in a turn, and two refusals."""
    monkeypatch.setattr(bounds, "REQUESTS_MAX", 4)
    monkeypatch.setattr(bounds, "REFUSALS_MAX", 2)


def served(wires: list[Wire]) -> list[bool]:
    """Which of them have an answer."""
    return [bool(wire.written) for wire in wires]


async def test_a_turn_serves_so_many_and_the_rest_in_order() -> None:
    """Ten clients ask in one turn of the loop: four reach the node, the others four by four in their order. In between
    the loop does its other work. A later client goes behind them.
    """
    async with Server(fast_path=True) as server:
        server.node.held = asyncio.Event()
        service = server.service
        wires = [server.connect() for _ in range(11)]
        begun: list[int] = []
        for wire in wires[:10]:
            wire.protocol.data_received(PUT)
        states = [[wire.protocol.is_busy for wire in wires[:10]]]  # type: ignore[attr-defined]
        assert all(states[0])
        assert service.load.open_requests == 10, "a request that waits counts as served"
        for _ in range(4):
            begun.append(sum(wire.protocol._state is FAST for wire in wires))  # type: ignore[attr-defined]
            if len(begun) == 2:
                wires[10].protocol.data_received(PUT)
                assert wires[10].protocol._state is not FAST, "others were there before"  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert begun == [4, 8, 11, 11]
        server.node.held.set()
        await turns()
        assert [wire.replies()[0].status for wire in wires] == [200] * 11
        assert service.load.open_requests == 0


async def test_a_large_request_counts_as_several() -> None:
    """One of four times the size of a request takes a whole turn."""
    line = AdmissionQueue()
    assert line.may(3 * bounds.REQUEST_BYTES)
    assert not line.may(0)
    await asyncio.sleep(0)
    assert [line.may(0) for _ in range(5)] == [True] * 4 + [False]


async def test_operator_requests_do_not_wait_in_line() -> None:
    """The line holds as many clients as allowed. Health, status and metrics are answered meanwhile, on connections made
    before and after. Changes of the cluster reach the node; the next client is refused at once.
    """
    async with Server(fast_path=True, open_requests_max=100, operator_requests_max=1) as server:
        server.node.held = asyncio.Event()
        early = server.connect()
        wires = [server.connect() for _ in range(100)]
        for wire in wires:
            wire.protocol.data_received(PUT)
        late, admin, more = server.connect(), server.connect(), server.connect()
        early.protocol.data_received(LIVE)
        late.protocol.data_received(STATUS)
        admin.protocol.data_received(TRANSFER)
        more.protocol.data_received(PUT)
        for _ in range(6):
            await asyncio.sleep(0)
        assert served(wires) == [False] * 100
        assert sum(wire.protocol._state is not FAST for wire in wires) > 50, "most of them are still in line"  # type: ignore[attr-defined]
        assert [wire.replies()[0].status for wire in (early, late)] == [200, 200]
        assert admin.replies()[0].status == 200
        assert (more.replies()[0].problem().code, more.replies()[0].headers["retry-after"]) == (Code.BUSY, "1")
        server.node.held.set()
        await turns(200)
        assert [wire.replies()[0].status for wire in wires] == [200] * 100


async def test_requests_for_aiohttp_wait_in_the_same_line(lent: list[str]) -> None:
    """Ranges, which it serves, are handed to it four in a turn, in the same line as others; what operates the node is
    not among them, whatever its parameters."""
    ranges, operators = ["/v1/kv?prefix=k"] * 10, ["/metrics?", "/v1/explain/7", "/v1/explain/leaderless", "/"]
    async with Server(fast_path=True) as server:
        wires = [server.connect() for _ in range(14)]
        for wire, target in zip(wires, ranges + operators, strict=True):
            wire.protocol.data_received(request("GET", target))
        assert lent == ranges[:4] + operators
        await asyncio.sleep(0)
        assert lent[8:] == ranges[:4]
        await turns(100)
        assert [wire.replies()[0].status for wire in wires] == [200] * 10 + [200, 425, 200, 200]
        assert server.service.load.open_requests == 0


async def test_refusals_take_turns_too() -> None:
    """Many clients that come too late at once are refused two in a turn, all of them, and none is forgotten."""
    async with Server(fast_path=True, open_requests_max=1) as server:
        server.node.held = asyncio.Event()
        busy, *others = (server.connect() for _ in range(12))
        for wire in (busy, *others):
            wire.protocol.data_received(PUT)
        told = []
        for _ in range(6):
            told.append(sum(served(others)))
            await asyncio.sleep(0)
        assert told == sorted(told)
        assert max(two - one for one, two in pairwise(told)) <= 2
        await turns()
        assert [wire.replies()[0].problem().code for wire in others] == [Code.BUSY] * 11
        server.node.held.set()
        await turns()
        assert busy.replies()[0].status == 200
        assert server.service.load.open_requests == 0


async def test_clients_that_go_leave_the_line() -> None:
    """Some hang up while they wait, some are cut off: they are closed in turns, nothing of theirs is carried out, and
    none of them counts as served any more."""
    async with Server(fast_path=True) as server:
        server.node.held = asyncio.Event()
        wires = [server.connect() for _ in range(15)]
        for wire in wires:
            wire.protocol.data_received(PUT)
        before = len(server.node.log)
        firsts, wires = wires[:4], wires[4:]
        for wire in wires[:5]:
            assert wire.protocol.eof_received(), "kept until it is its turn"
        for wire in wires[5:]:
            wire.close()
        assert not any(wire.is_closed for wire in wires[:5])
        server.node.held.set()
        await turns()
        assert all(wire.is_closed for wire in wires)
        assert all(not wire.written for wire in wires)
        assert served(firsts) == [True] * 4
        assert len(server.node.log) == before + 4
        assert server.service.load.open_requests == 0
        assert len(server.runner.server.fast) == 4  # type: ignore[union-attr]


async def test_keepalives_of_sessions_are_not_refused_as_busy() -> None:
    """As many requests as may be are in line: a keepalive is let through to the node, a write is refused."""
    keepalive = request("POST", "/v1/sessions/1/keepalive")
    async with Server(fast_path=True, open_requests_max=10, operator_requests_max=1, keepalives_max=2) as server:
        server.node.held = asyncio.Event()
        wires = [server.connect() for _ in range(10)]
        for wire in wires:
            await wire.feed(PUT)
        kept, write = [server.connect() for _ in range(3)], server.connect()
        for wire in (*kept, write):
            await wire.feed(keepalive if wire in kept else PUT)
        assert [len(wire.written) > 0 for wire in kept] == [False, False, True]
        assert [wire.replies()[0].problem().code for wire in (kept[2], write)] == [Code.BUSY, Code.BUSY]
        server.node.held.set()
        await turns(200)
        assert [wire.replies()[0].problem().code for wire in kept[:2]] == [Code.SESSION_EXPIRED] * 2
