"""Mutants of what a leader does about full and slow disks, its own and those of the others."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

SOURCE: Final = "docs/decisions/0018"
OVERTAKES: Final = "docs/decisions/0028"
PITFALL: Final = 72
"""Hung disk, live network: the nearest one."""

MUTANTS: Final = (
    Mutant(
        name="full_leader_stays",
        pitfall=PITFALL,
        title="a leader whose disk is full goes on leading, and refuses every write",
        source=SOURCE,
        target="raftlog.cluster.protocol.disk_reports:Disks.handover",
        old="if self.has_room else None",
        new="if not self.has_room else None",
    ),
    Mutant(
        name="slow_leader_stays",
        pitfall=PITFALL,
        title="a leader whose disk is much slower than the others' goes on leading",
        source=SOURCE,
        target="raftlog.cluster.protocol.disk_reports:Disks.fast",
        old="if self.own.sync_us < rules.slow_us:",
        new="if rules:",
    ),
    Mutant(
        name="seldom_synced_disk_unknown",
        pitfall=PITFALL,
        title="a follower that syncs seldom, because its leader's disk is slow, reports no time: the leader stays",
        source=SOURCE,
        target="raftlog.cluster.replica.parts.disk_exchange:_tell",
        old="._replace(sync_us=view.times.any_us)",
        new="._replace(sync_us=view.times.median_us)",
        story="tests/cluster/replica/parts/test_disk_exchange.py::test_a_follower_that_syncs_seldom_reports_its_sync_time",
    ),
    Mutant(
        name="dropped_report_not_sent_again",
        pitfall=PITFALL,
        title="a report that a peer dropped, since it did not believe the link yet, is not sent again",
        source=SOURCE,
        target="raftlog.cluster.replica.parts.link_events:bulk_link_believed",
        old="disk_exchange.lost(replica, peer)",
        new="pass",
        story="tests/cluster/replica/parts/test_requests.py::"
        "test_the_newest_disk_report_is_due_again_once_a_peer_believes_the_link",
    ),
    Mutant(
        name="full_disk_chosen_to_lead",
        pitfall=PITFALL,
        title="a full leader hands over to a voter whose disk is full too",
        source=SOURCE,
        target="raftlog.cluster.protocol.disk_reports:Disks.best",
        old="and not self.is_full(each.node)",
        new="and each.node",
        story="tests/cluster/protocol/test_disk_reports.py::test_a_full_follower_that_is_the_most_caught_up_is_no_target",
    ),
    Mutant(
        name="reserves_of_followers_filled",
        pitfall=PITFALL,
        title="a leader with room sends entries to full followers until their reserves are used up",
        source=SOURCE,
        target="raftlog.cluster.protocol.disk_reports:Disks.holds",
        old="if not full or not self.has_room:",
        new="if full or not full:",
    ),
    Mutant(
        name="hand_overs_without_a_pause",
        pitfall=PITFALL,
        title="nothing bounds how often a leader hands over for its disk",
        source=SOURCE,
        target="raftlog.cluster.protocol.disk_reports:_since",
        old="if handover.why is why and at_ms > since_ms",
        new="if handover.why is not handover.why",
        story="tests/cluster/protocol/test_disk_reports.py::test_there_is_a_pause_between_two_hand_overs",
    ),
    Mutant(
        name="transfers_to_full_followers_go_on",
        pitfall=PITFALL,
        title="a leader waits for a full follower to take over, though it sends that follower no more entries",
        source=SOURCE,
        target="raftlog.raft.consensus.election:held",
        old="if to in nodes and role.progress[to].match < state.log.last.index:",
        new="if to not in role.progress:",
        story="tests/raft/consensus/replication/test_hold.py::"
        "test_a_transfer_to_a_follower_that_turns_out_full_ends_at_once",
    ),
    Mutant(
        name="hard_state_waits_for_disk_space",
        pitfall=PITFALL,
        title="a hard state and its votes wait behind entries that find no disk space: full disks elect no leader",
        source=OVERTAKES,
        target="raftlog.cluster.disk.syncer:Syncer.start",
        old="batch = self._queue.take_promises()\n"
        "        if batch.hard_state is None and not batch.messages:\n            return None",
        new="return None",
        story="tests/sim/disk/test_bad_disks.py::"
        "test_full_disks_whose_entries_wait_for_space_still_elect_and_keep_a_leader",
    ),
    Mutant(
        name="acknowledged_before_disk_space",
        pitfall=1,
        title="an acknowledgement leaves with the hard state, and its entries still wait for disk space",
        source=OVERTAKES,
        target="raftlog.raft.ready:SyncQueue.take_promises",
        old="if durable is not None and acknowledges_after(message, durable):",
        new="if durable is not None and acknowledges_after(message, durable + 99):",
        story="tests/raft/test_ready.py::test_whenever_the_disk_is_idle_it_equals_the_log",
    ),
    Mutant(
        name="batch_without_space_loses_its_place",
        pitfall=67,
        title="a batch that found no disk space comes back behind the parts that came after it",
        source=OVERTAKES,
        target="raftlog.raft.ready:SyncQueue.put_back",
        old="later = self.take()",
        new="later, batch = batch, self.take()",
        story="tests/raft/test_ready.py::test_a_hard_state_and_its_votes_leave_before_entries_that_wait_for_disk_space",
    ),
    Mutant(
        name="rows_go_before_the_hard_state",
        pitfall=PITFALL,
        title="rows that find no disk space hold back the entries and the segment's last space",
        source=OVERTAKES,
        target="raftlog.raft.wal.storage:Storage.carry_out",
        old="is_late = len(self._placed) >= PLACED_MAX and not self._are_rows_owed",
        new="is_late = len(self._placed) >= PLACED_MAX or self._are_rows_owed",
        story="tests/raft/wal/test_storage.py::"
        "test_rows_that_find_no_space_hold_back_no_entry_until_a_new_segment_is_needed",
    ),
    Mutant(
        name="roll_needs_space_half_way",
        pitfall=63,
        title="a roll makes the files beside its segment after the old one was synced: a full disk ends the node",
        source=OVERTAKES,
        target="raftlog.raft.wal.storage:Storage.carry_out",
        old="yield (StepKind.SPARES, spares)",
        new="yield (StepKind.SPARES, spares[:1])\n            yield (StepKind.ENTRIES, spares[1:])",
        story="tests/raft/wal/test_storage.py::test_a_full_disk_stops_a_roll_before_it_can_no_longer_be_undone",
    ),
    Mutant(
        name="reserve_given_up_whole",
        pitfall=PITFALL,
        title="the first operation without space deletes the whole reserve, and another program takes it",
        source=OVERTAKES,
        target="raftlog.cluster.files.reserve:Reserve.give",
        old="left = max(0, self.bytes - max(size, self._segment_bytes // SLICES))",
        new="left = 0",
        story="tests/cluster/disk/test_full.py::test_another_program_gets_no_space_of_the_reserve",
    ),
    Mutant(
        name="full_sync_tried_again",
        pitfall=63,
        title="a sync that finds no disk space is tried again, and the second one is believed",
        source=OVERTAKES,
        target="raftlog.cluster.files.shard_files:ShardFiles._carry_out_again",
        old="not isinstance(operation, Sync | SyncFolder) and ",
        new="",
        story="tests/cluster/files/test_reserve.py::test_a_sync_without_space_is_not_tried_again",
    ),
    Mutant(
        name="start_without_the_reserve",
        pitfall=PITFALL,
        title="a start on a full disk does not use the reserve that lies beside it, and ends",
        source=OVERTAKES,
        target="raftlog.cluster.files.folder:_open_shard",
        old="files = ShardFiles(shard, give=reserve.give)",
        new="files = ShardFiles(shard)",
        story="tests/cluster/disk/test_full.py::test_a_start_on_a_full_disk_uses_the_reserve",
    ),
)
