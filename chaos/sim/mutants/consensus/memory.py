"""Plants mutants of the log's memory: which entries leave it, and which are read back."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_SOURCE: Final = "this project, while the bound was made"

MUTANTS: Final = (
    Mutant(
        name="only_applied_entries_leave_memory",
        pitfall=29,
        title="durable entries stay in memory until they are applied",
        source="this project: a follower held 128 MiB with a bound of 32 MiB",
        target="raftlog.raft.consensus.log:Log.trim",
        old="free = bisect_right(self.ends, self.persisted)",
        new="free = bisect_right(self.ends, min(self.applied, self.persisted))",
    ),
    Mutant(
        name="freed_entries_are_not_counted",
        pitfall=29,
        title="an uncommitted entry that left memory is never taken off a leader's uncommitted bytes",
        source=_SOURCE,
        target="raftlog.raft.consensus.log:Log.bytes_between",
        old="if after < index <= to:",
        new="if index < after:",
        story="tests/raft/scripts/busy_leader_counts_entries_that_left_its_memory.txt",
    ),
    Mutant(
        name="freed_entries_are_not_read_back",
        pitfall=29,
        title="entries that left memory before they were applied are passed over",
        source=_SOURCE,
        target="raftlog.raft.consensus.log:Log.take_committed",
        old="or self.given < self.start.index ",
        new="",
        also=(
            Edit(
                "raftlog.raft.consensus.replication:fetch_committed",
                "state.log.unapplied_bytes >= state.options.apply_bytes_max",
                "True",
            ),
        ),
    ),
)
