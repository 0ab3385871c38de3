"""The asyncio client sends puts and deletes that come together in one request; each ends as if it had been alone."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import pytest

from raftlog import Client, CompareFailed, NotApplied, OutcomeUnknown, Policy, SessionBook
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.kv import Written
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio import writes as client_writes
from raftlog.cluster.client.errors import ConnectionsBusy, SessionExpired, Unavailable
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.runtime import clock
from tests.cluster.fake_node import FakeNode, Served, serve
from tests.cluster.peers.cutting import answers_cut
from tests.support import streams_served, wait_until_async

QUICK = Policy(back_off_first_ms=2, back_off_max_ms=20, attempt_ms=500, grace_ms=50)


@dataclass
class Gate(FakeNode):
    """A node that refuses or loses chosen writes: by their number, counted over all that it is given."""

    refusals: dict[int, ApiError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self.count = 0

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        self.count += 1
        error = self.refusals.get(self.count)
        if error is not None:
            raise error
        return super().submit(block, count, deadline=deadline, session=session, sequence=sequence)


@asynccontextmanager
async def counted(served: Served) -> AsyncIterator[tuple[str, Counter[str]]]:
    """The URL of a way to the node, and how many requests of each route went through it."""
    seen: Counter[str] = Counter()

    async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", served.port)

        async def back() -> None:
            while data := await inner_reader.read(65_536):
                writer.write(data)

        with closing(inner_writer):
            answers = asyncio.create_task(back())
            while data := await reader.read(1 << 20):
                for method in (b"PUT /v1/kv/", b"POST /v1/kv/batch", b"DELETE /v1/kv/"):
                    if data.startswith(method):
                        seen[method.split()[0].decode()] += 1
                inner_writer.write(data)
            answers.cancel()

    async with streams_served(passing) as port:
        yield f"http://127.0.0.1:{port}", seen


def book_of(client: Client) -> SessionBook:
    """The sequences of the client's session."""
    assert client._carrier.session is not None
    assert client._carrier.session.book is not None
    return client._carrier.session.book


async def test_concurrent_writes_travel_in_few_requests() -> None:
    """1,000 puts and 200 deletes at once take three batches, and each write has an index and a revision of its own. No
    attempt is given up: on a busy machine a batch would be sent again."""
    patient = Policy(attempt_ms=60_000)
    async with serve() as served, counted(served) as (url, seen), Client(url, bound=True, policy=patient) as client:
        await client.put(b"warm", b"")
        writes = [client.put(b"%d" % number, b"v") for number in range(1_000)]
        deletes = [client.delete(b"%d" % number) for number in range(200)]
        written = await asyncio.gather(*writes, *deletes)
        assert seen == {"PUT": 1, "POST": 3}
        assert len({each.index for each in written}) == 1_200
        assert [each.revision for each in written] == list(range(3, 1_203))
        assert [each.deleted for each in written[1_000:]] == [1] * 200
        assert len([item async for item in client.range()]) == 801
        assert book_of(client).is_idle


async def test_a_single_write_takes_the_ordinary_route() -> None:
    """One put after the other: none is delayed or packed."""
    async with serve() as served, counted(served) as (url, seen), Client(url, bound=True) as client:
        for number in range(5):
            await client.put(b"%d" % number, b"v")
        assert await client.delete(b"0") == Written("applied", "applied", 7, 9, 1, 1)  # type: ignore[arg-type]
        assert seen == {"PUT": 5, "DELETE": 1}


async def test_one_failed_compare_fails_its_caller_alone() -> None:
    """The other writes of its batch are applied."""
    async with serve() as served, Client(served.url) as client:
        await client.put(b"a", b"1")
        ended = await asyncio.gather(
            client.put(b"b", b"2"),
            client.put(b"a", b"2", if_revision=0),
            client.put(b"c", b"3", if_revision=0),
            return_exceptions=True,
        )
        assert isinstance(ended[1], CompareFailed)
        assert ended[1].problem is not None
        assert ended[1].problem.revision == 2
        assert [isinstance(each, Written) for each in ended] == [True, False, True]


