"""`python -m raftlog.chaos.sim.mutants`: list, find, or run the command line with a mistake planted.

python -m raftlog.chaos.sim.mutants                          the list
python -m raftlog.chaos.sim.mutants NAME -- node …           `raftlog node …` with that mistake, in this process
python -m raftlog.chaos.sim.mutants --find [NAME …]          random seeds until each is found
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from raftlog.chaos.sim.mutants import MUTANTS, CannotPlant, named


def main(arguments: list[str]) -> int:
    """Runs one of the three; the exit code."""
    if not arguments:
        for mutant in MUTANTS.values():
            print(f"{mutant.number or '':>2}  {mutant.name}: {mutant.title}")
        return 0
    if arguments[0] == "--find":
        from raftlog.chaos.sim.mutants import find  # the simulator is needed only here

        return find.find_all(arguments[1:])
    name, rest = arguments[0], arguments[1:]
    if rest[:1] != ["--"]:
        print(f"write `python -m raftlog.chaos.sim.mutants {name} -- …`, with what follows `raftlog` after the dashes")
        return 2
    try:
        with named(name).plant():
            (script,) = entry_points(group="console_scripts", name="raftlog")
            command = script.load()
            sys.argv = ["raftlog", *rest[1:]]
            print(f"planted: {name}", file=sys.stderr)
            command()
    except CannotPlant as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
