"""Defines the named runs: the faults and workloads of each, and the events that a verdict requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.chaos.nemesis import FAMILIES, NEMESES, Nemesis, chosen

WORKLOADS: Final = ("register", "log", "set", "bank", "lists", "direct", "direct-keys")

DIRECT_WORKLOADS: Final = ("direct", "direct-keys")
"""These ask each node directly and once, past the proxies."""

RATE_MIN: Final = 20.0
"""Operations a second that were carried out, on average: below it too little happened for a verdict."""

TRIED_MIN: Final = 20
"""Operations of one kind in a workload of which one at least must be carried out."""

INSTALLED_SHARE_MIN: Final = 0.8
"""Of the faults that were due, how many must have taken effect."""

ALWAYS: Final = ("left-behind", "power-cut-slow", "power-cut-leader")
"""Faults that every run has: a follower that needs a snapshot, and power cuts of all nodes. `calm` and `failover`
have none: they measure.
"""

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
    always: tuple[str, ...] = ALWAYS  # nemeses of every run; where there are some, a run without installs is no verdict


_SMOKE: Final = (
    "partition-leader", "partition-halves", "partition-outward", "kill-leader", "kill-one", "pause-leader",
)  # fmt: skip

SCENARIOS: Final[Mapping[str, Scenario]] = {
    each.name: each
    for each in (
        Scenario(name="all", says="every fault there is, up to three at a time", nemeses=tuple(NEMESES)),
        Scenario(name=CALM, says="no fault: what the harness itself costs", nemeses=(), faults_min=0,
                 always=()),
        Scenario(name="smoke", says="partitions, kills and pauses of short runs", nemeses=_SMOKE,
                 workloads=("register", "log", "direct", "direct-keys"), faults_min=3),
        Scenario(name=FAILOVER, says="leaders lost one after the other: how soon writes go on",
                 nemeses=("kill-leader", "pause-leader", "partition-leader"), workloads=("log",), always=()),
        *(
            Scenario(name=family, says=f"only {', '.join(each.name for each in members)}",
                     nemeses=tuple(each.name for each in members))
            for family, members in FAMILIES.items()
        ),
    )
}  # fmt: skip


def scenario_of(name: str) -> Scenario:
    """The scenario of that name. Raises UnknownScenario."""
    try:
        return SCENARIOS[name]
    except KeyError:
        known = ", ".join(SCENARIOS)
        raise UnknownScenario(f"there is no scenario {name!r}; there are: {known}") from None


def nemeses_of(scenario: Scenario, names: tuple[str, ...], nodes: int) -> tuple[Nemesis, ...]:
    """The nemeses of the scenario, or the given `names` instead, that fit that many nodes; then those that every run
    has.
    """
    return tuple(each for each in chosen((*(names or scenario.nemeses), *scenario.always)) if each.nodes_min <= nodes)
