"""The import rules that import-linter cannot say, because they list what is allowed.

The other arrows are the contracts in pyproject.toml.
"""

import ast
from collections.abc import Iterable, Iterator

from tests.tidy_rules import Finding, Source

# Modules of the standard library that only hold, shape or check values: no clock, no chance, no input, no output.
# fmt: off
VALUE_MODULES = frozenset({
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "copy", "dataclasses", "enum",
    "functools", "heapq", "itertools", "math", "operator", "re", "string", "struct", "textwrap", "types", "typing",
})
# fmt: on

# package -> what its modules may import beside themselves
ALLOWED: dict[str, frozenset[str]] = {
    "raft": VALUE_MODULES | {"msgpack", "google_crc32c"},
    "statemachine": VALUE_MODULES | {"msgpack", "google_crc32c", "sortedcontainers", "xxhash"},
}

# What the simulator shares with the harness around it. commands.py joins it to the command line.
SIM_MAY_TAKE_FROM_CHAOS = (
    "chaos.sim", "chaos.history", "chaos.models", "chaos.linearizable", "chaos.verdicts", "chaos.checks",
)  # fmt: skip


def pure_packages_import_only_values(files: Iterable[Source]) -> Iterator[Finding]:
    """raft and statemachine import value modules of the standard library and a few named packages, nothing else."""
    for source in files:
        allowed = ALLOWED.get(source.top)
        if allowed is None or not source.is_python:
            continue
        for line, module in imported(source):
            top = module.partition(".")[0]
            if top not in allowed and top != source.top:
                mend = "pass the value in; a harmless module may be added to VALUE_MODULES of tests/tidy_imports.py"
                yield Finding(source.path, line, f"{source.top} imports {module}", mend)


def sim_takes_little_from_chaos(files: Iterable[Source]) -> Iterator[Finding]:
    """chaos.sim takes from chaos only histories, models and the checker."""
    for source in files:
        if not source.is_python or not source.path.startswith("chaos/sim/"):
            continue
        for line, module in imported(source):
            known = any(module == name or module.startswith(f"{name}.") for name in SIM_MAY_TAKE_FROM_CHAOS)
            if module.partition(".")[0] == "chaos" and not known:
                mend = f"the simulator may import {', '.join(SIM_MAY_TAKE_FROM_CHAOS)}"
                yield Finding(source.path, line, f"chaos.sim imports {module}", mend)


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that the file imports, wherever in it; `from a import b` counts as a.b."""
    package = source.path.rpartition("/")[0].replace("/", ".")
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield node.lineno, name.name
            case ast.ImportFrom(module=module, names=names, level=level):
                parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*parents, *([module] if module else [])])
                for name in names:
                    yield node.lineno, f"{base}.{name.name}"


RULES = (pure_packages_import_only_values, sim_takes_little_from_chaos)