@pytest.mark.parametrize("code", [Code.BUSY, Code.TIMEOUT, Code.NO_LEADER, Code.LEADER_LOST])
async def test_a_write_that_was_not_answered_goes_on_alone_and_is_applied_once(code: Code) -> None:
    """The node refuses one write of a batch, or loses the answer: the client sends it again, and only it."""
    node = Gate({3: ApiError(code, "for a test")})
    async with (
        serve(node) as served,
        counted(served) as (url, seen),
        Client(url, bound=True, policy=QUICK) as client,
    ):
        await client.put(b"warm", b"")  # number 2: the first opens the session
        written = await asyncio.gather(*(client.put(b"%d" % number, b"v") for number in range(10)))
        assert seen == {"PUT": 2, "POST": 1}
        assert sorted(each.revision for each in written) == list(range(3, 13))
        assert book_of(client).is_idle


@pytest.mark.parametrize("code", [Code.TIMEOUT, Code.BUSY])
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_write_that_gets_no_connection_to_go_on_alone_ends_as_its_batch_left_it(
    code: Code, is_cancelled: bool
) -> None:
    """A read holds the only connection. Then a write that the batch may have applied is unknown, and names its receipt;
    one that the node refused is not applied. Its sequence is settled either way, so the session does not fill up."""
    node = Gate({3: ApiError(code, "for a test")})
    patient = Policy(attempt_ms=20_000)
    async with serve(node) as served, Client(served.url, connections_max=1, deadline_s=0.2, policy=patient) as client:
        await client.put(b"warm", b"")  # number 2: the first opens the session
        session, book = client.session, book_of(client)
        node.barrier_held, held = asyncio.Event(), asyncio.Event()
        node.held = held
        writes = [asyncio.create_task(client.put(b"%d" % number, b"v")) for number in range(3)]
        await wait_until_async(lambda: book.next == 5)
        reading = asyncio.create_task(client.call(requests.get(b"warm"), deadline_s=30))
        await wait_until_async(lambda: client._carrier._line._waiting)
        held.set()
        node.held = None
        await wait_until_async(lambda: writes[1].done() and writes[2].done())
        if is_cancelled:
            writes[0].cancel()
        [ended] = await asyncio.gather(writes[0], return_exceptions=True)
        assert book.is_idle
        is_open = 2 in book.given_up
        if is_cancelled:
            assert isinstance(ended, asyncio.CancelledError)
            assert is_open, "the batch may have applied it"
        elif code is Code.TIMEOUT:
            assert isinstance(ended, OutcomeUnknown)
            assert (ended.session, ended.sequence, is_open) == (session, 2, True)
        else:
            assert isinstance(ended, ConnectionsBusy)
            assert not is_open
        node.barrier_held.set()
        assert getattr(await reading, "key", None) == b"warm"


async def test_a_batch_whose_answer_is_lost_is_sent_again_and_applied_once() -> None:
    """The connection ends between the node's answer and the client."""
    async with serve() as served, answers_cut(served.port, 1, b"POST /v1/kv/batch") as url:
        async with Client(url, bound=True, policy=QUICK) as client:
            await client.put(b"warm", b"")
            written = await asyncio.gather(*(client.put(b"%d" % number, b"v") for number in range(20)))
    assert {each.result for each in written} == {"repeated"}
    assert served.node.machine.revision == 22


async def test_the_writes_of_a_session_that_expired_are_unknown_and_later_ones_get_a_new_session() -> None:
    """An earlier copy could have been applied under it, so the client does not send them under another session."""
    async with serve() as served, Client(served.url) as client:
        await client.put(b"warm", b"")
        old = client.session
        served.node.clock_ms += 3_600_000
        ended = await asyncio.gather(
            *(client.put(b"%d" % number, b"v") for number in range(20)), return_exceptions=True
        )
        assert {type(each) for each in ended} == {SessionExpired}
        assert {each.session for each in ended if isinstance(each, SessionExpired)} == {old}
        await client.put(b"later", b"v")
        assert client.session not in (None, old)
        assert served.node.machine.revision == 3


