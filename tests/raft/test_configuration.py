"""Tests configurations as values: impossible ones, and voters of a joint one (changes: test_configuration_twin.py)."""

import pytest

from raftlog.raft.configuration import Configuration, Member
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
