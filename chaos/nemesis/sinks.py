"""Kills and pauses the runner of the sink.

A paused one is replaced by another, and goes on afterwards: one of the two must find that the other has taken over.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Final

from raftlog.chaos.deploy.sink_process import SinkProcess, end
from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis

LASTS_S: Final = (0.1, 2.0)
FENCED_S: Final = 3.0
"""How long two runners may take until one notices the other, before both are killed, in seconds."""


def _sink(field: Field) -> SinkProcess:
    if field.deployment.sink is None:
        raise FaultSkipped("this run has no sink")
    return field.deployment.sink


def _kill(field: Field) -> Injection:
    sink = _sink(field)
    if (pid := sink.kill()) is None:
        raise FaultSkipped("no runner of the sink runs")
    return Injection("the sink", f"pid {pid}: waited for and gone", lambda: f"started again as {sink.start().pid}")


def _pause(field: Field) -> Injection:
    sink = _sink(field)
    if (paused := sink.pause()) is None:
        raise FaultSkipped("no runner of the sink runs")
    younger = sink.start()

    def heal() -> str:
        os.kill(paused.pid, signal.SIGCONT)
        field.wait(lambda: paused.poll() is not None or younger.poll() is not None, FENCED_S)
        if paused.poll() is None and younger.poll() is not None:  # the older one had stood before its claim
            sink.process = paused
            return f"pid {paused.pid} went on and took over, {younger.pid} ended with {younger.returncode}"
        if paused.poll() is not None:
            return f"pid {paused.pid} went on, and ended with {paused.returncode}"
        end(paused)  # it may have taken over, and the younger one does not know that yet
        end(younger)
        return f"pid {paused.pid} went on; it and {younger.pid} were killed, started again as {sink.start().pid}"

    return Injection("the sink", f"pid {paused.pid}: state T, replaced by {younger.pid}", heal)


_nemesis: Final = partial(Nemesis, lane="sink", lasts_s=LASTS_S)

NEMESES: Final = (
    _nemesis("kill-sink", "kill -9 of the sink's runner", _kill),
    _nemesis("pause-sink", "the sink's runner stands, another one takes over, and it goes on", _pause),
)
