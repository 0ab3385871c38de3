"""Defines sequential models: calls, states, frozen JSON values, and errors of unknown operations.

States and values are frozen JSON: 1 and true are different, 1 and 1.0 are not. The models are in
`raftlog.chaos.judge.models`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec

from raftlog.chaos.judge.history import BadHistory, Operation
from raftlog.chaos.judge.verdicts import Report, report_of

State = Hashable
Shape = tuple[Any, ...]


class Special(Enum):
    """What stands for no value that a history could hold."""

    IMPOSSIBLE = "no such answer can be given in that state"
    BEYOND = "a state that nothing leads out of: a call that is possible in it leaves it as it is"


IMPOSSIBLE: Final = Special.IMPOSSIBLE
BEYOND: Final = Special.BEYOND


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as the search sees it. Calls of equal `shape` do the same.

    `is_pure`: it changes no state, ever. `is_unknown`: it may have taken effect or not. `sees` are the values that it
    must find, `makes` those that it may lead to; `denies`: it must find another value than some.
    """

    operation: Operation
    shape: Shape
    is_pure: bool = False
    is_unknown: bool = False
    sees: tuple[Hashable, ...] = ()
    makes: tuple[Hashable, ...] = ()
    denies: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """The search problem of one key.

    `is_guarded`: `sees` and `makes` name states. The search does not leave a state that a call must still see and to
    which no call leads back.
    """

    start: State
    calls: Sequence[Call]
    is_guarded: bool = False


class Model:
    """What the search needs to know. Of the `functions` that a call may have, `reads` says nothing unless ok."""

    name: str
    functions: tuple[str, ...]
    reads: str = ""

    def start(self, init: Any) -> State:
        """The state of a key before any operation. Raises BadInit."""
        raise NotImplementedError

    def call(self, operation: Operation) -> Call | None:
        """The operation for the search, or None if it says nothing: what failed did not happen. Raises BadHistory."""
        if operation.f not in self.functions:
            raise unknown_function(self.name, self.functions, operation)
        if operation.outcome == "fail" or (operation.f == self.reads and operation.outcome != "ok"):
            return None
        return self.told(operation)

    def told(self, operation: Operation) -> Call | None:
        """The same of one that may have happened. Raises BadHistory."""
        raise NotImplementedError

    def step(self, state: State, shape: Shape) -> State:
        """The state after such a call in that state; IMPOSSIBLE where it could not have been answered so."""
        raise NotImplementedError

    def narrow(self, start: State, calls: Sequence[Call]) -> Problem:
        """One key's calls without useless ones, such as unknown writes that no read saw; here all."""
        return Problem(start, calls)


class BadInit(ValueError):
    """A start value that the model cannot begin with."""


def freeze(value: Any) -> Hashable:
    """JSON as a value that is equal and hashed as JSON is."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return (bool, value)  # else it would be equal to 0 or 1
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict:
        return (dict, *sorted((key, freeze(each)) for key, each in value.items()))
    return (list, *map(freeze, value))


def text_of(value: Any) -> str:
    """The value as JSON."""
    return msgspec.json.encode(value).decode()


def where(operation: Operation) -> str:
    """How a message names the operation's line."""
    return f"line {operation.returned or operation.called}"


def unknown_function(model: str, known: Sequence[str], operation: Operation) -> BadHistory:
    """The error for a function that the model has not."""
    return BadHistory(f"line {operation.called}: {model} has no function {operation.f!r}; it has {', '.join(known)}")


def each_key(
    model: str,
    functions: Sequence[str],
    what: str,
    check: Callable[[Sequence[Operation], list[str], Counter[str]], None],
    operations: Sequence[Operation],
) -> Report:
    """The report about every key by `check`, which adds problems, and to the counts of `what` and of reads. Raises
    BadHistory, also for a function that the model does not have."""
    keys: dict[Hashable, list[Operation]] = {}
    for each in operations:
        if each.f not in functions:
            raise unknown_function(model, functions, each)
        keys.setdefault(freeze(each.key), []).append(each)
    problems: list[str] = []
    counts = Counter({"keys": len(keys), what: 0, "reads": 0})
    for of_key in keys.values():
        check(of_key, problems, counts)
    return report_of(model, len(operations), problems, counts)


def verdict_of_result(operation: Operation) -> bool:
    """Whether an `ok` made its change (result absent or true), or found that it could not (false)."""
    if operation.result is None or operation.result is True:
        return True
    if operation.result is False:
        return False
    raise BadHistory(
        f"{where(operation)}: the result of {operation.f!r} is true, false or absent, not {text_of(operation.result)}"
    )


def without_unseen(calls: Sequence[Call]) -> list[Call]:
    """Leaves out unknown writes whose values no call must find: if an order with one works, so does the order without.

    Not before a call that must find another value than some: an unseen value can be that other.
    """
    denied = max((call.operation.returned or 0 for call in calls if call.denies), default=0)
    needs = Counter(value for call in calls for value in call.sees)
    dropped: set[int] = set()
    again: Iterable[int] = range(len(calls))
    makers: dict[Hashable, list[int]] = {}
    for number, call in enumerate(calls):
        if call.is_unknown and call.operation.called >= denied:
            for value in call.makes:
                makers.setdefault(value, []).append(number)
    while again:
        unneeded: list[Hashable] = []
        for number in again:
            call = calls[number]
            if number in dropped or not call.is_unknown or call.operation.called < denied:
                continue
            if all(not needs[value] for value in call.makes):
                dropped.add(number)
                for value in call.sees:  # an unknown cas that is left out expects nothing any more
                    needs[value] -= 1
                    if not needs[value]:
                        unneeded.append(value)
        again = [number for value in unneeded for number in makers.get(value, ())]
    return [call for number, call in enumerate(calls) if number not in dropped]
