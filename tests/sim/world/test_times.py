"""The property of the times of records sees its smallest breach, and nothing less."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from raftlog.chaos.sim.invariants.log import times
from raftlog.chaos.sim.invariants.log.times import Times
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.types import EntryKind
from tests.sim.world.property_lab import SECOND, known, sees


def test_an_entry_stamped_beyond_the_bound_breaks_the_property() -> None:
    """By the leader that made it."""
    core: Any = SimpleNamespace(state=SimpleNamespace(node=1, term=2, role=Leader.__new__(Leader)))
    entry: Any = SimpleNamespace(index=5, term=2, time_ms=100_000, kind=EntryKind.COMMANDS)
    right_ms = entry.time_ms - times.OFF_MS
    sees(lambda right_ms: Times(known()).stamped(core, [entry], 0, right_ms), (right_ms,), (right_ms - 1,))


def test_a_trim_of_a_younger_record_breaks_the_property() -> None:
    """Its age is counted from when its leader made it, whatever its time says."""
    property = Times(known(committed=3))
    core: Any = SimpleNamespace(state=SimpleNamespace(node=1, term=1, role=None))
    property.stamped(core, [replace(SECOND, kind=EntryKind.COMMANDS)], 5_000, 0)
    age_ms, old_ms = 3 * times.OFF_MS, 5_000 + times.OFF_MS
    sees(property.trims, (1, SECOND.index + 1, age_ms, old_ms), (1, SECOND.index + 1, age_ms, old_ms - 1))
