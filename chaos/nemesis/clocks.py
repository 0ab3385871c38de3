"""Makes the wall clocks of single processes jump and drift while they run.

The node restarts with a small library between it and the system's clock (chaos/shim/clock.c). Then its clock goes
wrong, in the end it comes back, and the node restarts without the library. The monotonic clock stays true, because it
counts how long a process waits: a process that waits by another clock than the kernel's hangs. libfaketime (0.9.10)
cannot be used. With either of its libraries a node soon spins and answers nothing, though its monotonic clock was left
true. With that clock faked too, not even an asyncio.sleep ends. The proof is the time in the node's own log.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from raftlog.chaos.deploy import membership
from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis
from raftlog.chaos.shim.clock import Clock
from raftlog.chaos.shim.library import ShimMissing

LASTS_S: Final = (2.0, 4.0)
JUMP_S: Final = (5, 7_200)
FAST: Final = (1.5, 10.0)
SLOW: Final = (-0.5, 0.5)
"""It may run backwards."""

SEEN_S: Final = 20.0
"""Until the node's log shows the wrong time: it has a line for every request."""

OFF_S: Final = 1.0
"""From here on a clock is wrong: a log is written behind the moment by much less."""

READY_S: Final = 60.0


def _wrong(
    change: Callable[[Field], tuple[float, float, str]], *, is_leader: bool = False
) -> Callable[[Field], Injection]:
    """`change` draws by how many seconds the clock jumps, the rate at which it runs then, and how that is called.
    `is_leader`: the node leads when that happens."""

    def inject(field: Field) -> Injection:
        deployment, cluster = field.deployment, field.deployment.cluster
        node = field.chance.choice(field.nodes)
        field.running(node)
        offset_s, rate, name = change(field)
        try:
            clock = Clock(deployment.folder / "clocks", f"node-{node}")
        except ShimMissing as error:
            raise FaultSkipped(str(error)) from error
        deployment.prepare(node, **clock.environment)
        try:
            _again(field, node)
            true_s = _off(field, node)
            if is_leader:
                membership.transfer(deployment, node)
            clock.set(offset_s, rate)
            if not field.wait(lambda: abs(_off(field, node) - true_s) > OFF_S, SEEN_S):
                raise RuntimeError(f"the clock of node {node} is {_off(field, node):.1f} s off and should be {name}")
        except BaseException:
            deployment.prepare(node)
            cluster.kill(node)  # the next start has no library
            raise
        off_s = _off(field, node)
        pid = cluster.pid(node)

        def heal() -> str:
            before_s = _off(field, node)
            clock.set()
            is_back = field.wait(lambda: abs(_off(field, node) - true_s) < OFF_S, SEEN_S)
            deployment.prepare(node)
            code = _again(field, node)
            outcome = f"in the end it was {before_s:+.1f} s off" + (", then right again" if is_back else "")
            return outcome + (f"; it was killed ({code}) because it took long to stop" if code else "")

        return Injection(f"node {node}: clock {name}", f"pid {pid} logs a time that is {off_s:+.1f} s off", heal)

    return inject


def _again(field: Field, node: int) -> int:
    """Stops the node cleanly and starts it as prepared; returns the exit code of the stop once the node serves."""
    cluster = field.deployment.cluster
    code = cluster.stop_node(node)
    if code not in (0, -signal.SIGKILL):  # killed: it took long to stop, on a busy machine or by its slow clock
        raise RuntimeError(f"node {node} ended with {code} at SIGTERM")
    cluster.start_node(node)
    cluster.wait_ready([node], READY_S)
    return code


def _off(field: Field, node: int) -> float:
    """By how many seconds the newest time in a node's log differs from the true one; a line is asked for."""
    field.deployment.cluster.status(node)
    now_s = time.time()
    newest = next((event["timestamp"] for event in field.log_lines(node) if "timestamp" in event), None)
    return 0.0 if newest is None else datetime.fromisoformat(newest).timestamp() - now_s


def _jump(sign: int, way: str) -> Callable[[Field], tuple[float, float, str]]:
    def change(field: Field) -> tuple[float, float, str]:
        seconds = field.chance.randint(*JUMP_S)
        return sign * seconds, 1.0, f"jumps {seconds} s {way}"

    return change


def _rate(between: tuple[float, float]) -> Callable[[Field], tuple[float, float, str]]:
    def change(field: Field) -> tuple[float, float, str]:
        rate = round(field.chance.uniform(*between), 2)
        return 0.0, rate, f"runs {rate} times as fast"

    return change


_FORWARD: Final = _jump(1, "forward")
_BACK: Final = _jump(-1, "back")
_nemesis: Final = partial(Nemesis, lasts_s=LASTS_S, is_heavy=True, needs=frozenset(("ages",)))

NEMESES: Final = (
    _nemesis("clock-forward", "one node's wall clock jumps forward by up to two hours, and back", _wrong(_FORWARD)),
    _nemesis("clock-back", "one node's wall clock jumps back by up to two hours, and forward again", _wrong(_BACK)),
    _nemesis(
        "clock-leader",
        "the leader's wall clock jumps forward by up to two hours, and back",
        _wrong(_FORWARD, is_leader=True),
        moves_leader=True,
    ),
    _nemesis("clock-fast", "one node's wall clock runs up to ten times as fast", _wrong(_rate(FAST))),
    _nemesis("clock-slow", "one node's wall clock runs at half of its rate or less, or backwards", _wrong(_rate(SLOW))),
)
