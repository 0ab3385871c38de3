"""Breaks many connections at the same moment; they can be made again soon, and no leader may lose its place over it.

A reload of a firewall and a live migration look like this. Where nothing else goes wrong in the world, this judges: a
leader that everyone followed leads the same term `Options.link_closed_delay_min_ms` later, and twice that.
"""

from __future__ import annotations

from random import Random
from typing import Final

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.nemesis.network import break_link
from raftlog.chaos.sim.nemesis.targets import anyone
from raftlog.chaos.sim.network.topologies import Links
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.protocol.disk_reports import Handover
from raftlog.raft.consensus.roles import Follower, Leader
from raftlog.raft.types import NodeId

REFUSED_US: Final = (0, 0, 4_000, 20_000)
"""For so long after a break of all links every dial is refused."""

DELAY_MAX_US: Final = 10_000
"""Judged are worlds whose messages take no longer: a dial takes two of them, and the heartbeat one more."""

PROPERTY: Final = "a short break of links unseats no leader"


def break_links(world: World, random: Random) -> None:
    """All connections, those of one node, or some of them end together, one way or both."""
    nodes = list(world.replicas)
    pairs = tuple((one, other) for one in nodes for other in nodes if one != other)
    shape = random.choice(("all", "all", "node", "outbound", "inbound", "some"))
    node, some = anyone(world, random), random.sample(pairs, random.randint(1, len(pairs)))
    links: dict[str, Links] = {
        "all": pairs,
        "node": tuple(pair for pair in pairs if node in pair),
        "outbound": tuple(pair for pair in pairs if pair[0] == node),
        "inbound": tuple(pair for pair in pairs if pair[1] == node),
        "some": tuple(some),
    }
    refused_us = random.choice(REFUSED_US) if shape == "all" else 0
    if not world.fault("break links", node, f"{shape}, dials refused for {refused_us} us"):
        return
    world.count("links reset")
    if (leading := _healthy_leader(world)) is not None:
        _judge(world, leading, world.swarm.options.link_closed_delay_min_ms * 1_000)
    world.dials.refused_until_us = world.now_us + refused_us
    for sender, to in links[shape]:
        break_link(world, random, sender, to)


def _healthy_leader(world: World) -> Node | None:
    """The leader that all nodes follow and answer, in a world that delays, loses and cuts nothing; else None.

    A follower whose disk hangs does not answer. The leader of two nodes then gives up soon, with or without a break."""
    network, leading = world.swarm.network, world.leading()
    lately_us = 500 * world.swarm.options.election_timeout_min_ms
    if leading is None or network.loss or network.slow_message or network.delay_max_us > DELAY_MAX_US:
        return None
    for replica in world.replicas.values():
        role = replica.core.state.role if replica.core is not None and not replica.is_paused else None
        if isinstance(role, Leader) and replica is leading and role.transfer is None:
            continue
        if not isinstance(role, Follower) or role.leader != leading.node or role.link_closed:
            return None
        if world.now_us - leading.hellos.heard_us.get(replica.node, -lately_us) >= lately_us:
            return None
    nodes = list(world.replicas)
    is_whole = all(not world.network.is_hindered(one, other) for one in nodes for other in nodes if one != other)
    return leading if is_whole else None


def _judge(world: World, leading: Node, within_us: int) -> None:
    """Look twice whether that node still leads its term, if nothing else went wrong meanwhile."""
    assert leading.core is not None
    term, faults, lives, handed = leading.core.state.term, len(world.faults), _lives(world), _handed_over(leading)

    def look() -> None:
        core = leading.core
        if len(world.faults) != faults or _lives(world) != lives or world.is_healed:
            return
        if core is not None and not core.state.configuration.is_voter(leading.node):
            return  # it was removed, and hands over
        if _handed_over(leading) != handed or world.disks[leading.node].damaged:
            return  # its disk is slow or full, or it hands over to end for damage
        if core is None or core.state.term != term or not isinstance(core.state.role, Leader):
            raise Failure(PROPERTY, f"node {leading.node} led term {term}, all links broke, and another election began")
        world.sometimes("a leader outlived a break of its links")

    world.after(within_us, look)
    world.after(2 * within_us, look)


def _handed_over(leading: Node) -> tuple[Handover, int] | None:
    """The newest hand-over that this process began because of its disk, and its time."""
    return leading.replica.state.disks.handed_over if leading.replica is not None else None


def _lives(world: World) -> list[tuple[NodeId, int, bool]]:
    return [(node, replica.life, replica.is_paused) for node, replica in world.replicas.items()]
