"""Shrinking: the small list is found, the property stays the same, and time bounds it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from raftlog.chaos.sim.runs.runner import Job, Result, SeedFailure, planted, run_job
from raftlog.chaos.sim.runs.shrink import ShrinkState, shrink

MUTANT = "older_term_committed_by_counting"


def failing(
    needed: set[int], *, total: int = 40, at_s: int = 50, other: set[int] | None = None
) -> Callable[[Job], Result]:
    """A seed of `total` faults that breaks "p" at a time while all those in `needed` happen, "q" without `other`."""

    def run(job: Job) -> Result:
        left = [number for number in range(1, total + 1) if number not in job.skip]
        faults = tuple((number, f"fault {number}") for number in left)
        if job.seconds < at_s or not needed <= set(left):
            return Result(job, 0.0)
        name = "p" if other is None or other <= set(left) else "q"
        return Result(job, 0.0, broken=SeedFailure(name, "d", at_s * 1_000_000, faults))

    return run


def shrunk(run: Callable[[Job], Result], job: Job | None = None) -> ShrinkState:
    return shrink(run(job or Job(1)), run, lambda: True)


@pytest.mark.parametrize("needed", [set[int](), {7}, {1, 40}, {3, 4, 5}, {2, 11, 12, 30, 39}, set(range(1, 41))])
def test_only_what_is_needed_is_left(needed: set[int]) -> None:
    """Whichever faults break it, exactly those are left, and the time goes down to the moment it breaks."""
    found = shrunk(failing(needed))
    assert {number for number, _ in found.faults} == needed
    assert found.best.job.seconds == 50
    assert found.best.job.skip == frozenset(range(1, 41)) - needed
    assert not found.is_out_of_time


def test_it_is_much_cheaper_than_trying_all() -> None:
    """Halves first: two of 512 faults are found in some dozens of runs."""
    found = shrunk(failing({100, 400}, total=512))
    assert found.tries < 60


def test_another_property_is_not_taken_for_the_same() -> None:
    """A list that breaks something else is no smaller form of this failure."""
    found = shrunk(failing({5}, other={5, 6}))
    assert {number for number, _ in found.faults} == {5, 6}
    assert found.best.broken is not None
    assert found.best.broken.property == "p"


def test_faults_that_were_left_out_stay_out() -> None:
    """Shrinking goes on from a job that skips some already."""
    found = shrunk(failing({5}), Job(1, skip=frozenset({1, 2, 3})))
    assert {number for number, _ in found.faults} == {5}
    assert {1, 2, 3} <= found.best.job.skip


def test_it_stops_when_the_time_is_over() -> None:
    """The best so far still breaks the property, and it is said that time ran out."""
    left = iter(range(10))
    found = shrink(failing({7})(Job(1)), failing({7}), lambda: next(left, None) is not None)
    assert found.is_out_of_time
    assert found.tries == 10
    assert found.best.broken is not None
    assert len(found.faults) < 40


def test_new_faults_in_place_of_old_ones_do_not_keep_it_going() -> None:
    """A list that only changes, as when the faults left out make room for others, is not taken for a smaller one."""

    def run(job: Job) -> Result:
        first = 1 + len(job.skip)
        faults = tuple((number, "f") for number in range(first, first + 20) if number not in job.skip)
        return Result(job, 0.0, broken=SeedFailure("p", "d", 60_000_000, faults))

    assert shrunk(run).tries < 200


def test_what_breaks_after_the_healing_is_tried_with_less_trouble() -> None:
    """A cluster that does not agree breaks at the very end: the time before it is halved as long as it does."""

    def run(job: Job) -> Result:
        broken = SeedFailure("p", "d", job.seconds * 1_000_000 + 60_000_000, ()) if job.seconds >= 7 else None
        return Result(job, 0.0, broken=broken)

    assert shrunk(run).best.job.seconds == 7


def test_a_planted_bug_is_shrunk() -> None:
    """A real seed: fewer faults break the same property, and the printed job does so when it is run again."""
    with planted(MUTANT):
        first = next(
            result
            for result in (run_job(Job(seed, 10, mutant=MUTANT)) for seed in range(60))
            if result.broken is not None
        )
        assert first.broken is not None
        left = iter(range(25))
        found = shrink(first, run_job, lambda: next(left, None) is not None)
        again = run_job(found.best.job)
    assert again.broken is not None
    assert again.broken.property == first.broken.property
    assert (again.digest, again.broken.faults) == (found.best.digest, found.faults)
    assert len(found.faults) <= len(first.broken.faults)
    assert found.best.job == replace(first.job, skip=found.best.job.skip, seconds=found.best.job.seconds)
