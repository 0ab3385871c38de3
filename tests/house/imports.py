"""Checks the import rules that import-linter cannot express, because they list the allowed imports.

The other arrows are the contracts in pyproject.toml.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from tests.house.rules import PACKAGES, Finding, Source

# Modules of the standard library that only hold, shape or check values: no clock, no chance, no input, no output.
VALUE_MODULES = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "re",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
    }
)

# package -> what its modules may import beside themselves
ALLOWED: dict[str, frozenset[str]] = {
    "raft": VALUE_MODULES | {"msgpack", "google_crc32c"},
    "statemachine": VALUE_MODULES | {"msgpack", "google_crc32c", "sortedcontainers", "xxhash"},
}

# What the simulator shares with the harness around it. commands.py joins it to the command line.
SIM_MAY_TAKE_FROM_CHAOS = (
    "raftlog.chaos.sim",
    "raftlog.chaos.record",
    "raftlog.chaos.judge.history",
    "raftlog.chaos.judge.models",
    "raftlog.chaos.judge.linearizable",
    "raftlog.chaos.judge.verdicts",
    "raftlog.chaos.judge.checks",
)


def pure_packages_import_only_values(files: Iterable[Source]) -> Iterator[Finding]:
    """raft and statemachine import value modules of the standard library and a few named packages, nothing else."""
    for source in files:
        allowed = ALLOWED.get(source.top)
        if allowed is None or not source.is_python:
            continue
        for line, module in imported(source):
            if module.partition(".")[0] not in allowed and not f"{module}.".startswith(f"raftlog.{source.top}."):
                mend = "pass the value in; a harmless module may be added to VALUE_MODULES of tests/house/imports.py"
                yield Finding(source.path, line, f"{source.top} imports {module}", mend)


def sim_takes_little_from_chaos(files: Iterable[Source]) -> Iterator[Finding]:
    """raftlog.chaos.sim takes from chaos only the record of a run, histories, models and the checker."""
    for source in files:
        if not source.is_python or not source.path.startswith("chaos/sim/"):
            continue
        for line, module in imported(source):
            known = any(module == name or module.startswith(f"{name}.") for name in SIM_MAY_TAKE_FROM_CHAOS)
            if module.startswith("raftlog.chaos.") and not known:
                mend = f"the simulator may import {', '.join(SIM_MAY_TAKE_FROM_CHAOS)}"
                yield Finding(source.path, line, f"raftlog.chaos.sim imports {module}", mend)


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that the file imports, wherever in it; `from a import b` counts as a.b."""
    package = source.path.rpartition("/")[0].replace("/", ".")
    if source.top in PACKAGES:
        package = f"raftlog.{package}"
    for node in source.nodes:
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield node.lineno, name.name
            case ast.ImportFrom(module=module, names=names, level=level):
                parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*parents, *([module] if module else [])])
                for name in names:
                    yield node.lineno, f"{base}.{name.name}"


def packages_are_imported_by_one_name(files: Iterable[Source]) -> Iterator[Finding]:
    """The packages at the top are imported as parts of `raftlog`: by a second name they would be loaded twice."""
    for source in files:
        if not source.is_python:
            continue
        for line, module in imported(source):
            if module.partition(".")[0] in PACKAGES:
                yield Finding(source.path, line, f"imports {module}", f"import raftlog.{module}")


def class_names_mean_one_thing(files: Iterable[Source]) -> Iterator[Finding]:
    """In raft, statemachine and cluster no two classes or type aliases share a name, private ones included."""
    places: dict[str, tuple[str, int]] = {}
    for source in files:
        if not source.is_python or source.top not in {"raft", "statemachine", "cluster"}:
            continue
        for name, line in (*_classes(source), *_aliases(source.tree)):
            if name in places:
                path, number = places[name]
                fix = "rename one: the two names say what differs (ReadWaiter, WalReader)"
                yield Finding(source.path, line, f"{name} is defined in {path}:{number} too", fix)
            places[name] = (source.path, line)


def _classes(source: Source) -> Iterator[tuple[str, int]]:
    return ((node.name, node.lineno) for node in source.nodes if isinstance(node, ast.ClassDef))


def _aliases(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Module-level names such as `Row = dict[str, Any]`: a capital first, and not all capitals."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.lstrip("_")[:1].isupper() and not name.isupper():
                yield name, node.lineno


# What older code called batches, digest points, admission and disk space.
RIDDLES = re.compile(r"_*(Gather|Points|Kept|Look|Turns|Short|News|Note)$|.*(Room|Face|News|Dismantle)([A-Z]|$)")


def class_names_are_no_riddles(files: Iterable[Source]) -> Iterator[Finding]:
    """No class outside the tests has one of the names that newcomers could not guess."""
    for source in files:
        if source.is_python and source.top in PACKAGES:
            for name, line in _classes(source):
                if RIDDLES.match(name):
                    yield Finding(source.path, line, f"{name} is a riddle", "use the words of docs/glossary.md")


RULES = (
    pure_packages_import_only_values,
    sim_takes_little_from_chaos,
    packages_are_imported_by_one_name,
    class_names_mean_one_thing,
    class_names_are_no_riddles,
)
