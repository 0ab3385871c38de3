"""Holds the result of one seed: its faults, its numbers, the digest of its trace.

A run that fails raises a `raftlog.chaos.sim.ground.failure.Failure` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raftlog.raft.types import NodeId


@dataclass(frozen=True, slots=True)
class Fault:
    """Something the nemesis did. `number` counts those it wanted to do, so it names the same one in every run.

    `lasts_us` is 0 for a fault that is over at once or has no set end."""

    number: int
    now_us: int
    kind: str
    nodes: tuple[NodeId, ...]
    detail: str
    lasts_us: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed. `digest` is that of its trace; `stats` counts what happened, sorted by name."""

    seed: int
    digest: str
    stats: dict[str, int]
    faults: tuple[Fault, ...] = ()
    history: Any = None
