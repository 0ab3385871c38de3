"""Compares two state machines field by field, whatever fields their classes have: a field that is added is compared.

Equal bytes of two snapshots prove nothing about the code that writes them: what it leaves out, or turns into something
else, is missing twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from sortedcontainers import SortedList

from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.store import RECORD_SIZE, Store, is_delete, record_mod

NO_STATE: Final[Mapping[str, Mapping[str, str]]] = {
    "StateMachine": {
        "_principal": "of the request under way",
        "_under_way": "of the entry under way",
        "point": "the newest digest point that this object applied",
    },
    "SessionTable": {"_walks": "walks under way"},
    "Store": {
        "_pins": "walks under way",
        "_start": "where the list of steps begins: see VIEWS",
        "freed": "as `_start`",
    },
    "AccessTable": {
        "_compiled": "made again when it is needed",
        "_by_roles": "as `_compiled`",
        "_grants": "as `_compiled`",
        "_hashed": "as `_compiled`",
    },
}
"""By class, the fields that are no part of the state, each with the reason."""


def _steps(store: Store) -> list[Any]:
    """The readable steps. Of a replaced record the row hash is not needed, and of a delete that is no longer readable
    nothing."""

    def stored(record: bytes | None) -> bytes | None:
        if record is None or (is_delete(record) and record_mod(record) <= store.compacted):
            return None
        return record[: RECORD_SIZE - 8] + record[RECORD_SIZE:]

    rows: list[Any] = []
    for step in store.steps[store.compacted - store._start :]:
        assert step is not None, "a revision that can be read has its step"
        index, size, key, replaced = step
        rows.append(
            (index, size, {key: stored(replaced)} if key is not None else {k: stored(replaced[k]) for k in replaced})
        )
    return rows


def _is_due(table: Any) -> list[bool]:
    """Of each session, whether a row makes it expire in time."""
    return [
        any(number == each.id and at <= each.expires_ms for at, number in table.due)
        for each in table._sessions.values()
    ]


VIEWS: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("Store", "steps"): _steps,
    ("SessionTable", "due"): _is_due,
    ("SessionTable", "_sessions"): lambda table: list(table._sessions.items()),  # their order counts
}
"""What is compared in place of a field."""


def state_of(machine: StateMachine) -> Any:
    """All that the machine is, as plain values with the names of their types. Frees what cannot be read any more."""
    while machine._store.freed != machine._store.compacted:
        machine._store.sweep()
    return plain(machine)


def differences(one: StateMachine, other: StateMachine) -> list[str]:
    """Where two machines differ, with both values."""
    return list(_differences("", state_of(one), state_of(other)))


def _differences(path: str, one: Any, other: Any) -> Iterator[str]:
    (kind, left), (other_kind, right) = one, other
    if kind == other_kind and isinstance(left, dict) and left.keys() == right.keys():
        for name in left:
            yield from _differences(f"{path}.{name}", left[name], right[name])
    elif (kind, left) != (other_kind, right):
        yield f"{path}: {kind} {left} and {other_kind} {right}"


def plain(value: Any) -> Any:
    """The value, as plain values with the names of their types."""
    kind = type(value).__name__
    if value is None or isinstance(value, int | str | bytes | Enum):
        return kind, value
    if isinstance(value, dict):
        return kind, {plain(key): plain(value[key]) for key in value}
    if not hasattr(value, "_fields") and isinstance(value, list | tuple | deque | SortedList):
        return kind, [plain(each) for each in value]
    names = NO_STATE.get(kind, {})
    found = {name: VIEWS.get((kind, name)) for name in names_of(value) if name not in names}
    return kind, {name: plain(getattr(value, name) if view is None else view(value)) for name, view in found.items()}


def names_of(value: Any) -> tuple[str, ...]:
    """The fields of an object: of a named tuple, a dataclass, a class with slots, or a compiled one."""
    if hasattr(value, "_fields"):
        return tuple(value._fields)
    if is_dataclass(value):
        return tuple(each.name for each in fields(value))
    kind = type(value)
    names = tuple(getattr(kind, "__mypyc_attrs__", ()) or getattr(kind, "__slots__", ()))
    assert names, f"{kind} has fields that cannot be listed: give it slots"
    return names
