"""Checks of a healed world that every node takes writes and answers reads, not only that some node does.

A client that knows one node alone is answered by it. Reads that wait when the trouble ends must end as well: a node
that lost a question or an answer asks again.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.chaos.judge.verdicts import EVERY_NODE_SERVES, SERVES_TIMEOUTS
from raftlog.chaos.sim.replica.answers import Answer
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.api.errors import Problem
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import NodeId
from raftlog.statemachine.commands import Operation

AGAIN_US: Final = 100_000
WAIT_US: Final = 120_000_000
"""The deadline of reads that begin in trouble, in microseconds: behind the end of the world."""

READ: Final = "read"
RECORD: Final = BlockRecord(Operation.APPEND, None, b"every node")

Waiting = dict[NodeId, int]
"""The nodes whose read has not ended, each with the life of the process that took it."""


def begin_reads(world: World) -> Waiting:
    """A linearizable read at every running node, while there is trouble; its deadline is far away."""
    waiting: Waiting = {}
    for node, replica in world.replicas.items():
        if replica.core is not None:
            waiting[node] = replica.life
            replica.read_barrier(partial(_ended, waiting, node), world.now_us + WAIT_US)
    return waiting


def _ended(waiting: Waiting, node: NodeId, _: int | Problem) -> None:
    waiting.pop(node, None)


def every_node_serves(world: World, waiting: Waiting) -> None:
    """The cluster agrees. Waits until every running member has taken a write and has answered a read, and until the
    reads of `waiting` have ended. Raises NoProgress."""
    leading = world.leading()
    if leading is None or leading.core is None:
        return
    left: dict[NodeId, str] = {}
    for member in leading.core.state.configuration.members:
        replica = world.replicas[member.node]
        if replica.core is not None and not (replica.is_held or replica.is_retired):
            left[member.node] = "write"
            _ask(world, left, member.node)

    def is_done() -> bool:
        return not left and not any(
            world.replicas[node].life == life and node in known for node, life in waiting.items()
        )

    known = list(left)
    bound_us = SERVES_TIMEOUTS * world.swarm.options.election_timeout_max_ms * 1_000
    world.wait(EVERY_NODE_SERVES, bound_us, is_done, lambda: f"{left}, reads from before {waiting}")


def _ask(world: World, left: dict[NodeId, str], node: NodeId) -> None:
    """A write and then a read, each again until it is answered. `left` says which, and why it was refused."""
    replica = world.replicas[node]

    def answered(answer: Answer | int) -> None:
        if isinstance(answer, int):
            del left[node]
        elif isinstance(answer, RequestResult):
            left[node] = READ
            again()
        else:
            left[node] = f"{left[node].partition(':')[0]}: {answer.code}"
            world.after(AGAIN_US, again)

    def again() -> None:
        if left[node].startswith(READ):
            replica.read_barrier(answered, world.now_us + world.patience_us)
        else:
            replica.ask([RECORD], answered, plain=True)

    again()
