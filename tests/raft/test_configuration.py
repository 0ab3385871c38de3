"""Tests configurations as values: impossible ones, and voters of a joint one (changes: test_configuration_twin.py)."""

from dataclasses import replace

import pytest

from raftlog.raft.changes import with_removed
from raftlog.raft.configuration import REMOVED_MAX, Configuration, Member
from tests.raft.lab import configuration

ONE, TWO = (Member(node, f"{node:032x}", "", "") for node in (1, 2))


@pytest.mark.parametrize("members", [(TWO, ONE), (ONE, ONE), (ONE, TWO, ONE)])
def test_members_are_sorted_and_distinct(members: tuple[Member, ...]) -> None:
    """Equal members are equal bytes, and a number stands for one node."""
    with pytest.raises(ValueError, match="sorted and distinct"):
        Configuration(members)


def test_both_sides_of_a_joint_configuration_count() -> None:
    """A node of either side is a voter; one of neither is not."""
    joint = Configuration(configuration(4).members, (1, 2), (2, 3))
    assert [joint.is_voter(node) for node in (1, 2, 3, 4, 5)] == [True, True, True, False, False]
    assert joint.peers(2) == (1, 3, 4)


def test_a_removed_disk_stays_removed_and_so_does_its_number_until_a_new_disk_has_it() -> None:
    """The key of a removed node proves its number alone. A node that was never a member is no removed
    one: it may be about to join. A disk that comes back is a member again, and its former removal is forgotten."""
    both = Configuration((ONE, TWO), (1, 2))
    without = Configuration((ONE,), (1,))
    left = with_removed(both, without)
    assert left.removed == ((2, TWO.incarnation),)
    seen = [left.has_removed(node, disk) for node, disk in [(2, TWO.incarnation), (2, "x"), (3, "x"), (1, "x")]]
    assert seen == [True, True, False, False]
    assert left.has_removed(3, TWO.incarnation), "a disk cannot hide behind another number"
    again = with_removed(left, replace(both, members=(ONE, Member(2, "new", "", ""))))
    assert [again.has_removed(2, disk) for disk in ("new", TWO.incarnation, "x")] == [False, True, False]
    assert with_removed(left, both).removed == ()
    assert not both.has_removed(2, TWO.incarnation)


def test_the_newest_removed_disks_are_kept() -> None:
    """The configuration stays small, however often members are replaced."""
    known, most = Configuration((ONE,), (1,)), REMOVED_MAX
    for node in range(2, most + 4):
        member = Member(node, f"{node:032x}", "", "")
        known = with_removed(known, replace(known, members=(ONE, member)))
        known = with_removed(known, replace(known, members=(ONE,)))
    assert [node for node, _ in known.removed] == [*range(4, most + 4)]