async def test_a_client_that_stood_still_opens_a_new_session_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was stopped for longer than the session lives: no write is sent under it."""
    async with serve() as served, Client(served.url) as client:
        await client.put(b"warm", b"")
        old = client.session
        served.node.clock_ms += 3_600_000
        now = clock.monotonic
        monkeypatch.setattr("raftlog.cluster.client.aio.session.clock.monotonic", lambda: now() + 3_600.0)
        written = await client.put(b"k", b"v", deadline_s=7_200)
        assert written.result == "applied"
        assert client.session not in (None, old)


async def test_a_closed_client_ends_its_writes_with_their_receipts() -> None:
    """Sent writes are unknown, with the session and sequence of their receipt; unsent ones are not applied."""
    node = FakeNode()
    async with serve(node) as served:
        client = Client(served.url, deadline_s=5)
        await client.put(b"warm", b"")
        node.held = asyncio.Event()
        sent = [asyncio.create_task(client.put(b"%d" % number, b"v")) for number in range(3)]
        while book_of(client).next < 5:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(client.put(b"late", b"v"))
        await asyncio.sleep(0)
        session = client.session
        await client.close()
        ended = await asyncio.gather(*sent, waiting, return_exceptions=True)
        node.held.set()
    for number, error in enumerate(ended[:3], start=2):
        assert isinstance(error, OutcomeUnknown)
        assert (error.session, error.sequence) == (session, number)
    assert isinstance(ended[3], NotApplied)


async def test_a_closed_client_leaves_its_session_to_a_write_of_unknown_outcome() -> None:
    """Its receipt can be asked for. A client whose writes are all answered ends its session."""
    node = Gate(dict.fromkeys(range(3, 99), ApiError(Code.TIMEOUT, "for a test")))
    async with serve(node) as served, Client(served.url) as asking:
        async with Client(served.url, policy=QUICK) as client:
            await client.put(b"warm", b"")
            with pytest.raises(OutcomeUnknown) as lost:
                await client.put(b"lost", b"v", deadline_s=0.1)
            node.refusals = {}
        assert lost.value.session is not None
        assert lost.value.sequence is not None
        assert (await asking.receipt(lost.value.session, lost.value.sequence)).state == "not_seen"
        async with Client(served.url) as client:
            await client.put(b"warm", b"")
            session = client.session
        assert session is not None
        with pytest.raises(SessionExpired):
            await asking.receipt(session, 1)


async def test_a_cancelled_write_ends_with_its_batch() -> None:
    """The others are answered, and no sequence stays open once the node has answered."""
    node = FakeNode()
    async with serve(node) as served, Client(served.url) as client:
        await client.put(b"warm", b"")
        node.held = asyncio.Event()
        tasks = [asyncio.create_task(client.put(b"%d" % number, b"v")) for number in range(5)]
        while book_of(client).next < 7:
            await asyncio.sleep(0)
        tasks[2].cancel()
        node.held.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended] == [Written, Written, asyncio.CancelledError, Written, Written]
        assert book_of(client).is_idle


async def test_writes_that_wait_behind_a_batch_end_when_no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the client's `deadline_s` once, not once for every batch before it."""
    monkeypatch.setattr(client_writes, "WRITES_MAX", 10)

    async with serve() as served:
        client = Client(served.url, deadline_s=0.3, policy=QUICK)
        await client.put(b"warm", b"")
        await served.stop()
        loop = asyncio.get_running_loop()
        began = loop.time()
        ended = await asyncio.gather(
            *(client.put(b"%d" % number, b"v") for number in range(100)), return_exceptions=True
        )
        assert {type(each) for each in ended} <= {Unavailable, OutcomeUnknown}
        assert sum(isinstance(each, Unavailable) for each in ended) >= 90
        assert loop.time() - began < 3 * 0.3 + 2.0
        await client.close()
