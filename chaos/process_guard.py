"""Kills the processes of a harness that is gone.

`chaos.processes` starts this file as a process of its own and writes one line for every process that it starts
(`watch PID`) or has seen end (`forget PID`) into its standard input. When that input ends, which it does however the
harness died, `kill -9` included, what is still watched is killed. A pidfd names the very process: a number that the
system has given to somebody else meanwhile is never hit. Linux; standard library only, so that it starts fast.
"""

import os
import signal
import sys
from collections.abc import Iterable


def guard(lines: Iterable[bytes]) -> None:
    """Reads lines to their end, then kills what is watched."""
    watched: dict[int, int] = {}
    for line in lines:
        word, _, number = line.partition(b" ")
        pid = int(number)
        if word == b"watch":
            try:
                watched[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue  # it ended, and was waited for, before this line was read
        elif pid in watched:
            os.close(watched.pop(pid))
    for descriptor in watched.values():
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it goes when the harness goes, not before
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin.buffer)
