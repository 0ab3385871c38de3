"""Restarts nodes: the leader cleanly so that it hands over, all nodes in turn, or one again and again."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis, repeated

LASTS_S: Final = (2.0, 4.0)
STORM_UP_S: Final = (0.05, 0.8)  # killed while it starts, while it catches up, and while it serves
READY_S: Final = 15.0


def _transfer(field: Field) -> Injection:
    """SIGTERM to the leader, which hands its place over and ends; started again when the fault ends."""
    cluster = field.deployment.cluster
    leader = field.leader()
    if cluster.pid(leader) is None:
        raise FaultSkipped(f"leader {leader} does not run any more")
    code = cluster.stop_node(leader)
    if code != 0:
        raise RuntimeError(f"node {leader} ended with {code} at SIGTERM\n{cluster.tail(leader)}")
    return Injection(f"leader {leader}", f"node {leader} ended with 0", lambda: _started(field, leader))


def _started(field: Field, node: int) -> str:
    field.deployment.cluster.start_node(node)
    return field.up([node])


def _storm(field: Field) -> Injection:
    cluster = field.deployment.cluster
    node = field.chance.choice(field.nodes)
    pid = field.running(node)
    cluster.kill(node)

    def turn() -> bool:
        cluster.start_node(node)
        field.ended.wait(field.chance.uniform(*STORM_UP_S))
        cluster.kill(node)
        return True

    proof = f"pid {pid} waited for and gone"
    return repeated(field, f"node {node}", proof, turn, lambda: _started(field, node), "restarted")


def _rolling(field: Field) -> Injection:
    """Each node is stopped cleanly, started and waited for before the next: an upgrade of a cluster."""
    cluster = field.deployment.cluster
    order = field.chance.sample(field.nodes, len(field.nodes))
    left = list(order)

    def turn() -> bool:
        node = left.pop(0)
        cluster.wait_ready([node], READY_S)  # a node that only starts knows no clean stop yet
        code = cluster.stop_node(node)
        if code != 0:
            raise RuntimeError(f"node {node} ended with {code} at SIGTERM\n{cluster.tail(node)}")
        cluster.start_node(node)
        cluster.wait_ready([node], READY_S)
        return bool(left)

    first = order[0]
    old = cluster.pid(first)
    turn()
    proof = f"node {first} was pid {old} and is pid {cluster.pid(first)}"
    return repeated(field, f"nodes {order}", proof, turn, cluster.start, "restarted")


NEMESES: Final = (
    Nemesis("transfer", "the leader stops cleanly and hands over", _transfer, lasts_s=LASTS_S, moves_leader=True),
    Nemesis("restart-storm", "one node killed again and again while it starts", _storm, lasts_s=LASTS_S),
    Nemesis(
        "rolling-restart",
        "all nodes stopped and started one after the other",
        _rolling,
        lasts_s=(6.0, 9.0),
        moves_leader=True,
    ),
)
