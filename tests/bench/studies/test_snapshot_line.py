"""Tests the verdicts on a snapshot over a slow line, from its measurements."""

from bench.instruments.conditions import Conditions
from bench.instruments.machine import Disk
from bench.studies.snapshot_line import GOAL_MB_S, Result, Sent

SEEN = Conditions(Disk("ext4", 100, 100.0, 200.0), 0.0)
SIZE = 100_000_000


def judged(*mb_s: float, received: int = SIZE) -> list[str]:
    """The faults of a run with these speeds, and so many bytes received where the links were cut."""
    whole = [Sent(SIZE, SIZE / 1e6 / speed, SIZE) for speed in mb_s]
    return Result("", SEEN, 25, 300.0, whole, Sent(SIZE, 2.0, received)).faults


def test_the_slowest_snapshot_and_doubled_bytes_are_judged() -> None:
    """One below the goal is a fault, and so is a cut after which half of it came again."""
    assert judged(GOAL_MB_S + 1, 90.0, received=SIZE + SIZE // 4) == []
    assert judged(90.0, 55.0) == ["55.0 MB/s, not 60"]
    assert judged(90.0, received=2 * SIZE) == ["after a cut 200,000,000 bytes came of 100,000,000"]
