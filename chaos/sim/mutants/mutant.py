"""A mutant: a known mistake as a small change to the source of a production function, planted in this process only.

The changed function is compiled and its code object takes the place of the original one, so that every reference to the
function sees the mistake; afterwards the original code object is put back, and production is what it was.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType


class CannotPlant(Exception):
    """The mutant does not fit production as it is now."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: in the function `target` ("raft.quorum:name" or "…:Class.name") `old`, which occurs once, is `new`.

    Both are compared with the function's source after its own indentation is taken off.
    """

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One known mistake, as a table has it (docs/mutants.md). `number` 0: it has a pitfall only."""

    name: str
    number: int = 0
    title: str
    source: str  # the implementation or paper that it comes from
    target: str  # the function that it changes, as in `Edit`
    old: str
    new: str
    also: tuple[Edit, ...] = ()  # where one place is not enough
    pitfall: int = 0  # its number in docs/pitfalls.md
    worlds: str = ""  # the property that random worlds found broken; "none": they found nothing
    chaos: str = ""  # a run on real processes that finds it: what follows `raftlog chaos run`
    story: str = ""  # the directed test that finds it, where random worlds are not expected to

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.target, self.old, self.new), *self.also)

    @contextmanager
    def plant(self) -> Iterator[None]:
        """Production has the mistake within. Raises CannotPlant."""
        planned = list(self.planned())
        originals = [(function, function.__code__) for function, _ in planned]
        try:
            for function, code in planned:
                function.__code__ = code
            yield
        finally:
            for function, code in originals:
                function.__code__ = code

    def planned(self) -> Iterator[tuple[FunctionType, CodeType]]:
        """Every function that changes, with its changed code. Raises CannotPlant."""
        by_target: dict[str, list[Edit]] = {}
        for edit in self.edits:
            by_target.setdefault(edit.target, []).append(edit)
        for target, edits in by_target.items():
            function = function_of(target)
            yield function, _changed(function, target, edits)


def function_of(target: str) -> FunctionType:
    """The function behind "raft.quorum:name" or "module:Class.name". Raises CannotPlant."""
    module, _, path = target.partition(":")
    found: object = importlib.import_module(f"raftlog.{module}")
    for part in path.split("."):
        try:
            found = inspect.getattr_static(found, part)
        except AttributeError as error:
            raise CannotPlant(f"{target} is not there") from error
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise CannotPlant(f"{target} is no plain function: {found!r}")
    return found


def _changed(function: FunctionType, target: str, edits: list[Edit]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise CannotPlant(f"{target} holds this {source.count(edit.old)} times, not once: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise CannotPlant(f"{target} is no Python any more: {error}") from error
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    flags = __future__.annotations.compiler_flag
    module = compile(tree, f"{function.__code__.co_filename} (planted)", "exec", flags, dont_inherit=True)
    for code in module.co_consts:
        if isinstance(code, CodeType) and code.co_name == function.__name__:
            if code.co_freevars != function.__code__.co_freevars:
                raise CannotPlant(f"{target} needs names of its surroundings")
            return code
    raise CannotPlant(f"{target} does not define {function.__name__}")
