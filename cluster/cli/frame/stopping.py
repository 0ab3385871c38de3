"""Ends a command at a good moment when Ctrl-C or SIGTERM asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any


class StopSignal(threading.Event):
    """An event that a signal handler may set at any moment.

    `threading.Event.set` takes a lock. A handler that interrupts `set` or `wait` in the main thread would wait for it
    for ever: `timeout` and shells send a signal twice. `SimpleQueue.put` may be called there. It is never cleared.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_come = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether the command is to end."""
        return self._has_come

    def set(self) -> None:
        """Asks the command to end."""
        self._has_come = True
        self._bell.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, at most `timeout` seconds. Returns whether it is."""
        if not self._has_come:
            with suppress(Empty):
                self._bell.get(timeout=timeout)
                self._bell.put(None)  # for the next thread that waits
        return self._has_come


@contextmanager
def interrupted(stop: StopSignal, tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, or SIGTERM, sets `stop`, by which the command ends at a better moment, and calls `tell`.

    The second Ctrl-C ends it at once. A second SIGTERM does not: `timeout` sends two.
    """

    def hear(number: int, frame: Any) -> None:
        if not stop.is_set():
            stop.set()
            tell()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
