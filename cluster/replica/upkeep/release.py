"""Frees the memory of a large state in slices, because freeing a million keys at once would stop the event loop.

`raftlog.cluster.replica.upkeep.snapshots` calls it after an installation. No other code outside `statemachine` knows
the inside of a state machine; `statemachine` itself knows nothing of pauses. A dismantled state is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.snapshot import Restorer, SnapshotState

SLICE: Final = 5_000
"""Objects freed without a pause: less than a millisecond of work."""


def release_state(machine: StateMachine) -> Iterator[None]:
    """Frees the keys, the history and the sessions slice by slice; the caller yields between two slices."""
    store = machine._store
    tables: tuple[dict[Any, Any], ...] = (*store.head.dicts, *store.tombs.dicts, machine._sessions._sessions)
    for table in tables:
        while table:
            for _ in range(min(SLICE, len(table))):
                table.popitem()
            yield
    for keys in (store.live, store.gone):
        while keys._lists:  # each list holds a few thousand keys
            keys._lists.pop()
            yield
    while store.steps:
        del store.steps[-SLICE:]
        yield


def finish(restorer: Restorer) -> SnapshotState:
    """Calls `restorer.finish()`, then frees its working data in slices. For a thread. Raises CorruptSnapshot."""
    state = restorer.finish()
    loader = restorer._loader
    assert loader is not None, "it has finished"
    while loader._replaced:
        del loader._replaced[-SLICE:]
    return state
