"""Plants mutants of the importer, each on lines that only random inputs with kills meet."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_INPUTS: Final = (
    "tests/cluster/importer/test_random_inputs.py::test_the_same_command_ends_with_what_a_naive_reader_gives"
)
_SOURCE: Final = "raftlog itself, planted on purpose"

MUTANTS: Final = (
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
        source=_SOURCE,
        story=_INPUTS,
        target="raftlog.cluster.importer.formats.lines:_row_lines",
        old="if len(row) > ROW_BYTES_MAX",
        new="if len(row) >= ROW_BYTES_MAX",
    ),
    Mutant(
        name="rejected_lines_of_a_batch_without_records_not_counted",
        pitfall=81,
        title="the progress counts no rejected lines of a batch in which no line has a record",
        source=_SOURCE,
        story=_INPUTS,
        target="raftlog.cluster.importer.importer:_after",
        old="rejected=at.rejected + len(batch.rejected)",
        new="rejected=at.rejected + (answer is not None) * len(batch.rejected)",
    ),
    Mutant(
        name="line_of_the_greatest_size_rejected",
        pitfall=81,
        title="a line of exactly the greatest size is rejected, if another line of its batch is bad",
        source=_SOURCE,
        story=_INPUTS,
        target="raftlog.cluster.importer.formats.lines:read_batch",
        old="if len(data) > LINE_BYTES_MAX",
        new="if len(data) >= LINE_BYTES_MAX",
    ),
)
