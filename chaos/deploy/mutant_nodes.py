"""Runs planted bugs on real processes: nodes with a mutant of the simulator's list, and the runs that find each.

The mutants and the way to plant them are in `raftlog.chaos.sim.mutants`; a node with a mutant runs that package's
command line. docs/mutants_on_processes.md has the measured results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from raftlog.chaos.sim.mutants import CannotPlant, named

__all__ = ["EXPERIMENTS", "OUT_OF_SIGHT", "CannotPlant", "command_of"]

_WIDE: Final = "--set raft.election_timeout_max_ms=2500"
"""An old leader believes in itself for that long, so an action that it must not take in this time shows in most
runs.
"""

_SMALL: Final = "--set disk.segment_bytes=131072"
"""A new segment every second or so."""

EXPERIMENTS: Final[Mapping[str, str]] = {
    "any_vote_granted_again": "smoke --nemesis kill-leader --nodes 5 --seconds 25",
    "vote_cleared_on_stepping_down": "smoke --nemesis kill-leader --nodes 3 --seconds 10",
    "vote_cleared_by_pre_vote": "smoke --nemesis kill-leader --nodes 3 --seconds 10",
    "vote_without_looking_at_the_log": "smoke --nemesis stale-candidate --nodes 3 --seconds 30",
    "vote_by_term_only": "smoke --nemesis stale-candidate --nodes 3 --seconds 30",
    "vote_by_index_only": "smoke --nemesis stale-leader --nodes 3 --seconds 30",
    "acknowledged_before_fsync": "smoke --nemesis power-cut-slow --nodes 3 --seconds 20",
    "leader_counts_itself_before_its_disk": "smoke --nemesis power-cut-leader --nodes 3 --seconds 20",
    "log_not_synced": "smoke --nemesis power-cut-slow --nodes 3 --seconds 20",
    "failed_sync_tried_again": "smoke --nemesis sync-error-once --nodes 3 --seconds 20",
    "segment_renamed_without_folder_sync": f"smoke --nemesis power-cut-slow --nodes 3 --seconds 40 {_SMALL}",
    "full_segment_not_synced": f"smoke --nemesis power-cut-slow --nodes 3 --seconds 40 {_SMALL}",
    "full_leader_stays": f"smoke --nemesis disk-full --nodes 3 --seconds 40 {_SMALL}",
    "damage_taken_for_a_torn_tail": "smoke --nemesis flip-log --nodes 3 --seconds 20",
    "read_without_a_round": f"all --nemesis partition-leader --nodes 3 --seconds 25 {_WIDE}",
    "read_confirmed_by_a_minority": f"smoke --nemesis partition-minority --nodes 5 --seconds 20 {_WIDE}",
    "retry_applied_twice": "all --nemesis clients+kill-leader --nodes 3 --seconds 20",
    "only_the_last_sequence_kept": "calm --nodes 3 --seconds 5",
    "repetition_gets_a_fresh_answer": (
        "smoke --nemesis answers-lost+all-answers-lost+half-answers+kill-leader --nodes 3 --seconds 20"
    ),
    "replica_sends_before_its_sync": "smoke --nodes 3 --seconds 40",
    "recent_entries_survive_an_install": "smoke --nodes 3 --seconds 80",
    "write_of_a_lost_leader_told_as_overwritten": "smoke --nodes 3 --seconds 40",
}
"""Mutant -> what follows `raftlog chaos run`; with its `--mutant` and a seed the verdict is to be invalid."""

_IN_ONE_TERM: Final = (
    "two candidates of one term would have to meet a node in the milliseconds between its vote and its disk, with a "
    "restart in between"
)
_ALIVE_ONLY: Final = "costs time alone: it shows as standstill in the report, which is no verdict"
_ORDER: Final = "needs doubled or late frames at a certain moment; own toxics make them, but were not tried for long"
_HELLO: Final = "needs a hello that somebody forges, or a peer that refuses; a story with real connections has both"
_MEMORY: Final = (
    "needs more log in memory than its bound of 32 MiB; the simulator's worlds have bounds of a few entries"
)
_NEWEST: Final = (
    "needs one thing damaged in the newest batch between a power cut and the next start; the simulator's worlds have "
    "that, and `flip-newest` was not tried with it"
)
_ROLLED_BACK: Final = (
    "needs a disk that was rolled back or cloned, and an election or an answer at that moment; stories have both"
)
_BREAK: Final = "costs an election after a short break of all links, which is no verdict"
_DIFFERS: Final = "needs a disk or a memory whose entry differs from the leader's; directed tests have both"
_WINDOW: Final = "needs late, lost or doubled chunks while a snapshot is sent; directed tests have them"
_WAITING: Final = "a client of the chaos runs gives up before it could notice; the simulator demands an answer"
_DIRECTED: Final = "a directed test plays exactly that; not tried on processes"
_LATE: Final = (
    "needs a leader's answer that comes after the entries of the next leader; a test of waiting requests has it"
)
_TINY: Final = "needs a crash between two steps that lie microseconds apart; the simulator stops at every step"
_STORY: Final = "needs several steps in a certain order, each within a heartbeat"
_MEMBERS: Final = "needs changes of members that overlap with partitions in a certain way; not tried"

OUT_OF_SIGHT: Final[Mapping[str, str]] = {
    "older_term_committed_by_counting": "figure 8 of the paper: " + _STORY,
    "vote_answered_before_it_is_durable": _IN_ONE_TERM,
    "vote_never_written": _IN_ONE_TERM,
    "term_and_vote_in_two_writes": _TINY,
    "term_and_vote_reset_at_restart": _IN_ONE_TERM,
    "read_answered_after_losing_leadership": _STORY,
    "read_round_number_used_again": _STORY,
    "read_before_the_first_own_commit": _STORY,
    "no_check_quorum": _ALIVE_ONLY,
    "slow_leader_stays": _ALIVE_ONLY,
    "seldom_synced_disk_unknown": _STORY,
    "full_disk_chosen_to_lead": _STORY,
    "reserves_of_followers_filled": _ALIVE_ONLY,
    "hand_overs_without_a_pause": _STORY,
    "no_pre_vote": _ALIVE_ONLY,
    "pre_vote_raises_the_term": _ALIVE_ONLY,
    "probing_for_ever_after_a_snapshot": _ALIVE_ONLY,
    "repeated_vote_request_refused": _ALIVE_ONLY,
    "removed_leader_counts_itself": (
        "of an odd number of voters a removal leaves an even one, and there the copies on the removed leader and on "
        "one less than a majority still meet every majority that can elect: nothing is lost; the simulator checks "
        "the quorum"
    ),
    "learner_refuses_to_vote": _MEMBERS,
    "two_changes_in_flight": _MEMBERS,
    "change_in_force_when_committed": _MEMBERS,
    "change_before_the_first_own_commit": _MEMBERS,
    "change_not_rolled_back": _MEMBERS,
    "joint_configuration_counted_as_one": _MEMBERS,
    "configuration_kept_over_a_snapshot": _MEMBERS,
    "second_snapshot_panics": _STORY,
    "snapshot_drops_a_valid_suffix": _STORY,
    "older_snapshot_accepted": _STORY,
    "chunk_taken_at_any_offset": _ORDER,
    "installing_follower_rejects_entries": _STORY,
    "installing_follower_answers_no_heartbeat": _STORY,
    "stale_append_truncates": _ORDER,
    "match_moved_back": _ORDER,
    "match_moved_by_an_older_term": _ORDER,
    "votes_counted_by_reply": _ORDER,
    "commit_beyond_the_last_new_entry": _STORY,
    "success_reports_the_own_last_index": _STORY,
    "empty_append_checks_nothing": _STORY,
    "hint_inside_an_entry": _STORY,
    "late_write_acknowledges_a_newer_entry": _TINY,
    "void_promise_kept": _TINY,
    "entries_before_their_term": _TINY,
    "recovery_trusts_the_page_cache": "the first entry of the new leader syncs the whole file: " + _TINY,
    "sessions_missing_from_the_snapshot": "needs a repetition after a start from a snapshot; not tried for long enough",
    "timeout_told_as_a_failure": "the client asks again, and gets the right answer, before its own deadline",
    "sessions_expire_by_wall_clock": "needs a clock that jumps by the life of a session; not tried",
    "votes_while_healing": "needs an election in the moment in which a damaged node heals; the simulator has both",
    "floor_not_durable": "needs a crash of a node while it heals, and an election then; the simulator has both",
    "fenced_owner_commits": "no workload has consumer groups; the simulator's clients have",
    "consumers_missing_from_the_snapshot": "no workload has consumer groups; the simulator's clients have",
    "leader_is_always_right": "needs a leader whose memory is wrong beside it; the simulator has that fault",
    **dict.fromkeys(
        (
            "access_missing_from_the_snapshot",
            "filter_forgotten_in_a_page",
            "other_branch_not_checked",
            "permission_asked_before_the_session",
            "permission_checked_only_at_the_door",
            "permission_of_a_stale_revision",
            "permissions_kept_over_a_change",
            "prefix_off_by_one",
            "session_of_another_principal",
        ),
        "no workload has users whose permissions change; the simulator's users have",
    ),
    "trimmed_locally": "needs a log that is trimmed and two snapshots that cover it; not tried on processes",
    "version_raised_by_a_majority": "needs nodes that run an older program; the simulator's worlds have them",
    "version_missing_from_the_snapshot": "needs nodes that run an older program; the simulator's worlds have them",
    "only_applied_entries_leave_memory": _MEMORY,
    "freed_entries_are_not_counted": _MEMORY,
    "freed_entries_are_not_read_back": _MEMORY,
    "scrubbing_skips_sealed_segments": "needs a bit that flips at rest; the simulator's worlds have them",
    "expired_session_told_as_not_applied": "the harness's clients know by themselves which code leaves a doubt",
    "settled_sequence_told_as_not_applied": "the harness's clients know by themselves which code leaves a doubt",
    "refused_copy_told_as_not_applied": "the harness's clients remember whether they sent a copy before",
    "packed_body_stored_as_it_is": "a test sends the bytes",
    "chunk_extensions_not_counted": "a test sends the bytes",
    "foreign_target_served": "a test sends the bytes",
    "misspelt_headers_of_reads_passed_over": "a test sends the bytes",
    "probe_without_a_host_refused": "a test sends the bytes",
    "place_of_an_error_within_its_string": "a test sends the bytes",
    "unread_request_said_not_applied": "a test sends the bytes",
    "session_accepted_where_it_does_nothing": "a test sends the bytes",
    "session_of_a_simple_head_passed_over": "not tried; the nemeses of `retry_applied_twice` make such copies",
    "hello_believed_without_a_proof": _HELLO,
    "boot_remembered_without_a_proof": _HELLO,
    "end_of_a_forged_connection_is_news": _HELLO,
    "term_jumps_without_bound": _HELLO,
    "silent_connections_keep_members_out": _HELLO,
    "ready_though_refused": _HELLO,
    "scrubbing_pauses_by_the_wall_clock": _ALIVE_ONLY,
    "snapshot_saved_for_an_older_one": _ALIVE_ONLY,
    "batch_mate_is_proof": _NEWEST,
    "cut_leaves_rows_behind": _NEWEST,
    "effects_are_no_proof": _NEWEST,
    "newest_ledger_forgotten_beside_a_cut": _NEWEST,
    "one_wrong_bit_is_a_torn_write": _NEWEST,
    "repair_leaves_effects_behind": _NEWEST,
    "rows_are_no_proof": _NEWEST,
    "start_acts_on_a_cut_that_is_not_synced": _NEWEST,
    "equal_boot_of_another_run_accepted": _ROLLED_BACK,
    "hard_state_behind_the_log_begun_with": _ROLLED_BACK,
    "lost_promises_not_compared": _ROLLED_BACK,
    "floor_lifted_before_everything_is_back": _ROLLED_BACK,
    "hint_below_match_probed_at_once": _ROLLED_BACK,
    "progress_kept_for_a_new_process": _ROLLED_BACK,
    "promises_forgotten_with_the_role": _ROLLED_BACK,
    "running_floor_not_durable": _ROLLED_BACK,
    "terms_of_restarted_peers_not_entered": _ROLLED_BACK,
    "committed_entries_not_reported": _ROLLED_BACK,
    "effects_show_no_commit": _ROLLED_BACK,
    "votes_before_peers_were_asked": _ROLLED_BACK,
    "acknowledges_before_peers_were_asked": _ROLLED_BACK,
    "takes_over_before_peers_were_asked": _ROLLED_BACK,
    "what_was_acknowledged_to_a_leader_is_not_remembered": _ROLLED_BACK,
    "acknowledgements_of_a_learner_are_remembered": _DIRECTED,
    "transfers_to_full_followers_go_on": _DIRECTED,
    "readers_of_failed_rounds_forgotten": _WAITING,
    "readers_of_an_index_never_expire": _WAITING,
    "queued_writes_never_expire": _WAITING,
    "forwarded_writes_never_expire": _WAITING,
    "closed_link_taken_for_a_dead_leader": _BREAK,
    "leader_silent_when_a_link_opens": _BREAK,
    "refused_dial_believed_alone": _BREAK,
    "chunks_taken_beyond_the_window": _WINDOW,
    "late_answer_takes_a_snapshot_back": _WINDOW,
    "snapshot_resumed_behind_what_was_sent": _WINDOW,
    "snapshot_window_ignores_the_followers_pace": _WINDOW,
    "snapshot_sent_without_a_window": _ALIVE_ONLY,
    "wrong_hint_ends_the_leader": _DIFFERS,
    "wrong_acknowledgement_ends_the_leader": _DIFFERS,
    "differing_log_rejected_without_end": _DIFFERS,
    "node_goes_on_though_its_log_differs": _DIFFERS,
    "split_vote_waits_for_a_timeout": _ALIVE_ONLY,
    "faster_follower_gets_less_again": _ALIVE_ONLY,
    "pre_candidates_grant_each_other": _ALIVE_ONLY,
    "late_place_taken_for_overwritten": _LATE,
    "write_covered_by_a_snapshot_told_as_overwritten": _LATE,
    "forwarded_write_gets_anothers_effect": _DIRECTED,
    "joined_repetitions_forgotten_with_a_refused_proposal": _DIRECTED,
    "other_bytes_join_a_sequence": _DIRECTED,
    "forwarded_writes_kept_by_a_follower": _DIRECTED,
    "read_answered_before_its_index_is_applied": _DIRECTED,
    "failed_read_round_answered_from_the_commit_index": _DIRECTED,
    "wait_for_an_index_ends_as_reached": _DIRECTED,
    "waiters_of_an_installed_index_not_woken": _DIRECTED,
    "last_user_index_kept_over_an_install": _DIRECTED,
    "effects_count_as_written_before_they_are": _DIRECTED,
    "waiter_woken_one_record_late": _DIRECTED,
    "waiting_writes_forgotten_by_an_install": _DIRECTED,
    "log_compacted_under_a_snapshot_that_is_sent": _DIRECTED,
    "reads_served_while_states_differ": _DIRECTED,
    "reports_of_points_not_compared": _DIRECTED,
    "waiting_requests_left_at_the_end": _DIRECTED,
    "forwards_of_a_closed_link_not_told": _DIRECTED,
    "members_changed_though_one_holds_the_history": _DIRECTED,
    "forwarded_deadline_in_seconds": _DIRECTED,
    "entries_of_older_terms_wait_for_ever": _DIRECTED,
    "log_deleted_behind_one_snapshot": _DIRECTED,
    "record_that_a_group_waits_for_is_trimmed": _DIRECTED,
    "newest_segment_trimmed": _DIRECTED,
    "scrubbing_skips_the_oldest_segment": _DIRECTED,
    "scrubbing_skips_segment_headers": _DIRECTED,
    "backfill_takes_entries_that_do_not_follow": _DIRECTED,
    "backfill_takes_damaged_effects": _DIRECTED,
    "backfill_ends_elsewhere_than_the_log_begins": _DIRECTED,
    "backfilled_segment_not_synced": _DIRECTED,
    "failed_sync_counts_as_done": _DIRECTED,
    "answers_of_another_peer_taken": _DIRECTED,
    "fenced_node_gives_its_log": _DIRECTED,
    "disk_serves_records_without_effects": _DIRECTED,
    "compacted_not_looked_at_again": _DIRECTED,
    "watch_skips_an_event_at_a_reconnect": _DIRECTED,
    "watch_follows_entries_not_records": _DIRECTED,
    "consumer_offset_goes_back": _DIRECTED,
    "long_poll_waits_for_the_record_after": _DIRECTED,
    "repetition_told_as_applied": _DIRECTED,
    "min_index_of_linearizable_reads_ignored": _DIRECTED,
    "voided_sequence_told_as_unknown_session": _DIRECTED,
    "page_reads_beyond_its_end": _DIRECTED,
    "two_damaged_nodes_end_together": _DIRECTED,
    "ends_for_damage_while_others_are_ill": "needs a flipped bit beside a node that is down; a story has both",
}
"""Mutant -> why no run on processes is asked to see it. The simulator or a directed story sees it (docs/mutants.md)."""


def command_of(name: str) -> tuple[str, ...]:
    """What runs the command line with that mutant planted. Raises CannotPlant when there is none, or it does not fit
    production as it is."""
    for _ in named(name).planned():
        pass
    return (sys.executable, "-m", "raftlog.chaos.sim.mutants", name, "--")
