"""`bench imports` measures whole imports, and refuses one that is not whole."""

from pathlib import Path

import pytest

from bench.studies.imports import KINDS, measure, rows

pytestmark = pytest.mark.serial


def test_an_import_is_measured_and_checked(tmp_path: Path) -> None:
    """All records with their times; a file with fewer is an error, not a rate."""
    path = tmp_path / "in.csv"
    path.write_text("".join(rows("csv", 500)))
    assert measure(path, "csv", 500, 1) > 0
    with pytest.raises(RuntimeError, match="501 records were to be imported"):
        measure(path, "csv", 501, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_has_a_line_for_each_record(kind: str) -> None:
    """And one with names."""
    assert len([*rows(kind, 100)]) == 100 + (kind == "csv")
