"""The fault atlas: what may be hit while the promise stays possible, and what a failure shows of it."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from raftlog.chaos.sim.disk.disk import SimDisk, first_entry
from raftlog.chaos.sim.disk.faults import flip_bit
from raftlog.chaos.sim.invariants.durability import healing_has_no_vote
from raftlog.chaos.sim.world.atlas import Atlas
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import HardState
from raftlog.raft.wal.formats import LogIdentity, segment_name
from raftlog.raft.wal.operations import Delete
from tests.raft.wal.journal_driver import make_entries
from tests.sim.disk.test_disk import frames_of, save
from tests.sim.world.property_lab import Disk, known


def configuration(*nodes: int, outgoing: tuple[int, ...] = (), learners: tuple[int, ...] = ()) -> Configuration:
    """Those nodes vote."""
    members = tuple(Member(node, f"{node:032x}", "", "") for node in sorted({*nodes, *outgoing, *learners}))
    return Configuration(members, nodes, outgoing, learners)


def disks_of(*nodes: int) -> dict[int, SimDisk]:
    """A formatted disk for each."""
    first = first_entry(configuration(*nodes))
    return {
        node: SimDisk(node, LogIdentity(bytes(16)), first, incarnation=f"{node:032x}", random=Random(node))
        for node in nodes
    }


def damage(atlas: Atlas, node: int, area: str) -> None:
    """Hits it, and notes it."""
    disk = atlas._disks[node]
    if area == "wipe":
        disk.wipe()
    elif area in ("log", "history"):
        disk.damaged[segment_name(1)] = "something"
    atlas.hit(node, area, "something")


@pytest.mark.parametrize(("count", "spared"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)])
@pytest.mark.parametrize("area", ["log", "history", "wipe", "roll_back"])
def test_a_majority_is_left_alone(count: int, spared: int, area: str) -> None:
    """Of n voters fewer than half may be lost for good: the nodes left can elect and commit, and so hold a copy
    of every committed entry and vote."""
    nodes = tuple(range(1, count + 1))
    atlas = Atlas(disks_of(*nodes), configuration(*nodes))
    for node in nodes[:spared]:
        assert atlas.may_hit(node, area)
        damage(atlas, node, area)
        assert atlas.is_lost(node)
        assert atlas.may_hit(node, area)  # it could not become worse
    assert not any(atlas.may_hit(node, area) for node in nodes[spared:])
    # what the promise needs, said once more without counting: every majority of the others meets every majority
    left = nodes[spared:]
    majority = count // 2 + 1
    assert all(
        set(quorum) & set(holders) - set(nodes[:spared])
        for quorum in combinations(left, majority)
        for holders in combinations(nodes, majority)
    )


def test_both_majorities_of_a_joint_configuration_count() -> None:
    """While a change is under way, and while it may still come to be, each of them must stay possible."""
    disks = disks_of(1, 2, 3, 4, 5)
    atlas = Atlas(disks, configuration(1, 2, 3))
    assert atlas.may_hit(4, "log")  # no voter yet
    atlas.configured(configuration(1, 2, 3), configuration(3, 4, 5, outgoing=(1, 2, 3)))
    damage(atlas, 4, "log")
    assert not atlas.may_configure(configuration(4, 5))
    assert atlas.may_configure(configuration(1, 2, 3))
    assert not atlas.may_hit(3, "log")
    assert not atlas.may_hit(5, "log")
    assert atlas.may_hit(1, "log")
    atlas.configured(configuration(3, 4, 5))
    assert not atlas.may_hit(5, "log")
    damage(atlas, 1, "wipe")  # it is no voter any more
    atlas.configured(configuration(2, 3, 5))
    assert atlas.may_hit(5, "log")


def test_a_learner_that_is_gone_counts_as_a_voter() -> None:
    """It may be promoted before the next digest point. Then a majority must have the right state."""
    atlas = Atlas(disks_of(1, 2), configuration(1, learners=(2,)))
    assert not atlas.may_hit(2, "state")  # of two voters with different states none is right
    assert not atlas.may_hit(2, "log")  # its damage may be found after its promotion
    atlas = Atlas(disks_of(1, 2, 3), configuration(1, 3, learners=(2,)))
    assert atlas.may_hit(2, "state")
    atlas.unsound[2] = "a wrong state"
    assert not atlas.may_hit(3, "log")
    assert not atlas.may_configure(configuration(1, learners=(2,)))
    assert atlas.may_configure(configuration(1, 3))


def test_what_is_mended_by_itself_may_always_be_hit() -> None:
    """A start makes .idx again from any rest of the log, and the hard state has a second slot."""
    atlas = Atlas(disks_of(1), configuration(1))
    for area in ("idx", "hard_state"):
        assert atlas.may_hit(1, area)
        atlas.hit(1, area, "a bit")
    assert not atlas.lost
    assert len(atlas.hits) == 2


def test_a_snapshot_counts_as_the_log_that_may_go_for_it() -> None:
    """While the log begins at 1 a snapshot is only speed, but the log may go before anybody reads it."""
    disks = disks_of(1, 2, 3)
    disk = disks[1]
    disk.open()
    entries = make_entries(disk.first.mark, 1, (10, 20))
    list(disk.carry_out(SyncBatch(None, None, tuple(entries), ())))
    list(disk.finish(frames_of([disk.first, *entries])))
    atlas = Atlas(disks, configuration(1, 2, 3))
    for entry in entries:
        list(save(disk, entry.mark, [b"state"]))
    assert disk.snapshots() == [3, 2]
    assert not Atlas({1: disks[1], 2: disks[2]}, configuration(1, 2)).may_hit(1, "snapshot")
    assert atlas.may_hit(1, "snapshot")
    atlas.hit(1, "snapshot", disk.hit(flip_bit(disk, "snapshot", Random(1))))
    assert not atlas.is_lost(1)
    assert atlas.may_hit(1, "snapshot")
    assert not atlas.may_hit(2, "snapshot")
    assert not atlas.may_hit(2, "log")
    disk.files.nodes[segment_name(3)] = disk.files.nodes.pop(segment_name(1))  # as after a compaction
    assert disk.first_index == 3
    for seed in range(10):
        atlas.hit(1, "snapshot", disk.hit(flip_bit(disk, "snapshot", Random(seed))))
    assert atlas.is_lost(1)


def test_damage_that_went_with_its_file_is_no_loss() -> None:
    """A segment that a compaction or an install removes takes its damage along; a wiped disk stays lost."""
    disks = disks_of(1, 2, 3)
    atlas = Atlas(disks, configuration(1, 2, 3))
    disks[1].open()
    atlas.hit(1, "log", disks[1].hit(flip_bit(disks[1], "log", Random(1))))
    assert not atlas.may_hit(2, "log")
    disks[1].carry_out_one(0, Delete(segment_name(1)))
    assert atlas.may_hit(2, "log")
    assert not atlas.is_lost(1)
    damage(atlas, 2, "wipe")
    assert not atlas.may_hit(1, "log")


def test_a_repair_that_did_not_end_is_a_loss() -> None:
    """A start set the damaged segment aside and then ended, as on a full disk: the entries are gone, and no damaged
    file shows it. The node stays lost until a start comes to its end and the node has healed."""
    disks = disks_of(1, 2, 3)
    disk, atlas = disks[1], Atlas(disks, configuration(1, 2, 3))
    disk.open()
    entries = make_entries(disk.first.mark, 1, (10, 20, 30))
    list(disk.carry_out(SyncBatch(None, None, tuple(entries), ())))
    list(disk.finish(frames_of([disk.first, *entries])))
    list(save(disk, entries[-1].mark, [b"state"], configuration(1, 2, 3)))
    atlas.hit(1, "log", disk.hit(flip_bit(disk, "log", Random(2))))
    disk.crash(power=False)
    for _ in disk.opening():
        if not disk.is_hurt:
            break
    assert not disk.is_hurt
    disk.crash(power=False)
    assert atlas.is_lost(1)
    assert not atlas.may_hit(2, "log")


def test_a_node_under_a_floor_is_lost_until_the_floor_is_lifted() -> None:
    """It has no vote, though it may have every entry: it lost a vote, and its peers reported that."""
    disks = disks_of(1, 2, 3)
    view, atlas = disks[1].view, Atlas(disks, configuration(1, 2, 3))
    view.hard_state_synced(HardState(2, 1, floor=3))
    assert (atlas.is_lost(1), atlas.may_hit(2, "wipe")) == (True, False)
    view.hard_state_synced(HardState(2, 1))
    assert (atlas.is_lost(1), atlas.may_hit(2, "wipe")) == (False, True)


def test_it_is_described_for_people() -> None:
    """A line for each disk, the majorities in force, and every hit with its node and place."""
    disks = disks_of(1, 2, 3)
    disks[2].open()
    atlas = Atlas(disks, configuration(1, 2, 3))
    what = disks[2].hit(flip_bit(disks[2], "log", Random(3)))
    atlas.hit(2, "log", what)
    lines = atlas.describe()
    assert lines[0].startswith("node 1: intact; durable to 1, term 1, vote 0, boot 0")
    assert "LOST (log: bit" in lines[1]
    assert lines[3] == "voters (1, 2, 3) outgoing none"
    assert lines[4] == f"hit: node 2 log: {what}"


def test_a_vote_of_a_disk_that_lost_entries_is_seen() -> None:
    """As long as it has not got them again; any other vote passes. A disk that was rolled back may vote for a log that
    has all that it forgot and that was committed."""
    seen = known(committed=3)
    healing_has_no_vote.votes(seen, 1, 2, 3, Disk().view, None)
    with pytest.raises(InvariantBroken, match="it held up to"):
        healing_has_no_vote.votes(seen, 1, 2, 3, Disk(forgotten=((6, 2),)).view, (2, 6))
    seen.rolled_back[1] = 0
    healing_has_no_vote.votes(seen, 1, 2, 3, Disk(forgotten=((6, 2),)).view, (2, 6))
    with pytest.raises(InvariantBroken, match="it held up to"):
        healing_has_no_vote.votes(seen, 1, 2, 3, Disk(forgotten=((6, 2),)).view, (1, 5))
