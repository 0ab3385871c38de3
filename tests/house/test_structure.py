"""The counts of `python -m tests.house.structure` see what they are there to count."""

import pytest

from tests.house import structure
from tests.house.rules import Source
from tests.house.structure import circles, clashing_classes, folder_circles, full_folders, module_graph, rows
from tests.house.weight import VAGUE

RIDDLE = "nobo" + "dy"  # in two parts, so that this file has none


def test_lazy_and_type_only_imports_close_a_circle() -> None:
    """A circle is seen through imports in functions and for types, with the prefix `raftlog.` and without it."""
    files = [
        Source("raft/a.py", "def f():\n from raftlog.raft import b\n"),
        Source("raft/b.py", "if TYPE_CHECKING:\n from raft.c import Name\n"),
        Source("raft/c.py", "import raftlog.raft.a\nfrom raftlog.raft import d\n"),
        Source("raft/d.py", "import os\n"),
    ]
    assert circles(module_graph(files)) == [["raft/a", "raft/b", "raft/c"]]
    assert circles(module_graph(files[1:])) == []


def test_folder_circle_needs_no_circle_of_modules() -> None:
    """Two folders that import each other are a circle, also by different modules; a package and its parts are none."""
    files = [
        Source("cluster/x/__init__.py", "from raftlog.cluster.x import one\n"),
        Source("cluster/x/one.py", "from raftlog.cluster.y import two\n"),
        Source("cluster/x/base.py", ""),
        Source("cluster/y/two.py", "from raftlog.cluster import z\n"),
        Source("cluster/y/three.py", "from raftlog.cluster.x import base\n"),
        Source("cluster/z.py", ""),
    ]
    graph = module_graph(files)
    assert circles(graph) == []
    assert list(folder_circles(graph)) == ["cluster/x <-> cluster/y"]


def test_full_folder_and_clashing_class_are_counted_once() -> None:
    """Sixteen modules are too many and fifteen are not; one public name in two modules is a clash."""
    full = [Source(f"raft/m{number}.py", "class Own: ...\n" * (number < 2)) for number in range(16)]
    init = [Source("raft/__init__.py", "")]
    assert list(full_folders(full + init)) == ["raft: 16"]
    assert list(full_folders(full[1:] + init)) == []
    assert list(clashing_classes(full)) == ["Own: raft/m0.py, raft/m1.py"]
    assert list(clashing_classes(full[1:])) == []
    assert list(clashing_classes([Source("chaos/a.py", "class A: ..."), Source("chaos/b.py", "class A: ...")])) == []


def test_table_has_the_counts_of_both_trees_in_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row shows the older tree first; a commit that does not exist is an error that names it."""
    older = rows([Source("raft/a.py", f"# {RIDDLE}\n" * 7 + f"{VAGUE} = 1\n")])
    newer = rows([Source("raft/a.py", "# no node\n")])
    lines = structure.table({"older": older, "newer": newer}, details=True).splitlines()
    cells = {row[0]: row[1:] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines) if row}
    assert cells["uses of a vague name"] == ["1", "0"]
    assert cells["riddle words"] == ["7", "0"]
    assert cells["lines of production"] == ["8", "1"]
    assert "  raft/a.py:8: a vague name; fix: uses of a vague name" in lines
    assert structure.main(["--at", "no-such-commit"]) == 2
    assert "no-such-commit" in capsys.readouterr().err
