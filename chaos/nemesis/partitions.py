"""Partitions: which links between peers are cut, each direction for itself, by swallowing what is sent.

Nobody is told: connections stay open, and what was swallowed never arrives. The shapes are those of the simulator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from chaos.nemesis.fault import Field, Injected, Nemesis, Skipped, Toxic, peers
from chaos.sim import topologies

LASTS_S: Final = (1.5, 4.0)  # from two to several election timeouts
FLAP_S: Final = (0.05, 0.6)  # below and above an election timeout

Pairs = Sequence[tuple[int, int]]
Shape = Callable[[Field], tuple[str, Pairs]]


def _swallow(pairs: Iterable[tuple[int, int]]) -> list[Toxic]:
    return [Toxic(proxy, "timeout", "upstream", (("timeout", 0),)) for proxy in peers(pairs)]


def _cut(shape: Shape) -> Callable[[Field], Injected]:
    def inject(field: Field) -> Injected:
        target, pairs = shape(field)
        since_ns = time.monotonic_ns()
        return Injected(target, field.place(_swallow(pairs)), field.forget, since_ns)

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
    node = _leader_or_any(field)
    return f"node {node} hears nobody", topologies.inbound(field.nodes, node)


def _outward(field: Field) -> tuple[str, Pairs]:
    node = _leader_or_any(field)
    return f"nobody hears node {node}", topologies.outbound(field.nodes, node)


def _ring(field: Field) -> tuple[str, Pairs]:
    order = field.chance.sample(field.nodes, len(field.nodes))
    return f"ring {order}", topologies.ring(order)


def _bridge(field: Field) -> tuple[str, Pairs]:
    order = field.chance.sample(field.nodes, len(field.nodes))
    return f"node {order[0]} between two sides", topologies.bridge(order, order[0])


def _howard(field: Field) -> tuple[str, Pairs]:
    """The leader among those that see only one other, so that it has to go although nobody else sees it gone."""
    leader = field.leader()
    others = field.chance.sample([node for node in field.nodes if node != leader], len(field.nodes) - 1)
    order = [*others, leader]
    return f"leader {leader} and node {order[-2]} see one other each", topologies.howard(order)


def _flap(field: Field) -> Injected:
    """A cut that comes and goes, for shorter and longer than an election timeout."""
    node = _leader_or_any(field)
    pairs = topologies.alone(field.nodes, node)
    proof = field.place(_swallow(pairs))
    times = [1]
    failed: list[str] = []

    def flap() -> None:
        try:
            while not field.ended.wait(field.chance.uniform(*FLAP_S)):
                field.forget()
                if field.ended.wait(field.chance.uniform(*FLAP_S)):
                    return
                field.place(_swallow(pairs))
                times[0] += 1
        except Exception as error:  # told when the fault ends
            failed.append(str(error))

    thread = threading.Thread(target=flap, name="flapping", daemon=True)
    thread.start()

    def heal() -> str:
        field.ended.set()
        thread.join(30)
        field.forget()
        return f"cut {times[0]} times" + (f"; {failed[0]}" if failed else "")

    return Injected(f"node {node} comes and goes", proof, heal)


def _leader_or_any(field: Field) -> int:
    if field.chance.random() < 0.5:
        try:
            return field.leader()
        except Skipped:
            pass
    return field.chance.choice(field.nodes)


def _rest(field: Field, side: Sequence[int]) -> list[int]:
    return [node for node in field.nodes if node not in side]


def _nemesis(name: str, says: str, shape: Shape, *, moves_leader: bool = False, nodes_min: int = 3) -> Nemesis:
    return Nemesis(
        name=name, says=says, lane="network", lasts_s=LASTS_S, inject=_cut(shape), moves_leader=moves_leader,
        nodes_min=nodes_min,
    )  # fmt: skip


NEMESES: Final = (
    _nemesis("partition-halves", "two sides that do not see each other", _halves),
    _nemesis("partition-minority", "the leader on the smaller side", _minority, moves_leader=True),
    _nemesis("partition-leader", "the leader alone", _leader, moves_leader=True),
    _nemesis("partition-inward", "one node hears nobody, and all hear it", _inward),
    _nemesis("partition-outward", "nobody hears one node, and it hears all", _outward),
    _nemesis("partition-ring", "everyone sees its two neighbours", _ring, nodes_min=4),
    _nemesis("partition-bridge", "two sides that only one node sees", _bridge, nodes_min=5),
    _nemesis("partition-howard", "two nodes see one other each; the leader is one of them", _howard, nodes_min=5,
             moves_leader=True),
    Nemesis(
        name="partition-flapping", says="one node cut off and back again and again", lane="network", lasts_s=LASTS_S,
        inject=_flap,
    ),
)  # fmt: skip
