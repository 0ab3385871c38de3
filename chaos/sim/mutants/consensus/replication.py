"""Mutants of replication and commit."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Edit, Mutant

_ODD: Final = (
    "tests/raft/consensus/replication/test_odd_answers.py::"
    "test_no_answer_of_a_follower_ends_its_leader_or_makes_it_send_without_end"
)

MUTANTS: Final = (
    Mutant(
        name="older_term_committed_by_counting",
        number=1,
        pitfall=15,
        title="an entry of an older term is committed by counting its copies",
        source="LogCabin #44; raft paper figure 8",
        target="raftlog.raft.consensus.replication:advance_commit",
        old="index <= log.committed or log.term_at(index) != state.term",
        new="index <= log.committed",
    ),
    Mutant(
        name="acknowledged_before_fsync",
        number=7,
        pitfall=62,
        title="a follower acknowledges before its disk is done",
        source="NATS #7564; many users of openraft",
        target="raftlog.raft.consensus.replication:_answer",
        old="if match <= state.log.persisted and state.term == state.durable_term:",
        new="if state.term >= state.durable_term:",
    ),
    Mutant(
        name="leader_counts_itself_before_its_disk",
        number=16,
        pitfall=22,
        title="a leader counts its own copy before its disk is done; alone, that is all of them",
        source="etcd #14370",
        target="raftlog.raft.consensus.replication:advance_commit",
        old="matches = {state.node: log.persisted}",
        new="matches = {state.node: log.last.index}",
        also=(
            Edit(
                "raftlog.raft.consensus.core:RaftCore.ready",
                "replication.replicate(state, role)",
                "replication.advance_commit(state, role)\n        replication.replicate(state, role)",
            ),
        ),
    ),
    Mutant(
        name="stale_append_truncates",
        number=18,
        pitfall=18,
        title="whatever follows prev is cut, though it matches",
        source="openraft 9540c904; PySyncObj",
        target="raftlog.raft.consensus.replication:_skip_known",
        old="if here != entry.term and (entry.index > log.committed or here is not None):",
        new="if entry.index > log.committed:",
    ),
    Mutant(
        name="commit_beyond_the_last_new_entry",
        number=19,
        pitfall=16,
        title="a follower commits up to its own last entry, not the last that the message proved",
        source="copycat #265; scylladb #9965; ra #508",
        target="raftlog.raft.consensus.replication:_send",
        old="commit = min(log.committed, proved)",
        new="commit = log.committed",
        also=(
            Edit(
                "raftlog.raft.consensus.replication:on_append",
                "commit = min(message.commit, proved)",
                "commit = log.last_end(message.commit, state.term)[0]",
            ),
        ),
    ),
    Mutant(
        name="match_moved_back",
        number=20,
        pitfall=23,
        title="a late answer moves the match index back",
        source="etcd-io/raft #149",
        target="raftlog.raft.consensus.progress:FollowerProgress.note_match",
        old="if is_news:\n        self.match = match",
        new="self.match = match\n    if is_news:",
    ),
    Mutant(
        name="match_moved_by_an_older_term",
        number=20,
        pitfall=20,
        title="an answer of an older term moves the match index",
        source="openraft a80579ef, #584",
        target="raftlog.raft.consensus.core:_meet_term",
        old="if message.term < state.term:\n",
        new=(
            "if message.term < state.term and isinstance(message, AppendEntriesReply):\n        return True\n"
            "    if message.term < state.term:\n"
        ),
        story="tests/raft/scripts/append_late_reply_of_an_older_term_moves_nothing.txt",
    ),
    Mutant(
        name="hint_inside_an_entry",
        number=30,
        title="the back-off hint is not rounded down to the end of an entry",
        source="a mistake of batched entries",
        target="raftlog.raft.consensus.log:Log.last_end",
        old=(
            "position = bisect_right(self.ends, index)\n"
            "        return (self.ends[position - 1] if position else self.start.index), True"
        ),
        new="return index, True",
        story="tests/raft/scripts/append_probe_hint_inside_a_batch.txt",
    ),
    Mutant(
        name="wrong_hint_ends_the_leader",
        pitfall=25,
        title="a follower's hint inside an entry is taken for the end of one, and the leader's process ends",
        source="this project, until a review found it",
        story=_ODD,
        target="raftlog.raft.consensus.replication:_back_off",
        old=" and log.may_end(message.hint_index)",
        new="",
    ),
    Mutant(
        name="wrong_acknowledgement_ends_the_leader",
        pitfall=25,
        title="a follower's acknowledgement of a place inside an entry is believed, and the leader's process ends",
        source="this project, until a review found it",
        story=_ODD,
        target="raftlog.raft.consensus.replication:on_append_reply",
        old=" and log.may_end(message.match)",
        new="",
    ),
    Mutant(
        name="success_reports_the_own_last_index",
        pitfall=17,
        title="a follower reports its own last entry, not what the message proved",
        source="raftos",
        target="raftlog.raft.consensus.replication:on_append",
        old="_answer(state, message, success=True, match=proved)",
        new="_answer(state, message, success=True, match=log.last.index)",
    ),
    Mutant(
        name="late_write_acknowledges_a_newer_entry",
        pitfall=21,
        title="the acknowledgement of entries that were cut counts for the entries written in their place",
        source="etcd async_storage_writes_append_aba_race.txt",
        target="raftlog.raft.consensus.log:Log.acknowledge",
        old="    if index <= self.doubtful_index and term < self.doubtful_term:\n        return False\n",
        new="",
        story="tests/raft/consensus/replication/test_replication.py::"
        "test_pitfall_21_an_acknowledged_write_that_was_cut_meanwhile_proves_nothing",
    ),
    Mutant(
        name="empty_append_checks_nothing",
        pitfall=26,
        title="a conflict is looked for only where entries come",
        source="openraft 6202138f",
        target="raftlog.raft.consensus.replication:on_append",
        old="if known_term != message.prev_term and",
        new="if message.entries and known_term != message.prev_term and",
    ),
    Mutant(
        name="faster_follower_gets_less_again",
        pitfall=47,
        title="a follower that catches up fast enough gets fewer messages again, and stays behind while others write",
        source="found in this project",
        target="raftlog.raft.consensus.progress:FollowerProgress.look_at_pace",
        old="        self.pace_lag, self.pace_ms = lag",
        new=(
            "        elif self.pace_lag is not None:\n"
            "            self.behind_messages_max = max(1, self.behind_messages_max // 2)\n"
            "        self.pace_lag, self.pace_ms = lag"
        ),
        story="tests/raft/consensus/replication/test_progress.py::test_a_follower_behind_a_long_line_catches_up_while_others_write",
    ),
    Mutant(
        name="void_promise_kept",
        pitfall=21,
        title="an acknowledgement of entries that were cut before they reached the disk is sent all the same",
        source="this project",
        target="raftlog.raft.ready:without_void_promises",
        old="if not acknowledges_after(message, cut_after)",
        new="if message is not None",
        story="tests/raft/test_ready.py::test_promises_of_entries_that_were_cut_while_they_waited_are_withdrawn",
    ),
)
