"""Kills the processes of a harness that has died.

`raftlog.chaos.deploy.processes` starts this file as a process of its own and writes the pid of every started process to
its standard input. That input ends when the harness dies, also by `kill -9`. Then the guard kills the processes that
still run. A pidfd identifies the process itself: a new process with the same number is never hit, and the pidfd of an
ended process is closed. Linux; standard library only, so that it starts fast.
"""

import os
import select
import signal
import sys
from collections.abc import Iterable


def guard(lines: Iterable[bytes]) -> None:
    """Reads pids to the end of `lines`, then kills what still runs of them."""
    watched: list[int] = []
    for line in lines:
        watched = [descriptor for descriptor in watched if not _has_ended(descriptor)]
        try:
            watched.append(os.pidfd_open(int(line)))
        except ProcessLookupError:
            continue  # it ended, and was waited for, before this line was read
    for descriptor in watched:
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _has_ended(descriptor: int) -> bool:
    """Whether that process has ended; then its descriptor is closed."""
    if not select.select([descriptor], [], [], 0)[0]:
        return False
    os.close(descriptor)
    return True


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it goes when the harness goes, not before
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin.buffer)
