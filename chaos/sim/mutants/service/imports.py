"""Mistakes about imports."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_STORY: Final = "tests/cluster/importer/test_kinds.py::"

MUTANTS: Final = (
    Mutant(
        name="kinds_of_files_share_a_session",
        pitfall=81,
        title="files of another format go under the schema of the first one",
        source="raftlog until issue 36",
        story=f"{_STORY}test_files_of_several_formats_are_exactly_once_through_kills[3-opened]",
        target="raftlog.cluster.importer.importer:run",
        old="if files.place != place:",
        new="if False:",
    ),
    Mutant(
        name="next_session_of_an_import_keeps_the_sequence",
        pitfall=81,
        title="the session of the next format begins behind the sequence of its schema, which is never put",
        source="this project, while it was written",
        story=f"{_STORY}test_files_of_several_formats_are_exactly_once_through_kills[3-opened]",
        target="raftlog.cluster.importer.importer:_begin",
        old="replace(at, sequence=0)",
        new="at",
    ),
    Mutant(
        name="binary_file_in_a_folder_is_lines",
        pitfall=81,
        title="a photo in a folder is imported as text",
        source="raftlog until issue 36",
        story=f"{_STORY}test_binary_files_are_refused_by_name_before_anything_is_written",
        target="raftlog.cluster.importer.formats.deciding:_check_text",
        old='if is_binary(b"".join(sample.pieces), sample.charset):',
        new="if False:",
    ),
)
