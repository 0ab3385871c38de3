"""Random mutations: the changes, that each of them is Python, and the counts of the table."""

from __future__ import annotations

from typing import Any

from tests.house.mutation import MODULES, changed, changes, covering, page, results, table
from tests.house.rules import ROOT

SOURCE = '''
def f(a: int, b: list[int]) -> int:
    """Text."""
    if a < len(b) and b:
        b.append(a + 1)
        print(b[1:])
    return a
'''


def test_every_kind_of_change_is_made() -> None:
    """Each is one edit of the text, and the result is Python."""
    made = list(changes("f.py", SOURCE))
    told = {(each.kind, each.old) for each in made}
    assert told >= {
        ("negated condition", "a < len(b) and b"), ("other comparison", "a < len(b)"),
        ("and for or", "a < len(b) and b"), ("off by one", "a + 1"), ("off by one", "1"),
        ("call dropped", "b.append(a + 1)"),
        ("early return", SOURCE[SOURCE.index("if a") : SOURCE.index("\n    return")]),
    }  # fmt: skip
    assert any(each.kind == "order swapped" and each.new.startswith("print(b[1:])\n") for each in made)
    for each in made:
        mutated = changed(SOURCE, each)
        compile(mutated, "f.py", "exec")
        assert mutated != SOURCE
    (moved,) = [each for each in made if each.kind == "other comparison"]
    assert "if (a <= len(b)) and b:" in changed(SOURCE, moved)


def test_every_mutated_module_exists() -> None:
    """Every pattern names at least one file, so a move of the files is noticed."""
    assert [pattern for pattern in MODULES if not list(ROOT.glob(pattern))] == []


def test_the_quickest_covering_a_line_are_run() -> None:
    """Those that run one of the lines of the change; a test without a known time is none that passed."""
    (change,) = [each for each in changes("f.py", SOURCE) if each.kind == "other comparison"]
    known: dict[str, Any] = {
        "lines": {"f.py": {"4": ["slow", "quick", "failed"], "5": ["other"]}},
        "seconds": {"slow": 20.0, "quick": 6.0, "other": 0.1},
    }
    assert covering(change, known) == ["quick"]


def test_the_table_counts_each_fate() -> None:
    """The share is that of the survivors among those that are not equivalent."""
    done: dict[str, dict[str, Any]] = {
        "1": {"file": "f.py", "outcome": "killed"},
        "2": {"file": "f.py", "outcome": "survived"},
        "3": {"file": "f.py", "outcome": "survived", "fate": "equivalent"},
        "4": {"file": "f.py", "outcome": "survived", "fate": "since"},
        "5": {"file": "f.py", "outcome": "void"},
    }
    assert "| f.py | 4 | 1 | 1 | 1 | 1 | 33 % |" in table(done)


def test_the_page_matches_the_record() -> None:
    """docs/mutation.md is made of docs/mutation.json, and every survivor was read."""
    done = results()
    assert (ROOT / "docs/mutation.md").read_text() == page(done)
    assert [name for name, each in done.items() if each["outcome"] == "survived" and not each.get("why")] == []
