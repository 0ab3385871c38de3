"""Bounds how much there is to read: attributes, parameters, imports, vague names, and the lines of each room.

tests/house/test_rules.py runs the rule. tests/house/weight.toml has the numbers that are allowed; they fall, and never
rise. A feature that adds lines to a room takes out as many.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tests.house.rules import PACKAGES, ROOT, Finding, Source

TABLE: Final = "tests/house/weight.toml"
ATTRIBUTES_MAX: Final = 20
PARAMETERS_MAX: Final = 10
IMPORTS_MAX: Final = 30
VAGUE: Final = "to" + "ld"  # in two parts, so that this file has none
ROOM_PARTS: Final = 2  # a room is `cluster/http`, or `raft/consensus`; the modules beside them are the room `raft`


def production(files: Iterable[Source]) -> list[Source]:
    """The Python files of the five packages."""
    return [source for source in files if source.is_python and source.top in PACKAGES]


def room_of(path: str) -> str:
    """`cluster/http` for every file below it."""
    return "/".join(path.split("/")[:-1][:ROOM_PARTS])


def large_classes(source: Source) -> Iterator[tuple[int, str]]:
    """Classes with more than ATTRIBUTES_MAX attributes: fields, and names that methods assign to `self`."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and (count := len(set(_attributes(node)))) > ATTRIBUTES_MAX:
            yield node.lineno, f"{node.name} has {count} attributes"


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if "ClassVar" not in ast.unparse(statement.annotation):
                yield statement.target.id
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in ast.walk(statement):
                if (
                    isinstance(each, ast.Attribute)
                    and isinstance(each.ctx, ast.Store)
                    and isinstance(each.value, ast.Name)
                    and each.value.id == "self"
                ):
                    yield each.attr


def long_signatures(source: Source) -> Iterator[tuple[int, str]]:
    """Functions with more than PARAMETERS_MAX parameters, `self` not counted."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(each.arg not in ("self", "cls") for each in given)
            if count > PARAMETERS_MAX:
                yield node.lineno, f"{node.name} has {count} parameters"


def wide_imports(source: Source) -> Iterator[tuple[int, str]]:
    """Files with more than IMPORTS_MAX import statements at the top."""
    count = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in source.tree.body)
    if count > IMPORTS_MAX:
        yield 1, f"{count} imports"


def vague_names(source: Source) -> Iterator[tuple[int, str]]:
    """Uses of a name that says that somebody said something, and not what it is."""
    for node in source.nodes:
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        if name == VAGUE:
            yield getattr(node, "lineno", 1), "a vague name"


COUNTED: Final[dict[str, Callable[[Source], Iterator[tuple[int, str]]]]] = {
    f"classes with more than {ATTRIBUTES_MAX} attributes": large_classes,
    f"functions with more than {PARAMETERS_MAX} parameters": long_signatures,
    f"files with more than {IMPORTS_MAX} imports": wide_imports,
    "uses of a vague name": vague_names,
}


def counts(files: Iterable[Source]) -> dict[str, list[Finding]]:
    """For each row of COUNTED its places, in production code."""
    sources = production(files)
    return {
        title: [Finding(source.path, line, what, title) for source in sources for line, what in found(source)]
        for title, found in COUNTED.items()
    }


def lines_by_room(files: Iterable[Source]) -> dict[str, int]:
    """The lines of each room, and those of `tests` and `bench` as a whole."""
    lines: Counter[str] = Counter()
    for source in files:
        if source.is_python and source.top in (*PACKAGES, "tests", "bench"):
            lines[room_of(source.path) if source.top in PACKAGES else source.top] += source.text.count("\n")
    return dict(lines)


def table() -> dict[str, dict[str, int]]:
    """What tests/house/weight.toml allows."""
    return tomllib.loads((ROOT / TABLE).read_text(encoding="utf-8"))


def weight_only_falls(files: Iterable[Source]) -> Iterator[Finding]:
    """No count and no room is above what tests/house/weight.toml allows, and every room stands there."""
    files = list(files)
    allowed = table()
    for title, places in counts(files).items():
        if len(places) > allowed["counts"][title]:
            shown = ", ".join(f"{place.path}:{place.line} {place.what}" for place in places)
            what = f"{len(places)} {title}, {allowed['counts'][title]} are allowed: {shown}"
            yield Finding(TABLE, 1, what, "split what has become too large, or name what it is")
        elif len(places) < allowed["counts"][title]:
            what = f"{len(places)} {title}, and {allowed['counts'][title]} are allowed"
            yield Finding(TABLE, 1, what, f"write {len(places)}")
    for room, lines in lines_by_room(files).items():
        if lines > allowed["lines"].get(room, 0):
            what = f"{room} has {lines} lines, {allowed['lines'].get(room, 0)} are allowed"
            yield Finding(TABLE, 1, what, "take out what it is worth, here or in another room whose budget falls")


RULES = (weight_only_falls,)
