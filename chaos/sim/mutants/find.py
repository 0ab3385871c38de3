"""Runs random seeds with each mutant until one breaks, and keeps what found it: docs/mutants.json, docs/mutants.md.

A seed counts only if the same seed is clean without the mutant.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.mutants import MUTANTS, Mutant, plant
from raftlog.chaos.sim.seed.run import run_seed

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs"
DATA = DOCS / "mutants.json"
PAGE = DOCS / "mutants.md"

SECONDS = 60
"""Simulated seconds of each world: as long as those of `make sim`."""


@dataclass(frozen=True, slots=True)
class Found:
    """How a mutant was found: `seeds` were run until `seed` failed, in `took_s` seconds of one core's time."""

    property: str
    seed: int
    seeds: int
    took_s: int
    seconds: int = SECONDS


@dataclass(frozen=True, slots=True)
class NotFound:
    """So many worlds saw nothing."""

    seeds: int
    took_s: int
    seconds: int = SECONDS


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


def find(mutant: str, first: int, *, seconds: int = SECONDS, minutes: float = 10) -> Found | NotFound:
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
            return Found(broken, seed - 1, seed - first, took_s, seconds)
        print(f"seed {seed - 1} breaks without {mutant} too: {without}", flush=True)
    return NotFound(seed - first, round(time.process_time() - began), seconds)


def find_all(arguments: list[str]) -> int:
    """`--find`: 0 if every mutant asked for was found."""
    parser = argparse.ArgumentParser(prog="python -m raftlog.chaos.sim.mutants --find")
    parser.add_argument("names", nargs="*", help="mutants; all, if none is named")
    parser.add_argument("--minutes", type=float, default=10, help="at most so much of one core's time for each")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="simulated seconds of each world")
    parser.add_argument("--first", type=int, help="the first seed; random, if not given")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    names = options.names or list(MUTANTS)
    missed = 0
    for name in names:
        first = SystemRandom().randrange(1 << 32) if options.first is None else options.first
        result = find(name, first, seconds=options.seconds, minutes=options.minutes)
        missed += isinstance(result, NotFound)
        print(name, result, flush=True)
        if not options.dry:
            keep(name, result)
    return 1 if missed else 0


def keep(name: str, result: Found | NotFound) -> None:
    """Takes a result into the data, and writes the page again."""
    data = known()
    data[name] = {key: value for key, value in asdict(result).items() if key != "seconds" or value != SECONDS}
    DATA.write_text(json.dumps({key: data[key] for key in sorted(data)}, indent=1) + "\n")
    make_page()


def make_page() -> int:
    """Writes docs/mutants.md."""
    PAGE.write_text(page(known()))
    return 0


def known() -> dict[str, dict[str, int | str]]:
    """The results so far, by name of the mutant."""
    if not DATA.exists():
        return {}
    data: dict[str, dict[str, int | str]] = json.loads(DATA.read_text())
    return {name: row for name, row in data.items() if name in MUTANTS}


HEAD = """# Planted bugs, and what finds them

This page lists planted bugs, and the test that finds each. A test that cannot fail proves nothing, so every net of this
project must find bugs that were planted on purpose.

Each row is a mistake that a real implementation made. It is planted as a change of one or two lines in a production
function of one process (`chaos/sim/mutants/`). The simulator then runs random worlds until one breaks a property; the
same seed is clean without the mutant.

- "found by": the property that broke, or the directed test that finds what random worlds seldom meet.
- "seed" and "worlds": the first seed that found it, and how many consecutive seeds were run. Each is 60 simulated
  seconds, unless the row says otherwise.
- "seconds": processor time of one core.
- "worlds alone", of mutants of `cluster/`: whether random worlds found it without a directed test. "no": those that
  were run did not. Nothing: not measured yet.

`raftlog sim --replay SEED --mutant NAME` shows the failure again, as long as the simulator draws its worlds as it did
on that day. `python -m raftlog.chaos.sim.mutants --find [NAME …]` searches again from random seeds, and writes this
page (data: mutants.json).

"""


def page(data: dict[str, dict[str, int | str]]) -> str:
    """docs/mutants.md."""
    listed = [mutant for mutant in MUTANTS.values() if mutant.number]
    others = [mutant for mutant in MUTANTS.values() if not mutant.number]
    text = HEAD + _alone(data) + "## The list of planted bugs\n\n" + _table(listed, data)
    text += "\n## Other known mistakes\n\nNumbers are those of pitfalls.md.\n\n" + _table(others, data)
    return text


def _is_of_cluster(mutant: Mutant) -> bool:
    """Whether it changes code of `cluster/`."""
    return any(edit.target.startswith("raftlog.cluster.") for edit in mutant.edits)


def _found_alone(mutant: Mutant, data: dict[str, dict[str, int | str]]) -> str:
    """Whether random worlds alone find a mutant of `cluster/`: yes, no, or nothing if it was not measured."""
    if not _is_of_cluster(mutant) or mutant.name not in data:
        return ""
    return "yes" if "property" in data[mutant.name] else "no"


def _alone(data: dict[str, dict[str, int | str]]) -> str:
    told = [_found_alone(mutant, data) for mutant in MUTANTS.values() if _is_of_cluster(mutant)]
    return (
        f"Of the {len(told)} mutants of `cluster/`, random worlds alone found {told.count('yes')} and did not find "
        f"{told.count('no')} (most of these in a few worlds only); {told.count('')} were not measured.\n\n"
    )


def _table(mutants: list[Mutant], data: dict[str, dict[str, int | str]]) -> str:
    lines = [
        "| | mutant | mistake | found by | seed | worlds | seconds | worlds alone |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mutant in mutants:
        row = data.get(mutant.name, {})
        number = mutant.number or mutant.pitfall
        seed = ""
        if "property" in row:
            found = str(row["property"])
            seed = str(row["seed"]) + (f" ({row['seconds']} s)" if "seconds" in row else "")
        elif mutant.story:
            found = f"directed story only: {mutant.story}"
        elif row:
            found = "**not found**"
        else:
            found = "not looked for yet"
        lines.append(
            f"| {number} | `{mutant.name}` | {mutant.title} ({mutant.source}) | {found} | {seed} "
            f"| {row.get('seeds', '')} | {row.get('took_s', '')} | {_found_alone(mutant, data)} |"
        )
    return "\n".join(lines) + "\n"
