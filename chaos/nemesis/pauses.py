"""Pauses processes (SIGSTOP): connections stay open without answers, then the process goes on as before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.chaos.nemesis.fault import Field, Injected, Nemesis, Skipped

SHORT_S: Final = (0.05, 0.25)  # below the shortest election timeout
LONG_S: Final = (1.0, 3.5)  # above the longest

Choice = Callable[[Field], Sequence[int]]


def pause(choice: Choice) -> Callable[[Field], Injected]:
    """A fault that stops the nodes chosen, and lets them go on."""

    def inject(field: Field) -> Injected:
        cluster = field.deployment.cluster
        nodes = [node for node in choice(field) if cluster.pid(node) is not None]
        if not nodes:
            raise Skipped("no node to pause runs")
        since_ns = time.monotonic_ns()
        for node in nodes:
            cluster.pause(node)  # returns when the state letter is T

        def heal() -> None:
            for node in nodes:
                cluster.resume(node)

        standing = ", ".join(f"pid {cluster.pid(node)} of node {node}" for node in nodes)
        return Injected(f"nodes {nodes}", f"{standing}: state T", heal, since_ns)

    return inject


def _one(field: Field) -> Sequence[int]:
    return [field.chance.choice(field.nodes)]


def _leader(field: Field) -> Sequence[int]:
    return [field.leader()]


def _majority(field: Field) -> Sequence[int]:
    return sorted(field.chance.sample(field.nodes, len(field.nodes) // 2 + 1))


def _nemesis(
    name: str, says: str, choice: Choice, lasts_s: tuple[float, float], *, moves_leader: bool = False
) -> Nemesis:
    return Nemesis(
        name=name, says=says, lane="process", lasts_s=lasts_s, inject=pause(choice), moves_leader=moves_leader
    )


NEMESES: Final = (
    _nemesis("pause-short", "one node stands for less than an election timeout", _one, SHORT_S),
    _nemesis("pause-long", "one node stands for several election timeouts", _one, LONG_S),
    _nemesis("pause-leader-short", "the leader stands for less than an election timeout", _leader, SHORT_S),
    _nemesis("pause-leader", "the leader stands for several election timeouts", _leader, LONG_S, moves_leader=True),
    _nemesis("pause-majority", "more than half of the nodes stand", _majority, LONG_S),
)
