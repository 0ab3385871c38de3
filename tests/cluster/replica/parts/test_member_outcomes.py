"""What a change of the members answers when a leader's snapshot took the place of the log that held it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.replica.parts.members import outcome
from raftlog.raft.changes import Remove, after, joined, left
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from tests.raft.lab import configuration, make_core

FIVE = configuration(5)
BEGUN = joined(FIVE, after(FIVE, Remove((5,))))


@pytest.mark.parametrize(
    ("newest", "snapshot", "code"),
    [
        (BEGUN, True, None),
        (left(BEGUN), True, None),
        (FIVE, True, Code.LEADER_LOST),
        (FIVE, False, Code.OVERWRITTEN),
        (BEGUN, False, Code.OVERWRITTEN),
    ],
)
def test_a_change_that_a_snapshot_passed_is_applied_or_unknown_and_never_overwritten(
    newest: Configuration, snapshot: bool, code: Code | None
) -> None:
    """A leader appended the change at index 2 in term 2, and became a follower. The snapshot that it got ends at 9, and
    the log no longer says which entry is at 2. In force, the change is applied, else its outcome is unknown. It was
    overwritten only if another entry is seen there."""
    core = make_core(1, 5, 3, members=FIVE)
    state = core.state
    if snapshot:
        state.log.restart(Mark(9, 3), 0)
    state.configurations = [(1, replace(newest))]
    assert outcome(state, 2, 2, BEGUN) is code
