"""The pace at which a node makes its snapshot: a tenth of the event loop while there is other work, all of it else."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from cluster import clock, snapshots
from cluster.snapshots import LATE_TIMES, REST_MAX_S, REST_MIN_S, REST_TIMES, paced


def in_time() -> bool:
    """The next snapshot is not due yet."""
    return False


class Making:
    """Chunks that take so many seconds each to make, and what was slept between them."""

    def __init__(self, costs: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs, self.now, self.slept = costs, 0.0, list[float]()
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(snapshots, "clock", clock)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        """Others run."""
        self.slept.append(seconds)

    def chunks(self, *, empty: bool = False) -> Iterator[bytes]:
        """One after the other."""
        for cost in self.costs:
            self.now += cost
            yield b"" if empty else b"chunk"


async def test_it_rests_while_entries_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine times as long as the work took, in rests that a timer can keep."""
    making, applied = Making([0.0003] * 100, monkeypatch), count()
    assert [chunk async for chunk in paced(making.chunks(), lambda: next(applied), in_time)] == [b"chunk"] * 100
    assert min(making.slept) >= REST_MIN_S
    assert sum(making.slept) == pytest.approx(REST_TIMES * 0.03, rel=0.1)


async def test_it_does_not_rest_while_nothing_else_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the processor would be idle."""
    making = Making([0.003] * 100, monkeypatch)
    assert len([chunk async for chunk in paced(making.chunks(), lambda: 7, in_time)]) == 100
    assert not making.slept


async def test_it_rests_less_when_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is due before this one is done: what it holds in memory, and what a start replays, is bounded."""
    making, applied = Making([0.003] * 100, monkeypatch), count()
    assert (
        len([chunk async for chunk in paced(making.chunks(), lambda: next(applied), lambda: making.now > 0.1)]) == 100
    )
    assert sum(making.slept) == pytest.approx(REST_TIMES * 0.1 + LATE_TIMES * 0.2, rel=0.1)


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
