"""Runs the server's asyncio code in virtual time: one event loop for each simulated process.

`raftlog.chaos.sim.replica.node` makes one loop for each life of a node. The world's queue of events is the only clock:
a callback waits in the loop's list until the world runs it. Coroutines, tasks and futures are asyncio's own. The order
of callbacks depends on the seed alone, so every run of a seed is equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, Final, Protocol, TypeVar

from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.ground.stage import ProcessEnded, Stage
from raftlog.cluster.runtime import clock
from raftlog.raft.types import Now

T = TypeVar("T")

WAKE_US: Final = (0, 0, 50, 300)
"""How long a callback waits until its loop runs, in microseconds. Callbacks that come meanwhile run with it."""

EXECUTOR_US: Final = (50, 3_000)
"""How long a job in a helper thread takes, in microseconds."""

_REAL: Final = {name: vars(clock)[name] for name in ("read", "monotonic", "wall_ms", "thread_s")}
"""The functions of `raftlog.cluster.runtime.clock` that a running loop replaces."""


class Owner(Protocol):
    """The node whose process a loop runs."""

    node: int
    clock: Clock
    is_paused: bool
    is_behind: bool

    def broken(self, error: BaseException) -> None: ...
    def ran(self) -> None: ...


class Call:
    """One callback that waits: what the server calls of `asyncio.TimerHandle`. Context variables are not kept: no code
    that runs here uses any."""

    __slots__ = ("arguments", "callback", "due_us", "is_cancelled")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], due_us: int) -> None:
        self.callback, self.arguments, self.due_us = callback, arguments, due_us
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        """The time of the process's clock at which it runs, in seconds."""
        return self.due_us / 1e6


class SimLoop:
    """The event loop of one process: the part of `asyncio.AbstractEventLoop` that the server uses without sockets. It
    stands still while the process is paused, and for good once it is closed."""

    def __init__(self, world: Stage, owner: Owner, random: Random) -> None:
        self._world, self._owner, self._random = world, owner, random
        self._me: Any = self  # asyncio asks for an AbstractEventLoop, and calls only these methods
        self._ready: list[Call] = []
        self._is_scheduled = False
        self._is_closed = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._time: dict[str, Callable[[], Any]] = {
            "read": self._read,
            "monotonic": self.time,
            "wall_ms": self._wall_ms,
            "thread_s": _no_time,
        }

    # -- time

    def time(self) -> float:
        return self._owner.clock.monotonic_us(self._world.now_us) / 1e6

    def _read(self) -> Now:
        return self._owner.clock.read(self._world.now_us)

    def _wall_ms(self) -> int:
        return self._owner.clock.read(self._world.now_us).wall_ms

    # -- callbacks

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        call = Call(callback, args, 0)
        if not self._is_closed:
            self._ready.append(call)
            if not self._is_scheduled:
                self._schedule()
        return call

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> Call:
        """As `call_soon`: a simulated process has one thread."""
        return self.call_soon(callback, *args)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Call:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Call:
        call = Call(callback, args, round(when * 1e6))
        if not self._is_closed:
            self._wait(call)
        return call

    def _wait(self, call: Call) -> None:
        world = self._world
        world.at(max(world.now_us, self._owner.clock.due_at_us(call.due_us)), self._fire, call)

    def _fire(self, call: Call) -> None:
        if self._is_closed or call.is_cancelled:
            return
        if self._owner.clock.monotonic_us(self._world.now_us) < call.due_us:
            self._wait(call)  # the clock was slowed down
            return
        self._ready.append(call)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        owner = self._owner
        if not (owner.is_paused or owner.is_behind):
            self._is_scheduled = True
            world = self._world
            world.after(WAKE_US[self._random.getrandbits(2)], self._run)

    def go_on(self) -> None:
        """The process is not paused any more."""
        if self._ready and not self._is_scheduled and not self._is_closed:
            self._schedule()

    def _run(self) -> None:
        self._is_scheduled = False
        owner = self._owner
        if self._is_closed or owner.is_paused or owner.is_behind:
            return
        ready, self._ready = self._ready, []
        self.run_now(ready)
        if not self._is_closed:
            owner.ran()
            if self._ready and not self._is_scheduled:
                self._schedule()

    def run_now(self, calls: list[Call]) -> None:
        """Runs these callbacks in this event. A process that ends in one of them runs none of the others."""
        names, owner = vars(clock), self._owner
        before, me = asyncio._get_running_loop(), self._me
        asyncio._set_running_loop(me)
        names.update(self._time)
        try:
            for call in calls:
                if not call.is_cancelled:
                    try:
                        call.callback(*call.arguments)
                    except (Exception, ProcessEnded) as error:
                        owner.broken(error)
                    if self._is_closed:
                        break
        finally:
            names.update(_REAL)
            asyncio._set_running_loop(before)

    def run_in_process(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Runs a function of the process in this event: a message arrived, or the disk has an answer."""
        self.run_now([Call(callback, arguments, 0)])

    def in_its_time(self, job: Callable[[], T]) -> T:
        """Runs a job of a helper thread in this event: it reads the process's clock, not that of the machine."""
        names = vars(clock)
        names.update(self._time)
        try:
            return job()
        finally:
            names.update(_REAL)

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """The process ends: none of its callbacks runs again. Its coroutines are closed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ready.clear()
        before, names = asyncio._get_running_loop(), vars(clock)
        asyncio._set_running_loop(self._me)
        names.update(self._time)
        try:
            running = asyncio.current_task(self._me)  # a compiled coroutine does not say that it runs
            for task in list(self._tasks):
                work = task.get_coro()
                if isinstance(work, Coroutine) and task is not running:
                    try:
                        work.close()
                    except (ProcessEnded, RuntimeError):
                        pass  # it waits for something while it ends
        finally:
            self._tasks.clear()
            names.update(_REAL)
            asyncio._set_running_loop(before)

    # -- tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._me)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self._me)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs it in a later event, as a helper thread would."""
        future: asyncio.Future[T] = self.create_future()
        self._world.after(self._random.randint(*EXECUTOR_US), self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        if self._is_closed or future.done():
            return
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)

    def get_debug(self) -> bool:
        """asyncio asks it for every task."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that no code waits for is a defect; a task that ended with its process is none."""
        error = context.get("exception")
        if error is not None and not self._is_closed:
            self._owner.broken(error)


def _no_time() -> float:
    return 0.0
