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
        "tests/sim/invariants/test_mutants.py::test_a_directed_story_passes_without_a_mutant",
        "tests/sim/invariants/test_mutants.py::test_a_planted_bug_is_found[older_term_committed_by_counting]",
        "tests/sim/invariants/test_mutants.py::test_a_planted_bug_is_found[vote_never_written]",
        "tests/sim/invariants/test_nemesis.py::test_fixed_worlds_reach_most_states",
        "tests/sim/runs/test_commands.py::test_the_printed_command_repeats_a_planted_bug",
        "tests/sim/runs/test_shrink.py::test_a_planted_bug_is_shrunk",
        "tests/sim/world/test_short.py::test_the_median_world_is_busy",
    ),
    "real processes play again what the simulator plays with the server's own code; one of each kind stays": (
        "tests/acceptance/test_chaos.py::test_a_smoke_run_of_chaos_is_valid[minute]",
        "tests/acceptance/test_backup.py",
        "tests/acceptance/test_chaos.py::test_nothing_is_left_behind",
        "tests/acceptance/test_members.py::test_random_changes_under_load_with_kills",
        "tests/acceptance/test_snapshots.py",
        "tests/acceptance/test_upgrade.py",  # the core and the machine: tests/cluster/replica/test_versions.py
        "tests/chaos/shim/test_nodes.py::test_a_hanging_disk_makes_the_leader_step_down",
        "tests/chaos/shim/test_nodes.py::test_a_kill_at_the_nth_step_without_unsynced_bytes_loses_no_write",
        "tests/chaos/shim/test_nodes.py::test_full_disks_are_trimmed_in_the_reserve",
        "tests/cluster/node/test_first_start.py::test_a_lost_folder_is_refused_in_each_phase[every node]",
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
        "tests/house/test_editor.py::test_an_editor_finds_and_renames_a_function",
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
    "Spark does again what Arrow does, or what it does with other forms of values": (
        "tests/spark_export/analytics/test_analytics.py::test_join_within_a_time",
        "tests/spark_export/commands/test_cluster.py",
        "tests/spark_export/runtime/test_session.py",
        "tests/spark_export/sink/test_sink.py::test_a_data_frame_is_written_once_although_tasks_fail",
        "tests/spark_export/sink/test_sink.py::test_own_columns_are_written_once_and_read_back",
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
