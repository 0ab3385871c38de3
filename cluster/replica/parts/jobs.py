"""Runs the background work of one replica: an error in a job ends the replica, and a stop cancels the jobs.

`ReplicaState.driver.spawn` is the one way to start background work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Jobs:
    """The tasks of one replica. Belongs to the event loop."""

    __slots__ = ("_failed", "_tasks")

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called with the error of a job."""
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], bool] = {}  # whether the job must finish, in the order of their beginning

    def spawn(self, work: Coroutine[Any, Any, None], *, must_finish: bool = False) -> asyncio.Task[None]:
        """Begins a job. If it `must_finish`, `close` waits for it and does not cancel it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = must_finish
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def close(self, timeout_s: float) -> None:
        """Cancels the jobs and waits until they ended, at most `timeout_s`. A disk that hangs may keep a job longer."""
        tasks = dict(self._tasks)
        for task, must_finish in tasks.items():
            if not must_finish:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
