"""Mutants of the disk: what is written, in which order, and what a start makes of it."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="entries_before_their_term",
        number=0,
        pitfall=2,
        title="entries reach the disk before the term they belong to",
        source="openraft docs/protocol/io_ordering.md",
        edits=(
            Edit(
                "raft.storage:Storage.carry_out",
                "if batch.hard_state is not None:\n        yield from self._keep(batch.hard_state)\n"
                "    if batch.cut_after",
                "if batch.cut_after",
            ),
            Edit(
                "raft.storage:Storage.carry_out",
                "yield from self._append(batch.entries)",
                "yield from self._append(batch.entries)\n    if batch.hard_state is not None:\n"
                "        yield from self._keep(batch.hard_state)",
            ),
        ),
    ),
    Mutant(
        name="failed_sync_tried_again",
        number=8,
        pitfall=63,
        title="a failed fsync is tried again, and the second one is believed",
        source="fsyncgate; rostam #94",
        edits=(  # what meets the error is the driver: the simulator's, and the server's
            Edit(
                "chaos.sim.disk:SimDisk._carry_out",
                "raise self._fence(error) from error",
                "if type(operation) is not Sync:\n"
                "            raise self._fence(error) from error\n"
                "        self.files.carry_out(operation)",
            ),
            Edit(
                "cluster.disk_write:Writer._sync",
                "    self._files.sync(name)\n",
                "    try:\n        self._files.sync(name)\n    except OSError:\n        self._files.sync(name)\n",
            ),
        ),
    ),
    Mutant(
        name="damage_taken_for_a_torn_tail",
        number=22,
        pitfall=64,
        title="a damaged record in the middle of the log is taken for a torn tail, and all behind it is cut",
        source="etcd #5230, #6515; NATS #7549",
        edits=(
            Edit(
                "raft.recovery:_recover_active",
                "if newest > segment.last.index:",
                "if newest > segment.last.index and newest < 0:",
            ),
        ),
    ),
    Mutant(
        name="recovery_trusts_the_page_cache",
        number=27,
        title="a start acknowledges what it only read back from the page cache",
        source="fsyncgate; Protocol-Aware Recovery",
        edits=(
            Edit(
                "raft.recovery:_recover_active",
                "recovery.operations += [Write(name, ended.from_mark, again), Sync(name)]",
                "recovery.operations += [Write(name, ended.from_mark, again)]",
            ),
            Edit("raft.storage_open:_open", "yield journal.mark()", "yield journal.mark()[:1]"),
        ),
    ),
    Mutant(
        name="segment_renamed_without_folder_sync",
        number=0,
        pitfall=56,
        title="a new segment gets its name, and the folder is not synced",
        source="ClickHouse Keeper #111339; cockroach #117383",
        edits=(
            Edit(
                "raft.journal:make_segment",
                "Rename(spare, segment_name(first)),\n        SyncFolder(LOG_FOLDER),",
                "Rename(spare, segment_name(first)),",
            ),
        ),
    ),
    Mutant(
        name="log_not_synced",
        number=0,
        pitfall=62,
        title="entries are written and never synced",
        source="NATS; PySyncObj #84",
        edits=(
            Edit(
                "raft.journal:Journal.append",
                'operations += (Write(name, start, b"".join(parts)), Sync(name))',
                'operations += (Write(name, start, b"".join(parts)),)',
            ),
        ),
    ),
    Mutant(
        name="full_segment_not_synced",
        number=0,
        pitfall=69,
        title="the log goes on in a new segment before the old one is synced",
        source="yugabyte #3490",
        edits=(
            Edit(
                "raft.journal:Journal.append",
                'operations += (Write(name, start, b"".join(parts)), Sync(name))',
                'operations += (Write(name, start, b"".join(parts)),)',
            ),
            Edit(
                "raft.journal:Journal.append",
                "return operations, placed",
                "return [*operations, Sync(segment_name(self.active.first))], placed",
            ),
        ),
    ),
    Mutant(
        name="trimmed_locally",
        number=31,
        title="the oldest index differs per node, and a consumer skips records",
        source="a classic of retention",
        edits=(
            Edit(
                "raft.retention:may_go",
                "min(oldest - 1, needed - 1, snapshots[1])",
                "min(needed - 1, snapshots[1])",
            ),
        ),
    ),
    Mutant(
        name="votes_while_healing",
        number=0,
        pitfall=66,
        title="a node whose log lost entries to damage votes by what is left of it",
        source="NATS #7556; Protocol-Aware Recovery",
        edits=(
            Edit("raft.recall:may_grant", "(not state.floor or state.told is not None) and ", ""),
            Edit("raft.state:State.may_campaign", "if self.floor:\n        return False\n    ", ""),
        ),
    ),
    Mutant(
        name="floor_not_durable",
        number=0,
        pitfall=66,
        title="what damage took is cut away, and that the node must not vote until it has it again is not written down",
        source="Protocol-Aware Recovery",
        edits=(Edit("raft.formats:encode_slot", "slot.floor << 1 | slot.is_mending", "0"),),
    ),
)
