"""Breaks a cluster: the families of faults, and the table of all of them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from raftlog.chaos.nemesis import (
    clients,
    clocks,
    disks,
    elections,
    files,
    links,
    members,
    partitions,
    restarts,
    signals,
    sinks,
)
from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis

__all__ = ["FAMILIES", "NEMESES", "FaultSkipped", "Field", "Injection", "Nemesis", "UnknownNemesis", "chosen"]

FAMILIES: Final[Mapping[str, tuple[Nemesis, ...]]] = {
    "partitions": partitions.NEMESES,
    "links": links.NEMESES,
    "clients": clients.NEMESES,
    "kills": signals.KILLS,
    "pauses": signals.PAUSES,
    "elections": elections.NEMESES,
    "restarts": restarts.NEMESES,
    "disk": disks.NEMESES,
    "files": files.NEMESES,
    "members": members.NEMESES,
    "clock": clocks.NEMESES,
    "sinks": sinks.NEMESES,
}

NEMESES: Final[Mapping[str, Nemesis]] = {each.name: each for family in FAMILIES.values() for each in family}


class UnknownNemesis(ValueError):
    """A name that no nemesis has; the message lists those that there are."""


def chosen(names: Sequence[str]) -> tuple[Nemesis, ...]:
    """The nemeses of these names, of nemeses or families, each once. Raises UnknownNemesis."""
    found: dict[str, Nemesis] = {}
    for name in names:
        if name in FAMILIES:
            found |= {each.name: each for each in FAMILIES[name]}
        elif name in NEMESES:
            found[name] = NEMESES[name]
        else:
            raise UnknownNemesis(
                f"there is no nemesis {name!r}; families: {', '.join(FAMILIES)}; nemeses: {', '.join(NEMESES)}"
            )
    return tuple(found.values())
