"""Tests the thread behind the disk: jobs in order, errors to their callers, and no caller left waiting at its end."""

import asyncio
from threading import Event

import pytest

from raftlog.cluster.disk.worker import Worker
from tests.support import hang_s


async def test_jobs_run_in_order_and_errors_reach_their_callers() -> None:
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
    """Guard: the check of `_is_stopped` in `run`. Without it a caller that is cancelled amid a snapshot, and cleans up
    through an ended thread, waits for ever (and with it the loop that must be closed).
    """
    worker = Worker("test")
    hold = Event()
    waiting = worker.run(hold.wait)
    queued = worker.run(lambda: "done")
    stopping = asyncio.create_task(asyncio.to_thread(worker.stop, 5.0))
    hold.set()
    assert await queued == "done"
    await waiting
    assert await stopping
    async with asyncio.timeout(hang_s()):
        with pytest.raises(asyncio.CancelledError):
            await worker.run(lambda: "never")


async def test_work_after_an_answer_runs_behind_the_callers_callback() -> None:
    """The next batch must not wait for the rows of the one before. A caller that waits for an answer, and begins the
    next job in its callback, has it done first. Guard: `call_soon` in `_settle`.
    """
    worker = Worker("test")
    done: list[str] = []
    next_one: list[asyncio.Future[None]] = []
    first = worker.run(lambda: done.append("first"), lambda: done.append("then"))
    first.add_done_callback(lambda _: next_one.append(worker.run(lambda: done.append("next"))))
    await first
    await next_one[0]
    assert await asyncio.to_thread(worker.stop, 5.0)
    assert done == ["first", "next", "then"]


async def test_the_answer_comes_a_turn_before_the_callbacks_of_the_future() -> None:
    """`answered` has the settled future in the turn of the loop that the thread woke, also after an error."""
    worker = Worker("test")
    done: list[object] = []
    first = worker.run(lambda: 7, None, lambda future: done.append(future.result()))
    first.add_done_callback(lambda _: done.append("callback"))
    assert await first == 7
    broken = worker.run(lambda: 1 // 0, None, lambda future: done.append(type(future.exception())))
    broken.add_done_callback(lambda _: done.append("callback"))
    with pytest.raises(ZeroDivisionError):
        await broken
    assert await asyncio.to_thread(worker.stop, 5.0)
    assert done == [7, "callback", ZeroDivisionError, "callback"]


async def test_a_cancelled_job_is_not_answered() -> None:
    """Its caller has gone. The replica would otherwise hear of a batch after its end."""
    worker = Worker("test")
    answers: list[object] = []
    hold = Event()
    first = worker.run(hold.wait, None, answers.append)
    first.cancel()
    hold.set()
    await worker.run(lambda: None)
    assert await asyncio.to_thread(worker.stop, 5.0)
    assert answers == []


async def test_an_error_of_a_posted_job_is_reported_and_the_next_job_runs() -> None:
    """No caller waits for a posted job: its error was lost, and the disk went on as if the job had been done."""
    worker = Worker("test")
    told: list[Exception] = []
    worker.on_error = told.append
    worker.post(lambda: 1 // 0)  # type: ignore[arg-type]  # it returns nothing
    assert await worker.run(lambda: "done") == "done"
    assert [type(each) for each in told] == [ZeroDivisionError]
    assert await asyncio.to_thread(worker.stop, 5.0)
