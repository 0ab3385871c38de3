"""A thread that does one blocking job after another for the event loop, and tells how long the current one takes.

A thread of its own, not an executor: a job may have a second part that runs after its result was handed over, and a
thread that hangs in a disk must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from cluster.clock import monotonic

T = TypeVar("T")


class _Job(NamedTuple):
    do: Callable[[], Any]
    then: Callable[[], None] | None = None
    answer: tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]] | None = None


class Worker:
    """One thread and its queue of jobs."""

    __slots__ = ("_is_stopped", "_jobs", "_lock", "_since", "_thread", "on_error")

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()  # a job is queued before the end, or not at all
        self._is_stopped = False
        self._since = 0.0
        self.on_error: Callable[[Exception], None] = _ignore
        """Is told in this thread what a posted job raised: nothing waits for such a job."""
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, do: Callable[[], T], then: Callable[[], None] | None = None) -> asyncio.Future[T]:
        """Does `do` in the thread; the future has its result. `then`, which may not raise, is done there once whoever
        waits for the result has seen it, and behind what that gives to do: in the thread at once it would hold the
        interpreter up that the event loop needs. It is left out after `stop`.

        After `stop` the future is cancelled: nobody would ever do it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._is_stopped:
                future.cancel()
            else:
                self._jobs.put(_Job(do, then, (loop, future)))
        return future

    def post(self, do: Callable[[], None]) -> None:
        """Does `do` in the thread; nothing waits for it, and what it raises goes to `on_error`. May be called from any
        thread."""
        self._jobs.put(_Job(do))

    def busy_ms(self) -> int:
        """For how long the current job has been running; 0: none is. May be asked from any thread."""
        since = self._since
        return int((monotonic() - since) * 1_000) if since else 0

    @property
    def is_busy(self) -> bool:
        """Whether a job is running or waits. May be asked from any thread."""
        return self._since > 0.0 or not self._jobs.empty()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after what is queued. Returns whether it has ended in time."""
        with self._lock:
            self._is_stopped = True
            self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._since = monotonic()
            result, error = None, None
            try:
                result = job.do()
            except BaseException as raised:  # whatever it is belongs to whoever waits
                error = raised
            if job.answer is not None:
                loop, future = job.answer
                try:
                    loop.call_soon_threadsafe(self._settle, loop, future, result, error, job.then)
                except RuntimeError:
                    pass  # the loop is closed: nobody waits any more
                del loop, future
            elif isinstance(error, Exception):
                self.on_error(error)
            self._since = 0.0
            del job, result, error  # do not keep a batch alive until the next one comes

    def _settle(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: object,
        error: BaseException | None, then: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        """On the event loop."""
        if not future.done():  # not cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if then is not None:
            loop.call_soon(self.post, then)  # behind the future's own callbacks


def _ignore(_: Exception) -> None:
    """Until the disk names its own."""
