"""Counts the seeds of docs/sim_results.jsonl in whose worlds the members change.

    python -m tests.membership_seeds

A world's swarm is drawn from its seed alone (`raftlog.chaos.sim.ground.swarm`), so the record need not list its parts.
The seed determines them for the present sources. Seeds that ran on older sources are counted by the same drawing. If
that was another one then, as many of a hundred had such faults. A seed counts once for each state of the sources.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from raftlog.chaos.sim.ground import swarm
from raftlog.chaos.sim.runs import results

KINDS = {"add", "promote", "remove", "replace"}
"""Faults that ask for a change of the members (chaos/sim/nemesis/members.py)."""


@dataclass(frozen=True)
class Counted:
    """The runs of one state of the sources."""

    sources: str
    seeds: int
    failed: int
    changing: int  # in so many worlds members change


def is_changing(seed: int) -> bool:
    """Whether changes of the members are among the faults of that seed's world."""
    return any(kind in KINDS for kind, _ in swarm.draw(Random(f"{seed} swarm")).faults)


def count(runs: Iterable[dict[str, Any]]) -> list[Counted]:
    """One row for each state of the sources, in the order in which they were run first."""
    by_sources: dict[str, tuple[set[int], set[int]]] = {}
    for run in runs:
        ran, failed = by_sources.setdefault(str(run["sources"]), (set(), set()))
        first, _, end = str(run["seeds"]).partition(":")
        ran.update(range(int(first), int(end)))
        failed.update(run["failed"])
    return [
        Counted(sources, len(ran), len(failed), sum(is_changing(seed) for seed in ran - failed))
        for sources, (ran, failed) in by_sources.items()
    ]


def main() -> int:
    """Prints the rows and their sum."""
    rows = count(results.read())
    print(f"{'sources':16}  {'seeds':>7}  {'failed':>6}  {'without failure, members change':>31}")
    total = Counted("all", sum(r.seeds for r in rows), sum(r.failed for r in rows), sum(r.changing for r in rows))
    for row in [*rows, total]:
        print(f"{row.sources:16}  {row.seeds:7,}  {row.failed:6,}  {row.changing:31,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
