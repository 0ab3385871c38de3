"""The coverage check sees what it is there for; what it measures takes minutes and is `make coverage`."""

from tests.house.branch_coverage import ROOT, Place, check, listed, modules_without_tests, places

TABLE = """
| file | place that no test reaches | why |
| --- | --- | --- |
| `raft/quorum.py` | `return min(highest)` | a reason |
| `raft/quorum.py` | `without a reason` | |
| `docs/other.md` | `text` | no file of these packages |
"""


def measured(percent: float, missing: list[int]) -> dict[str, object]:
    """A report of coverage about one file."""
    totals = {"percent_covered": percent, "num_statements": 33, "num_branches": 8}
    return {"totals": totals, "files": {"raft/quorum.py": {"missing_lines": missing, "missing_branches": []}}}


def test_a_branch_is_listed_once_by_its_text() -> None:
    """Missing lines, and lines that are left in one direction only; not the branch that leads to a missing line."""
    lines = ["if a:", "    b", "c", "if d:", "    e"]
    found = places("raft/x.py", lines, [2], [[1, 2], [4, 5]])
    assert found == [Place("raft/x.py", "b"), Place("raft/x.py", "if d:")]
    assert [place.line for place in found] == [2, 4]


def test_rows_need_a_reason() -> None:
    """Only what names a file of the packages, a text and a reason is a row."""
    assert listed(TABLE) == [Place("raft/quorum.py", "return min(highest)")]


def test_each_unreached_or_excused_place_is_a_finding() -> None:
    """Below the bound; not reached and not listed; listed and reached."""
    line = (ROOT / "raft/quorum.py").read_text(encoding="utf-8").splitlines()
    number = next(i for i, text in enumerate(line, 1) if "return min(highest)" in text)
    assert check("raft", measured(99.0, [number]), TABLE) == []
    assert "the bound is 98 %" in check("raft", measured(97.9, [number]), TABLE)[0]
    assert "no test reaches" in check("raft", measured(99.0, [number]), "")[0]
    assert "take it out" in check("raft", measured(99.0, []), TABLE)[0]


def test_every_module_has_tests_of_its_name() -> None:
    """One file of tests per module of raft/ and statemachine/, but for those listed with their reason."""
    assert list(modules_without_tests()) == []
