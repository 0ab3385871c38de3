"""Who is a member: a configuration takes effect when its entry is appended, and goes when its entry is cut.

Thesis section 4.1. Proposing changes comes with its own piece of work; until then `propose` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from raft.codec import decode_configuration
from raft.refusals import ConfigurationRefused
from raft.state import State
from raft.types import Entry, EntryKind


def take_effect(state: State, entries: Sequence[Entry]) -> None:
    """Adopt each configuration among freshly appended `entries` at once: waiting for its commit leaves a window in
    which two disjoint majorities exist (pitfall 50). Raises Corrupt or UnknownVersion."""
    for entry in entries:
        if entry.kind is EntryKind.CONFIGURATION:
            state.configurations.append((entry.index, decode_configuration(entry.data)))


def roll_back(state: State, after: int) -> None:
    """Entries after `after` were cut: the configuration before them is in force again (pitfall 41)."""
    configurations = state.configurations
    while configurations[-1][0] > after:
        configurations.pop()
        assert configurations, f"no configuration is known at or before {after}"


def forget(state: State) -> None:
    """Older configurations are kept for roll-back only: the newest committed one is the last that may be needed."""
    configurations = state.configurations
    while len(configurations) > 1 and configurations[1][0] <= state.log.committed:
        del configurations[0]


def propose(state: State, change: object) -> None:
    """Refuse, clearly. Raises ConfigurationRefused."""
    raise ConfigurationRefused(
        f"this version cannot change the members ({change!r}): "
        f"the configuration of entry {state.configurations[-1][0]} stays in force"
    )
