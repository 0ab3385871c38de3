"""Clocks that jump and drift, of one process: its wall clock, and by a wrong rate its timers too (libfaketime).

The node is started anew with libfaketime, and its clock goes wrong while it runs; in the end the clock comes back, and
the node is started without. Its monotonic clock stays true: faked, an asyncio program hangs, because the waits of the
threads' locks are compared with the true one (tried with libfaketime 0.9.10). A rate stretches or shortens how long the
process waits, so its timers still come at wrong times. The proof is the time that stands in the node's own log.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from chaos.nemesis.fault import Field, Injected, Nemesis, Skipped

LIBRARY: Final = "RAFTLOG_FAKETIME"
"""Names libfaketime.so.1 where it is elsewhere than packages put it."""

PLACES: Final = ("usr/lib/*/faketime", "usr/lib*/faketime", "usr/local/lib/faketime")
LASTS_S: Final = (2.0, 4.0)
JUMP_S: Final = (5, 7_200)
FAST: Final = (1.5, 4.0)
SLOW: Final = (0.3, 0.8)
SEEN_S: Final = 15.0
"""Until the node's log shows the wrong time: it has a line for every request."""

OFF_S: Final = 1.0
"""From here on a clock is wrong: a log is written behind the moment by much less."""

READY_S: Final = 60.0


def library() -> Path:
    """libfaketime. Raises Skipped."""
    named = os.environ.get(LIBRARY)
    found = [Path(named)] if named else [
        path / "libfaketime.so.1" for place in PLACES for path in sorted(Path("/").glob(place))
    ]  # fmt: skip
    for path in found:
        if path.is_file():
            return path
    raise Skipped(f"there is no libfaketime: install the package libfaketime, or name libfaketime.so.1 in {LIBRARY}")


def _wrong(change: Callable[[Field], tuple[str, str]]) -> Callable[[Field], Injected]:
    """`change` draws what libfaketime is told, and how that is called."""

    def inject(field: Field) -> Injected:
        faketime = library()
        deployment, cluster = field.deployment, field.deployment.cluster
        node = field.chance.choice(field.nodes)
        field.running(node)
        told, name = change(field)
        file = deployment.folder / f"clock-{node}"
        file.write_text("+0")
        deployment.prepare(
            node, LD_PRELOAD=str(faketime), FAKETIME_TIMESTAMP_FILE=str(file), FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1", NO_FAKE_STAT="1",
        )  # fmt: skip
        try:
            _again(field, node)
            true_s = _off(field, node)
            _set(file, told)
            if not field.wait(lambda: abs(_off(field, node) - true_s) > OFF_S, SEEN_S):
                raise RuntimeError(f"the clock of node {node} is {_off(field, node):.1f} s off and should be {name}")
        except BaseException:
            deployment.prepare(node)
            raise
        off_s = _off(field, node)
        pid = cluster.pid(node)

        def heal() -> str:
            before_s = _off(field, node)
            _set(file, "+0")
            is_back = field.wait(lambda: abs(_off(field, node) - true_s) < OFF_S, SEEN_S)
            deployment.prepare(node)
            code = _again(field, node)
            told = f"in the end it was {before_s:+.1f} s off" + (", then right again" if is_back else "")
            return told + (f"; it was killed ({code}) because it took long to stop" if code else "")

        return Injected(f"node {node}: clock {name}", f"pid {pid} logs a time that is {off_s:+.1f} s off", heal)

    return inject


def _again(field: Field, node: int) -> int:
    """A clean stop and a start with what was prepared; it serves when this returns how it had ended."""
    cluster = field.deployment.cluster
    code = cluster.stop_node(node)
    if code not in (0, -signal.SIGKILL):  # killed: it took long to stop, on a busy machine or by its slow clock
        raise RuntimeError(f"node {node} ended with {code} at SIGTERM")
    cluster.start_node(node)
    cluster.wait_ready([node], READY_S)
    return code


def _set(file: Path, told: str) -> None:
    aside = file.with_suffix(".new")
    aside.write_text(told)
    aside.replace(file)


def _off(field: Field, node: int) -> float:
    """By how many seconds the newest time in a node's log differs from the true one; a line is asked for."""
    field.deployment.cluster.status(node)
    now_s = time.time()
    for line in reversed(field.deployment.cluster.tail(node).splitlines()):
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and "timestamp" in told:
            return datetime.fromisoformat(str(told["timestamp"])).timestamp() - now_s
    return 0.0


def _forward(field: Field) -> tuple[str, str]:
    seconds = field.chance.randint(*JUMP_S)
    return f"+{seconds}", f"jumps {seconds} s forward"


def _back(field: Field) -> tuple[str, str]:
    seconds = field.chance.randint(*JUMP_S)
    return f"-{seconds}", f"jumps {seconds} s back"


def _rate(between: tuple[float, float]) -> Callable[[Field], tuple[str, str]]:
    def change(field: Field) -> tuple[str, str]:
        rate = round(field.chance.uniform(*between), 2)
        return f"+0 x{rate}", f"runs {rate} times as fast"

    return change


def _nemesis(name: str, says: str, change: Callable[[Field], tuple[str, str]]) -> Nemesis:
    return Nemesis(name=name, says=says, lane="process", lasts_s=LASTS_S, inject=_wrong(change), is_heavy=True)


NEMESES: Final = (
    _nemesis("clock-forward", "one node's wall clock jumps forward by up to two hours, and back", _forward),
    _nemesis("clock-back", "one node's wall clock jumps back by up to two hours, and forward again", _back),
    _nemesis("clock-fast", "one node's wall clock runs up to four times as fast, and its waits end early", _rate(FAST)),
    _nemesis("clock-slow", "one node's wall clock runs at a third of its rate or more, and its waits end late",
             _rate(SLOW)),
)  # fmt: skip
