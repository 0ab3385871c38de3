"""Disks that forget promises without damage: lying syncs, and two processes of one node on a disk and its copy."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.disk.lies import KINDS, Lie
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.outcome import Outcome
from raftlog.chaos.sim.ground.swarm import draw
from raftlog.chaos.sim.mutants import plant
from raftlog.chaos.sim.nemesis.promises import Peers, put_back, start_until_taken, watch
from raftlog.chaos.sim.network.dials import Dials
from raftlog.chaos.sim.network.topologies import Links
from raftlog.chaos.sim.seed.run import run_seed
from raftlog.chaos.sim.world.world import World, quiet
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.wal.operations import Sync, Write
from raftlog.statemachine.commands import Operation
from tests.sim.world.test_stories import Story

SEEDS = range(1, 13)


def run(seed: int, kind: str, every_us: int = 1_500_000) -> Outcome:
    """A world of that seed that has this fault often."""
    swarm = draw(Random(f"{seed} swarm"))
    faults = (*(each for each in swarm.faults if each[0] != kind), (kind, every_us))
    return run_seed(seed, 30, swarm=replace(swarm, nodes=max(3, swarm.nodes), faults=faults))


def broken_by(seed: int, kind: str) -> str:
    """The property that this world breaks; "" if it is clean."""
    try:
        run(seed, kind)
    except Failure as failure:
        return failure.property
    return ""


class OneLie:
    """Takes the first sync of a file; the loss is always allowed."""

    def __init__(self) -> None:
        self.taken = 0

    def takes(self, name: str, inode: object) -> bool:
        """The first one."""
        self.taken += name == "a"
        return name == "a" and self.taken == 1

    def comes_out(self) -> bool:
        """It may."""
        return True

    def lost(self) -> None:
        """No witness keeps account."""

    def make_good(self) -> None:
        """Never."""


def test_a_power_cut_takes_what_a_lying_sync_answered_for_and_nothing_else() -> None:
    """Syncs of the same file before and after the lie, and of others, hold. A kill takes nothing."""
    files = MemoryFiles({"a": b"", "b": b""})
    files.execute([Write("a", 0, b"before"), Sync("a")])
    files.lie = OneLie()
    files.execute([Write("a", 6, b"LOST"), Sync("a"), Write("b", 0, b"kept"), Sync("b")])
    files.execute([Write("a", 10, b"after"), Sync("a")])
    assert files.read("a", 0, 99) == b"beforeLOSTafter"
    files.lose_power(Random(1))
    assert files.content() == {"a": b"before\0\0\0\0after", "b": b"kept"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lie_that_does_not_come_out_changes_nothing(kind: str) -> None:
    """If no peer could report the loss, the disk has synced its writes by then."""
    world = World(1, quiet(3))
    world.start()
    disk, told = world.disks[2], list[str]()
    disk.files.lie = Lie(disk, kind, answered=lambda: told.append(kind), may_lose=lambda: False)
    world.run_until(3_000_000, lambda: bool(told))
    world.write()
    world.run_until(world.now_us + 1_000_000)
    assert told == [kind]
    last = disk.view.durable_last
    world.replicas[2].crash("power cut", power=True)
    world.restart(2)
    assert disk.view.durable_last >= last
    assert not disk.view.is_healing


@pytest.mark.parametrize(
    ("kind", "mutant", "property_"),
    [
        ("clone", "equal_boot_of_another_run_accepted", "of a disk and its copy one is believed"),
        ("clone", "lost_promises_not_compared", "lost promises put a node under a floor"),
        ("lying sync", "lost_promises_not_compared", "lost promises put a node under a floor"),
        ("refused copy", "newest_promises_not_told_to_a_copy", "lost promises put a node under a floor"),
    ],
)
def test_worlds_see_what_protects_against_a_disk_that_forgot(kind: str, mutant: str, property_: str) -> None:
    """One of a few worlds breaks with the mistake planted, and is clean without it."""
    for seed in SEEDS:
        with plant(mutant):
            broken = broken_by(seed, kind)
        if broken:
            assert (broken, broken_by(seed, kind)) == (property_, "")
            return
    pytest.fail(f"{mutant} was seen in none of {len(SEEDS)} worlds")


def test_a_process_that_has_just_started_counts_as_one_that_peers_believe() -> None:
    """Its peers remember an earlier run of its disk, and have met no hello of this one. What the earlier run promised
    binds a copy of that disk."""
    world = World(1, quiet(3))
    world.start()
    world.run_until(3_000_000)
    peers, replica = Peers(world, 2), world.replicas[2]
    replica.crash("killed", power=False)
    replica.start()
    assert not peers.refuse(replica)


def test_a_peer_that_stands_still_while_its_copy_is_reached_cannot_tell() -> None:
    """Two nodes were cloned at the same time. The copy that is reached may remember less than its original."""
    world = World(1, quiet(3))
    world.start()
    world.run_until(3_000_000)
    peers, peer = Peers(world, 2), world.replicas[3]
    assert peers.can_tell()
    world.replicas[3] = peer.twin(world.disks[3], " copy")
    assert not peers.can_tell()


def test_the_reports_of_a_peer_that_refuses_a_copy_may_be_lost() -> None:
    """The peer reports once a second, unasked. A link that loses messages may lose every report: then the simulator
    accuses no node, and takes the copy away."""
    world = World(1, quiet(3))
    world.start()
    world.run_until(3_000_000)
    peers, core, copy = Peers(world, 2), world.replicas[1].core, world.replicas[2].core
    assert core is not None
    assert copy is not None
    of_copy = (2, world.disks[2].incarnation)
    run = copy.state.recall.run
    core.state.recall.memories[of_copy].acked = (99, 99)
    core.state.recall.memories[of_copy].run = run + 1
    core.state.recall.refused[2] = (of_copy[1], run)
    peers.keep(1)
    with pytest.raises(Failure, match=r"node 2 has .* node 1 remembers \(99, 99\)"):
        peers.check_floor()
    assert peers.can_tell()
    world.network.link(1, 2).loses = 1
    peers.check_floor()
    assert not peers.can_tell()


@pytest.mark.parametrize(
    ("cut", "under_floor"),
    [((), "from its start"), (((3, 2), (1, 3)), "once peers reported"), (((3, 2), (2, 3)), "never")],
    ids=["an entry shows the term", "the vote was counted", "the vote was not counted"],
)
def test_a_disk_that_lost_a_vote_counts_as_lost_until_it_votes_again(cut: Links, under_floor: str) -> None:
    """Node 2 votes for node 3, and its disk loses that vote; the log is whole. It goes under a floor, and has no vote:
    at its start, where its log has an entry of the newer term, else once its peers have reported the vote. So no other
    disk may be lost from the power cut on until the floor is lifted, or the peers have nothing to report.
    """
    story = Story(3, seed=4)  # in which the peers' reports come before the leader's first message
    world, disk = story.world, story.world.disks[2]
    story.make_leader(1)
    world.write()
    story.until(lambda: world.has_agreed(world.acknowledged))
    told: list[str] = []
    disk.files.lie = Lie(disk, "hard state", answered=lambda: told.append("vote"), may_lose=lambda: True)
    world.replicas[1].tell(lambda core, now: core.transfer(3, now))
    story.until(lambda: bool(told))
    story.cut(cut)
    story.until(lambda: story.leads(3) and (bool(cut) or disk.view.durable_last == story.state(3).log.last.index))
    assert world.atlas.may_hit(1, "wipe")
    entries, peers, replica = disk.view.entries[:], Peers(world, 2), world.replicas[2]
    peers.forgets()
    replica.is_held = True
    replica.crash("power cut", power=True)
    story.cut(())
    assert disk.view.entries == entries
    assert (world.atlas.is_lost(2), world.atlas.may_hit(1, "wipe")) == (True, False)
    story.begin(2)
    watch(world, 2, peers, "it lost a vote", "it has everything again")
    floors: list[int] = []
    while world.atlas.is_lost(2):
        assert not world.atlas.may_hit(1, "wipe")
        floors.append(story.state(2).recall.floor)
        story.wait(1)
    assert (floors[0] > 0, max(floors) > 0) == (under_floor == "from its start", under_floor != "never")
    assert (story.state(2).recall.floor, disk.view.floor, replica.is_retired) == (0, 0, False)
    assert world.atlas.may_hit(1, "wipe")


@pytest.mark.parametrize(
    ("back", "when", "first"),
    [(1, "before the write", (1, 2, 3)), (2, "before the write", (2, 3, 1)), (2, "before the vote", (3, 2, 1))],
)
def test_no_process_remembers_and_the_disk_of_a_peer_does(back: int, when: str, first: tuple[int, ...]) -> None:
    """Nodes 1 and 2 commit a write while node 3 is down; the disk of one is put back to an earlier copy, and every
    process begins again. The effects on the intact disk show that the write was committed. So neither of the two nodes
    without the write is elected.

    Guard: `_committed` of raft/consensus/recall.py, `applied` of raft/wal/recovery.py.
    """
    story = Story(3, seed=back)
    world = story.world
    story.make_leader(3)
    world.write()
    story.until(lambda: world.has_agreed(world.acknowledged))
    image, before = world.disks[back].copy(), world.acknowledged
    story.end(3)
    story.until(lambda: story.leads(1) or story.leads(2))
    story.make_leader(1)
    if when == "before the write":
        image = world.disks[back].copy()
    world.write()
    story.until(lambda: world.acknowledged > before)
    written = world.acknowledged
    story.wait(50)  # the effects are in their files
    Peers(world, back).forgets()
    story.end(1, 2)
    put_back(world.disks[back], image)
    for node in first:
        story.begin(node)
        story.wait(5)
    story.until(lambda: world.has_agreed(written), 10_000)
    world.witness.finished()


def test_a_rolled_back_node_commits_nothing_with_the_leader_before_the_one_that_it_elected() -> None:
    """Node 1 leads and stands still; node 3 elects node 2, which commits a write with it. The disk of node 3 goes back
    to before its vote. Node 1 goes on, and takes itself for the leader; node 2 is cut off for a moment, shorter than a
    started node waits. So node 3 acknowledges nothing to node 1, which would commit another entry at the same index.

    Guard: `is_waiting` in `on_append` of raft/consensus/replication.py.
    """
    story = Story(3, seed=5)
    world = story.world
    story.make_leader(1)
    world.write()
    story.until(lambda: world.has_agreed(world.acknowledged))
    story.wait(200)
    image = world.disks[3].copy()
    world.replicas[1].is_paused = True
    story.cut(((1, 2), (2, 1), (1, 3), (3, 1)))
    story.until(lambda: story.leads(2) or story.leads(3))
    story.make_leader(2)
    before = world.acknowledged
    world.write()
    story.until(lambda: world.acknowledged > before)
    written = world.acknowledged
    Peers(world, 3).forgets()
    story.end(3)
    put_back(world.disks[3], image)
    story.cut(((1, 2), (2, 1), (2, 3), (3, 2)))
    world.replicas[1].is_paused = False
    world.replicas[1].wake()
    start_until_taken(world, 3)
    world.replicas[3].is_held = False
    story.until(lambda: story.leads(1))
    world.replicas[1].ask([BlockRecord(Operation.APPEND, None, b"beside it")], for_us=1_000_000, plain=True)
    story.wait(150)
    assert story.leads(1)
    assert story.state(3).leader == 1
    assert story.state(1).log.committed < written
    story.cut(())
    story.until(lambda: world.has_agreed(written), 10_000)
    world.witness.finished()


def test_a_copy_that_is_believed_counts_though_it_is_no_member_any_more() -> None:
    """A leader serves the connection of a removed node for two heartbeats: what that node answers is an answer."""
    hello = object()
    hellos = SimpleNamespace(believed={1: hello})
    leader = SimpleNamespace(core=object(), hellos=hellos, refusal_of=lambda *_: "it is no member any more")
    world: Any = SimpleNamespace(replicas={1: SimpleNamespace(hello=hello), 2: leader})
    dials = Dials(world, world)
    dials._faces[1] = 1
    assert not dials.is_refused(1, 2)
    hellos.believed.clear()
    assert dials.is_refused(1, 2)


def test_both_processes_of_a_cloned_node_are_reached_and_the_cluster_goes_on() -> None:
    """The original, its copy, and both again; what the copy lacks it gets back."""
    stats: dict[str, int] = {}
    for seed in SEEDS:
        for name, count in run(seed, "clone").stats.items():
            stats[name] = stats.get(name, 0) + count
        if stats.get("sometimes: a copy that ran beside its original has everything again", 0) > 3:
            break
    assert stats["times another process of a node was reached"] > stats["fault: clone"]
    assert stats["sometimes: a copy that ran beside its original has everything again"]
