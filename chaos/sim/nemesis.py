"""What goes wrong in a world, and when: crashes, pauses, cuts, closed links, wrong clocks; and the clients' rhythm.

Each trouble has its own stream of events, one after the other until the world is healed. Cuts come in the shapes that
broke real systems: one direction, one pair, one node, halves, and a hub that all see while they do not see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raft.core import RaftCore
from raft.types import NOBODY, NodeId, Now

if TYPE_CHECKING:
    from chaos.sim.world import World


def unleash(world: World) -> None:
    """Start every stream of trouble that the seed's swarm has, and the clients."""
    swarm = world.swarm
    for every_us, what in (
        (swarm.crash_every_us, crash),
        (swarm.pause_every_us, pause),
        (swarm.cut_every_us, cut),
        (swarm.link_reset_every_us, reset_link),
        (swarm.transfer_every_us, transfer),
        (swarm.compact_every_us, compact),
        (swarm.clock_jump_every_us, jump_clock),
    ):
        if every_us:
            _again(world, every_us, what, is_trouble=True)
    _again(world, swarm.write_every_us, lambda world: world.write(), is_trouble=False)
    _again(world, swarm.read_every_us, lambda world: world.read(), is_trouble=False)


def _again(world: World, every_us: int, what: Callable[[World], None], *, is_trouble: bool) -> None:
    def act() -> None:
        if world.is_healed and is_trouble:
            return
        what(world)
        # Few writes once healed: the point is then to agree.
        mean_us = 500_000 if world.is_healed else every_us
        world.after(world.random.randint(1, 2 * mean_us), act)

    world.after(world.random.randint(1, 2 * every_us), act)


def _anyone(world: World) -> NodeId:
    """A node; every other time the leader, because that is who hurts."""
    leading = world.leading()
    if leading is not None and world.random.randrange(2):
        return leading.node
    return world.random.choice(list(world.replicas))


def crash(world: World) -> None:
    """Kill one node, or all at once."""
    nodes = list(world.replicas) if world.random.randrange(10) == 0 else [_anyone(world)]
    for node in nodes:
        if world.replicas[node].core is not None:
            world.replicas[node].crash("killed")


def pause(world: World) -> None:
    """Stop a process for a while; what is sent to it waits."""
    replica = world.replicas[_anyone(world)]
    if replica.core is None or replica.is_paused:
        return
    replica.is_paused = True
    world.count("pauses")
    world.note(replica.node, "is paused")
    life = replica.life

    def go_on() -> None:
        if replica.life == life:
            replica.is_paused = False
            world.note(replica.node, "goes on")
            replica.wake()

    world.after(world.random.randint(1_000, world.swarm.pause_max_us), go_on)


def cut(world: World) -> None:
    """Swallow messages between some nodes for a while."""
    nodes = list(world.replicas)
    if len(nodes) < 2:
        return
    random = world.random
    node = _anyone(world)
    others = [other for other in nodes if other != node]
    other = random.choice(others)
    shape = random.choice(("direction", "pair", "node", "halves", "hub", "inbound", "outbound"))
    links: list[tuple[NodeId, NodeId]]
    if shape == "direction":
        links = [(node, other)]
    elif shape == "pair":
        links = [(node, other), (other, node)]
    elif shape == "inbound":
        links = [(peer, node) for peer in others]
    elif shape == "outbound":
        links = [(node, peer) for peer in others]
    elif shape == "node":
        links = [(node, peer) for peer in others] + [(peer, node) for peer in others]
    elif shape == "halves":
        side = random.sample(nodes, len(nodes) // 2)
        links = [(a, b) for a in nodes for b in nodes if (a in side) != (b in side)]
    else:  # everyone sees only the hub
        links = [(a, b) for a in others for b in others if a != b]
    world.count(f"cut {shape}")
    world.note(node, "is cut", shape, links)
    for link in links:
        world.network.cut(*link)
    if random.randrange(1_000) < world.swarm.cut_is_noticed:
        for sender, to in links:
            _tell_closed(world, to, sender)

    def heal() -> None:
        if not world.is_healed:
            for link in links:
                world.network.heal(*link)

    world.after(random.randint(10_000, world.swarm.cut_max_us), heal)


def close_links(world: World, node: NodeId) -> None:
    """A process ended: every peer hears its connections close, sooner or later, unless a cut hides it."""
    for peer in world.replicas:
        if peer != node and not world.network.is_cut(node, peer):
            _tell_closed(world, peer, node)


def reset_link(world: World) -> None:
    """One connection breaks although both ends live."""
    node = _anyone(world)
    others = [other for other in world.replicas if other != node]
    if others:
        other = world.random.choice(others)
        _tell_closed(world, node, other)
        _tell_closed(world, other, node)
        world.count("links reset")


def _tell_closed(world: World, node: NodeId, peer: NodeId) -> None:
    def tell(core: RaftCore, now: Now) -> None:
        core.link_closed(peer, now)

    world.after(world.random.randint(0, 5_000), world.replicas[node].tell, tell)


def transfer(world: World) -> None:
    """An operator moves the leadership."""
    leading = world.leading()
    if leading is None:
        return
    to = world.random.choice([NOBODY, *world.replicas])

    def ask(core: RaftCore, now: Now) -> None:
        if world.attempt(leading.node, lambda: core.transfer(to, now)):
            world.count("transfers")

    leading.tell(ask)


def compact(world: World) -> None:
    """A node has made a snapshot of what it applied."""
    replica = world.replicas[world.random.choice(list(world.replicas))]
    if replica.core is None:
        return
    log = replica.core.state.log
    mark = log.mark_at(log.applied)
    if mark is not None and mark.index > replica.disk.snapshot.index:
        replica.disk.snapshot = mark
        replica.core.compact(mark)
        world.count("snapshots")


def jump_clock(world: World) -> None:
    """Somebody sets the wall clock, up to an hour off."""
    replica = world.replicas[_anyone(world)]
    replica.wall_ms += world.random.randint(-3_600_000, 3_600_000)
