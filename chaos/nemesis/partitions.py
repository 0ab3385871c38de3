"""Partitions the network: swallows the bytes of links between peers, each direction separately.

Connections stay open without an error, and swallowed bytes never arrive. The shapes are those of the simulator.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis, repeated, swallow
from raftlog.chaos.sim.network import topologies

LASTS_S: Final = (1.5, 4.0)  # from two to several election timeouts
BEHIND_S: Final = 20.0
"""Longest wait until a follower that is cut off needs a snapshot: several snapshots of the others."""

BEHIND_LASTS_S: Final = (0.1, 1.0)
ASK_S: Final = 2.0
_SNAPSHOT: Final = re.compile(rb"^raftlog_snapshot_index (\S+)", re.MULTILINE)
FLAP_S: Final = (0.05, 0.6)  # below and above an election timeout

Pairs = Sequence[tuple[int, int]]
Shape = Callable[[Field], tuple[str, Pairs]]


def _cut(shape: Shape) -> Callable[[Field], Injection]:
    def inject(field: Field) -> Injection:
        target, pairs = shape(field)
        since_ns = time.monotonic_ns()
        return Injection(target, field.place(swallow(pairs)), field.forget, since_ns)

    return inject


def _halves(field: Field) -> tuple[str, Pairs]:
    side = sorted(field.chance.sample(field.nodes, len(field.nodes) // 2))
    return f"{side} | {_rest(field, side)}", topologies.halves(field.nodes, side)


def _minority(field: Field) -> tuple[str, Pairs]:
    """The leader among the few: the many must elect another."""
    leader = field.leader()
    others = [node for node in field.nodes if node != leader]
    side = sorted([leader, *field.chance.sample(others, max(0, (len(field.nodes) - 1) // 2 - 1))])
    return f"{side} with the leader | {_rest(field, side)}", topologies.halves(field.nodes, side)


def _leader(field: Field) -> tuple[str, Pairs]:
    leader = field.leader()
    return f"leader {leader} alone", topologies.alone(field.nodes, leader)


def _inward(field: Field) -> tuple[str, Pairs]:
    node = field.leader_or_any()
    return f"node {node} hears no peer", topologies.inbound(field.nodes, node)


def _outward(field: Field) -> tuple[str, Pairs]:
    node = field.leader_or_any()
    return f"no peer hears node {node}", topologies.outbound(field.nodes, node)


def _ring(field: Field) -> tuple[str, Pairs]:
    order = field.chance.sample(field.nodes, len(field.nodes))
    return f"ring {order}", topologies.ring(order)


def _bridge(field: Field) -> tuple[str, Pairs]:
    order = field.chance.sample(field.nodes, len(field.nodes))
    return f"node {order[0]} between two sides", topologies.bridge(order, order[0])


def _howard(field: Field) -> tuple[str, Pairs]:
    """The leader among those that see only one other node, so that it has to step down although no other node sees it
    gone.
    """
    leader = field.leader()
    others = field.chance.sample([node for node in field.nodes if node != leader], len(field.nodes) - 1)
    order = [*others, leader]
    return f"leader {leader} and node {order[-2]} see one other each", topologies.howard(order)


def _flap(field: Field) -> Injection:
    """A cut that comes and goes, for shorter and longer than an election timeout."""
    node = field.leader_or_any()
    pairs = topologies.alone(field.nodes, node)
    proof = field.place(swallow(pairs))

    def turn() -> bool:
        if field.ended.wait(field.chance.uniform(*FLAP_S)):
            return False
        field.forget()
        if field.ended.wait(field.chance.uniform(*FLAP_S)):
            return False
        field.place(swallow(pairs))
        return True

    return repeated(field, f"node {node} comes and goes", proof, turn, field.forget, "cut again")


def _left_behind(field: Field) -> Injection:
    """Cuts one follower off until its leader no longer keeps the entries that it lacks: it will need a snapshot.

    The leader keeps some log behind its newest snapshot, so two snapshots must come after the follower's last index.
    """
    cluster, leader = field.deployment.cluster, field.leader()
    node = field.chance.choice([each for each in cluster.running if each != leader])
    proof = field.place(swallow(topologies.alone(field.nodes, node)))
    since_ns = time.monotonic_ns()
    status = cluster.status(node)
    last = status.last if status is not None else 0
    saved: defaultdict[int, set[int]] = defaultdict(set)

    def is_behind() -> bool:
        others = [each for each in cluster.running if each != node]  # nodes may leave or join meanwhile
        for each in others:
            if (index := _snapshot_index(field, each)) > last:
                saved[each].add(index)
        return have_saved(saved, others)

    if not field.wait(is_behind, BEHIND_S):
        raise FaultSkipped(f"the others have not saved enough snapshots behind {last} within {BEHIND_S:g} s")
    behind = f"node {node} ended at {last}; the others saved snapshots up to {max(set().union(*saved.values()))}"
    return Injection(f"follower {node} needs a snapshot", f"{proof}; {behind}", field.forget, since_ns)


def have_saved(saved: Mapping[int, Collection[int]], running: Sequence[int]) -> bool:
    """Whether each of the running nodes has saved two snapshots; not while none runs."""
    return bool(running) and all(len(saved.get(each, ())) >= 2 for each in running)


def _snapshot_index(field: Field, node: int) -> int:
    """The end of that node's newest snapshot; 0 where it does not say."""
    try:
        _, body = field.deployment.cluster.ask(node, "/metrics", ASK_S)
    except OSError:
        return 0
    found = _SNAPSHOT.search(body)
    return int(float(found[1])) if found is not None else 0


def _rest(field: Field, side: Sequence[int]) -> list[int]:
    return [node for node in field.nodes if node not in side]


_nemesis: Final = partial(Nemesis, lane="network", lasts_s=LASTS_S)

NEMESES: Final = (
    _nemesis("partition-halves", "two sides that do not see each other", _cut(_halves)),
    _nemesis("partition-minority", "the leader on the smaller side", _cut(_minority), moves_leader=True),
    _nemesis("partition-leader", "the leader alone", _cut(_leader), moves_leader=True),
    _nemesis("partition-inward", "one node hears no other, and all hear it", _cut(_inward)),
    _nemesis("partition-outward", "no other node hears one, and it hears all", _cut(_outward)),
    _nemesis("partition-ring", "everyone sees its two neighbours", _cut(_ring), nodes_min=4),
    _nemesis("partition-bridge", "two sides that only one node sees", _cut(_bridge), nodes_min=5),
    _nemesis(
        "partition-howard",
        "two nodes see one other each; the leader is one of them",
        _cut(_howard),
        nodes_min=5,
        moves_leader=True,
    ),
    _nemesis("partition-flapping", "one node cut off and back again and again", _flap),
    _nemesis(
        "left-behind",
        "one follower cut off until it needs a snapshot",
        _left_behind,
        lasts_s=BEHIND_LASTS_S,
        needs_others_up=True,
        needs=frozenset(("housekeeping",)),
    ),
)
