"""Majorities, checked against a twin that counts every subset."""

from itertools import combinations, product

import pytest
from hypothesis import given, strategies as st

from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.quorum import VoteOutcome, agreed, majority, outcome
from tests.raft.lab import configuration

VALUES = st.dictionaries(st.integers(1, 7), st.integers(0, 20))


def joint(incoming: int, outgoing: tuple[int, ...]) -> Configuration:
    """Nodes 1 to 7; voters 1 to `incoming`, and `outgoing` on the other side."""
    members = tuple(Member(node, f"{node:032x}", "", "") for node in range(1, 8))
    return Configuration(members, tuple(range(1, incoming + 1)), outgoing)


def naive(voters: tuple[int, ...], values: dict[int, int]) -> int:
    """The highest value that every member of some majority has reached."""
    groups = combinations(voters, majority(len(voters)))
    return max(min(values.get(voter, 0) for voter in group) for group in groups)


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_pitfall_34_a_majority_is_more_than_half(voters: int, needed: int) -> None:
    """Any two majorities share a voter: of an even number it is one more than half, for commit, votes and reads alike.

    Guard: `majority` in raft/quorum.py, which `agreed` and `outcome` both use.
    """
    assert majority(voters) == needed
    members = configuration(voters)
    assert agreed(members, dict.fromkeys(range(1, needed), 9)) == 0
    assert agreed(members, dict.fromkeys(range(1, needed + 1), 9)) == 9
    assert outcome(members, dict.fromkeys(range(1, needed), True)) is not VoteOutcome.WON
    assert outcome(members, dict.fromkeys(range(1, needed + 1), True)) is VoteOutcome.WON


@given(st.integers(1, 7), st.lists(st.integers(1, 7), unique=True), VALUES)
def test_agreed_is_the_mark_that_a_majority_of_each_side_reached(
    incoming: int, outgoing: list[int], values: dict[int, int]
) -> None:
    """Equal to the twin, for one majority and for a joint pair."""
    members = joint(incoming, tuple(sorted(outgoing)))
    expected = naive(members.voters, values)
    if outgoing:
        expected = min(expected, naive(members.outgoing, values))
    assert agreed(members, values) == expected


def subsets(nodes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All of them, the empty one too."""
    return [group for size in range(len(nodes) + 1) for group in combinations(nodes, size)]


def test_outcome_and_commit_by_brute_force_over_every_joint_configuration_of_four() -> None:
    """For every pair of sides and every vote (granted, refused, not yet): won if no further answer can change that, and
    lost likewise. For every spread of two marks: the commit index is 1 where the votes would win.
    """
    nodes = (1, 2, 3, 4)
    for voters, outgoing in product(subsets(nodes)[1:], subsets(nodes)):
        members = Configuration(configuration(4).members, voters, outgoing)
        sides = [side for side in (voters, outgoing) if side]
        winning = [
            group
            for group in subsets(nodes)
            if all(len([node for node in side if node in group]) * 2 > len(side) for side in sides)
        ]
        for choice in product((True, False, None), repeat=4):
            votes = {node: vote for node, vote in zip(nodes, choice, strict=True) if vote is not None}
            silent = tuple(node for node, vote in zip(nodes, choice, strict=True) if vote is None)
            granted = tuple(node for node in nodes if votes.get(node))
            ends = [tuple(sorted(granted + late)) in winning for late in subsets(silent)]
            expected = VoteOutcome.WON if all(ends) else VoteOutcome.OPEN if any(ends) else VoteOutcome.LOST
            assert outcome(members, votes) is expected, (voters, outgoing, votes)
            assert agreed(members, dict.fromkeys(granted, 1)) == (granted in winning), (voters, outgoing, granted)


def test_no_two_disjoint_groups_can_both_decide() -> None:
    """Two majorities of one configuration share a voter. So do a majority of a joint configuration and a majority of
    one of its sides. Therefore no entry is decided twice while the members change (thesis 4.3).
    """
    nodes = (1, 2, 3, 4, 5)
    everyone = configuration(5).members

    def wins(members: Configuration, group: tuple[int, ...]) -> bool:
        return outcome(members, dict.fromkeys(group, True)) is VoteOutcome.WON

    for voters, outgoing in product(subsets(nodes)[1:], repeat=2):
        both = Configuration(everyone, voters, outgoing)
        sides = (Configuration(everyone, voters), Configuration(everyone, outgoing))
        for group in subsets(nodes):
            others = tuple(node for node in nodes if node not in group)
            if wins(both, group):
                assert not any(wins(side, others) for side in (both, *sides)), (voters, outgoing, group)


def test_learners_and_strangers_are_never_counted() -> None:
    """Only voters carry a value or a vote."""
    members = configuration(4, learners=[4])
    assert agreed(members, {1: 5, 4: 9, 9: 9}) == 0
    assert outcome(members, {1: True, 4: True, 9: True}) is VoteOutcome.OPEN


def test_a_configuration_without_voters_decides_nothing() -> None:
    """A configuration without voters commits no entry and elects no leader."""
    nobody = Configuration()
    assert agreed(nobody, {1: 5}) == 0
    assert outcome(nobody, {1: True}) is VoteOutcome.LOST
