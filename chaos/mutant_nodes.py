"""Planted bugs on real processes: nodes that run with a mutant of the simulator's list.

The mutants and how they are planted are `chaos.sim.mutants`; a node with one is that package's command line.
"""

from __future__ import annotations

import sys

from chaos.sim.mutants import CannotPlant, named

__all__ = ["CannotPlant", "command_of"]


def command_of(name: str) -> tuple[str, ...]:
    """What runs the command line with that mutant planted. Raises CannotPlant when there is none, or it does not fit
    production as it is."""
    for _ in named(name).planned():
        pass
    return (sys.executable, "-m", "chaos.sim.mutants", name, "--")
