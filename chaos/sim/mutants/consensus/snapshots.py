"""Mutants of snapshots that travel from a leader to a follower."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

MUTANTS: Final = (
    Mutant(
        name="probing_for_ever_after_a_snapshot",
        number=13,
        title="a follower that took a snapshot is never streamed to again",
        source="etcd #10308",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_reply",
                "progress.probe(sending.mark.index)",
                "progress.need_snapshot(sending.mark.index)",
            ),
        ),
        story="tests/sim/invariants/test_mutant_stories.py::test_a_follower_is_streamed_to_after_its_snapshot",
    ),
    Mutant(
        name="second_snapshot_panics",
        number=15,
        title="a snapshot that comes while another is installed breaks the follower",
        source="etcd #18055",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_install",
                "    if state.is_installing:\n        return  # the answer follows when that is done\n",
                "",
            ),
        ),
        story="tests/sim/invariants/test_mutant_stories.py::test_a_newer_snapshot_waits_while_one_is_installed",
    ),
    Mutant(
        name="snapshot_drops_a_valid_suffix",
        number=21,
        pitfall=53,
        title="a snapshot that is a prefix of the log takes what follows away",
        source="thesis 5.1; etcd-io/raft #110",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:_has_all",
                "if log.term_at(index) != term:",
                "if log.term_at(index) != term or log.last.index > index:",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_receiver.py::test_pitfall_53_a_valid_suffix_is_kept",
    ),
    Mutant(
        name="older_snapshot_accepted",
        number=21,
        pitfall=51,
        title="a snapshot older than the commit index is taken",
        source="thesis 5.1; openraft 71a290cd",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:_has_all",
                "if index <= log.committed:\n        return True\n    if log.term_at(index) != term:",
                "if index == log.last.index:\n        return True\n"
                "    if log.term_at(index) != term or index < log.committed:",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_receiver.py::test_pitfall_53_an_older_snapshot_is_answered_and_nothing_changes",
    ),
    Mutant(
        name="configuration_kept_over_a_snapshot",
        pitfall=42,
        title="an installed snapshot leaves the old configuration in force",
        source="openraft #1808",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_installed",
                "state.configurations = [(configuration_index, configuration)]",
                "pass",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots.py::test_pitfall_42_the_configuration_in_the_snapshot_takes_effect",
    ),
    Mutant(
        name="installing_follower_rejects_entries",
        pitfall=54,
        title="a follower that installs a snapshot rejects entries, so that its leader probes and streams without end",
        source="this project, until it was fixed",
        edits=(
            Edit(
                "raftlog.raft.consensus.replication:on_append",
                "    if entries and state.is_installing:\n        return",
                "    if entries and state.is_installing and log.term_at(prev) == message.prev_term:\n        return",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_receiver.py::test_a_follower_that_installs_rejects_no_entries_so_its_leader_waits_for_the_next_heartbeat",
    ),
    Mutant(
        name="installing_follower_answers_no_heartbeat",
        pitfall=54,
        title="a follower that installs a snapshot does not answer heartbeats, so that its leader closes the link",
        source="this project, until it was fixed",
        edits=(
            Edit(
                "raftlog.raft.consensus.replication:on_append",
                "    if entries and state.is_installing:\n        return",
                "    if state.is_installing and (entries or log.term_at(prev) != message.prev_term):\n        return",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_receiver.py::test_a_follower_that_installs_answers_each_heartbeat_also_where_its_log_does_not_fit",
    ),
    Mutant(
        name="chunk_taken_at_any_offset",
        pitfall=55,
        title="a chunk is taken wherever it begins",
        source="LogCabin #174; openraft 2eccb9e1",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_install",
                "elif message.offset != receiving.ahead:",
                "elif message.offset > receiving.ahead:",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_receiver.py::test_pitfall_55_chunks_out_of_place_are_answered_with_the_place_to_go_on",
    ),
    Mutant(
        name="snapshot_sent_without_a_window",
        pitfall=55,
        title="a leader sends chunk after chunk, whatever was answered",
        source="found in this project",
        edits=(
            Edit(
                "raftlog.raft.consensus.progress:Sending.has_room",
                "return not self.inflight or "
                "self.sent - self.offset + options.snapshot_chunk_bytes <= self.window_bytes",
                "return True",
            ),
        ),
    ),
    Mutant(
        name="snapshot_window_ignores_the_followers_pace",
        pitfall=55,
        title="the window grows with every answer, however late it comes",
        source="found in this project",
        edits=(
            Edit(
                "raftlog.raft.consensus.progress:Sending.note_written",
                "if took_ms <= self.quickest_ms + options.snapshot_queue_ms:",
                "if took_ms >= 0:",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_window.py::test_late_answers_make_the_window_smaller",
    ),
    Mutant(
        name="late_answer_takes_a_snapshot_back",
        pitfall=55,
        title="an answer from before takes the leader back to what it says",
        source="found in this project",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_reply",
                "elif sending.is_doubted and message.offset < sending.offset:",
                "elif message.offset < sending.offset:",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_sender.py::test_an_answer_asks_for_the_next_chunk_and_an_old_one_for_nothing",
    ),
    Mutant(
        name="snapshot_resumed_behind_what_was_sent",
        pitfall=55,
        title="after a cut the leader goes on behind the bytes that it sent, not behind those that were acknowledged",
        source="found in this project",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_bulk_opened",
                "progress.sending.go_to(progress.sending.offset)",
                "progress.sending.go_to(progress.sending.sent)",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_window.py::test_a_new_link_continues_behind_the_answered_chunks",
    ),
    Mutant(
        name="chunks_taken_beyond_the_window",
        pitfall=55,
        title="a follower keeps whatever comes, however much waits for its disk",
        source="found in this project",
        edits=(
            Edit(
                "raftlog.raft.consensus.snapshots:on_install",
                "elif not receiving.writes or end - receiving.offset <= state.options.snapshot_window_bytes:",
                "else:",
            ),
        ),
        story="tests/raft/consensus/snapshots/test_snapshots_window.py::test_a_follower_keeps_no_more_than_the_window",
    ),
)
