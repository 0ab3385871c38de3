"""What `bench many` counts and says."""

import asyncio

from bench.instruments.conditions import Conditions
from bench.instruments.machine import Disk
from bench.studies.many import APPENDS, GETS, PUTS, Burst, Entry, Result, burst, tell


async def test_a_burst_counts_every_request_and_those_that_failed() -> None:
    """All requests are under way at once, and one that fails does not end the others."""
    under_way = most = 0

    async def make(number: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if number % 4 == 0:
            raise ValueError(f"number {number}")

    seen = await burst(PUTS, make, 100)
    assert most == 100
    assert (seen.kind, seen.failed, seen.error) == (PUTS, 25, "ValueError('number 0')")
    assert seen.seconds > 0


def test_ratios_are_of_the_medians_and_failures_are_faults() -> None:
    """Requests that failed count for nothing; a kind that a peer does not have is left out."""
    ours = Entry("raftlog", [[Burst(PUTS, 1.0, 0), Burst(GETS, 2.0, 0), Burst(APPENDS, 0.5, 10, "no")]])
    peer = Entry("etcd", [[Burst(PUTS, seconds, 0)] for seconds in (4.0, 2.0, 1.0)])
    result = Result("now", Conditions(Disk("ext4", 1, 1.0, 1.0), 0.0), 100, 8, [ours, peer], {})
    text = "\n".join(tell(result))
    assert "puts: 100/s: 2.00x etcd (50/s)" in text
    assert "gets: 50/s\n" in text
    assert result.faults == ["10 of 100 appends failed, one with: no"]
