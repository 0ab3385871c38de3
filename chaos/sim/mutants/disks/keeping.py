"""Mutants of what keeps the log: retention, scrubbing, backfill, and what peers give each other of it."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_REFEREE: Final = "planted by an adversarial review of the rooms"

MUTANTS: Final = (
    Mutant(
        name="log_deleted_behind_one_snapshot",
        number=0,
        pitfall=57,
        title="segments are deleted as soon as one snapshot covers them",
        source=_REFEREE,
        story="tests/raft/wal/test_retention.py::test_deletable_segments_are_trimmed_unneeded_and_twice_covered",
        edits=(
            Edit(
                "raftlog.raft.wal.retention:may_go",
                "snapshots[1])",
                "snapshots[0])",
            ),
        ),
    ),
    Mutant(
        name="record_that_a_group_waits_for_is_trimmed",
        number=0,
        pitfall=80,
        title="retention trims the segment that ends with the next record of a consumer group",
        source=_REFEREE,
        story="tests/raft/wal/test_retention.py::test_a_group_holds_unread_records_back_up_to_a_budget",
        edits=(
            Edit(
                "raftlog.raft.wal.retention:trim_before",
                "piece.last >= wanted",
                "piece.last > wanted",
            ),
        ),
    ),
    Mutant(
        name="newest_segment_trimmed",
        number=0,
        pitfall=69,
        title="retention trims the segment that is still written",
        source=_REFEREE,
        story="tests/raft/wal/test_retention.py::test_a_group_holds_unread_records_back_up_to_a_budget",
        edits=(
            Edit(
                "raftlog.raft.wal.retention:trim_before",
                "for piece in kept[:-1]:",
                "for piece in kept:",
            ),
        ),
    ),
    Mutant(
        name="scrubbing_skips_the_oldest_segment",
        number=0,
        pitfall=64,
        title="a round of scrubbing begins with the second segment",
        source=_REFEREE,
        story="tests/cluster/disk/test_scrub.py::test_every_flip_in_a_sealed_file_is_found",
        edits=(
            Edit(
                "raftlog.cluster.files.scrub:Looker.sealed",
                "pairwise(list(self._journal.segments))",
                "pairwise(list(self._journal.segments)[1:])",
            ),
        ),
    ),
    Mutant(
        name="scrubbing_skips_segment_headers",
        number=0,
        pitfall=64,
        title="scrubbing does not compare the header of a segment",
        source=_REFEREE,
        story="tests/cluster/disk/test_scrub.py::test_every_flip_in_a_sealed_file_is_found",
        edits=(
            Edit(
                "raftlog.cluster.files.scrub:Looker.segment",
                "findings = [*head, *looked.findings]",
                "findings = [*looked.findings]",
            ),
        ),
    ),
    Mutant(
        name="backfill_takes_entries_that_do_not_follow",
        number=0,
        pitfall=51,
        title="an entry of a peer is written in front of the log though it does not follow the one before",
        source=_REFEREE,
        story="tests/cluster/disk/test_older_segments.py::test_a_fetched_segment_of_another_log_is_refused",
        edits=(
            Edit(
                "raftlog.cluster.disk.older_segments:Filling._check",
                "(entry.before, entry.previous_crc) != (last.index, last.header_crc)",
                "entry.before != last.index",
            ),
        ),
    ),
    Mutant(
        name="backfill_takes_damaged_effects",
        number=0,
        pitfall=64,
        title="effects of a peer are written although their CRC is wrong",
        source=_REFEREE,
        story="tests/cluster/disk/test_older_segments.py::test_a_fetched_segment_of_another_log_is_refused",
        edits=(
            Edit(
                "raftlog.cluster.disk.older_segments:Filling._frame",
                "or crc32c(payload) != crc",
                "",
            ),
        ),
    ),
    Mutant(
        name="backfill_ends_elsewhere_than_the_log_begins",
        number=0,
        pitfall=51,
        title="a fetched segment is adopted although it does not end where this log begins",
        source=_REFEREE,
        story="tests/cluster/disk/test_older_segments.py::test_the_end_of_another_term_is_refused",
        edits=(
            Edit(
                "raftlog.cluster.disk.older_segments:Filling.finish",
                "if segment.last != self.top:",
                "if segment.last.index != self.top.index:",
            ),
        ),
    ),
    Mutant(
        name="backfilled_segment_not_synced",
        number=0,
        pitfall=56,
        title="a fetched segment gets its name before its files are durable",
        source=_REFEREE,
        story="tests/cluster/disk/test_older_segments.py::test_every_file_of_a_fetched_segment_is_synced_behind_its_last_write",
        edits=(
            Edit(
                "raftlog.cluster.disk.older_segments:Filling.finish",
                "self._sync(*_KINDS)",
                "pass",
            ),
        ),
    ),
    Mutant(
        name="failed_sync_counts_as_done",
        number=0,
        pitfall=63,
        title="the core counts a batch as durable although its sync failed",
        source=_REFEREE,
        story="tests/cluster/disk/test_syncer.py::test_a_batch_whose_sync_failed_is_no_promise",
        edits=(
            Edit(
                "raftlog.cluster.disk.syncer:Syncer._done",
                "self._failed(error)\n        return",
                "self._failed(error)",
            ),
        ),
    ),
    Mutant(
        name="answers_of_another_peer_taken",
        number=0,
        pitfall=28,
        title="a question to one peer is answered by whichever peer names its number",
        source=_REFEREE,
        story="tests/cluster/replica/log/test_peer_log.py::test_only_the_peer_that_was_asked_answers",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.peer_log:PeerLog.take",
                "asked == peer and ",
                "",
            ),
        ),
    ),
    Mutant(
        name="fenced_node_gives_its_log",
        number=0,
        pitfall=77,
        title="a node whose state is wrong gives its effects to the others",
        source=_REFEREE,
        story="tests/cluster/replica/parts/test_requests.py::test_a_node_that_is_fenced_or_stops_gives_nothing",
        edits=(
            Edit(
                "raftlog.cluster.replica.parts.serving:_answer",
                "if life.is_fenced or life.is_stopping:",
                "if life.is_stopping:",
            ),
        ),
    ),
    Mutant(
        name="disk_serves_records_without_effects",
        number=0,
        pitfall=59,
        title="a peer is given entries whose effects are not written",
        source=_REFEREE,
        story="tests/cluster/replica/log/test_log_reader.py::test_the_disk_serves_applied_entries_with_effects",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.log_reader:LogReader.own",
                "min(to_index, self._applier.applied, self._applier.written)",
                "to_index",
            ),
        ),
    ),
    Mutant(
        name="compacted_not_looked_at_again",
        number=0,
        pitfall=80,
        title="a read whose index was trimmed while it waited gets no error",
        source=_REFEREE,
        story="tests/cluster/replica/log/test_log_reader.py::test_records_trimmed_during_a_peer_read_are_gone",
        edits=(
            Edit(
                "raftlog.cluster.replica.log.log_reader:LogReader._raw",
                "self.check_oldest(from_index)  # it",
                "pass  # it",
            ),
        ),
    ),
)
