"""Runs blocking jobs in one thread for the event loop, one after the other, and times the current one.

The disk has one for writing and one for reading. It is a thread of its own and not an executor, for two reasons. A job
may have a second part that runs after its result was handed over. And a thread that hangs in a disk must not keep the
process from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from raftlog.cluster.runtime.clock import monotonic

T = TypeVar("T")


class _Job(NamedTuple):
    do: Callable[[], Any]
    then: Callable[[], None] | None = None
    answer: tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]] | None = None
    answered: Callable[[asyncio.Future[Any]], None] | None = None


class Worker:
    """One thread and its queue of jobs."""

    __slots__ = ("_is_stopped", "_jobs", "_lock", "_since", "_worked_by", "on_error")

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()  # a job is queued before the end marker, or not at all
        self._is_stopped = False
        self._since = 0.0
        self.on_error: Callable[[Exception], None] = _ignore
        """Called in this thread with the error of a posted job, because no caller waits for such a job."""
        self._worked_by = Thread(target=self._work, name=name, daemon=True)
        self._worked_by.start()

    def run(
        self,
        do: Callable[[], T],
        then: Callable[[], None] | None = None,
        answered: Callable[[asyncio.Future[Any]], None] | None = None,
    ) -> asyncio.Future[T]:
        """Runs `do` in the thread; the future gets its result.

        `answered` is called with the settled future, in the turn of the event loop that the thread woke. A callback of
        the future would come one turn later. `then` runs in the thread after the event loop has handled the result.
        Running it at once would compete for the interpreter with the callers that were just woken. It must not raise,
        and does not run after `stop`. After `stop` the future is cancelled, because the thread has ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._is_stopped:
                future.cancel()
            else:
                self._jobs.put(_Job(do, then, (loop, future), answered))
        return future

    def post(self, do: Callable[[], None]) -> None:
        """Runs `do` in the thread. No caller waits for it, and its error goes to `on_error`. Any thread may call it."""
        self._jobs.put(_Job(do))

    def busy_ms(self) -> int:
        """How long the current job has been running, in ms; 0 if none is. Any thread may ask."""
        since = self._since
        return int((monotonic() - since) * 1_000) if since else 0

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits. Any thread may ask."""
        return self._since > 0.0 or not self._jobs.empty()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after the queued jobs. Returns whether it ended in time."""
        with self._lock:
            self._is_stopped = True
            self._jobs.put(None)
        self._worked_by.join(timeout_s)
        return not self._worked_by.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._since = monotonic()
            result, error = None, None
            try:
                result = job.do()
            except BaseException as raised:  # any error goes to the waiting caller
                error = raised
            if job.answer is not None:
                loop, future = job.answer
                try:
                    loop.call_soon_threadsafe(self._settle, loop, future, result, error, job)
                except RuntimeError:
                    pass  # the loop is closed: no caller waits any more
                del loop, future
            elif isinstance(error, Exception):
                self.on_error(error)
            self._since = 0.0
            del job, result, error  # do not keep a batch alive until the next one comes

    def _settle(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
        result: object,
        error: BaseException | None,
        job: _Job,
    ) -> None:
        """Settles the future. Runs on the event loop."""
        if not future.done():  # not cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if job.then is not None:
            loop.call_soon(self.post, job.then)  # after the future's own callbacks
        if job.answered is not None and not future.cancelled():
            job.answered(future)


def _ignore(_: Exception) -> None:
    """The default until the disk sets its own."""
