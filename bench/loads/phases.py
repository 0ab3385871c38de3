"""Sorts requests by the phase of the run in which they were due: latencies by what the nodes' own log lines report.

A percentile over a whole window does not say what cost it. Moments are seconds of `time.monotonic`, which all processes
of a machine share; what a node logs is in wall-clock time and is moved over.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.instruments.figures import at
from bench.loads.openloop import Each


class Moment(NamedTuple):
    """From here on it is another phase."""

    at: float
    phase: str


class Phase(msgspec.Struct, frozen=True):
    """All requests that were due while a phase lasted, in all windows together; latencies in milliseconds."""

    name: str
    seconds: float  # of load
    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def moments_of(log: Path, phase: Callable[[dict[str, Any]], str | None]) -> Iterator[Moment]:
    """The lines of a node's log with which a phase begins: `phase` names it, or None."""
    moved = time.monotonic() - time.time()
    for line in log.read_bytes().splitlines():
        if not line.startswith(b"{"):
            continue  # what a process wrote past its logger
        told = msgspec.json.decode(line)
        if (name := phase(told)) is not None:
            yield Moment(datetime.fromisoformat(told["timestamp"]).timestamp() + moved, name)


def fold(runs: Iterable[Each], moments: Iterable[Moment], first: str) -> list[Phase]:
    """Every request under the phase in which it was due; requests before all moments belong to `first`.

    The phases are in the order of their first moments.
    """
    ordered = sorted(moments)
    times, names = [moment.at for moment in ordered], [first, *(moment.phase for moment in ordered)]
    found: dict[str, list[float]] = {name: [] for name in names}
    seconds = dict.fromkeys(found, 0.0)
    for run in runs:
        for due, latency in zip(run.due_s, run.latencies_ms, strict=True):
            found[names[bisect_right(times, run.began + due)]].append(latency)
            seconds[names[bisect_right(times, run.began + due)]] += 1 / run.offered.offered_per_second
    return [_phase(name, seconds[name], sorted(latencies)) for name, latencies in found.items() if latencies]


def _phase(name: str, seconds: float, latencies: Sequence[float]) -> Phase:
    return Phase(name, round(seconds, 2), len(latencies), at(latencies, 0.5), at(latencies, 0.99), latencies[-1])
