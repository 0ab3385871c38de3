"""Greedy shrinking: finds a short list of faults of a failed seed that still breaks the same property.

Halves of the list are left out, then quarters, down to single faults, as long as the property still breaks; then the
run is made shorter. Leaving a fault out changes what comes after it, so this finds a small list, not the smallest.
(Delta debugging, Zeller and Hildebrandt, 2002.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from raftlog.chaos.sim.runs.runner import Job, Result, SeedFailure

Run = Callable[[Job], Result]


@dataclass(slots=True)
class ShrinkState:
    """The shortest list so far: `best` still breaks the property that `first` broke."""

    first: Result
    best: Result
    tries: int = 0
    is_out_of_time: bool = False

    @property
    def faults(self) -> tuple[tuple[int, str], ...]:
        """The faults that are left: number and words."""
        return _broken(self.best).faults


def _broken(result: Result) -> SeedFailure:
    assert result.broken is not None, "only a seed that failed can be shrunk"
    return result.broken


def shrink(
    first: Result, run: Run, has_time: Callable[[], bool], show: Callable[[ShrinkState], None] = lambda _: None
) -> ShrinkState:
    """Shrink `first`, which must have failed. `run` is asked for one job after the other, until not `has_time()`."""
    _broken(first)
    found = ShrinkState(first, first)
    _try_shorter(found, run, has_time, show)
    _leave_out(found, run, has_time, show)
    _try_shorter(found, run, has_time, show)
    return found


def _leave_out(found: ShrinkState, run: Run, has_time: Callable[[], bool], show: Callable[[ShrinkState], None]) -> None:
    size = len(found.faults)
    while size >= 1:
        at, has_shrunk = 0, False
        while at < len(found.faults):
            part = {number for number, _ in found.faults[at : at + size]}
            job = found.best.job
            if not _attempt(found, replace(job, skip=job.skip | part), run, has_time):
                at += size
            else:
                has_shrunk = True
            show(found)
            if found.is_out_of_time:
                return
        if size == 1 and not has_shrunk:
            return  # every single fault that is left is needed
        size = max(1, size // 2) if size > 1 or has_shrunk else 0


def _try_shorter(
    found: ShrinkState, run: Run, has_time: Callable[[], bool], show: Callable[[ShrinkState], None]
) -> None:
    """Fewer simulated seconds: until the property broke, or, if it broke after the healing, ever fewer."""
    job = found.best.job
    needed = -(-_broken(found.best).at_us // 1_000_000)
    if 0 < needed < job.seconds:
        _attempt(found, replace(job, seconds=needed), run, has_time)
        show(found)
    while (job := found.best.job).seconds > 1:
        if not _attempt(found, replace(job, seconds=job.seconds // 2), run, has_time):
            return
        show(found)


def _attempt(found: ShrinkState, job: Job, run: Run, has_time: Callable[[], bool]) -> bool:
    """Whether that job breaks the same property with no more faults than before; if so it is the best from now on."""
    if not has_time():
        found.is_out_of_time = True
        return False
    found.tries += 1
    result = run(job)
    before, after = _broken(found.best), result.broken
    is_smaller = (
        after is not None
        and after.property == before.property
        and (len(after.faults), job.seconds) < (len(before.faults), found.best.job.seconds)
    )
    if is_smaller:
        found.best = result
    return is_smaller
