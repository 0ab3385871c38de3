"""The short form of `make sim`: fixed seeds, a few random ones, and a check that they are not idle.

Each is a test of its own, so that they spread over the cores. `make sim` runs a thousand.
"""

from collections.abc import Callable
from statistics import median

import pytest

from raftlog.chaos.sim.runs import report
from raftlog.chaos.sim.runs.runner import Job, run_job
from raftlog.chaos.sim.runs.summary import FLOORS
from tests.support import fresh_seed

SECONDS = 30

FIXED = range(20)
MEDIANS = range(100, 107)
FRESH = 6

# Seeds that found something, and what. They are other worlds as soon as worlds are drawn another way.
TOLD = {
    100: "a damaged snapshot counted as dispensable, and the log that made up for it was compacted",
    100768: "a snapshot of its own, saved while a newer one was installed, was behind the log's first entry",
    100783: "an old copy of a disk was started under watch until its boot counter was as high as the newest seen",
    200250: "effects whose sync had failed were taken from the page cache at the next start, and lost at a power cut",
    404031: "a bare quorum was healed for the voters of now while a learner was about to replace one of them",
    600273: "a bit of a durable mark of a sealed segment flipped, and no start made the mark again",
    600391: "a late answer of a transfer that was begun again sent the leader too far ahead, and it never went back",
    611177: "a node was asked to judge by digest points that it may forget",
    611240: "rows of the leader's .idx were lost under it, and no operator looked at that disk in the end",
    620671: "two replicas were made wrong alike, one after the other, and outvoted the right one at a digest point",
    704112: "a segment that was cut and sealed again while scrubbing read it passed for damaged",
    710156: "an empty log was damaged: its node had no vote, and counted for the majority that was to go on alone",
    8000497: "a node whose repair was cut short did not count as lost, and a second disk was damaged",
    8100828: "the answer of a reader was judged by the oldest index of the nodes that were left when its node had died",
    8101196: "an entry that a peer had not synced before its process ended kept the only other voter from campaigning",
    8202035: "a copy of a disk from a time when its node was the only voter led by itself, which no peer can prevent",
    8203475: "a wrong state passed the digest points that its replica applied at once but the newest, and answered",
    8301443: "a learner's state went wrong before its promotion, and no majority of two voters had the right one",
    8500761: "a node that had just joined took a question of a disk that was rolled back before",
    8501607: "a start was thought to look into sealed ledgers: damage there was forgotten, and its repair surprised",
    8600094: "the copy of a write joined it, and had no deadline beside a batch of an earlier term with higher indexes",
    9400012: "a refused copy had its hello looked at with each of its messages, and was warned as often",
    9600050: "a request under a sequence that another one had taken was thought to have the answer of the sequence",
    9600266: "a refused copy that had healed stayed refused by the only other voter that was left",
    9702278: "a process that its leader refused healed with that leader, though a clone of it had promised more",
    9702477: "a process was thought to have lost its own promises, because a clone of it had been met since",
    9800390: "a leader whose disk was damaged handed over before it ended, while its links were broken for a moment",
    9801133: "a follower's disk report came before its peer believed the link, was dropped, and never sent again",
    9801513: "a follower dropped the link to a leader that its configuration does not name, once it had believed it",
    9801899: "a node whose disk had lost no more than a vote counted as intact, and a second disk of three was wiped",
    9930785: "a node was thought to be upgraded whose process, of two on copies of its disk, was the older program",
    9944868: "a leader counted an answer that came after its report to a refused copy, which did not name that entry",
    9950707: "a read of the log asked silent peers one after the other, until long after its client's deadline",
    9950710: "a voter did not answer a candidate that its configuration did not name, and no leader was elected",
    9960202: "a peer's report to a refused copy came too late, because the link was clogged",
    9960330: "a node that had just joined answered at which index a time begins, though it had no entry of that time",
    9970371: "a match that had not changed was judged by the disk of a copy, once the leader had begun a new round",
    9970681: "a wiped disk had an entry in a snapshot, and did not count among those that had held it",
    9990843: "a copy was not started until its peers took it, because its disk was full",
    43852429434: "a durable mark was written while an install was replacing the log",
}


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


@pytest.mark.parametrize("seed", TOLD)
def test_seed_that_found_something(seed: int) -> None:
    """The bug that this seed found stays fixed."""
    held(Job(seed))


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
