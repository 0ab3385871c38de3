"""The six commands that lost an acknowledged write: a folder is lost and formatted again while all members are down."""

from __future__ import annotations

from raftlog.chaos.sim.nemesis.damage import lose_and_format
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.protocol.request import RequestResult
from tests.sim.world.test_forged import sound
from tests.sim.world.test_world import leader_of, put, told


def down(world: World, node: int) -> None:
    """That node is stopped, and stays so until it is started."""
    world.replicas[node].is_held = True
    if world.replicas[node].core is not None:
        world.replicas[node].crash("stopped", power=False)


def up(world: World, node: int) -> None:
    """That node is started."""
    world.replicas[node].is_held = False
    world.restart(node)


def test_a_vote_that_no_disk_heard_of_is_lost_with_the_folder() -> None:
    """All members are down. A follower's vote in the term that all know still counts; one for itself in the next term
    reached no other node, so the formatted folder may vote in that term."""
    world = sound(3)
    leader = leader_of(world).node
    node = next(each for each in world.replicas if each != leader)
    for each in world.replicas:
        down(world, each)
    term = world.disks[node].view.hard_state.term
    votes = world.witness.votes
    votes.votes_for(node, term, leader)
    votes.votes_for(node, term + 1, node)
    lose_and_format(world, node)
    assert votes.votes[node, term] == leader
    assert (node, term + 1) not in votes.votes


def test_an_entry_that_no_other_disk_has_is_lost_with_the_folder() -> None:
    """All members are down, and a follower alone has written the newest entry: not even its leader had. No majority can
    have committed it, so the formatted folder need not get it back before it votes."""
    world = sound(3)
    for each in world.replicas:
        down(world, each)
    node, *others = world.disks
    held = world.disks[node].view.held
    newest = max(held)
    for other in others:
        view = world.disks[other].view
        del view.entries[-1], view.ends[-1]
        view.synced = len(view.ends)
        assert not view.has(*newest)
    lose_and_format(world, node)
    assert world.disks[node].view.forgotten == held - {newest}


def test_a_folder_that_is_formatted_again_elects_no_leader_without_the_last_copy() -> None:
    """Node 2 is down, nodes 1 and 3 acknowledge a write, all stop, and the folder of node 3 is lost. Nodes 2 and 3
    elect no leader. With node 1 they do, and it has the write."""
    world = sound(3)
    lagging = next(node for node in world.replicas if node != leader_of(world).node)
    down(world, lagging)
    assert isinstance(told(world, leader_of(world), put(b"k", b"v")), RequestResult)
    last, index = leader_of(world).node, world.acknowledged
    (lost,) = set(world.replicas) - {lagging, last}
    for node in (last, lost):
        down(world, node)
    lose_and_format(world, lost)
    for node in (lagging, lost):
        up(world, node)
    world.run_until(world.now_us + 20_000_000)
    assert world.leading() is None, "the only copy of the write is down"
    up(world, last)
    assert world.run_until(world.now_us + 20_000_000, lambda: world.has_agreed(index))
    assert all(replica.machine.get(b"k") is not None for replica in world.replicas.values())
    assert not world.disks[lost].view.is_healing
