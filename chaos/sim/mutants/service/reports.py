"""Plants mutants of reports: tables that depend on their order, missing answers, and the reports of an import."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_SOURCE: Final = "raftlog itself, planted by a review"
_ORDER: Final = "tests/cluster/protocol/test_order.py::test_"

_INPUTS: Final = (
    "tests/cluster/importer/test_random_inputs.py::test_the_same_command_ends_with_what_a_naive_reader_gives"
)
_CAPTURE: Final = (
    "tests/cluster/importer/postgres/test_reports.py::test_postgres_is_told_only_what_the_state_file_holds"
)
_PLANTED: Final = "raftlog itself, planted on purpose"

MUTANTS: Final = (
    Mutant(
        name="later_report_lowers_an_earlier_one",
        pitfall=66,
        title="a node under a floor takes the newest report of a lost promise, not the highest",
        source=_SOURCE,
        story=f"{_ORDER}a_started_node_stands_the_same_whatever_the_order_of_its_peers_memories",
        target="raftlog.raft.consensus.recall:_go_under_floor",
        old="max(acked, state.reported or (0, 0))",
        new="acked",
    ),
    Mutant(
        name="older_promise_takes_the_place_of_a_newer_one",
        pitfall=66,
        title="a memory keeps the promise that was noted last, not the newest one",
        source=_SOURCE,
        story=f"{_ORDER}a_memory_of_a_disk_only_rises_whatever_the_order_of_its_promises",
        target="raftlog.raft.consensus.state:Memory.note",
        old="max(self.acked_now, (term, index))",
        new="(term, index)",
    ),
    Mutant(
        name="equal_voters_chosen_by_their_order",
        pitfall=10,
        title="of two equally good voters a leader hands over to the one that it happens to look at first",
        source=_SOURCE,
        story=f"{_ORDER}a_leader_decides_the_same_about_disks_whatever_the_order_of_the_reports",
        target="raftlog.cluster.protocol.disk_reports:Disks.best",
        old=", -each.node)",
        new=")",
    ),
    Mutant(
        name="lost_answer_to_a_read_waited_for",
        pitfall=33,
        title="a follower waits for a read index until the deadline, though the leader's answer was lost on the way",
        source="raftlog itself, found by the simulator's reads at every node",
        target="raftlog.cluster.protocol.waiters:Reads.overdue",
        old="self.again(number)",
        new="pass",
    ),
    Mutant(
        name="status_silent_about_full_disks",
        pitfall=61,
        title="the status of a cluster whose full disks refuse every write says nothing of it",
        source="this project, until a stranger's first week",
        story="tests/cluster/cli/test_explain.py::test_status_says_what_explain_would_say_first",
        target="raftlog.cluster.api.diagnosis:trouble_of",
        old="if cause.code not in _PASSING",
        new="if cause.code not in _PASSING and cause.code != 'disk_full'",
    ),
    Mutant(
        name="mark_of_another_charset_cut_off",
        pitfall=81,
        title="the first bytes of a file are taken for the mark of a charset although the user named another one",
        source="raftlog until issue 35",
        story=_INPUTS,
        target="raftlog.cluster.importer.inputs:as_utf8",
        old="mark if found.startswith(charset) else 0",
        new="mark if charset == found or found != UTF8 else 0",
    ),
    Mutant(
        name="open_row_of_the_longest_size_not_joined",
        pitfall=81,
        title="a row with an open quote is given up at its greatest size, not behind it",
        source=_PLANTED,
        story=_INPUTS,
        target="raftlog.cluster.importer.formats.lines:_row_lines",
        old="if len(row) > ROW_BYTES_MAX",
        new="if len(row) >= ROW_BYTES_MAX",
    ),
    Mutant(
        name="rejected_lines_of_a_batch_without_records_not_counted",
        pitfall=81,
        title="the progress counts no rejected lines of a batch in which no line has a record",
        source=_PLANTED,
        story=_INPUTS,
        target="raftlog.cluster.importer.importer:_after",
        old="rejected=at.rejected + len(batch.rejected)",
        new="rejected=at.rejected + (answer is not None) * len(batch.rejected)",
    ),
    Mutant(
        name="line_of_the_greatest_size_rejected",
        pitfall=81,
        title="a line of exactly the greatest size is rejected, if another line of its batch is bad",
        source=_PLANTED,
        story=_INPUTS,
        target="raftlog.cluster.importer.formats.lines:read_batch",
        old="if len(data) > LINE_BYTES_MAX",
        new="if len(data) >= LINE_BYTES_MAX",
    ),
    Mutant(
        name="position_that_is_read_reported_as_kept",
        pitfall=81,
        title="PostgreSQL asks for a report, and gets the position that was read, not that of the state file",
        source=_PLANTED,
        story=_CAPTURE,
        target="raftlog.cluster.importer.postgres.source:Postgres._streamed",
        old="connection.report(changes.lsn, reported, asks=asks)",
        new="connection.report(changes.lsn, changes.lsn if wants_report else reported, asks=asks)",
    ),
    Mutant(
        name="position_confirmed_before_it_is_kept",
        pitfall=81,
        title="PostgreSQL may forget what came before a position that is not yet in the state file",
        source=_PLANTED,
        story=_CAPTURE,
        target="raftlog.cluster.importer.sources:copy",
        old="now = replace(now, position=part.position)\n",
        new="now = replace(now, position=part.position); confirm(now.position)\n",
    ),
    Mutant(
        name="position_passes_an_open_transaction",
        pitfall=81,
        title="a report of PostgreSQL within a transaction moves the position behind records that are still to come",
        source=_PLANTED,
        story=_CAPTURE,
        target="raftlog.cluster.importer.postgres.changes:Changes.passed",
        old="if not self.commit:",
        new="if True:",
    ),
)
