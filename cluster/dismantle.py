"""Gives a large state back to memory in slices: freeing a million keys at once would stop the event loop.

The one place outside `statemachine` that knows what a state machine is made of, so that nothing there need know of
pauses. What was taken apart is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from statemachine.machine import StateMachine
from statemachine.snapshot import Restorer, State

SLICE: Final = 5_000
"""Objects freed at once: less than a millisecond of work."""


def dismantle(machine: StateMachine) -> Iterator[None]:
    """Frees the keys, the history and the sessions slice by slice; the caller lets others run between two."""
    store = machine._store
    tables: tuple[dict[Any, Any], ...] = (*store.head.dicts, *store.tombs.dicts, machine._sessions._sessions)
    for table in tables:
        while table:
            for _ in range(min(SLICE, len(table))):
                table.popitem()
            yield
    for keys in (store.live, store.gone):
        while keys._lists:  # each holds a few thousand
            keys._lists.pop()
            yield
    while store.steps:
        del store.steps[-SLICE:]
        yield


def finish(restorer: Restorer) -> State:
    """`restorer.finish()`, and what it worked with goes in slices; for a thread. Raises CorruptSnapshot."""
    state = restorer.finish()
    loader = restorer._loader
    assert loader is not None, "it has finished"
    while loader._replaced:
        del loader._replaced[-SLICE:]
    return state
