"""Directed stories of damage that scrubbing finds while a node runs: it ends and heals once the others are well."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.mutants import plant
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import NodeId
from raftlog.raft.wal.formats import SEGMENT_HEADER_SIZE, segment_name
from raftlog.statemachine.commands import Operation
from tests.sim.world.test_stories import Story

ENDED = "sometimes: a node ended for damage, the others being well"
FOUND = "sometimes: scrubbing found damage before a reader"
HEALED = "sometimes: a damaged log has healed"
AGES_MS = 60_000


class Damaged(Story):
    """A quiet world with some sealed segments, in which a bit flips when the story says so."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.make_leader(1)
        while min(len(disk.segment_firsts) for disk in self.world.disks.values()) < 3:
            self.write()

    def write(self) -> None:
        """An append to the leader."""
        leading = self.world.leading()
        if leading is not None:
            leading.ask([BlockRecord(Operation.APPEND, None, b"v" * 1_000)], for_us=2_000_000, plain=True)
        self.wait(20)

    def flip(self, node: NodeId) -> None:
        """One bit of an entry in the second segment of that node; in the first it could cost the first entry."""
        disk = self.world.disks[node]
        name = segment_name(disk.segment_firsts[1])
        inode, position = disk.files.nodes[name], SEGMENT_HEADER_SIZE + 500
        inode.hit(position, bytes([inode.seen[position] ^ 1]))
        self.world.atlas.hit(node, "history", disk.hit((name, f"a bit of {name} flipped")))

    def is_sound(self, node: NodeId) -> bool:
        """Whether it has all that it had, votes, and reads everything."""
        disk, replica = self.world.disks[node], self.world.replicas[node]
        last = self.world.acknowledged
        return (
            replica.core is not None and not (disk.damaged or disk.view.is_healing) and disk.view.durable_last >= last
        )


@pytest.mark.parametrize("node", [1, 2])
def test_damage_is_found_and_mended_while_the_others_go_on(node: NodeId) -> None:
    """No reader and no start comes by: scrubbing finds it, the node ends, starts, heals. A leader hands over."""
    story = Damaged(3)
    story.flip(node)
    story.until(lambda: story.sees(ENDED) > 0, AGES_MS)
    assert story.sees(FOUND)
    story.until(lambda: story.is_sound(node) and story.sees(HEALED) > 0, AGES_MS)
    assert story.sees(ENDED) == story.sees("sometimes: a damaged log was cut") == 1


def two(story: Damaged) -> None:
    """Another voter is down: without it no leader could be elected while the damaged node heals."""
    story.end(3)


def three(story: Damaged) -> None:
    """The damaged one's links are cut: it knows nothing of the others."""
    story.cut(tuple(link for peer in (1, 3) for link in ((2, peer), (peer, 2))))


@pytest.mark.parametrize("ill", [two, three])
def test_nobody_ends_for_damage_while_another_is_ill(ill: Callable[[Damaged], None]) -> None:
    """The node goes on with its damage, for as long as it takes; once the others are well it ends and heals."""
    story = Damaged(3)
    ill(story)
    story.flip(2)
    story.until(lambda: story.sees(FOUND) > 0, AGES_MS)
    story.wait(20_000)
    assert not story.sees(ENDED)
    story.cut(())
    story.begin(3)
    story.until(lambda: story.sees(ENDED) > 0 and story.is_sound(2), AGES_MS)


def test_one_of_two_voters_stays() -> None:
    """Its start would refuse its log, because no peer could heal it: the node goes on and says so."""
    story = Damaged(2)
    story.flip(2)
    story.until(lambda: story.sees("sometimes: damage stays: no voter could heal it") > 0, AGES_MS)
    story.wait(20_000)
    assert not story.sees(ENDED)
    assert story.world.replicas[2].core is not None


def test_a_node_ends_for_damage_that_costs_history_where_the_others_have_that() -> None:
    """Damage at or before the newest snapshot: a start begins the log behind it, and fetches the older log again."""
    story = Damaged(3)
    story.world.replicas[2].save_snapshot()
    story.wait(500)
    assert story.world.disks[2].snapshots()
    story.flip(2)
    story.until(lambda: story.sees(ENDED) > 0, AGES_MS)
    story.until(lambda: story.is_sound(2) and story.sees("logged: backfill_segment") > 0, AGES_MS)
    story.until(lambda: story.world.disks[2].first_index == 1, AGES_MS)


def test_mending_that_would_cost_history_is_not_begun() -> None:
    """The same where another voter is down: too few others are known to have the older log."""
    story = Damaged(3)
    story.world.replicas[2].save_snapshot()
    story.wait(500)
    assert story.world.disks[2].snapshots()
    story.end(3)
    story.flip(2)
    story.until(lambda: story.sees("sometimes: damage stays: a repair would cost history") > 0, AGES_MS)
    story.wait(20_000)
    assert not story.sees(ENDED)


@pytest.mark.parametrize(
    ("mistake", "is_seen"),
    [
        (nullcontext(), ""),
        (plant("scrubbing_skips_sealed_segments"), "scrubbing finds all damage"),
        (plant("ends_for_damage_while_others_are_ill"), "a node ends for damage only while the others are well"),
    ],
)
def test_the_worlds_see_these_mistakes(mistake: AbstractContextManager[None], is_seen: str) -> None:
    """A node is down and another one damaged: only with a mistake planted is a property broken."""
    story = Damaged(3)
    two(story)
    story.flip(2)
    with mistake:
        if is_seen:
            with pytest.raises(Failure, match=is_seen):
                story.wait(AGES_MS)
        else:
            story.wait(AGES_MS)


def test_what_is_intact_is_never_told() -> None:
    """Scrubbing that reported damage in intact files would end healthy nodes: so that is a property."""
    story = Damaged(3)
    story.flip(2)
    for inode in story.world.disks[2].files.nodes.values():
        inode.wounds.clear()
    with pytest.raises(Failure, match="scrubbing reports nothing but damage"):
        story.wait(AGES_MS)
