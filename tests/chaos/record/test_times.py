"""Tests the measured time without acknowledged writes around a fault, and its leaders."""

from __future__ import annotations

import pytest

from raftlog.chaos.record.times import (
    Stretch,
    leaders_of,
    quantiles,
    standstill,
    without_leader,
    without_leader_s,
)
from raftlog.chaos.workloads.observer import SILENT, Observer
from raftlog.chaos.workloads.workload import Arena

S = 1_000_000_000


@pytest.mark.parametrize(
    ("progress", "longest_s", "recovery_s"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 1, 1),  # as if nothing had happened
        ([1, 2, 8, 9], 6, 3),  # from the last write before it to the first after it
        ([1, 3, 4, 9], 5, 4),  # it goes on for a while: the longest stretch counts
        ([6, 7], 3, 1),  # nothing before the fault: counted from its beginning
        ([1, 2], 3, None),  # nothing any more: counted to its end
        ([], 2, None),
    ],
)
def test_a_standstill_lasts_from_one_acknowledged_write_to_the_next(
    progress: list[int], longest_s: float, recovery_s: float | None
) -> None:
    """Of a fault from second 3 to second 5."""
    told = standstill([at * S for at in progress], 3 * S, 5 * S)
    assert (told.longest_s, told.recovery_s) == (longest_s, recovery_s)


def test_quantiles_are_values_that_are_there() -> None:
    """The median of two is the later, the last share is the greatest."""
    assert quantiles([4, 1, 3, 2]) == {"p50": 3, "p90": 4, "p99": 4, "max": 4}
    assert quantiles([0.123456], 3)["p50"] == 0.123
    assert quantiles([]) == {}


def test_each_seen_leader_counts_once() -> None:
    """Every leader that was seen counts once; time counts as without one where none said so, two at once do not
    count twice."""
    stretches = [
        Stretch(1, "leader", 2, 0, 4 * S),
        Stretch(2, "follower", 2, 0, 5 * S),
        Stretch(1, "silent", 2, 4 * S, 9 * S),
        Stretch(2, "leader", 3, 6 * S, 8 * S),
        Stretch(3, "leader", 4, 7 * S, 9 * S),
        Stretch(3, "leader", 4, 9 * S, 10 * S),
    ]
    assert leaders_of(stretches) == [(2, 1), (3, 2), (4, 3)]
    assert without_leader(stretches, 10 * S) == [(4 * S, 6 * S)]
    assert without_leader(stretches, 12 * S) == [(4 * S, 6 * S), (10 * S, 12 * S)]
    assert without_leader([], 3 * S) == [(0, 3 * S)]
    assert without_leader_s(stretches, 10 * S) == 2


def test_a_silent_node_is_silent_since_it_was_last_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that stands still leads until its last answer, not until somebody noticed that there is no other."""
    arena = Arena(seed=1)
    observer = Observer(arena, {})
    for now_s, role in ((1, "leader"), (2, "leader"), (5, SILENT), (6, SILENT), (7, "follower")):
        monkeypatch.setattr(Arena, "now_ns", lambda _, now_s=now_s: now_s * S)
        observer._saw(1, role, 3)
    told = [(each.role, each.from_ns // S, each.until_ns // S) for each in observer.stretches]
    assert told == [("leader", 1, 2), (SILENT, 2, 7), ("follower", 7, 7)]


def test_a_late_answer_is_noted_after_the_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that stood still for less than the time-out of a question was silent all the same."""
    arena = Arena(seed=1)
    observer = Observer(arena, {})
    now_ns = [0]
    monkeypatch.setattr(Arena, "now_ns", lambda _: now_ns[0])
    for asked_ms, answered_ms, told in (
        (0, 10, ("leader", 3)),
        (100, 120, ("leader", 3)),
        (200, 650, ("follower", 4)),
        (700, 1_000, None),
    ):
        now_ns[0] = answered_ms * 1_000_000
        observer._heard(1, asked_ms * 1_000_000, told)
    seen = [(each.role, each.from_ns // 1_000_000, each.until_ns // 1_000_000) for each in observer.stretches]
    assert seen == [("leader", 10, 120), (SILENT, 120, 650), ("follower", 650, 650), (SILENT, 650, 1_000)]
