"""The bounds of tests/house/weight.py see what they are there to see."""

import pytest

from tests.house import weight
from tests.house.rules import Source
from tests.house.weight import VAGUE

FIELDS = "".join(f"    field{number}: int\n" for number in range(20))
PARAMETERS = ", ".join(f"p{number}" for number in range(11))


@pytest.mark.parametrize(
    ("title", "text", "is_counted"),
    [
        ("classes with more than 20 attributes", f"class A:\n{FIELDS}    one_more: int\n", True),
        ("classes with more than 20 attributes", f"class A:\n{FIELDS}    def f(self): self.g = 1\n", True),
        ("classes with more than 20 attributes", f"class A:\n{FIELDS}    def f(self): self.field3 = 1\n", False),
        ("classes with more than 20 attributes", f"class A:\n{FIELDS}    same: ClassVar[int] = 1\n", False),
        ("functions with more than 10 parameters", f"def f({PARAMETERS}): ...\n", True),
        ("functions with more than 10 parameters", f"def f(p, *, {PARAMETERS[4:]}): ...\n", True),
        ("functions with more than 10 parameters", f"def f(self, {PARAMETERS[4:]}): ...\n", False),
        ("files with more than 30 imports", "import a\n" * 31, True),
        ("files with more than 30 imports", "import a\n" * 30, False),
        ("uses of a vague name", f"{VAGUE} = 1\n", True),
        ("uses of a vague name", f"def f({VAGUE}): ...\n", True),
        ("uses of a vague name", f"'{VAGUE}'\n", False),
    ],
)
def test_a_place_is_counted(title: str, text: str, is_counted: bool) -> None:
    """Each kind of weight, and what only looks like it."""
    source = Source("cluster/http/x.py", text)
    assert (len(weight.counts([source])[title]) == 1) is is_counted
    assert weight.counts([Source("tests/x.py", text)])[title] == [], "tests are bounded by their lines"


def test_a_room_that_grows_and_a_room_without_a_budget_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget is of all files of a room; a count that fell has to be written down."""
    files = [Source("raft/x.py", "a\n" * 3), Source("raft/wal/x.py", "a\n" * 2), Source("raft/wal/y/x.py", "a\n" * 2)]
    allowed = {"counts": dict.fromkeys(weight.COUNTED, 0), "lines": {"raft": 3, "raft/wal": 4}}
    monkeypatch.setattr(weight, "table", lambda: allowed)
    assert list(weight.weight_only_falls(files)) == []
    allowed["lines"]["raft/wal"] = 3
    (found,) = weight.weight_only_falls(files)
    assert "raft/wal has 4 lines, 3 are allowed" in str(found)
    del allowed["lines"]["raft"]
    assert len(list(weight.weight_only_falls(files))) == 2
    allowed["lines"] = {"raft": 3, "raft/wal": 4}
    allowed["counts"]["uses of a vague name"] = 1
    (found,) = weight.weight_only_falls(files)
    assert "write 0" in str(found)
