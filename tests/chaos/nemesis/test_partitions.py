"""When a follower that is cut off needs a snapshot."""

from __future__ import annotations

from raftlog.chaos.nemesis.partitions import have_saved


def test_the_running_nodes_must_have_saved_two_snapshots_each() -> None:
    """A node that is down has saved none and does not count; one that joined later does. While no node
    runs, nothing has been saved."""
    saved = {1: {10, 20}, 2: {10}, 3: set[int]()}
    assert have_saved(saved, [1])
    assert not have_saved(saved, [1, 2])
    assert not have_saved(saved, [1, 4])
    assert not have_saved(saved, [])
