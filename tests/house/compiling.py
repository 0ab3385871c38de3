"""Finds in the modules that mypyc compiles what it refuses, or what fails once it is compiled (docs/decisions/0026)."""

from __future__ import annotations

import ast
import fnmatch
import functools
import tomllib
from collections.abc import Iterable, Iterator

from tests.house.rules import ROOT, Finding, Source

_REFUSED_BASES = frozenset(
    {
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "BufferError",
        "EOFError",
        "ImportError",
        "MemoryError",
        "OSError",
        "RuntimeError",
        "TypeError",
        "asyncio.Protocol",
        "asyncio.TimerHandle",
        "msgspec.Struct",
        "threading.Thread",
    }
)


@functools.cache
def _table() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["raftlog"][
        "compiled"
    ]
    return found


def is_compiled(path: str) -> bool:
    """Whether the table in pyproject.toml chooses that file."""
    table = _table()
    chosen, excepted = (
        any(fnmatch.fnmatch(path, row) and path.count("/") == row.count("/") for row in table[name])
        for name in ("modules", "interpreted")
    )
    return chosen and not excepted and not path.endswith("__init__.py")


def compiled_modules_compile(files: Iterable[Source]) -> Iterator[Finding]:
    """A module that mypyc compiles has nothing that mypyc refuses or gets wrong: docs/decisions/0026 lists it."""
    for source in files:
        if source.is_python and is_compiled(source.path):
            for node in source.nodes:
                if isinstance(node, ast.ClassDef):
                    for line, what in _wrong(node):
                        yield Finding(source.path, line, what, "docs/decisions/0026 says how")
                if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple):
                    kinds = {type(each.value) for each in node.value.elts if isinstance(each, ast.Constant)}
                    if float in kinds and ast.unparse(node.annotation) == "Final":
                        yield Finding(source.path, node.lineno, "a tuple of floats", "Final[tuple[float, ...]]")
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    for line, what in _taken_for_none(node):
                        yield Finding(source.path, line, what, "ask once, or through a method")
                if isinstance(node, ast.Attribute) and node.attr == "_thread":
                    yield Finding(source.path, node.lineno, "_thread is a word of C as an attribute", "rename it")


def _taken_for_none(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Attributes that are read behind `if a.b is not None: raise`, or return, and are not set there in between."""
    nodes = [each for each in ast.walk(function) if hasattr(each, "lineno")]
    for check in nodes:
        if not isinstance(check, ast.If) or not isinstance(check.body[-1], ast.Raise | ast.Return):
            continue
        parts = (
            check.test.values
            if isinstance(check.test, ast.BoolOp) and isinstance(check.test.op, ast.Or)
            else [check.test]
        )
        for part in parts:
            if not (isinstance(part, ast.Compare) and ast.unparse(part).endswith(" is not None")):
                continue
            name, end = ast.unparse(part.left), check.end_lineno or check.lineno
            for later in sorted((each for each in nodes if each.lineno > end), key=lambda each: each.lineno):
                if isinstance(later, ast.Attribute) and ast.unparse(later) == name:
                    if isinstance(later.ctx, ast.Load):
                        yield later.lineno, f"{name} is compiled as None behind the check in line {check.lineno}"
                    break


def _wrong(made: ast.ClassDef) -> Iterator[tuple[int, str]]:
    for base in made.bases:
        if (name := ast.unparse(base)) in _REFUSED_BASES:
            yield made.lineno, f"class {made.name} inherits from {name}"
    is_dataclass = any(ast.unparse(each).startswith("dataclass") for each in made.decorator_list)
    methods = {each.name for each in made.body if isinstance(each, ast.FunctionDef)}
    for each in made.body:
        if isinstance(each, ast.Assign) and len(each.targets) > 1:
            yield each.lineno, "two names get one value in a class body"
        if isinstance(each, ast.Assign) and is_dataclass:
            yield each.lineno, "a dataclass has a class attribute, which becomes a field: a base class may have it"
        if isinstance(each, ast.AnnAssign):
            annotation = ast.unparse(each.annotation)
            if annotation == "memoryview":
                yield each.lineno, "a field is a memoryview"
            if annotation.startswith("ClassVar") and is_dataclass:
                yield each.lineno, "a dataclass has a class attribute, which becomes a field: a base class may have it"
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            if used := methods & {name.id for name in ast.walk(each.value) if isinstance(name, ast.Name)}:
                yield each.lineno, f"a class body reads its own method {min(used)}"
