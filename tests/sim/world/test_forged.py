"""A removed node's key and forged hellos against quiet clusters: nothing is taken, terms stay, and writes go on."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from raftlog.chaos.sim.nemesis.forged import HELLO_EVERY_US, say, strike
from raftlog.chaos.sim.seed.bad_disks import EVERY_US, Writer
from raftlog.chaos.sim.world.world import World, quiet
from raftlog.raft.changes import AddLearners, MemberChange, Remove
from tests.sim.world.test_world import agreed, leader_of

FOR_US = 5_000_000


def sound(nodes: int, delay_us: int = 100) -> World:
    """A quiet cluster of the newest version that has agreed; each message takes so long."""
    swarm = quiet(nodes)
    network = replace(swarm.network, delay_min_us=delay_us, delay_max_us=delay_us)
    return agreed(World(1, replace(swarm, network=network)))


def change(world: World, wanted: MemberChange) -> None:
    """The leader changes the members, and every member has applied it."""
    leader_of(world).tell(lambda core, now: core.propose_configuration(wanted, now))
    assert world.run_until(world.now_us + 10_000_000, lambda: world.acknowledged > 0 and _is_over(world))


def _is_over(world: World) -> bool:
    core = leader_of(world).core
    if core is None or core.status().is_changing:
        return False
    index, configuration = core.state.configurations[-1]
    others = [world.replicas[member.node] for member in configuration.members]
    return index > 1 and all(each.core is not None and each.core.state.log.committed >= index for each in others)


@pytest.mark.parametrize("is_voter", [True, False])
def test_the_key_of_a_removed_node_changes_nothing(is_voter: bool) -> None:
    """Its hello is refused, and of its messages and requests none is taken, also while the others have no leader: they
    elect one as without it, and every write is acknowledged."""
    world, random, gone = sound(4 if is_voter else 3), Random(1), 4
    if not is_voter:
        member = world.newcomer()
        world.join(member)
        change(world, AddLearners((member,), promote=False))
    change(world, Remove((gone,)))
    world.retire(gone)
    first = leader_of(world)
    assert first.core is not None
    term, writer = first.core.state.term, Writer(world)
    for at_us in (*range(0, FOR_US, HELLO_EVERY_US), *range(FOR_US // 2, FOR_US, 2_000)):
        world.after(at_us, strike, world, random, gone, world.disks[gone].incarnation)
    world.run_until(world.now_us + FOR_US // 2)
    assert (leader_of(world), first.core.state.term) == (first, term)
    first.is_paused = True
    world.run_until(world.now_us + FOR_US // 2)
    first.is_paused = False
    first.wake()
    world.run_until(world.now_us + 1_000_000)
    core = leader_of(world).core
    assert core is not None
    assert core.state.term <= term + 2, "one election, or two"
    assert writer.acknowledged >= FOR_US // EVERY_US * 3 // 4
    assert world.stats["strikes of a removed node"] > 100


def test_forged_hellos_void_no_acknowledgement() -> None:
    """More than 30 a second in the name of each follower, where a round trip takes 80 ms: before, each voided what the
    follower had acknowledged. Every write is acknowledged after one round trip, and the term stays."""
    world, random, runs = sound(3, delay_us=40_000), Random(1), [[], []]  # type: tuple[World, Random, list[list[int]]]
    leader = leader_of(world)
    assert leader.core is not None
    term, writer = leader.core.state.term, Writer(world)
    followers = [node for node in world.replicas if node != leader.node]
    for at_us in range(0, FOR_US, HELLO_EVERY_US):
        for node, each in zip(followers, runs, strict=True):
            world.after(at_us, say, world, random, leader.node, node, each)
    world.run_until(world.now_us + FOR_US)
    assert world.stats["forged hellos"] > 300
    assert (leader_of(world), leader.core.state.term) == (leader, term)
    assert writer.acknowledged >= FOR_US // EVERY_US - 3
