"""Runs the jobs of one thread of a simulated disk, operation by operation in virtual time.

A job is a row of operations: the process may die before any of them, and a sync takes its time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

from raftlog.chaos.sim.ground.stage import ProcessEnded
from raftlog.chaos.sim.replica.life import Life
from raftlog.cluster.files.errors import ReadDamaged, StoredSnapshotDamaged
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.wal import snapshot_files
from raftlog.raft.wal.formats import ForeignFile
from raftlog.raft.wal.recovery import Damaged

Steps = Generator[str | tuple[str, int] | int, None, Any]
"""The names of operations, each given before it is carried out, alone or with how much likelier a crash is there; and
microseconds that pass. Its end has the result."""

WAIT_US: Final = 500
"""How often a job looks whether another one has freed the disk, in microseconds."""

STILL_US: Final = 5_000
"""How often the disk of a process that stands still looks whether it goes on, in microseconds."""

SLOW_LOOK_US: Final = 20_000
"""How often a slow sync looks whether its disk is still slow, in microseconds."""

READ_US: Final = (50, 3_000)
"""How long a read takes, in microseconds."""


class _Job(NamedTuple):
    do: Callable[[], Any]
    future: asyncio.Future[Any] | None = None
    then: Callable[[], Steps] | None = None


class Thread:
    """One thread of the disk: its jobs, one after the other (`raftlog.cluster.disk.worker.Worker`)."""

    def __init__(self, node: Life) -> None:
        self._node, self._life = node, node.life
        self._jobs: deque[_Job] = deque()
        self._steps: Generator[int, None, None] | None = None
        self._is_running = False  # a step of the current job, in this event
        self.since_us = -1  # when the current job, or its newest sync, began; -1: none runs
        self.syncs = self.sync_us = 0

    def run_steps(
        self,
        do: Callable[[], Any],
        then: Callable[[], Steps] | None = None,
        answered: Callable[[asyncio.Future[Any]], None] | None = None,
    ) -> asyncio.Future[Any]:
        """Does a job of steps, or one without any; the future has its result. `then` is done behind it."""
        loop = self._node.loop
        assert loop is not None
        future: asyncio.Future[Any] = loop.create_future()
        if answered is not None:
            future.add_done_callback(answered)
        self._put(_Job(do, future, then))
        return future

    run = run_steps

    def busy_ms(self) -> int:
        return 0 if self.since_us < 0 else (self._node.world.now_us - self.since_us) // 1_000

    def post(self, job: Callable[[], Steps]) -> None:
        self._put(_Job(job))

    def close(self) -> None:
        self._jobs.clear()
        steps, self._steps = self._steps, None
        if steps is not None and not self._is_running:
            steps.close()

    def _put(self, job: _Job) -> None:
        if self._node.life != self._life:
            return
        self._jobs.append(job)
        if self._steps is None and len(self._jobs) == 1:
            self._node.world.after(0, self._next)

    def _next(self) -> None:
        if self._node.life == self._life and self._steps is None and self._jobs:
            self.since_us = self._node.world.now_us
            self._steps = self._whole(self._jobs.popleft())
            self._advance()

    def _whole(self, job: _Job) -> Generator[int, None, None]:
        future = job.future
        result: Any = None
        try:
            result = yield from self._timed(job.do())
        except Exception as error:
            if future is None:
                self._node.posted_failed(error)
            elif not future.done():
                future.set_exception(_as_server_error(error))
        else:
            if future is not None and not future.done():
                future.set_result(result)
        if job.then is not None:
            yield 0
            try:
                yield from self._timed(job.then())
            except Exception as error:
                self._node.posted_failed(error)

    def _timed(self, steps: Steps | None) -> Generator[int, None, Any]:
        """The steps with the microseconds that each takes. The process may die before any of them."""
        world, disk = self._node.world, self._node.disk
        if steps is None:
            world.may_crash("nothing")
            return None
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                return stop.value
            if isinstance(step, int):
                yield step
                continue
            name, weight = step if isinstance(step, tuple) else (step, 1)
            world.may_crash(name, weight)
            if name == "Sync":
                took_us, self.since_us = world.sync_us(), world.now_us  # the server prepares files ahead
                yield took_us
                while (left_us := self.since_us + took_us + disk.slow_us - world.now_us) > 0:
                    yield min(left_us, SLOW_LOOK_US)
                self.syncs, self.sync_us = self.syncs + 1, self.sync_us + world.now_us - self.since_us
            elif name == "wait":
                yield WAIT_US
            elif name == "read":
                yield self._node.random.randint(*READ_US)

    def _advance(self) -> None:
        node = self._node
        if node.life != self._life:
            return
        if node.is_behind:
            node.world.after(STILL_US, self._advance)
            return
        assert self._steps is not None
        self._is_running = True
        try:
            delay_us = next(self._steps, None)
        except ProcessEnded as end:
            node.crash(str(end), power=node.world.step_cuts_power())
            return
        finally:
            self._is_running = False
        if node.life != self._life:
            return
        if delay_us is not None:
            node.world.after(delay_us, self._advance)
            return
        self._steps, self.since_us = None, -1
        if self._jobs:
            node.world.after(0, self._next)


class ReadThread(Thread):
    """The thread that reads: a job is one function, which takes the time of a read."""

    def run(self, do: Callable[[], Any], then: Any = None, answered: Any = None) -> asyncio.Future[Any]:
        return self.run_steps(partial(_reading, do), then, answered)


def _reading(do: Callable[[], Any]) -> Steps:
    yield "read"
    return do()


def _as_server_error(error: Exception) -> Exception:
    """The error as the server's disk raises it."""
    match error:
        case Damaged():
            return ReadDamaged(error.damage)
        case snapshot_files.SnapshotDamaged() | UnknownVersion() | ForeignFile():
            return StoredSnapshotDamaged(str(error))
    return error
