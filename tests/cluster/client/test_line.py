"""Requests of the asyncio client wait for its connections in line, and each free connection wakes one of them."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from raftlog import Client, NotApplied, Policy
from raftlog.cluster.api.kv import TxnIn
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.line import WaitQueue
from raftlog.cluster.client.errors import ConnectionsBusy
from tests.cluster.fake_node import serve
from tests.support import hang_s, streams_served, wait_until_async

QUICK = Policy(back_off_first_ms=2, back_off_max_ms=20, attempt_ms=20_000, grace_ms=50)


async def settle() -> None:
    """Lets every task go as far as it can without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def count_keys(client: Client) -> int:
    """How many keys the store has."""
    return len([item async for item in client.range(keys_only=True)])


async def test_a_free_place_wakes_exactly_one_task_in_the_order_in_which_they_came() -> None:
    """With two places and six tasks, each `leave` lets the next one in, and no other task runs."""
    line = WaitQueue(2)
    entered: list[int] = []

    async def one(number: int) -> None:
        await line.enter(10.0)
        entered.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(6)]
    await settle()
    assert entered == [0, 1]
    for count in (3, 4):
        line.leave()
        await settle()
        assert entered == list(range(count))
    line.leave(2)
    await settle()
    assert entered == [0, 1, 2, 3, 4, 5]
    await asyncio.gather(*tasks)


async def test_a_cancelled_task_passes_its_place_on() -> None:
    """A task that is cancelled in line leaves it; one that is cancelled as it gets a place gives it to the next."""
    line = WaitQueue(0)
    tasks = [asyncio.create_task(line.enter(10.0)) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await settle()
    line.leave()
    tasks[1].cancel()  # its place has come, and it has not run since
    await asyncio.wait_for(tasks[2], hang_s())
    assert [task.cancelled() for task in tasks] == [True, True, False]


async def test_a_task_waits_as_long_as_the_line_advances_and_no_longer() -> None:
    """Its patience begins again with each answer; a deadline does not."""
    line = WaitQueue(0)
    patient = asyncio.create_task(line.enter(0.2))
    strict = asyncio.create_task(line.enter(0.2, deadline=0.0))
    await settle()
    assert isinstance(strict.exception(), TimeoutError)
    loop = asyncio.get_running_loop()
    began = loop.time()

    def has_waited_long() -> bool:
        line.advance()
        assert not patient.done()
        return loop.time() >= began + 0.5

    await wait_until_async(has_waited_long)
    with pytest.raises(TimeoutError):
        await patient


@pytest.mark.parametrize(("what", "size"), [("puts", 1), ("appends", 1_000)])
async def test_more_writes_than_a_client_has_connections_wait_and_none_fails(
    what: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes take several times as long as the deadline of one request, because the node answers slowly. All wait.
    Appends go in batches, which wait in the same line behind transactions."""
    async with (
        serve() as served,
        Client(served.url, connections_max=2, deadline_s=1, policy=QUICK, batch_records_max=size) as client,
    ):
        await client.put(b"warm", b"")
        submit = served.node.submit
        loop = asyncio.get_running_loop()
        began = loop.time()
        answered: list[float] = []

        async def write(number: int) -> None:
            if what == "puts":
                await client.put(b"%d" % number, b"")
            elif number < 30:
                await client.txn(TxnIn(then=[requests.step("put", b"%d" % number, b"")]))
            else:
                await client.append(b"%d" % number)
            answered.append(loop.time() - began)

        async def slowly(*args: Any, **kwargs: Any) -> object:
            slow = asyncio.Event()
            loop.call_later(0.15, slow.set)
            await slow.wait()
            return await submit(*args, **kwargs)

        monkeypatch.setattr(
            served.node, "submit", lambda *args, **kwargs: asyncio.ensure_future(slowly(*args, **kwargs))
        )
        await asyncio.gather(*(write(number) for number in range(40)))
        assert max(answered) > 2
        assert len(answered) == 40


@pytest.mark.parametrize("deadline_s", [None, 0.2])
async def test_a_request_without_a_connection_fails_with_an_error_of_its_own(deadline_s: float | None) -> None:
    """No node answers: the requests that got a connection say what the node did, the others that they were not sent."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with streams_served(silent) as port:
        client = Client(
            f"http://127.0.0.1:{port}",
            connections_max=2,
            deadline_s=0.2,
            sessions=False,
            policy=Policy(attempt_ms=20_000, grace_ms=50),
        )
        try:
            puts = [client.put(b"k", b"v", deadline_s=deadline_s) for _ in range(6)]
            errors = await asyncio.gather(*puts, return_exceptions=True)
        finally:
            await client.close()
    kinds = Counter(type(error).__name__ for error in errors)
    assert kinds == {"OutcomeUnknown": 2, "ConnectionsBusy": 4}
    for error in errors:
        if isinstance(error, ConnectionsBusy):
            assert isinstance(error, NotApplied)
            assert "all 2 connections of this client" in str(error)
            assert "connections_max" in str(error)
            assert not error.tried  # no node is to blame


async def test_writes_beyond_the_window_of_the_session_wait_for_its_answers() -> None:
    """2,000 puts at once with a connection for each: at most 1,024 sequences are open, and every put is applied."""
    async with (
        serve() as served,
        Client(served.url, connections_max=2_000, batch_records_max=1, deadline_s=hang_s()) as client,
    ):
        await client.put(b"warm", b"")
        await asyncio.gather(*(client.put(b"%d" % number, b"") for number in range(2_000)))
        assert await count_keys(client) == 2_001


async def test_puts_go_on_in_another_session_when_the_lowest_sequence_stays_open() -> None:
    """A put of unknown outcome keeps its sequence open: with the window used up, the tasks in line get a new one."""
    async with serve() as served, Client(served.url, connections_max=8, batch_records_max=1) as client:
        await client.put(b"warm", b"")
        assert client._carrier.session is not None
        first = client._carrier.session.book
        ticket = await client._carrier.session.ticket(int(1e12))
        client._carrier.session.settle(ticket, is_unknown=True)
        await asyncio.gather(*(client.put(b"%d" % number, b"") for number in range(1_100)))
        assert client._carrier.session.book is not first
        assert await count_keys(client) == 1_101
