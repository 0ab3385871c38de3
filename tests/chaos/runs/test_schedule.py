"""The schedule of faults: a function of its seed, in lanes that never have two faults at once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings, strategies as st

from raftlog.chaos.nemesis import NEMESES
from raftlog.chaos.record.times import overlapping_max
from raftlog.chaos.runs.scenarios import ALWAYS
from raftlog.chaos.runs.schedule import (
    ALWAYS_EVERY_S,
    GAP_S,
    QUIET_END_S,
    QUIET_START_S,
    PlannedFault,
    schedule,
)

KINDS = {each.name: (each.lane, each.lasts_s) for each in NEMESES.values()}
HEAVY = {each.name for each in NEMESES.values() if each.is_heavy}


def test_a_seed_draws_one_schedule() -> None:
    """The same seed draws the same faults down to their last digit, whatever order the kinds are named in; another
    seed draws others."""
    one = schedule(7, 60, KINDS)
    assert one == schedule(7, 60, dict(reversed(KINDS.items())))
    assert one != schedule(8, 60, KINDS)
    assert str(one[0]).split() == ["1", "1.870", "s", "3.564", "s", "network", "partition-minority"]


@given(seed=st.integers(0, 1 << 40), seconds=st.floats(5, 300), names=st.sets(st.sampled_from(sorted(KINDS))))
@settings(max_examples=100)
def test_lanes_have_one_fault_at_a_time(seed: int, seconds: float, names: set[str]) -> None:
    """Faults lie within the run, last as long as their kind may, and those of one lane follow each other with a gap;
    so there are never more at once than there are lanes."""
    planned = schedule(seed, seconds, {name: KINDS[name] for name in names})
    lanes: dict[str, list[PlannedFault]] = {}
    for each in planned:
        lane, (least, most) = KINDS[each.nemesis]
        assert each.nemesis in names
        assert each.lane == lane
        assert least - 0.001 <= each.lasts_s <= most + 0.001
        assert each.at_s >= QUIET_START_S
        assert each.at_s + each.lasts_s <= seconds - QUIET_END_S
        lanes.setdefault(lane, []).append(each)
    for faults in lanes.values():
        assert all(after.at_s >= before.at_s + before.lasts_s + GAP_S[0] - 0.002 for before, after in pairwise(faults))
    assert [each.number for each in planned] == list(range(1, len(planned) + 1))
    assert overlapping_max((each.at_s, each.at_s + each.lasts_s) for each in planned) <= len(lanes)


def test_every_kind_comes_before_any_comes_again() -> None:
    """A long run has all kinds of a lane, and a kind comes again only after all others have."""
    planned = [each.nemesis for each in schedule(3, 600, KINDS) if each.lane == "network"]
    kinds = {name for name, (lane, _) in KINDS.items() if lane == "network"}
    assert len(planned) > 5 * len(kinds)
    assert set(planned[: len(kinds)]) == kinds
    assert len(schedule(3, 600, KINDS)) >= 100
    assert overlapping_max((each.at_s, each.at_s + each.lasts_s) for each in schedule(3, 600, KINDS)) == 4


@given(seed=st.integers(0, 1 << 40), seconds=st.floats(30, 300), names=st.sets(st.sampled_from(sorted(KINDS))))
@settings(max_examples=50)
def test_some_kinds_come_in_every_run(seed: int, seconds: float, names: set[str]) -> None:
    """The first fault of their lane is one of them, and another one comes before long; over a long run each comes."""
    planned = schedule(seed, seconds, {name: KINDS[name] for name in names | set(ALWAYS)}, HEAVY, ALWAYS)
    for lane in {KINDS[name][0] for name in ALWAYS}:
        own = [each for each in planned if each.lane == lane]
        always = [each for each in own if each.nemesis in ALWAYS]
        assert own[0].nemesis in ALWAYS
        longest_s = max(most for of_lane, (_, most) in KINDS.values() if of_lane == lane)
        for before, after in pairwise(always):
            assert after.at_s - before.at_s <= ALWAYS_EVERY_S + longest_s + GAP_S[1] + 0.01
    if seconds > 120:
        assert {each.nemesis for each in planned} >= set(ALWAYS)


def test_heavy_kinds_come_less_often_beside_others() -> None:
    """Of the kinds that take many starts one in four comes in each turn of the others, and in the end all of them do;
    where there is nothing else they come as others do."""
    names = [each.nemesis for each in schedule(5, 3_600, KINDS, HEAVY) if each.lane == "process"]
    heavy = [name for name in names if name in HEAVY]
    light = [name for name in names if name not in HEAVY]
    assert set(heavy) == HEAVY
    turns = len(light) / len(set(light))
    assert len(HEAVY) / 4 * (turns - 1) <= len(heavy) <= (len(HEAVY) / 4 + 1) * (turns + 1)
    alone = [each.nemesis for each in schedule(5, 600, {name: KINDS[name] for name in HEAVY}, HEAVY)]
    assert set(alone[: len(HEAVY)]) == HEAVY
