"""The thread behind the disk: jobs in order, errors to whoever waits, and nobody left waiting after its end."""

import asyncio
from threading import Event

import pytest

from cluster.disk_worker import Worker


async def test_jobs_are_done_in_order_and_errors_reach_who_waits() -> None:
    """A job that fails fails its own future, and the next one goes on."""
    worker = Worker("test")
    done: list[int] = []
    first = worker.run(lambda: done.append(1))
    broken = worker.run(lambda: 1 // 0)
    last = worker.run(lambda: done.append(2), lambda: done.append(3))
    with pytest.raises(ZeroDivisionError):
        await broken
    await asyncio.gather(first, last)
    assert await asyncio.to_thread(worker.stop, 5.0)
    assert done == [1, 2, 3]


async def test_a_job_after_the_end_is_cancelled_and_one_before_it_is_done() -> None:
    """Guard: the look at `_is_stopped` in `run`. Without it whoever is cancelled amid a snapshot, and cleans up through
    a thread that has ended, waits for ever (and with it the loop that is to be closed)."""
    worker = Worker("test")
    hold = Event()
    waiting = worker.run(hold.wait)
    queued = worker.run(lambda: "done")
    stopping = asyncio.create_task(asyncio.to_thread(worker.stop, 5.0))
    hold.set()
    assert await queued == "done"
    await waiting
    assert await stopping
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await worker.run(lambda: "never")


async def test_what_follows_an_answer_is_done_behind_what_the_answer_gave_to_do() -> None:
    """The next batch must not wait for the rows of the one before: who waits for an answer, and begins the next job
    in its callback, has it done first. Guard: `call_soon` in `_settle`."""
    worker = Worker("test")
    done: list[str] = []
    next_one: list[asyncio.Future[None]] = []
    first = worker.run(lambda: done.append("first"), lambda: done.append("then"))
    first.add_done_callback(lambda _: next_one.append(worker.run(lambda: done.append("next"))))
    await first
    await next_one[0]
    assert await asyncio.to_thread(worker.stop, 5.0)
    assert done == ["first", "next", "then"]


async def test_what_a_posted_job_raises_is_told_and_the_next_job_is_done() -> None:
    """Nothing waits for a posted job: what it raised was lost, and the disk went on as if the job had been done."""
    worker = Worker("test")
    told: list[Exception] = []
    worker.on_error = told.append
    worker.post(lambda: 1 // 0)  # type: ignore[arg-type]  # it returns nothing
    assert await worker.run(lambda: "done") == "done"
    assert [type(each) for each in told] == [ZeroDivisionError]
    assert await asyncio.to_thread(worker.stop, 5.0)
