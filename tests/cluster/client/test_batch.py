"""Appends that go together: each call gets its own index or error, whatever becomes of the batch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from raftlog import Client, NewRecord, NotApplied, OutcomeUnknown, Policy
from raftlog.cluster.api.errors import Code, Outcome
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client import batch as client_batch
from raftlog.cluster.client.batch import Append, UnknownInBatch
from raftlog.cluster.client.blocking.batch import SyncBatcher
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import Unavailable
from raftlog.cluster.records.rows import decode_rows
from raftlog.cluster.runtime import clock
from raftlog.raft.types import EntryKind
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.peers.cutting import answers_cut
from tests.support import wait_until, wait_until_async

QUICK = Policy(back_off_first_ms=2, back_off_max_ms=20, attempt_ms=150, grace_ms=50)


def appends_of(node: FakeNode) -> list[int]:
    """How many records each request had that the node applied; sessions are opened by one without records of ours."""
    return [entry.count for entry, _ in node.log if entry.kind is EntryKind.COMMANDS][1:]


def values(node: FakeNode) -> dict[int, bytes]:
    """The appended values, by index."""
    rows = (row for entry, effects in node.log for row in decode_rows(entry, effects))
    return {row.index: row.value or b"" for row in rows if (row.operation, row.result) == ("append", "applied")}


def waiters_of(node: FakeNode) -> int:
    """How many writes the node holds."""
    return len(node.held._waiters) if node.held is not None else 0


def test_batches_are_bounded_and_in_order() -> None:
    """By number and by bytes; a record larger than the bound goes alone; nothing is left out."""
    calls = deque(Append(NewRecord(b"x" * size)) for size in (10, 10, 10, client_batch.BYTES_MAX, 10))
    order = list(calls)
    taken = []
    while calls:
        taken.append(client_batch.take(calls, 2, client_batch.size_of))
    assert [len(batch) for batch in taken] == [2, 1, 1, 1]
    assert [call for batch in taken for call in batch] == order


async def test_many_tasks_share_requests_and_each_gets_its_index() -> None:
    """256 tasks append at once, each several times: a few requests suffice, and each call's value lies at the index of
    its answer."""
    async with serve() as served, Client(served.url) as client:

        async def work(task: int) -> list[tuple[int, bytes]]:
            told = []
            for number in range(4):
                value = b"%d/%d" % (task, number)
                appended = await client.append(value)
                assert (appended.first, appended.count, appended.index) == (appended.last, 1, appended.last)
                told.append((appended.index, value))
            assert told == sorted(told), "a task's own appends keep their order"
            return told

        told = [pair for pairs in await asyncio.gather(*(work(task) for task in range(256))) for pair in pairs]
        lying = values(served.node)
        assert len(dict(told)) == 1_024
        assert all(lying[index] == value for index, value in told)
        assert len(appends_of(served.node)) < 30
        assert max(appends_of(served.node)) == 256


async def test_a_bad_record_of_a_batch_fails_alone() -> None:
    """A record that is too large, and one whose key is empty, among good ones: those two calls fail, the others are
    applied once each, in order."""
    async with serve(value_bytes_max=100) as served, Client(served.url) as client:
        bad = {7: client.append(b"x" * 101), 12: client.append(b"y", key=b"")}
        calls = [bad.get(number) or client.append(b"%d" % number) for number in range(20)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        failed = {number: each for number, each in enumerate(done) if isinstance(each, BaseException)}
        assert {number: type(each) for number, each in failed.items()} == {7: NotApplied, 12: NotApplied}
        assert (failed[7].code, failed[12].code) == (Code.TOO_LARGE, Code.BAD_REQUEST)  # type: ignore[attr-defined]
        lying = list(values(served.node).values())
        assert lying == [b"%d" % number for number in range(20) if number not in (7, 12)]


async def test_a_batch_whose_answer_is_lost_is_applied_once() -> None:
    """The connection is cut after the node applied the batch: the retry gets the first answer, and every call its own
    index in it (pitfall 73: a retry applied twice)."""
    async with serve() as served:
        async with answers_cut(served.port, 2) as url, Client(url, bound=True, policy=QUICK) as client:
            answers = await asyncio.gather(*(client.append(b"%d" % number) for number in range(10)))
        lying = values(served.node)
        assert [lying[answer.index] for answer in answers] == [b"%d" % number for number in range(10)]
        assert {answer.result for answer in answers} == {"repeated"}
        assert len(lying) == 10


async def test_a_batch_that_ends_unknown_is_unknown_to_each_call() -> None:
    """No call claims more than is known, and each names the receipt to ask for and its record in the batch."""
    node = FakeNode()
    async with serve(node) as served, Client(served.url, policy=QUICK, deadline_s=0.4) as client:
        await client.append(b"first")
        node.held = asyncio.Event()
        done = await asyncio.gather(*(client.append(b"%d" % number) for number in range(5)), return_exceptions=True)
        assert all(isinstance(each, UnknownInBatch) for each in done), done
        assert [(each.session, each.sequence, each.offset) for each in done] == [  # type: ignore[union-attr]
            (client.session, 2, number) for number in range(5)
        ]
        assert len({id(each) for each in done}) == 5, "an exception of its own, so that no traceback is shared"
        held, node.held = node.held, None
        held.set()


async def test_an_append_with_a_deadline_of_its_own_ends_by_then_and_the_batch_goes_on() -> None:
    """It goes alone, ends unknown with its receipt, and takes no time from the calls of a batch."""
    node = FakeNode()
    async with serve(node) as served, Client(served.url) as client:
        await client.append(b"first")
        node.held = asyncio.Event()
        patient = asyncio.create_task(client.append(b"patient"))
        await wait_until_async(lambda: waiters_of(node))
        with pytest.raises(OutcomeUnknown) as unknown:
            await client.append(b"hasty", deadline_s=0.2)
        assert (unknown.value.session, unknown.value.sequence) == (client.session, 3)
        assert not patient.done()
        node.held.set()
        node.held = None
        appended = await patient
        assert values(node)[appended.index] == b"patient"
        assert (await client.void(client.session or 0, 3)).state in ("applied", "voided")


@pytest.mark.parametrize("time_ms", [-1, 2**53, 2**70])
async def test_a_time_out_of_range_fails_its_own_call_before_anything_is_sent(time_ms: int) -> None:
    """The others of its batch are applied. In a list of records the message has its number."""
    async with serve() as served, Client(served.url) as client, asyncio.TaskGroup() as others:
        others.create_task(client.append(b"good"))
        with pytest.raises(ValueError, match=f"^time_ms is {time_ms}: give a number from 0 to {2**53 - 1}$"):
            await client.append(b"wrong", time_ms=time_ms)
        with pytest.raises(ValueError, match=rf"^records\[1\].time_ms is {time_ms}"):
            await client.append_many([NewRecord(b""), NewRecord(b"", time_ms=time_ms)])


async def test_closing_a_client_ends_waiting_appends() -> None:
    """Sent requests are unknown, unsent ones not applied; no call waits for ever."""
    node = FakeNode()
    async with serve(node) as served:
        client = Client(served.url)
        await client.append(b"first")
        node.held = asyncio.Event()
        sent = asyncio.create_task(client.append(b"sent"))
        await wait_until_async(lambda: waiters_of(node))
        waiting = asyncio.create_task(client.append(b"waiting"))
        await asyncio.sleep(0)
        await client.close()
        done = await asyncio.gather(sent, waiting, return_exceptions=True)
        assert [type(each) for each in done] == [OutcomeUnknown, Unavailable]
        node.held.set()


async def test_cancelled_calls_do_not_disturb_the_others() -> None:
    """Cancelled before it was sent a call is not sent; the calls beside it are applied."""
    async with serve() as served, Client(served.url) as client:
        await client.append(b"first")
        calls = [asyncio.create_task(client.append(b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        assert list(values(served.node).values()) == [b"first", b"0", b"2"]


async def test_threads_share_requests_and_each_gets_its_index() -> None:
    """The blocking client from 32 threads: fewer requests than calls, each call its own index, a bad record alone."""
    node = FakeNode()
    async with serve(node, value_bytes_max=100) as served:
        told: dict[bytes, int] = {}
        failed: list[BaseException] = []

        def work(client: SyncClient, thread: int) -> None:
            for number in range(5):
                value = b"%d/%d" % (thread, number)
                told[value] = client.append(value).index
            if thread == 3:
                try:
                    client.append(b"x" * 101)
                except NotApplied as error:
                    failed.append(error)

        def run() -> None:
            with SyncClient(served.url) as client:
                threads = [threading.Thread(target=work, args=(client, thread)) for thread in range(32)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(30)

        await asyncio.to_thread(run)
        lying = values(node)
        assert len(told) == 160
        assert all(lying[index] == value for value, index in told.items())
        assert [type(error) for error in failed] == [NotApplied]
        assert len(appends_of(node)) < 160


@pytest.mark.parametrize("is_called", [False, True])
def test_a_thread_that_is_interrupted_leaves_the_others_their_turn(
    monkeypatch: pytest.MonkeyPatch, is_called: bool
) -> None:
    """Ctrl-C comes while its append waits for the batch under way, or as its turn comes. The next one does not wait for
    it until its own deadline. Guard: the handling of an interrupt in `append` of cluster/client/blocking/batch.py."""
    sent: list[list[bytes | None]] = []
    goes_on = threading.Event()

    def send(records: Sequence[NewRecord], _: float, took: object) -> Appended:
        sent.append([record.value for record in records])
        assert goes_on.wait(10)
        return Appended(Outcome.APPLIED, "applied", 1, len(records), len(records), 1, 1)

    def interrupt(condition: threading.Condition, ended: Callable[[], bool], timeout: float | None = None) -> bool:
        if is_called:
            goes_on.set()
            assert wait_for(condition, ended, 10)
        raise KeyboardInterrupt

    batcher = SyncBatcher(send, 1)
    deadline = clock.monotonic() + 10
    first = threading.Thread(target=batcher.append, args=(NewRecord(b"first"), deadline))
    first.start()
    wait_until(lambda: bool(sent))
    wait_for = threading.Condition.wait_for
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batcher.append(NewRecord(b"interrupted"), deadline)
    goes_on.set()
    first.join(10)
    batcher.append(NewRecord(b"last"), deadline)
    assert sent == [[b"first"], [b"last"]]


async def test_threads_end_at_their_deadlines() -> None:
    """While another thread's batch is under way a call that was not sent in time is not applied; it never goes out."""
    node = FakeNode()
    async with serve(node) as served:
        loop = asyncio.get_running_loop()
        node_held = asyncio.Event()

        def run() -> None:
            with SyncClient(served.url) as client:
                client.append(b"first")
                loop.call_soon_threadsafe(setattr, node, "held", node_held)
                wait_until(lambda: node.held is not None)
                first = threading.Thread(target=client.append, args=(b"patient",))
                first.start()
                wait_until(lambda: bool(node_held._waiters))
                began = clock.monotonic()
                with pytest.raises(Unavailable):
                    client.append(b"late", deadline_s=0.1)
                assert clock.monotonic() - began < 5
                loop.call_soon_threadsafe(node_held.set)
                first.join(10)

        await asyncio.to_thread(run)
        assert list(values(node).values()) == [b"first", b"patient"]
