"""Defines the named runs: the faults and workloads of each, and the events that a verdict requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.chaos.nemesis import FAMILIES, NEMESES, Nemesis, chosen
from raftlog.chaos.runs.schedule import PlannedFault

WORKLOADS: Final = ("register", "log", "set", "bank", "lists", "direct", "direct-keys", "sink")

DIRECT_WORKLOADS: Final = ("direct", "direct-keys")
"""These ask each node directly and once, past the proxies."""

RATE_MIN: Final = 20.0
"""Operations a second that were carried out, on average: below it too little happened for a verdict."""

TRIED_MIN: Final = 20
"""Operations of one kind in a workload of which one at least must be carried out."""

INSTALLED_SHARE_MIN: Final = 0.8
"""Of the faults that were due, how many must have taken effect."""

ALWAYS: Final = ("left-behind", "power-cut-slow", "power-cut-leader")
"""Faults that come first in their lanes, and again and again: a follower that needs a snapshot, and power cuts of all
nodes. `calm` and `failover` have none: they measure. A family has those of its own.
"""

POWER_CUTS: Final = tuple(name for name in ALWAYS if name.startswith("power-cut"))
LONG_S: Final = 60.0
"""From this length on `smoke` has them too, and a run with `left-behind` must show snapshots, trims and backfills."""

CALM: Final = "calm"
FAILOVER: Final = "failover"


class UnknownScenario(ValueError):
    """A name that no scenario has; the message lists those that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of run."""

    name: str
    says: str
    nemeses: tuple[str, ...]
    workloads: tuple[str, ...] = WORKLOADS
    faults_min: int = 1
    pace: float = 1.0  # think times of the load are multiplied by it
    always: tuple[str, ...] = ALWAYS  # nemeses that come first, and again and again
    always_from_s: float = 0.0  # only in runs of this length


_SMOKE: Final = (
    "partition-leader",
    "partition-halves",
    "partition-outward",
    "kill-leader",
    "kill-one",
    "pause-leader",
    "kill-sink",
    "pause-sink",
)

SCENARIOS: Final[Mapping[str, Scenario]] = {
    each.name: each
    for each in (
        Scenario(name="all", says="every fault there is, up to four at a time", nemeses=tuple(NEMESES)),
        Scenario(name=CALM, says="no fault: what the harness itself costs", nemeses=(), faults_min=0, always=()),
        Scenario(
            name="smoke",
            says=f"partitions, kills and pauses; from {LONG_S:g} s on also {', '.join(ALWAYS)}",
            nemeses=_SMOKE,
            workloads=("register", "log", "direct", "direct-keys", "sink"),
            faults_min=3,
            always_from_s=LONG_S,
        ),
        Scenario(
            name=FAILOVER,
            says="leaders lost one after the other: how soon writes go on",
            nemeses=("kill-leader", "pause-leader", "partition-leader"),
            workloads=("log",),
            always=(),
        ),
        *(
            Scenario(
                name=family,
                says=f"only {', '.join(each.name for each in members)}",
                nemeses=tuple(each.name for each in members),
                always=tuple(each.name for each in members if each.name in ALWAYS),
            )
            for family, members in FAMILIES.items()
        ),
    )
}


def scenario_of(name: str) -> Scenario:
    """The scenario of that name. Raises UnknownScenario."""
    try:
        return SCENARIOS[name]
    except KeyError:
        known = ", ".join(SCENARIOS)
        raise UnknownScenario(f"there is no scenario {name!r}; there are: {known}") from None


def always_of(scenario: Scenario, names: tuple[str, ...], seconds: float) -> tuple[str, ...]:
    """The nemeses that come first in a run of that length; none beside given `names`."""
    return () if names or seconds < scenario.always_from_s else scenario.always


def nemeses_of(scenario: Scenario, names: tuple[str, ...], nodes: int, seconds: float) -> tuple[Nemesis, ...]:
    """The nemeses of the scenario that fit that many nodes and a run of that length, or the given `names` instead."""
    named = (*(names or scenario.nemeses), *always_of(scenario, names, seconds))
    return tuple(each for each in chosen(named) if each.nodes_min <= nodes)


@dataclass(frozen=True, slots=True)
class VerdictNeeds:
    """What a verdict of a run needs beside a sound history: what its schedule can reach, known before it starts.

    `events`: how many snapshots, trims and backfills inside the nodes, of each kind.
    """

    faults: int
    events: int
    power_cut: bool

    def __str__(self) -> str:
        more = (
            [f"snapshots installed, trims and segments backfilled: {self.events} or more of each"]
            if self.events
            else []
        )
        more += ["a power cut of all nodes"] if self.power_cut else []
        return "; ".join([f"faults that take effect: {self.faults} or more", *more])


def needs_of(scenario: Scenario, planned: Sequence[PlannedFault], seconds: float) -> VerdictNeeds:
    """What a run with that schedule is asked for."""
    kinds = {each.nemesis for each in planned}
    return VerdictNeeds(
        scenario.faults_min, int(seconds // LONG_S) if "left-behind" in kinds else 0, not kinds.isdisjoint(POWER_CUTS)
    )
