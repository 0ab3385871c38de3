"""Known mistakes that can be planted in this process, to prove that the tests see them; production never imports this.

docs/mutants.md lists these mistakes with their sources, and the property or test that finds each.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from raftlog.chaos.sim.mutants.consensus import (
    elections,
    hearing,
    members,
    memory,
    promises,
    reads,
    replication,
    snapshots,
    versions,
)
from raftlog.chaos.sim.mutants.disks import bad_disks, damage, disks, keeping, made
from raftlog.chaos.sim.mutants.mutant import CannotPlant, Edit, Mutant
from raftlog.chaos.sim.mutants.service import (
    access,
    http,
    imports,
    links,
    points,
    replica,
    reports,
    restored,
    serving,
    sessions,
    waiting,
)

__all__ = ["MUTANTS", "CannotPlant", "Edit", "Mutant", "named", "plant"]

_MODULES: Final = (
    elections,
    replication,
    reads,
    replica,
    disks,
    bad_disks,
    damage,
    members,
    links,
    memory,
    sessions,
    snapshots,
    points,
    promises,
    versions,
    http,
    keeping,
    serving,
    waiting,
    access,
    restored,
    made,
    reports,
    hearing,
    imports,
)

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in sorted(
        (mutant for module in _MODULES for mutant in module.MUTANTS),
        key=lambda mutant: (mutant.number or 100 + mutant.pitfall, mutant.name),
    )
}


def named(name: str) -> Mutant:
    """The mutant of that name. Raises CannotPlant."""
    if name not in MUTANTS:
        raise CannotPlant(f"there is no mutant {name!r}; there are: {', '.join(MUTANTS)}")
    return MUTANTS[name]


def plant(name: str) -> AbstractContextManager[None]:
    """Production code has that mistake while the returned context is open. Raises CannotPlant."""
    return named(name).plant()
