"""Runs random seeds with each mutant until one breaks: whether random worlds alone find it.

A seed counts only if the same seed is clean without the mutant.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from random import SystemRandom

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.mutants import MUTANTS, plant
from raftlog.chaos.sim.seed.run import run_seed

SECONDS = 60
"""Simulated seconds of each world: as long as those of `make sim`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How a mutant was found: `seeds` were run until `seed` failed, in `took_s` seconds of one core's time."""

    property: str
    seed: int
    seeds: int
    took_s: int


@dataclass(frozen=True, slots=True)
class NoFinding:
    """So many worlds saw nothing."""

    seeds: int
    took_s: int


def broken_by(seed: int, seconds: int, mutant: str | None = None) -> str | None:
    """The property that the world of that seed broke, with that mutant planted; None: it is clean."""
    try:
        if mutant is None:
            run_seed(seed, seconds)
        else:
            with plant(mutant):
                run_seed(seed, seconds)
    except Failure as failure:
        return failure.property
    return None


def find(mutant: str, first: int, *, seconds: int = SECONDS, minutes: float = 10) -> Finding | NoFinding:
    """Seeds from `first` on, until one breaks that is clean without the mutant."""
    began = time.process_time()
    seed = first
    while time.process_time() - began < minutes * 60:
        broken = broken_by(seed, seconds, mutant)
        seed += 1
        if broken is None:
            continue
        took_s = round(time.process_time() - began)
        if (without := broken_by(seed - 1, seconds)) is None:
            return Finding(broken, seed - 1, seed - first, took_s)
        print(f"seed {seed - 1} breaks without {mutant} too: {without}", flush=True)
    return NoFinding(seed - first, round(time.process_time() - began))


def find_all(arguments: list[str]) -> int:
    """`--find`: prints what each table may say as `worlds`; 0 if every mutant asked for was found."""
    parser = argparse.ArgumentParser(prog="python -m raftlog.chaos.sim.mutants --find")
    parser.add_argument("names", nargs="*", help="mutants; all, if none is named")
    parser.add_argument("--minutes", type=float, default=10, help="at most so much of one core's time for each")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="simulated seconds of each world")
    parser.add_argument("--first", type=int, help="the first seed; random, if not given")
    options = parser.parse_args(arguments)
    missed = 0
    for name in options.names or MUTANTS:
        first = SystemRandom().randrange(1 << 32) if options.first is None else options.first
        result = find(name, first, seconds=options.seconds, minutes=options.minutes)
        missed += isinstance(result, NoFinding)
        print(name, result, flush=True)
    return 1 if missed else 0
