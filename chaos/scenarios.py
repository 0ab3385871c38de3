"""The named runs: which faults and which workloads belong to each, and what must have happened for a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chaos.nemesis import FAMILIES, NEMESES, Nemesis, chosen

WORKLOADS: Final = ("register", "log", "set", "bank", "lists")

RATE_MIN: Final = 20.0
"""Operations a second that were carried out, on average: below it too little happened for a verdict."""

INSTALLED_SHARE_MIN: Final = 0.8
"""Of the faults that were due, how many must have taken effect."""

FAILOVER: Final = "failover"
ETCD: Final = "etcd"
ETCD_STALE: Final = "etcd-stale"
"""Against a real etcd: that the harness finds nothing where there is nothing, and what there is."""


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


_SMOKE: Final = (
    "partition-leader", "partition-halves", "partition-outward", "kill-leader", "kill-one", "pause-leader",
)  # fmt: skip

SCENARIOS: Final[Mapping[str, Scenario]] = {
    each.name: each
    for each in (
        Scenario(name="all", says="every fault there is, up to three at a time", nemeses=tuple(NEMESES)),
        Scenario(name="calm", says="no fault: what the harness itself costs", nemeses=(), faults_min=0),
        Scenario(name="smoke", says="partitions, kills and pauses of short runs", nemeses=_SMOKE,
                 workloads=("register", "log"), faults_min=3),
        Scenario(name=FAILOVER, says="leaders lost one after the other: how soon writes go on",
                 nemeses=("kill-leader", "pause-leader", "partition-leader"), workloads=("log",)),
        Scenario(name=ETCD, says="a real etcd instead of raftlog: must be valid", nemeses=("partitions", "kills"),
                 workloads=("register",)),
        Scenario(name=ETCD_STALE, says="an etcd whose members answer reads by themselves: must be invalid",
                 nemeses=("partitions",), workloads=("register",)),
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
    """Those of the scenario, or the `names` that were asked for instead, as far as they fit that many nodes."""
    return tuple(each for each in chosen(names or scenario.nemeses) if each.nodes_min <= nodes)
