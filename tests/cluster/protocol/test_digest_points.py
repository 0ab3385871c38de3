"""Tests which nodes are right at a digest point, as plain values: a majority of the voters, under any leader."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.protocol.digest_points import DIFFER_EVERY_S, POINTS_KEPT, DigestPoints, Diverged
from raftlog.raft.configuration import Configuration, Member
from tests.statemachine.driver import Driver, appends

A, B, C = b"a", b"b", b"c"


def disk(node: int) -> str:
    """The incarnation of that node's disk."""
    return f"{node:032x}"


def configuration(*voters: int, outgoing: tuple[int, ...] = (), learners: tuple[int, ...] = ()) -> Configuration:
    """These vote."""
    named = sorted({*voters, *outgoing, *learners})
    return Configuration(tuple(Member(node, disk(node), "", "") for node in named), voters, outgoing, learners)


def points_of(node: int, own: bytes, **others: bytes) -> DigestPoints:
    """That node at a point at index 10, and the others' reports: `_2=b"..."`."""
    points = DigestPoints(node)
    points.applied(10, own)
    for name, value in others.items():
        points.take(int(name[1:]), disk(int(name[1:])), ((10, value),))
    return points


THREE = configuration(1, 2, 3)


def test_a_majority_agrees_while_a_minority_is_still_unknown() -> None:
    """Alone a node knows nothing; with one more of three it does, and asks no further."""
    points = points_of(1, A)
    assert points.is_open
    assert points.judge(THREE, 1) == (0, 0)
    points.take(2, disk(2), ((10, A),))
    assert points.judge(THREE, 1) == (10, 0)
    assert not points.is_open


@pytest.mark.parametrize("leader", [1, 2, 3])
def test_a_node_that_differs_from_the_majority_is_wrong_under_any_leader(leader: int) -> None:
    """Planted bug 29: the leader's value counts as any other."""
    with pytest.raises(Diverged, match="digest point 10") as diverged:
        points_of(1, B, _2=A, _3=A).judge(THREE, leader)
    assert ("the leader" in str(diverged.value)) == (leader == 1)
    assert (diverged.value.index, diverged.value.agreed) == (10, 0)
    assert points_of(2, A, _1=B, _3=A).judge(THREE, 1) == (10, 0)


def test_the_newest_equal_point_is_reported() -> None:
    """It is what a start may trust: snapshots from before it."""
    points = points_of(1, A, _2=A)
    points.judge(THREE, 1)
    points.applied(20, B)
    points.take(2, disk(2), ((20, A),))
    points.take(3, disk(3), ((20, A),))
    with pytest.raises(Diverged) as diverged:
        points.judge(THREE, 1)
    assert (diverged.value.index, diverged.value.agreed) == (20, 10)


def test_a_node_wrong_at_a_point_stays_wrong_after_a_later_one() -> None:
    """The wrong value was overwritten, so at 20 the state is the majority's; its earlier consequences may still be
    there. No snapshot from 10 on is trusted, because the agreement at 20 came after it.
    """
    points = points_of(1, B, _2=A)
    points.applied(20, A)
    points.take(2, disk(2), ((20, A),))
    assert points.judge(THREE, 1).agreed == 20
    points.take(3, disk(3), ((10, A),))
    with pytest.raises(Diverged) as diverged:
        points.judge(THREE, 1)
    assert (diverged.value.index, diverged.value.agreed) == (10, 0)


def test_without_a_majority_of_equal_values_no_node_is_right() -> None:
    """Two of three differ: nothing is known until the third has reported, which may make one of them right."""
    points = points_of(1, A, _2=B)
    assert points.judge(THREE, 1) == (0, 10)
    points.take(3, disk(3), ((10, C),))
    assert points.judge(THREE, 1) == (0, 10)
    points.take(3, disk(3), ((10, A),))
    assert points.judge(THREE, 1) == (10, 0)
    five = configuration(1, 2, 3, 4, 5)
    assert points_of(1, A, _2=B).judge(five, 1) == (0, 0), "a majority has not reported yet"
    assert points_of(1, A, _2=B, _3=A).judge(five, 1) == (0, 10)
    assert points_of(1, A, _2=B).judge(configuration(1, 2), 1) == (0, 10)


def test_a_later_point_that_is_agreed_ends_the_doubt() -> None:
    """The differing keys were written again, or the differing node was replaced."""
    points = points_of(1, A, _2=B, _3=C)
    assert points.judge(THREE, 1).differ == 10
    points.applied(20, A)
    assert points.judge(THREE, 1) == (0, 10)
    points.take(2, disk(2), ((20, A),))
    assert points.judge(THREE, 1) == (20, 0)


def test_both_majorities_of_a_joint_configuration_must_be_equal() -> None:
    """As for every other decision (thesis 4.3)."""
    joint = configuration(1, 2, 3, outgoing=(3, 4, 5))
    assert points_of(1, A, _2=A).judge(joint, 1) == (0, 0)
    assert points_of(1, A, _2=A, _3=A, _4=A).judge(joint, 1) == (10, 0)
    with pytest.raises(Diverged):
        points_of(5, B, _1=A, _2=A, _3=A, _4=A).judge(joint, 1)


