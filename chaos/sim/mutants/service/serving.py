"""Mutants of what the HTTP API answers: log pages, watches, consumer groups and outcomes."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_REFEREE: Final = "planted by an adversarial review of the rooms"

MUTANTS: Final = (
    Mutant(
        name="change_passed_by_a_snapshot_told_as_overwritten",
        pitfall=30,
        title="a change of the members that is in force counts as overwritten where a snapshot replaced the log",
        source="an outside review",
        story="tests/cluster/replica/parts/test_member_outcomes.py"
        "::test_a_change_that_a_snapshot_passed_is_applied_or_unknown_and_never_overwritten[newest0-True-None]",
        target="raftlog.cluster.replica.parts.members:outcome",
        old="found == term or (found is None and state.configuration in (begun, changes.left(begun)))",
        new="found == term",
    ),
    Mutant(
        name="watch_skips_an_event_at_a_reconnect",
        pitfall=80,
        title="a watch that names its last event goes on behind the next one",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_streams.py::test_watch_resumes_behind_the_last_event_id",
        target="raftlog.cluster.http.routes.watch:_parse",
        old='parse_number(last, "header Last-Event-ID") + 1',
        new='parse_number(last, "header Last-Event-ID") + 2',
    ),
    Mutant(
        name="watch_follows_entries_not_records",
        pitfall=80,
        title="a watch that begins inside an entry is given the events before its position",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_streams.py::test_watch_begins_inside_an_entry",
        target="raftlog.cluster.http.routes.watch:_slice",
        old="watch_messages(entry, effects, position, asked",
        new="watch_messages(entry, effects, entry.first, asked",
    ),
    Mutant(
        name="consumer_offset_goes_back",
        pitfall=79,
        title="a commit of a consumer group's owner may go back",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_consumers.py::test_positions_go_back_by_reset_alone",
        target="raftlog.cluster.http.routes.consumers:put_consumer",
        old="ConsumerAction.RESET if asked.reset else ConsumerAction.COMMIT",
        new="ConsumerAction.RESET",
    ),
    Mutant(
        name="long_poll_waits_for_the_record_after",
        pitfall=80,
        title="a long poll at the end of the log is woken by the second record",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_log.py::test_long_poll_at_the_end_is_answered_with_the_very_next_record",
        target="raftlog.cluster.http.routes.log:read_page",
        old="partial(service.wait_beyond, position - 1, service",
        new="partial(service.wait_beyond, position, service",
    ),
    Mutant(
        name="repetition_told_as_applied",
        pitfall=76,
        title="a repeated consumer command is answered as applied now",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_consumers.py::test_a_repeated_request_gets_its_first_answer",
        target="raftlog.cluster.http.routes.consumers:_commit",
        old='"repeated" if settled.effect.result is Result.REPEATED else "applied"',
        new='"applied"',
    ),
    Mutant(
        name="min_index_of_linearizable_reads_ignored",
        pitfall=39,
        title="min_index counts for stale reads only",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_kv.py::test_min_index_counts_for_linearizable_reads_too",
        target="raftlog.cluster.http.exchange.call:_read_index",
        old="if minimum is not None:",
        new="elif minimum is not None:",
    ),
    Mutant(
        name="voided_sequence_told_as_unknown_session",
        pitfall=75,
        title="a sequence that was made void is answered as if it had been applied",
        source=_REFEREE,
        story="tests/cluster/http/test_outcomes.py::test_an_outcome_of_the_state_machine_is_final",
        target="raftlog.cluster.http.exchange.outcomes:told",
        old="if result is Result.VOIDED:",
        new="if False:",
    ),
    Mutant(
        name="page_reads_beyond_its_end",
        pitfall=80,
        title="a page of the log contains records beyond `to`",
        source=_REFEREE,
        story="tests/cluster/http/routes/test_log.py::test_a_read_may_begin_inside_an_entry",
        target="raftlog.cluster.http.routes.log:scan",
        old="query.stop, node.applied + 1)",
        new="node.applied + 1)",
    ),
)
