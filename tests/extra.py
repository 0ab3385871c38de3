"""Lists the tests that `make test` leaves to `make test-all`: each takes long, and another one shows the same defects.

tests/plugin.py marks them `extra`. An entry names a file, a test with all its parameters, or one set of parameters.
"""

from __future__ import annotations

from typing import Final

EXTRA: Final = {
    "random worlds find planted bugs, and shrink them; each of these mutants has a story or a world in `make test`": (
        "tests/sim/clients/test_clients.py::test_clients_alone_find_planted_bugs[timeout_told_as_a_failure-seeds1]",
        "tests/sim/clients/test_clients.py::test_clients_alone_find_planted_bugs[expired_session_told_as_not_applied-seeds2]",
        "tests/sim/clients/test_clients.py::test_clients_alone_find_planted_bugs[sessions_missing_from_the_snapshot-seeds6]",
        "tests/sim/disk/test_promises.py::test_worlds_see_what_protects_against_a_disk_that_forgot",
        "tests/sim/disk/test_promises.py::test_both_processes_of_a_cloned_node_are_reached_and_the_cluster_goes_on",
        "tests/sim/invariants/test_mutants.py::test_a_directed_story_passes_without_a_mutant",
        "tests/sim/invariants/test_mutants.py::test_a_planted_bug_is_found[older_term_committed_by_counting]",
        "tests/sim/invariants/test_mutants.py::test_a_planted_bug_is_found[read_without_a_round]",
        "tests/sim/invariants/test_mutants.py::test_a_planted_bug_is_found[vote_never_written]",
        "tests/sim/invariants/test_nemesis.py::test_fixed_worlds_reach_most_states",
        "tests/sim/runs/test_commands.py::test_the_printed_command_repeats_a_planted_bug",
        "tests/sim/runs/test_shrink.py::test_a_planted_bug_is_shrunk",
        "tests/sim/world/test_determinism.py::test_every_python_gives_the_same",
        "tests/sim/world/test_short.py::test_the_median_world_is_busy",
    ),
    "real processes play again what the simulator plays with the server's own code; one of each kind stays": (
        "tests/acceptance/test_chaos.py::test_a_smoke_run_of_chaos_is_valid[minute]",
        "tests/acceptance/test_backup.py",
        "tests/acceptance/test_chaos.py::test_nothing_is_left_behind",
        "tests/acceptance/test_members.py::test_random_changes_under_load_with_kills",
        "tests/acceptance/test_members.py::test_a_wiped_follower_is_replaced",
        "tests/chaos/nemesis/test_links.py::test_a_break_of_all_links_is_proved_and_leaves_the_leader[broken-leader-4]",
        "tests/chaos/runs/test_healing_nodes.py::test_a_follower_whose_log_was_damaged_heals",
        "tests/acceptance/test_snapshots.py",
        "tests/acceptance/test_upgrade.py",  # the core and the machine: tests/cluster/replica/test_versions.py
        "tests/acceptance/faults/test_partition.py::test_a_leader_in_the_minority_promises_nothing[plain-refused]",
        "tests/chaos/shim/test_nodes.py::test_a_hanging_disk_makes_the_leader_step_down",
        "tests/chaos/shim/test_nodes.py::test_a_kill_at_the_nth_step_without_unsynced_bytes_loses_no_write",
        "tests/chaos/shim/test_nodes.py::test_full_disks_are_trimmed_in_the_reserve",
        "tests/cluster/node/test_first_start.py::test_a_lost_folder_is_refused_in_each_phase[every node]",
        "tests/cluster/node/test_first_start.py::test_a_folder_that_is_lost_before_the_first_election_is_made_again[plain]",
        "tests/cluster/node/test_first_start.py::test_nodes_without_folders_wait_for_each_other_and_come_up[tls]",
        "tests/cluster/node/test_process.py::test_each_refusal_of_a_node_is_one_line_of_its_log[1]",
        "tests/cluster/node/test_process.py::test_each_refusal_of_a_node_is_one_line_of_its_log[2]",
        "tests/cluster/node/test_process.py::test_each_refusal_of_a_node_is_one_line_of_its_log[3]",
        "tests/cluster/node/test_process.py::test_each_refusal_of_a_node_is_one_line_of_its_log[5]",
        "tests/cluster/node/test_process.py::test_each_refusal_of_a_node_is_one_line_of_its_log[6]",
        "tests/cluster/node/test_process.py::test_a_process_that_a_node_cannot_run_in_is_refused[asserts]",
        "tests/cluster/node/test_service.py::test_a_node_reports_its_start_a_hand_over_a_standstill_and_its_stop[path]",
        "tests/cluster/node/test_up.py::test_a_secure_cluster_whose_first_start_did_not_finish_gets_its_first_admin_at_the_next",
        "tests/cluster/replica/parts/test_digest_points_process.py::test_a_node_that_applies_a_value_wrongly_is_fenced[leader]",
        "tests/cluster/replica/upkeep/test_damage_process.py::test_a_byte_flipped_under_a_running_node_is_found_and_heals[leader]",
    ),
    "kills of a whole job again and again; its steps are killed one by one without processes": (
        "tests/spark_export/export/test_store.py::test_a_run_that_is_overtaken_at_any_request_loses_or_counts[delta]",
        "tests/spark_export/export/test_store.py::test_killed_before_every_change_of_the_store[delta]",
        "tests/spark_export/sink/test_kills.py",
        "tests/spark_export/source/test_stream_chaos.py",
        "tests/spark_export/tables/test_truth.py::test_a_killed_export_goes_on_and_gives_the_truth",
    ),
    "further pages, inputs and studies": (
        "tests/bench/studies/test_loop_cost.py",
        "tests/bench/test_run.py",
        "tests/cluster/cli/test_demo.py::test_demo_on_a_file_of_any_kind",
        "tests/cluster/cli/test_demo.py::test_up_is_found_and_leaves_no_process_behind",
        "tests/house/test_editor.py::test_an_editor_finds_and_renames_a_function",
        "tests/house/test_release.py::test_two_builds_of_a_commit_have_the_same_bytes",
        "tests/cluster/monitoring/test_alertmanager.py",
        "tests/cluster/cli/test_docs_blocks.py::test_the_blocks_of_a_page_run[docs/http_api.md]",
        "tests/cluster/cli/test_docs_blocks.py::test_the_blocks_of_a_page_run[docs/import.md]",
        "tests/cluster/cli/test_docs_blocks.py::test_the_blocks_of_a_page_run[docs/python.md]",
        "tests/cluster/cli/test_docs_blocks.py::test_the_blocks_of_a_page_run[docs/operations/log.md]",
        "tests/acceptance/test_stories.py",
        "tests/cluster/cli/test_docs_blocks.py::test_the_stories_of_operations_run",
        "tests/cluster/importer/postgres/test_page.py",
        "tests/cluster/node/test_up.py::test_a_second_cluster_changes_nothing_for_other_commands",
        "tests/spark_export/source/test_docs.py",
        "tests/spark_export/tables/test_notebook.py",
    ),
    "the console in a browser: `make test` opens each page, and tries what an attacker may send": (
        "tests/chaos/record/test_page.py::test_pages_fit_a_telephone",
        "tests/cluster/console/test_attacks.py::test_a_form_outlives_the_end_of_its_login",
        "tests/cluster/console/test_attacks.py::test_a_login_ends_with_its_token_while_the_page_is_open",
        "tests/cluster/console/test_attacks.py::test_a_role_that_shrinks_is_named_where_its_data_was",
        "tests/cluster/console/test_data.py::test_imports_sinks_and_readers_are_shown_with_their_commands",
        "tests/cluster/console/test_keys_page.py::test_a_comparison_goes_on_after_a_request_that_failed",
        "tests/cluster/console/test_keys_page.py::test_a_lost_update_shows_both_values",
        "tests/cluster/console/test_keys_page.py::test_a_missing_right_is_named",
        "tests/cluster/console/test_keys_page.py::test_a_moment_is_chosen_by_slider_index_or_time",
        "tests/cluster/console/test_keys_page.py::test_history_ends_with_the_reason_of_the_node",
        "tests/cluster/console/test_keys_page.py::test_odd_keys_are_text_and_lead_to_their_versions",
        "tests/cluster/console/test_keys_page.py::test_the_console_goes_back_to_a_moment",
        "tests/cluster/console/test_keys_page.py::test_two_moments_are_compared",
        "tests/cluster/console/test_log_page.py::test_a_large_value_is_cut_and_can_be_saved_whole",
        "tests/cluster/console/test_log_page.py::test_a_pause_counts_what_waits",
        "tests/cluster/console/test_log_page.py::test_a_record_of_an_import_is_a_row_of_its_columns",
        "tests/cluster/console/test_log_page.py::test_a_search_is_stopped_and_continued_both_ways",
        "tests/cluster/console/test_log_page.py::test_a_search_says_what_a_user_may_not_see",
        "tests/cluster/console/test_log_page.py::test_a_search_waits_for_its_reader",
        "tests/cluster/console/test_log_page.py::test_a_trimmed_record_names_the_oldest",
        "tests/cluster/console/test_log_page.py::test_places_to_go_to",
        "tests/cluster/console/test_log_page.py::test_values_of_the_list_have_the_chosen_form",
        "tests/cluster/console/test_operate.py::test_a_form_outlives_the_end_of_its_login",
        "tests/cluster/console/test_operate.py::test_a_group_is_moved_after_its_numbers_were_shown_and_confirmed_once",
        "tests/cluster/console/test_operate.py::test_a_snapshot_is_saved_and_a_backup_is_a_file_that_can_be_checked",
        "tests/cluster/console/test_operate.py::test_a_token_is_made_here_shown_once_and_revoked",
        "tests/cluster/console/test_operate.py::test_without_an_answer_the_outcome_is_unknown_and_says_where_to_look",
        "tests/cluster/console/test_overview.py::test_a_user_without_the_grant_sees_the_members_and_what_is_missing",
        "tests/cluster/console/test_overview.py::test_explain_draws_the_links_the_steps_of_a_record_and_the_readers",
        "tests/cluster/console/test_people.py::test_a_node_that_is_gone_names_the_others",
        "tests/cluster/console/test_people.py::test_ages_are_right_where_the_browsers_clock_is_not",
        "tests/cluster/console/test_people.py::test_an_answer_that_is_late_is_seen",
        "tests/cluster/console/test_people.py::test_axe_sees_a_text_that_is_too_faint",
        "tests/cluster/console/test_people.py::test_the_keys_are_listed_in_a_dialog",
        "tests/cluster/console/test_people.py::test_times_are_local_or_of_utc",
    ),
    "Spark does again what Arrow does, or what it does with other forms of values": (
        "tests/spark_export/analytics/test_analytics.py::test_join_within_a_time",
        "tests/spark_export/analytics/test_streams.py::test_rates_of_a_stream",
        "tests/spark_export/analytics/test_analyses.py::test_a_plot_can_be_by_key",
        "tests/spark_export/analytics/test_analyses.py::test_a_section_holds_to_its_import_and_names_it",
        "tests/spark_export/analytics/test_analyses.py::test_windows_that_end_after_a_pause_are_counted_by_size",
        "tests/spark_export/commands/test_cluster.py",
        "tests/spark_export/runtime/test_session.py",
        "tests/spark_export/sink/test_sink.py::test_a_data_frame_is_written_once_although_tasks_fail",
        "tests/spark_export/sink/test_sink.py::test_own_columns_are_written_once_and_read_back",
        "tests/spark_export/source/test_source.py::test_an_unreadable_range_is_an_error",
        "tests/spark_export/source/test_stream_query.py::test_a_query_goes_on_and_an_idle_one_makes_no_batch",
        "tests/spark_export/export/test_store.py::test_an_export_in_a_store_has_every_row_once[days]",
        "tests/spark_export/tables/test_truth.py::test_what_is_wrong_with_own_columns_is_one_line",
        "tests/spark_export/tables/test_truth.py::test_spark_gives_the_truth_of_the_cluster_and_of_its_export",
    ),
}
"""Why, and which."""


ENTRIES: Final = tuple(name for names in EXTRA.values() for name in names)
_NAMES: Final = frozenset(ENTRIES)


def is_extra(test: str) -> bool:
    """Whether an entry names that test (its node id in pytest)."""
    return not _NAMES.isdisjoint((test, test.partition("[")[0], test.partition("::")[0]))
