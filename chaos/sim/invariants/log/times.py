"""The times of records follow the clocks of a majority, and retention by age keeps every younger record.

A node whose wall clock is hours off stamps no entry so, though it leads for some seconds (docs/decisions/0018). Records
are those of commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.types import Entry, EntryKind, NodeId

PROPERTY = "times follow a majority's clock"
SECTION = "decision 18"

OFF_MS: Final = 8_000
"""So far from a right clock is a stamped time at most: `limits.clock_skew_ms`, and what clocks drift in a world."""


class Times:
    """When each entry was made, and the newest time that a right clock had shown then."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self._newest_ms = 0  # of all stamped times: later entries keep it
        self._made: dict[tuple[int, int], int] = {}  # index and term of an entry -> world time in ms

    def stamped(self, core: RaftCore, entries: Sequence[Entry], now_ms: int, right_ms: int) -> None:
        """A node appended entries; `right_ms` is the newest right clock. Raises InvariantBroken."""
        for entry in entries:
            if entry.kind is EntryKind.COMMANDS:
                self._made.setdefault((entry.index, entry.term), now_ms)
            state = core.state
            is_own = isinstance(state.role, Leader) and entry.term == state.term
            if is_own and self._newest_ms < right_ms + OFF_MS < entry.time_ms:
                evidence = f"the entry at {entry.index} is stamped {entry.time_ms - right_ms} ms ahead"
                raise InvariantBroken(state.node, PROPERTY, SECTION, evidence)
            self._newest_ms = max(self._newest_ms, entry.time_ms)

    def trims(self, node: NodeId, before: int, age_ms: int, now_ms: int) -> None:
        """Retention by age asks for a trim of the records before that index. Raises InvariantBroken."""
        known = self._known
        going = [made_ms for each, made_ms in self._made.items() if each[0] < before and known.is_committed(*each)]
        made_ms = max(going, default=-age_ms)
        if now_ms - made_ms < age_ms - 2 * OFF_MS:
            evidence = f"trims up to {before} by an age of {age_ms} ms, a record is {now_ms - made_ms} ms old"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)
