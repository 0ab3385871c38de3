"""Mutants of what a leader does about full and slow disks, its own and those of the others."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

SOURCE: Final = "docs/decisions/0018"
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
)
