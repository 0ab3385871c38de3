"""Known mistakes that can be planted in this process, to prove that the tests see them; production never imports this.

The tables are `consensus.toml`, `disks.toml` and `service.toml` beside this file; docs/mutants.md explains them.
"""

from __future__ import annotations

import tomllib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.chaos.sim.mutants.mutant import CannotPlant, Edit, Mutant

__all__ = ["MUTANTS", "TABLES", "CannotPlant", "Edit", "Mutant", "named", "plant"]

TABLES: Final = tuple(Path(__file__).with_name(f"{topic}.toml") for topic in ("consensus", "disks", "service"))


_ROWS: Final[dict[str, dict[str, Any]]] = {
    name: row | {"name": name}
    for table in TABLES
    for name, row in tomllib.loads(table.read_text(encoding="utf-8")).items()
}
MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in sorted(
        msgspec.convert([*_ROWS.values()], list[Mutant]),
        key=lambda mutant: (mutant.number or 100 + mutant.pitfall, mutant.name),
    )
}
"""By name, in the order of their numbers."""


def named(name: str) -> Mutant:
    """The mutant of that name. Raises CannotPlant."""
    if name not in MUTANTS:
        raise CannotPlant(f"there is no mutant {name!r}; there are: {', '.join(MUTANTS)}")
    return MUTANTS[name]


def plant(name: str) -> AbstractContextManager[None]:
    """Production code has that mistake while the returned context is open. Raises CannotPlant."""
    return named(name).plant()
