"""Kills processes (SIGKILL), all at the same moment, or pauses them (SIGSTOP), and lets them go on.

A killed node is started again when the fault ends. A paused one keeps its connections open without answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis

DOWN_S: Final = (0.3, 3.0)  # down for shorter and longer than an election takes
SHORT_S: Final = (0.05, 0.25)  # below the shortest election timeout
LONG_S: Final = (1.0, 3.5)  # above the longest

Choice = Callable[[Field], Sequence[int]]


def kill(choice: Choice) -> Callable[[Field], Injection]:
    """A fault that kills the nodes chosen, and starts them again."""

    def inject(field: Field) -> Injection:
        cluster = field.deployment.cluster
        nodes = _running(field, choice, "kill")
        pids = {node: cluster.pid(node) for node in nodes}
        since_ns = time.monotonic_ns()
        cluster.kill(*nodes)
        left = [node for node in nodes if cluster.pid(node) is not None]
        if left:
            raise RuntimeError(f"nodes {left} run after SIGKILL")

        def heal() -> str:
            cluster.start(nodes)
            up = field.up(nodes)
            return f"started again as {', '.join(str(cluster.pid(node)) for node in nodes)}: {up}"

        gone = ", ".join(f"pid {pid} of node {node}" for node, pid in pids.items())
        return Injection(f"nodes {nodes}", f"{gone}: waited for and gone", heal, since_ns)

    return inject


def pause(choice: Choice) -> Callable[[Field], Injection]:
    """A fault that stops the nodes chosen, and lets them go on."""

    def inject(field: Field) -> Injection:
        cluster = field.deployment.cluster
        nodes = _running(field, choice, "pause")
        since_ns = time.monotonic_ns()
        for node in nodes:
            cluster.pause(node)  # returns when the state letter is T

        def heal() -> None:
            for node in nodes:
                cluster.resume(node)

        standing = ", ".join(f"pid {cluster.pid(node)} of node {node}" for node in nodes)
        return Injection(f"nodes {nodes}", f"{standing}: state T", heal, since_ns)

    return inject


def _running(field: Field, choice: Choice, what: str) -> list[int]:
    """The chosen nodes whose processes run. Raises FaultSkipped if none does."""
    nodes = [node for node in choice(field) if field.deployment.cluster.pid(node) is not None]
    if not nodes:
        raise FaultSkipped(f"no node to {what} runs")
    return nodes


def _one(field: Field) -> Sequence[int]:
    return [field.chance.choice(field.nodes)]


def _leader(field: Field) -> Sequence[int]:
    return [field.leader()]


def _majority(field: Field) -> Sequence[int]:
    return sorted(field.chance.sample(field.nodes, len(field.nodes) // 2 + 1))


KILLS: Final = (
    Nemesis("kill-one", "kill -9 of one node", kill(_one), lasts_s=DOWN_S),
    Nemesis("kill-leader", "kill -9 of the leader", kill(_leader), lasts_s=DOWN_S, moves_leader=True),
    Nemesis("kill-minority", "kill -9 of as many as may go", kill(Field.minority), lasts_s=DOWN_S),
    Nemesis(
        "kill-all", "kill -9 of all nodes at once", kill(lambda field: field.nodes), lasts_s=DOWN_S, moves_leader=True
    ),
)
PAUSES: Final = (
    Nemesis("pause-short", "one node stands for less than an election timeout", pause(_one), lasts_s=SHORT_S),
    Nemesis("pause-long", "one node stands for several election timeouts", pause(_one), lasts_s=LONG_S),
    Nemesis(
        "pause-leader-short", "the leader stands for less than an election timeout", pause(_leader), lasts_s=SHORT_S
    ),
    Nemesis(
        "pause-leader",
        "the leader stands for several election timeouts",
        pause(_leader),
        lasts_s=LONG_S,
        moves_leader=True,
    ),
    Nemesis("pause-majority", "more than half of the nodes stand", pause(_majority), lasts_s=LONG_S),
)
