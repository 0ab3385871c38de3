"""Holds elections in which a node with an insufficient log is a candidate: it must not win.

The leader is killed at the moment at which a cut-off node is connected again. So the stale node is a candidate against
nodes that have later acknowledged entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis, swallow
from raftlog.chaos.sim.network.topologies import alone

LASTS_S: Final = (1.0, 2.5)
BEHIND_S: Final = (0.3, 1.0)
OTHER_LEADER_S: Final = 5.0


def _cut_off(field: Field, node: int) -> None:
    field.place(swallow(alone(field.nodes, node)))


def _kill(field: Field, node: int, cut_off: int) -> tuple[int, Callable[[], str]]:
    """Kills the leader, then lets the other one be heard; the moment of the kill, and what starts the killed one."""
    cluster = field.deployment.cluster
    since_ns = time.monotonic_ns()
    cluster.kill(node)
    field.forget()

    def heal() -> str:
        cluster.start_node(node)
        return field.up([node, cut_off])

    return since_ns, heal


def _last(field: Field, node: int) -> int:
    """The last index in its log. Raises FaultSkipped."""
    status = field.deployment.cluster.status(node)
    if status is None:
        raise FaultSkipped(f"node {node} does not answer")
    return status.last


def _stale_candidate(field: Field) -> Injection:
    """A follower without the newest entries."""
    leader = field.leader()
    running = [node for node in field.deployment.cluster.running if node != leader]
    if not running or field.deployment.cluster.pid(leader) is None:
        raise FaultSkipped("there is no leader with a follower")
    stale = field.chance.choice(running)
    _cut_off(field, stale)
    field.ended.wait(field.chance.uniform(*BEHIND_S))
    has, behind = _last(field, leader), _last(field, stale)
    if behind >= has:
        raise FaultSkipped(f"node {stale} missed nothing")
    since_ns, heal = _kill(field, leader, stale)
    proof = f"node {stale} ended at {behind} when leader {leader}, at {has}, was killed: gone"
    return Injection(f"node {stale} stands against nodes that have more", proof, heal, since_ns)


def _stale_leader(field: Field) -> Injection:
    """A former leader, with entries that no other node has."""
    old = field.leader()
    before = field.deployment.cluster.status(old)
    if before is None:
        raise FaultSkipped(f"leader {old} does not answer")
    _cut_off(field, old)

    def others() -> list[int]:
        known = [field.deployment.cluster.status(node) for node in field.nodes if node != old]
        return [each.node for each in known if each is not None and each.role == "leader" and each.term > before.term]

    if not field.wait(lambda: bool(others()), OTHER_LEADER_S):
        raise FaultSkipped(f"no other node led within {OTHER_LEADER_S:g} s")
    found = others()
    if not found or field.deployment.cluster.pid(found[0]) is None:
        raise FaultSkipped("the new leader is gone again")
    has = _last(field, old)
    since_ns, heal = _kill(field, found[0], old)
    proof = f"node {old} led until it was cut off and ended at {has}; leader {found[0]} after it was killed: gone"
    return Injection(f"node {old} stands with the log of an old leader", proof, heal, since_ns)


_nemesis: Final = partial(Nemesis, lasts_s=LASTS_S, moves_leader=True)

NEMESES: Final = (
    _nemesis("stale-candidate", "the leader killed when a follower that missed entries is back", _stale_candidate),
    _nemesis("stale-leader", "the leader killed when the one before it, cut off, is back", _stale_leader),
)
