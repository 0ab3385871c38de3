"""Plants mutants of snapshots as they are made, and of the files that are deleted for them."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_SOURCE: Final = "raftlog itself, planted by a review"

MUTANTS: Final = (
    Mutant(
        name="snapshot_with_the_newest_configuration",
        pitfall=42,
        title="a node that is behind with applying saves its snapshot with the newest configuration of its log",
        source=_SOURCE,
        target="raftlog.cluster.replica.upkeep.snapshots:state_mark",
        old="if pair[0] <= mark.index)",
        new=")",
    ),
    Mutant(
        name="files_deleted_up_to_the_snapshot",
        pitfall=57,
        title="a node deletes trimmed files up to its snapshot, though the core keeps the entries for slow followers",
        source=_SOURCE,
        target="raftlog.cluster.replica.upkeep.retention:_delete_and_trim",
        old="replica.core.state.log.first)",
        new="replica.core.state.log.snapshot.index + 1)",
    ),
    Mutant(
        name="install_deletes_applied_segments",
        pitfall=57,
        title="an install deletes the segments that it should keep beside the log",
        source=_SOURCE,
        target="raftlog.raft.wal.storage:Storage.install",
        old="if first > applied]",
        new="if first > 0]",
    ),
)
