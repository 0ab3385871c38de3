"""Plants mutants of the disk: which bytes are written, in which order, and how a start reads them."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="entries_before_their_term",
        pitfall=2,
        title="entries reach the disk before the term they belong to",
        source="openraft docs/protocol/io_ordering.md",
        target="raftlog.raft.wal.storage:Storage.carry_out",
        old=(
            "if batch.hard_state is not None:\n        yield from self._keep(batch.hard_state)"
            "  # before any step that may wait for disk space\n    is_late"
        ),
        new="is_late",
        also=(
            Edit(
                "raftlog.raft.wal.storage:Storage.carry_out",
                "        self._placed += placed\n",
                "        self._placed += placed\n"
                "    if batch.hard_state is not None:\n        yield from self._keep(batch.hard_state)\n",
            ),
        ),
    ),
    Mutant(
        name="failed_sync_tried_again",
        number=8,
        pitfall=63,
        title="a failed fsync is tried again, and the second one is believed",
        source="fsyncgate; rostam #94",
        target="raftlog.chaos.sim.disk.state:DiskState.carry_out_one",
        old="raise self.fence(error) from error",
        new=(
            "if type(operation) is not Sync:\n"
            "            raise self.fence(error) from error\n"
            "        self.files.carry_out(operation)"
        ),
        also=(
            Edit(
                "raftlog.cluster.files.shard_files:ShardFiles.sync",
                "    os.fdatasync(self._descriptor(name))\n",
                "    try:\n        os.fdatasync(self._descriptor(name))\n"
                "    except OSError:\n        os.fdatasync(self._descriptor(name))\n",
            ),
        ),
    ),
    Mutant(
        name="damage_taken_for_a_torn_tail",
        number=22,
        pitfall=64,
        title="a damaged record in the middle of the log is taken for a torn tail, and all behind it is cut",
        source="etcd #5230, #6515; NATS #7549",
        target="raftlog.raft.wal.recovery:_recover_active",
        old="if newest > segment.last.index:",
        new="if newest > segment.last.index and newest < 0:",
    ),
    Mutant(
        name="recovery_trusts_the_page_cache",
        number=27,
        title="a start acknowledges what it only read back from the page cache",
        source="fsyncgate; Protocol-Aware Recovery",
        target="raftlog.raft.wal.recovery:_recover_active",
        old="recovery.operations += [Write(name, ended.from_mark, again), Sync(name)]",
        new="recovery.operations += [Write(name, ended.from_mark, again)]",
        also=(Edit("raftlog.raft.wal.opening:_open", "yield journal.mark()", "yield journal.mark()[:1]"),),
    ),
    Mutant(
        name="segment_renamed_without_folder_sync",
        pitfall=56,
        title="a new segment gets its name, and the folder is not synced",
        source="ClickHouse Keeper #111339; cockroach #117383",
        target="raftlog.raft.wal.journal:make_segment",
        old="Rename(spare, segment_name(first)),\n        SyncFolder(LOG_FOLDER),",
        new="Rename(spare, segment_name(first)),",
    ),
    Mutant(
        name="log_not_synced",
        pitfall=62,
        title="entries are written and never synced",
        source="NATS; PySyncObj #84",
        target="raftlog.raft.wal.journal:Journal.append",
        old='operations += (Write(name, start, b"".join(parts)), Sync(name))',
        new='operations += (Write(name, start, b"".join(parts)),)',
    ),
    Mutant(
        name="full_segment_not_synced",
        pitfall=69,
        title="the log goes on in a new segment before the old one is synced",
        source="yugabyte #3490",
        target="raftlog.raft.wal.journal:Journal.append",
        old='operations += (Write(name, start, b"".join(parts)), Sync(name))',
        new='operations += (Write(name, start, b"".join(parts)),)',
        also=(
            Edit(
                "raftlog.raft.wal.journal:Journal.append",
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
        target="raftlog.raft.wal.retention:may_go",
        old="min(oldest - 1, needed - 1, snapshots[1])",
        new="min(needed - 1, snapshots[1])",
    ),
    Mutant(
        name="votes_while_healing",
        pitfall=66,
        title="a node whose log lost entries to damage votes by the rest of its log",
        source="NATS #7556; Protocol-Aware Recovery",
        target="raftlog.raft.consensus.recall:may_grant",
        old="(not state.floor or state.reported is not None) and ",
        new="",
        also=(Edit("raftlog.raft.consensus.state:State.may_campaign", "self.floor or ", ""),),
    ),
    Mutant(
        name="floor_not_durable",
        pitfall=66,
        title="what damage took is cut away, and that the node must not vote until it has it again is not written down",
        source="Protocol-Aware Recovery",
        target="raftlog.raft.wal.formats:encode_slot",
        old="slot.floor << 1 | slot.is_mending",
        new="0",
    ),
    Mutant(
        name="rows_are_no_proof",
        pitfall=64,
        title="a start does not look at the .idx: an entry whose row is there may pass for a torn tail",
        source="this project: an acknowledged write was lost by one flipped bit",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_changed_byte_of_the_newest_batch_is_damage_if_proved_synced",
        target="raftlog.raft.wal.evidence:newest_row",
        old="newest = index",
        new="newest = 0",
    ),
    Mutant(
        name="effects_are_no_proof",
        pitfall=64,
        title="a start does not look at the .ledger: an entry that was committed may pass for a torn tail",
        source="this project: an acknowledged write was lost by one flipped bit",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_changed_byte_of_the_newest_batch_is_damage_if_proved_synced",
        target="raftlog.raft.wal.evidence:synced_until",
        old='(applied, "its .ledger',
        new='(0, "its .ledger',
    ),
    Mutant(
        name="one_wrong_bit_is_a_torn_write",
        pitfall=64,
        title="a start takes one wrong bit in the newest batch for a torn write",
        source="this project: an acknowledged write was lost by one flipped bit",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_changed_byte_of_the_newest_batch_is_damage_if_proved_synced",
        target="raftlog.raft.wal.evidence:_one_bit_off",
        old="return header.index if any(",
        new="return 0 if any(",
    ),
    Mutant(
        name="batch_mate_is_proof",
        pitfall=64,
        title="an intact entry counts as proof for the one before it, though both are of one torn write",
        source="sectors of one write reach the disk in any order",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_torn_write_is_never_damage",
        target="raftlog.raft.wal.evidence:_behind_a_mark",
        old=" + MARK_SIZE",
        new="",
    ),
    Mutant(
        name="cut_leaves_rows_behind",
        pitfall=64,
        title="a cut does not sync the .idx: after a power cut it has rows of entries that were cut",
        source="this project: what a cut leaves behind passes for damage",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_cut_leaves_no_proof_of_removed_entries",
        target="raftlog.raft.wal.journal:Journal.cut",
        old=", Sync(index_file)]",
        new="]",
    ),
    Mutant(
        name="repair_leaves_effects_behind",
        pitfall=64,
        title="a repair removes the effects of what it cut only after the hard state says that the cut is over",
        source="this project: what a repair leaves behind passes for damage",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_repair_leaves_no_proof_of_removed_entries",
        target="raftlog.raft.wal.opening:_open",
        old="was_cut = slot.cut > 0",
        new="was_cut = False",
    ),
    Mutant(
        name="start_acts_on_a_cut_that_is_not_synced",
        pitfall=66,
        title="a start finishes a cut that it read from the page cache alone; a power cut then leaves no floor",
        source="this project: a repair whose process was killed, and whose next start lost power",
        story="tests/raft/wal/recovery/test_evidence.py::test_a_repair_leaves_no_proof_of_removed_entries",
        target="raftlog.raft.wal.opening:_open",
        old="yield promise + repeat",
        new="pass",
    ),
    Mutant(
        name="newest_ledger_forgotten_beside_a_cut",
        pitfall=64,
        title="the reading thread forgets a complete ledger that a cut opens again: it is overwritten",
        source="this project: two threads and more ledgers than are kept in memory",
        story="tests/raft/wal/test_threads.py::test_a_ledger_is_opened_again_while_complete_ones_are_forgotten",
        target="raftlog.raft.wal.ledger:Ledger._trim",
        old=" and part.last < self.last",
        new="",
    ),
)
