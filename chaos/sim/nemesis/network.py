"""Faults of the network: cuts of every shape, clogs, flapping links, and connections that close."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while
from raftlog.chaos.sim.network import topologies
from raftlog.chaos.sim.network.topologies import Links
from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId


def cut(world: World, random: Random, kind: str, shape: str, links: Links) -> None:
    """Lose all messages on those links for a while; both ends may notice."""
    us, is_noticed = (
        random.randint(10_000, world.swarm.fault_times.cut_max_us),
        random.randrange(1_000) < world.swarm.fault_times.cut_is_noticed,
    )
    if not links or not world.fault(kind, sorted({node for link in links for node in link}), shape, us):
        return
    heal = hinder(links, world.network.cut, world.network.heal)
    if is_noticed:
        for sender, to in links:
            break_link(world, random, sender, to)
    for_a_while(world, us, heal)


def hinder(
    links: Links, begin: Callable[[NodeId, NodeId], None], end: Callable[[NodeId, NodeId], None]
) -> Callable[[], None]:
    """Begins it on those links. Returns a function that ends it on all of them."""
    for link in links:
        begin(*link)

    def end_all() -> None:
        for link in links:
            end(*link)

    return end_all


def cut_link(world: World, random: Random) -> None:
    """One direction between two nodes, or both."""
    pair = _pair(world, random)
    if pair is not None:
        is_one_way = random.randrange(2) == 0
        shape = f"{pair[0]} to {pair[1]}" if is_one_way else f"{pair[0]} and {pair[1]}"
        cut(world, random, "cut link", shape, (pair,) if is_one_way else topologies.both_ways(*pair))


def cut_node(world: World, random: Random) -> None:
    """One node: all that it hears, all that it says, or both."""
    node, nodes = anyone(world, random), list(world.replicas)
    shape = random.choice(("alone", "inbound", "outbound"))
    links = {"alone": topologies.alone, "inbound": topologies.inbound, "outbound": topologies.outbound}[shape]
    cut(world, random, "cut node", f"{shape} {node}", links(nodes, node))


def cut_halves(world: World, random: Random) -> None:
    """Two sides."""
    nodes = list(world.replicas)
    side = sorted(random.sample(nodes, len(nodes) // 2))
    cut(world, random, "cut halves", f"{side} and the rest", topologies.halves(nodes, side))


def cut_shape(world: World, random: Random) -> None:
    """Cut the network so that reachability is not transitive."""
    nodes = list(world.replicas)
    random.shuffle(nodes)
    shape = random.choice(("hub", "bridge", "ring", "howard"))
    links: Links
    if shape == "howard" and len(nodes) >= 5:
        links = topologies.howard(nodes)
    elif shape == "ring" and len(nodes) >= 4:
        links = topologies.ring(nodes)
    elif shape == "bridge" and len(nodes) >= 3:
        links = topologies.bridge(nodes, nodes[0])
    elif len(nodes) >= 3:
        shape, links = "hub", topologies.hub(nodes, anyone(world, random))
    else:
        shape, links = "pair", topologies.both_ways(*nodes) if len(nodes) == 2 else ()
    cut(world, random, "cut shape", f"{shape} {nodes}", links)


def clog(world: World, random: Random) -> None:
    """Hold back what goes to one node, comes from it, or over one link; later it arrives in a burst."""
    pair = _pair(world, random)
    if pair is None:
        return
    nodes, node = list(world.replicas), pair[0]
    shape = random.choice(("link", "inbound", "outbound"))
    links = {"link": (pair,), "inbound": topologies.inbound(nodes, node), "outbound": topologies.outbound(nodes, node)}
    us = random.randint(10_000, world.swarm.fault_times.cut_max_us)
    if world.fault("clog", pair, shape, us):
        for_a_while(world, us, hinder(links[shape], world.network.clog, world.network.unclog))


def flap(world: World, random: Random) -> None:
    """One pair is cut and healed several times in a row, about as fast as elections go."""
    pair = _pair(world, random)
    times, every_us = random.randint(3, 12), random.choice((30_000, 150_000, 400_000))
    if pair is None or not world.fault("flap", pair, f"{times} times, every {every_us} us", 2 * times * every_us):
        return
    links = topologies.both_ways(*pair)

    def turn(left: int) -> None:
        for link in links:
            (world.network.heal if left % 2 else world.network.cut)(*link)
        if left > 1:
            for_a_while(world, every_us, lambda: turn(left - 1))

    turn(2 * times)  # even: cut; odd: heal; the last one is odd


def reset_link(world: World, random: Random) -> None:
    """One connection breaks although both ends live."""
    pair = _pair(world, random)
    if pair is not None and world.fault("reset link", pair, ""):
        world.count("links reset")
        for sender, to in topologies.both_ways(*pair):
            break_link(world, random, sender, to)


def break_link(world: World, random: Random, sender: NodeId, to: NodeId) -> None:
    """The connection that `sender` dialled breaks although both ends live, and both notice."""
    world.dials.broke(sender, to)
    world.dials.tell_closed(random, to, sender)


def _pair(world: World, random: Random) -> tuple[NodeId, NodeId] | None:
    """A node and another one, or None in a world of one."""
    node = anyone(world, random)
    others = [other for other in world.replicas if other != node]
    return (node, random.choice(others)) if others else None
