"""The clock library on a small process: its wall clock jumps, drifts and comes back, its monotonic clock stays true."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raftlog.chaos.shim.clock import Clock
from raftlog.chaos.shim.library import ShimMissing

pytestmark = pytest.mark.serial

VICTIM = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""
NEAR_S = 20.0  # of hours: the machine may be busy


def test_a_clock_jumps_and_drifts_while_its_process_runs(tmp_path: Path) -> None:
    """An hour back, an hour ahead, a thousand times as fast, backwards, and right again; a wait by the monotonic clock
    is none the wiser."""
    try:
        clock = Clock(tmp_path, "victim")
    except ShimMissing as error:
        pytest.skip(str(error))
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None

        def read() -> float:
            """By how much it is off; its monotonic clock is compared with ours on the way."""
            assert victim.stdin is not None
            assert victim.stdout is not None
            before_s = time.monotonic()
            victim.stdin.write("\n")
            victim.stdin.flush()
            wall, monotonic = (float(word) for word in victim.stdout.readline().split())
            assert before_s <= monotonic <= time.monotonic()
            return wall - time.time()

        assert abs(read()) < NEAR_S
        for offset_s in (-3_600, 3_600):
            clock.set(offset_s)
            assert abs(read() - offset_s) < NEAR_S
        clock.set(rate=1_000)
        first = read()
        assert first > 0
        assert read() > first
        clock.set(rate=-1_000)
        first = read()
        assert first < 0
        assert read() < first
        clock.set()
        assert abs(read()) < NEAR_S
        victim.stdin.close()
