"""The short form of `make sim`: twelve worlds, some fixed and some fresh, and a check that they are busy.

Each is a test of its own, so that they spread over the cores. `make sim` runs a thousand. A bug that a world found has
a directed story or a mutant: its seed is another world as soon as worlds are drawn another way.
"""

from collections.abc import Callable
from statistics import median

import pytest

from raftlog.chaos.sim.runs import report
from raftlog.chaos.sim.runs.runner import Job, run_job
from raftlog.chaos.sim.runs.summary import FLOORS
from tests.support import fresh_seed

SECONDS = 15

FIXED = range(8)
MEDIANS = range(100, 107)
FRESH = 4


def held(job: Job) -> dict[str, int]:
    """The numbers of a job; the test fails with its story if it does."""
    print(job.command)
    result = run_job(job)
    if result.broken is not None:
        pytest.fail("\n".join(report.short(result, result.broken)), pytrace=False)
    return result.stats


@pytest.mark.parametrize("seed", FIXED)
def test_fixed_seed(seed: int) -> None:
    """Every property holds in it, the healed cluster agrees, and clients were served."""
    stats = held(Job(seed, SECONDS))
    assert stats["healed runs"] == 1
    assert stats["client operations"] > 0


@pytest.mark.parametrize("nth", range(FRESH))
def test_fresh_seed(nth: int, record_property: Callable[[str, object], None]) -> None:
    """The same for seeds of today; the command that repeats each is printed."""
    job = Job(fresh_seed(f"world {nth}"), SECONDS)
    record_property("measured", job.command)
    held(job)


def test_the_median_world_is_busy() -> None:
    """In full minutes there are as many client operations, faults and leader changes as `make sim` demands."""
    found = [held(Job(seed)) for seed in MEDIANS]
    for name, (key, floor) in FLOORS.items():
        rates = [stats.get(key, 0) * 60_000 // stats["simulated ms"] for stats in found]
        assert median(rates) >= floor, (name, rates)
