"""Checks that a healthy majority elects a leader within a bounded time, whatever the other nodes remember or send.

In most worlds, before all is healed: as few voters as possible are made healthy. Each other node is down, is cut off,
stands still, or goes on with a disk that hangs or that works. Before that some disks hang already, the members may
change, and processes end: so nodes remember promises that others lost before their disk had them.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final

from raftlog.chaos.sim import nemesis
from raftlog.chaos.sim.ground.swarm import FORGETTING
from raftlog.chaos.sim.nemesis.members import remove
from raftlog.chaos.sim.nemesis.promises import has_everything
from raftlog.chaos.sim.seed.agreement import agree
from raftlog.chaos.sim.world.world import World
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.types import NodeId
from raftlog.raft.wal.divergence import NOTE

PROPERTY: Final = "a healthy majority elects a leader"

WORLDS_OF_TEN: Final = 7
ROUNDS: Final = 4
STATES: Final = ("down", "cut off", "stands still", "hangs", "hangs", "hangs", "works")
"""What becomes of a node that is not made healthy."""

HANGS_US: Final = 1 << 40
"""No sync of such a disk ends before the disk is healed."""

BEFORE_US: Final = (0, 20_000, 400_000, 3_000_000)
"""For so long some disks hang before the other nodes become healthy."""

STALL_US: Final = 4_000_000
"""A leader whose disk hangs leads for so long at most: `limits.disk_stall_ms` and two hand-overs that fail."""

TIMEOUTS: Final = 10
"""Longest election timeouts that an election may take then: a started node waits one for peers that are not there, and
a few elections fail by chance."""


def with_a_bare_majority(world: World) -> None:
    """In most worlds, as said above. Raises NoProgress. Nodes that are not healthy are held, until all are healed."""
    random = world.random_of("healthy majority")
    rounds = random.randint(1, ROUNDS) if random.randrange(10) < WORLDS_OF_TEN else 0
    nodes: list[NodeId] = []
    for _ in range(rounds):
        nodes = _round(world, random)
    if not nodes:
        return  # all are healed

    def is_too_few() -> bool:
        """A change of members that was asked for before has begun since."""
        return not world.atlas.is_majority(nodes)

    agree(world, is_too_few)
    if not is_too_few():
        world.sometimes("a bare quorum went on alone")


def _round(world: World, random: Random) -> list[NodeId]:
    """The nodes that were left to go on alone; none if a majority can do without no node."""
    if random.randrange(3):
        _disturb(world, random)
    healthy = world.atlas.quorum(world.random, _intact(world))
    nodes = healthy or world.atlas.quorum(world.random)
    others = [node for node in world.replicas if node not in nodes]
    if not nodes or not others:
        nemesis.heal(world)  # disks hang, perhaps
        return []
    states = {node: random.choice(STATES) for node in others}
    nemesis.heal(world, nodes, running=[node for node in others if states[node] != "down"])
    world.note(0, "healthy", *nodes, "others", *[f"{node} {state}" for node, state in states.items()])
    for node, state in states.items():
        _become(world, node, state)
    if healthy:
        _elects(world, healthy)
        if not world.atlas.is_majority(healthy):
            nemesis.heal(world)
            return []
    return nodes


def _disturb(world: World, random: Random) -> None:
    """Some disks hang, perhaps the members change, and then processes lose power: perhaps the leader's, perhaps all."""
    nodes, leading = list(world.replicas), world.leading()
    for node in random.sample(nodes, (len(nodes) - 1) // 2):
        world.disks[node].slow_us = HANGS_US
    if random.randrange(2) and not world.is_healed:
        remove(world, random)
    world.run_until(world.now_us + random.choice(BEFORE_US))
    chosen = random.choice(([], nodes, [leading.node] if leading is not None else []))
    for node in chosen:
        if world.replicas[node].core is not None:
            world.replicas[node].crash("power cut", power=True)


def _intact(world: World) -> list[NodeId]:
    """The nodes whose disk holds everything that it ever confirmed, and whose state is right. A disk that never lost
    anything counts, whatever its node believes; but not one with a note of a wrong state: its start may be refused."""
    forgetting = [kind for kind, _ in FORGETTING]
    hit = {node for node, _, _ in world.atlas.hits}
    hit |= {node for fault in world.faults if fault.kind in forgetting for node in fault.nodes}
    return [
        node
        for node, replica in world.replicas.items()
        if not (replica.is_retired or replica.corrupted or replica.disk.refused or NOTE in replica.disk.damaged)
        and (node not in hit or (has_everything(replica.disk) and not world.atlas.is_lost(node)))
    ]


def _become(world: World, node: NodeId, state: str) -> None:
    replica = world.replicas[node]
    match state:
        case "cut off":
            for other in world.replicas:
                world.network.cut(node, other)
                world.network.cut(other, node)
        case "stands still":
            replica.is_paused = True
        case "hangs":
            replica.disk.slow_us = HANGS_US
    replica.wake()


def _elects(world: World, healthy: Collection[NodeId]) -> None:
    """Waits until all healthy nodes follow a leader whose disk works and whose process runs; or until they are no
    majority any more, by a change of members that was asked for before."""

    def is_elected() -> bool:
        if not world.atlas.is_majority(healthy):
            return True
        leading = world.leading()
        if leading is None or leading.is_paused or leading.disk.slow_us or leading.core is None:
            return False
        if not isinstance(leading.core.state.role, Leader):
            return False
        voters = [node for node in healthy if leading.core.state.configuration.is_voter(node)]
        return all(world.replicas[node].leader == leading.node for node in voters)

    began_us = world.now_us
    bound_us = STALL_US + TIMEOUTS * world.swarm.options.election_timeout_max_ms * 1_000
    world.wait(PROPERTY, bound_us, is_elected, lambda: f"{sorted(healthy)} are healthy: {world.statuses()}")
    world.sometimes("a healthy majority elected a leader")
    if any(world.disks[node].slow_us and world.replicas[node].core is not None for node in world.replicas):
        world.sometimes("a healthy majority elected a leader beside a disk that hangs")
    world.stats["slowest election of a healthy majority, ms"] = (world.now_us - began_us) // 1_000