def test_learners_and_disks_that_are_not_named_do_not_count() -> None:
    """A learner learns whether it is right itself; a wiped disk or a stranger makes no node right."""
    with pytest.raises(Diverged):
        points_of(4, B, _1=A, _2=A).judge(configuration(1, 2, 3, learners=(4,)), 1)
    assert points_of(1, A, _4=A).judge(configuration(1, 2, 3, learners=(4,)), 1) == (0, 0)
    assert points_of(1, A, _9=A).judge(THREE, 1) == (0, 0)
    points = points_of(1, A)
    points.take(2, disk(7), ((10, A),))
    assert points.judge(THREE, 1) == (0, 0)


def test_remembered_points_are_bounded() -> None:
    """The newest points of each replica, however many come; what a snapshot replaced is forgotten."""
    points = DigestPoints(1)
    for index in range(1, 4 * POINTS_KEPT):
        points.applied(index, A)
        points.take(2, disk(2), ((index, B),))
    assert [index for index, _ in points.reports()] == list(range(3 * POINTS_KEPT, 4 * POINTS_KEPT))
    assert len(points._heard[2][1]) == POINTS_KEPT
    points.agreed = points.differ = 7
    points.restored()
    assert (points.reports(), points.newest, points.is_open, points.agreed, points.differ) == ((), 0, False, 0, 0)


def test_a_point_is_reported_once_every_named_voter_disk_has_reported_it() -> None:
    """That proves that all voters run and are past the point. A majority is not enough, a learner is not asked, and a
    report of a disk that was replaced since does not count.
    """
    points = points_of(1, A, _2=A)
    assert not points.is_reported(THREE, 10)
    points.take(3, disk(9), ((10, A),))
    assert not points.is_reported(THREE, 10)
    points.take(3, disk(3), ((10, B),))
    assert points.is_reported(THREE, 10)
    assert not points.is_reported(THREE, 11)
    assert points.is_reported(configuration(1, 2, outgoing=(1, 2, 3), learners=(4,)), 10)
    assert not points.is_reported(configuration(1, 2, outgoing=(1, 4)), 10)
    assert not DigestPoints(1).is_reported(configuration(1), 10), "it has not applied it itself"


def test_each_member_has_its_newest_report_and_whether_it_is_the_same() -> None:
    """Its own too. A report of a replaced disk is none; a point that this node has not is not compared."""
    points = points_of(1, A, _2=A, _3=B)
    assert points.newest_reports(THREE) == [(1, 10, A, True), (2, 10, A, True), (3, 10, B, False)]
    points.take(2, disk(2), ((20, A),))
    points.take(3, disk(9), ((10, A),))
    assert points.newest_reports(THREE) == [(1, 10, A, True), (2, 20, A, None)]
    assert DigestPoints(1).newest_reports(THREE) == []


def test_a_point_is_due_after_enough_entries_or_while_states_differ() -> None:
    """After so many entries, one at a time; again and again while states differ. No more than are remembered."""
    entries = 9
    machine: Any = SimpleNamespace(
        applied_index=50, entries_since_point=lambda: entries, limits=SimpleNamespace(digests_kept=100)
    )
    points = DigestPoints(1)
    assert not points.is_due(machine, 10, 0.0)
    entries = 10
    assert points.is_due(machine, 10, 0.0)
    points.proposed(51, 0.0)
    assert not points.is_due(machine, 10, 0.0)
    machine.applied_index = 51
    assert points.is_due(machine, 10, 0.0)
    assert not points.is_due(machine, 1_000, 0.0)
    entries = 100
    assert points.is_due(machine, 1_000, 0.0)
    points.applied(51, A)
    points.take(2, disk(2), ((51, B),))
    points.judge(THREE, 1)
    entries = 0
    assert not points.is_due(machine, 10, DIFFER_EVERY_S - 1)
    assert points.is_due(machine, 10, DIFFER_EVERY_S)


@pytest.mark.parametrize("state", ["is_healing", "is_ending"])
def test_a_node_without_a_vote_reports_nothing(state: str) -> None:
    """Another damaged node takes a report as the sign that it may end (docs/decisions/0011)."""
    points = points_of(1, A)
    assert points.reports() == ((10, A),)
    setattr(points, state, True)
    assert points.reports() == ()


def test_a_new_disk_under_the_same_number_inherits_no_report() -> None:
    """Node 2 reported point 10, and its disk was replaced. The new disk has not applied that point until it reports it
    itself."""
    points = points_of(1, A, _2=A, _3=A)
    points.take(2, disk(9), ((20, A),))
    replaced = Configuration(tuple(Member(n, disk(9 if n == 2 else n), "", "") for n in (1, 2, 3)), (1, 2, 3))
    assert not points.is_reported(replaced, 10)
    points.take(2, disk(9), ((10, A),))
    assert points.is_reported(replaced, 10)


def test_a_point_that_was_cut_does_not_hold_up_the_next_one() -> None:
    """A leader without its followers proposed one far ahead, was deposed, and leads again with a shorter log."""
    driver = Driver()
    points = DigestPoints(1)
    for _ in range(3):
        driver.entry(appends())
    assert points.is_due(driver.machine, 3, 0.0)
    points.proposed(100_000, 0.0)
    assert not points.is_due(driver.machine, 3, 1.0)
    points.leadership_changed()
    assert points.is_due(driver.machine, 3, 1.0)
