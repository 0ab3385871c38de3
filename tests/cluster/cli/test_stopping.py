"""A command hears Ctrl-C at any moment, and ends."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Final

import pytest

from raftlog.cluster.cli.frame.stopping import StopSignal, interrupted
from tests.support import HANG_S

_LINES_S: Final = 20.0
"""Longest time of a few lines that wait for 1 ms."""


def _set_at_line(number: int) -> bool:
    """Sets a `StopSignal` from line `number` of a `wait` and a `set`, as a signal handler there. Returns whether there
    is such a line."""
    stop, seen = StopSignal(), 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == number:
                sys.settrace(None)
                stop.set()
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:
            stop.wait(0.001)
            stop.set()
            stop.wait()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_LINES_S)
    assert not thread.is_alive(), f"it hangs where a signal comes at line {number}"
    assert stop.is_set()
    return seen >= number


def test_a_signal_at_any_line_of_wait_and_set_leaves_no_hang() -> None:
    """A second signal may come in the middle of the handler of the first one, or in a wait of the main thread."""
    assert all(_set_at_line(number) for number in range(1, 5))
    number = 5
    while _set_at_line(number):
        number += 1


def test_a_set_signal_wakes_every_thread_that_waits() -> None:
    """Each sink has a thread of its own."""
    stop = StopSignal()
    threads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(HANG_S)
    assert not any(thread.is_alive() for thread in threads)


def test_only_a_second_ctrl_c_ends_a_command_at_once() -> None:
    """`timeout` sends SIGTERM to the command and to its group, so it comes twice."""
    stop, told = StopSignal(), []
    before = signal.getsignal(signal.SIGTERM)
    with interrupted(stop, lambda: told.append(stop.is_set())):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert told == [True]
    assert signal.getsignal(signal.SIGTERM) is before
