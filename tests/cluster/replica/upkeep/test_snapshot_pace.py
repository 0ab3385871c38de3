"""The pace at which a node makes its snapshot: half of what other work leaves of the event loop.

A tenth is taken at least, and all of it while there is no other work.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from raftlog.cluster.records import snapshot_stream
from raftlog.cluster.records.snapshot_stream import LATE_TIMES, REST_MAX_S, REST_MIN_S, REST_TIMES, paced
from raftlog.cluster.runtime import clock


def in_time() -> bool:
    """The next snapshot is not due yet."""
    return False


class Making:
    """Chunks that take the given seconds each to make, and the sleeps between them.

    Other work takes the share `busy` of the event loop while the snapshot rests.
    """

    def __init__(self, costs: Sequence[float], monkeypatch: pytest.MonkeyPatch, busy: float = 1.0) -> None:
        self.costs, self.now, self.slept, self.busy, self.used = costs, 0.0, list[float](), busy, 0.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(clock, "thread_s", lambda: self.used)
        monkeypatch.setattr(snapshot_stream, "clock", clock)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        """Others run."""
        self.slept.append(seconds)
        self.now += seconds
        self.used += self.busy * seconds

    def chunks(self, *, empty: bool = False) -> Iterator[bytes]:
        """One after the other."""
        for cost in self.costs:
            self.now += cost
            yield b"" if empty else b"chunk"


async def test_snapshot_making_rests_while_entries_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine times as long as the work took, in rests that a timer can keep."""
    making, applied = Making([0.0003] * 100, monkeypatch), count()
    assert [chunk async for chunk in paced(making.chunks(), lambda: next(applied), in_time)] == [b"chunk"] * 100
    assert min(making.slept) >= REST_MIN_S
    assert sum(making.slept) == pytest.approx(REST_TIMES * 0.03, rel=0.1)


async def test_snapshot_making_does_not_rest_on_an_idle_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the processor would be idle."""
    making = Making([0.003] * 100, monkeypatch)
    assert len([chunk async for chunk in paced(making.chunks(), lambda: 7, in_time)]) == 100
    assert not making.slept


async def test_snapshot_making_rests_less_when_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is due before this one is done: what it holds in memory, and what a start replays, is bounded."""
    making, applied = Making([0.003] * 100, monkeypatch), count()
    is_late = lambda: making.now > 1.0  # noqa: E731
    assert len([chunk async for chunk in paced(making.chunks(), lambda: next(applied), is_late)]) == 100
    assert sum(making.slept) == pytest.approx(REST_TIMES * 0.1 + LATE_TIMES * 0.2, rel=0.1)


@pytest.mark.parametrize(("busy", "times"), [(0.0, 1.0), (0.2, 1.5), (0.5, 3.0), (0.8, 9.0), (1.0, 9.0)])
async def test_snapshot_making_takes_half_of_the_free_time(
    busy: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that does little else gives half of its time, a full one a tenth."""
    making, applied = Making([0.003] * 1_000, monkeypatch, busy), count()
    assert len([chunk async for chunk in paced(making.chunks(), lambda: next(applied), in_time)]) == 1_000
    assert making.slept[-1] == pytest.approx(times * 0.003, rel=0.05)
    assert making.slept[0] == pytest.approx(REST_TIMES * 0.003), "at first it takes the loop for a full one"


async def test_a_rest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where making a chunk took long because somebody else had the processor, the snapshot still gets done."""
    making, applied = Making([5.0, 5.0], monkeypatch), count()
    assert len([chunk async for chunk in paced(making.chunks(), lambda: next(applied), in_time)]) == 2
    assert making.slept == [REST_MAX_S] * 2


@pytest.mark.parametrize("step", [0, 1])
async def test_an_empty_chunk_is_a_pause(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept, and others run, whether there is work or not."""
    making, applied = Making([0.0001] * 10, monkeypatch), count(0, step)
    assert [chunk async for chunk in paced(making.chunks(empty=True), lambda: next(applied), in_time)] == []
    assert len(making.slept) == 10
