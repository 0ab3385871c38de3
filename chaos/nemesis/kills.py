"""Kills processes with SIGKILL, all at the same moment, and starts them again when the fault ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.chaos.nemesis.fault import Field, Injected, Nemesis, Skipped

LASTS_S: Final = (0.3, 3.0)  # down for shorter and longer than an election takes

Choice = Callable[[Field], Sequence[int]]


def kill(choice: Choice) -> Callable[[Field], Injected]:
    """A fault that kills the nodes chosen, and starts them again."""

    def inject(field: Field) -> Injected:
        cluster = field.deployment.cluster
        nodes = [node for node in choice(field) if cluster.pid(node) is not None]
        if not nodes:
            raise Skipped("no node to kill runs")
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
        return Injected(f"nodes {nodes}", f"{gone}: waited for and gone", heal, since_ns)

    return inject


def _one(field: Field) -> Sequence[int]:
    return [field.chance.choice(field.nodes)]


def _leader(field: Field) -> Sequence[int]:
    return [field.leader()]


def _minority(field: Field) -> Sequence[int]:
    return field.minority()


def _all(field: Field) -> Sequence[int]:
    return field.nodes


def _nemesis(name: str, says: str, choice: Choice, *, moves_leader: bool = False) -> Nemesis:
    return Nemesis(
        name=name, says=says, lane="process", lasts_s=LASTS_S, inject=kill(choice), moves_leader=moves_leader
    )


NEMESES: Final = (
    _nemesis("kill-one", "kill -9 of one node", _one),
    _nemesis("kill-leader", "kill -9 of the leader", _leader, moves_leader=True),
    _nemesis("kill-minority", "kill -9 of as many as may go", _minority),
    _nemesis("kill-all", "kill -9 of all nodes at once", _all, moves_leader=True),
)
