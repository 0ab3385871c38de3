"""The house rules hold, and each of them sees what it is there to see."""

import gc
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.house import architecture, compiling, imports, names, rules, structure, weight, words
from tests.house.rules import Finding, Rule, Source

RULES: tuple[Rule, ...] = (
    *rules.RULES,
    *imports.RULES,
    *words.RULES,
    *names.RULES,
    *weight.RULES,
    compiling.compiled_modules_compile,
    structure.imports_form_no_circle,
)


@pytest.fixture(scope="module")
def files() -> Iterator[list[Source]]:
    """Every text file of the project."""
    gc.disable()  # their trees are a million objects that stay: collections would take longer than the rules
    yield rules.project_files()
    gc.enable()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule, files: list[Source]) -> None:
    """No file of the project breaks the rule; each breach is printed with its line and the fix."""
    findings = [str(finding) for finding in rule(files)]
    if findings:
        pytest.fail(f"{rule.__doc__}\n" + "\n".join(findings), pytrace=False)


HOST = "https://registry.example/sim" + "ple"
GONE = "/ho" + "me/someone/raftlog"

# rule, path, a text that breaks it, a text beside it that does not
PLANTED: list[tuple[Callable[[Iterable[Source]], Iterator[Finding]], str, str, str]] = [
    (rules.modules_open_with_a_sentence, "raft/x.py", "import abc\n", '"""Says it."""\n'),
    (rules.modules_open_with_a_sentence, "raft/x.py", '"""No end"""\n', '"""See 3.4, e.g. here."""\n'),
    (rules.modules_open_with_a_sentence, "raft/x.py", '"""One. Two."""\n', '"""One.\n\nTwo.\n"""\n'),
    (rules.formatter_wins, "raft/x.py", "A = [1,2]  # fmt: sk" + "ip\n", "A = [1, 2]  # fmt\n"),
    (rules.no_registry_is_named, "Makefile", f"URL={HOST}\n", "# from PyPI\n"),
    (rules.no_path_of_a_machine, "docs/x.md", f"see {GONE}\n", "see ./ho" + "me/x and /v1/log\n"),
    (rules.tests_do_not_sleep, "tests/x.py", "time.sleep(1)\n", "await asyncio.sleep(0)\n"),
    (rules.tests_say_what_they_prove, "tests/test_x.py", "def test_a(): ...\n", "def helper(): ...\n"),
    (rules.pure_packages_are_deterministic, "raft/x.py", "a = 1.5\n", "a = 1\n"),
    (rules.pure_packages_are_deterministic, "raft/x.py", "a = b / c\n", "a = b // c\n"),
    (rules.pure_packages_are_deterministic, "raft/x.py", "for a in {1, 2}: ...\n", "a in {1, 2}\n"),
    (rules.pure_packages_are_deterministic, "raft/x.py", "list(set(a))\n", "sorted(set(a))\n"),
    (rules.pure_packages_are_deterministic, "raft/x.py", "hash(a)\n", "crc(a)\n"),
    (rules.only_disk_opens_files, "cluster/replica/replica.py", "open(a)\n", "door.open()\n"),
    (rules.only_disk_opens_files, "cluster/replica/replica.py", "path.open('rb')\n", "session.open('rest')\n"),
    (rules.only_disk_opens_files, "cluster/replica/replica.py", "path.read_text()\n", "request.read()\n"),
    (rules.only_clock_reads_time, "cluster/replica/replica.py", "import time\n", "from cluster import clock\n"),
    (rules.only_clock_reads_time, "cluster/replica/replica.py", "loop.time()\n", "clock.now_ms\n"),
    (
        rules.decoders_are_made_at_import,
        "cluster/x.py",
        "def f(a):\n return msgspec.json.decode(a, type=T)\n",
        "D = msgspec.json.Decoder(T)\ndef f(a):\n return D.decode(a), msgspec.json.decode(a)\n",
    ),
    (
        rules.decoders_are_made_at_import,
        "chaos/x.py",
        "f = lambda a: json.Decoder(T).decode(a)\n",
        "def f(a):\n return json.Decoder().decode(a), FrameDecoder(a)\n",
    ),
    (
        rules.decoders_are_made_at_import,
        "spark_export/x.py",
        "def f(a):\n return msgspec.convert(a, T)\n",
        "_D = msgspec.json.Decoder(T)\ndef f(a):\n return msgspec.convert(a, T)\n",
    ),
    (
        rules.decoders_are_made_at_import,
        "cluster/x.py",
        "def f():\n return Request(answers.plain(T))\n",
        "_t = answers.plain(T)\ndef f():\n return Request(_t)\n",
    ),
    (imports.pure_packages_import_only_values, "raft/x.py", "import os.path\n", "from raftlog.raft import log\n"),
    (imports.pure_packages_import_only_values, "raft/x.py", "import xxhash\n", "import msgpack\n"),
    (
        imports.sim_takes_little_from_chaos,
        "chaos/sim/x.py",
        "import raftlog.chaos.deploy.deployment\n",
        "import raftlog.chaos.judge.models\n",
    ),
    (imports.sim_takes_little_from_chaos, "chaos/sim/x.py", "from .. import runs\n", "from . import world\n"),
    (imports.packages_are_imported_by_one_name, "tests/x.py", "from raft import log\n", "import raftlog.raft.log\n"),
    (
        imports.class_names_mean_one_thing,
        "raft/x.py",
        "class _A: ...\n_Ab = 1\n_Ab = dict[str, int]\n",
        "class A: ...\nclass _A: ...\n",
    ),
    (imports.class_names_mean_one_thing, "cluster/x.py", "class A:\n class A: ...\n", "AB = {}\nAB = {}\n"),
    (imports.class_names_are_no_riddles, "cluster/x.py", "class NodeFace: ...\n", "class Surface: ...\n"),
    (compiling.compiled_modules_compile, "raft/x.py", "class A(RuntimeError): ...\n", "class A(ValueError): ...\n"),
    (
        compiling.compiled_modules_compile,
        "raft/x.py",
        "async def f(a):\n if a.b is not None:\n  raise a.b\n await g()\n if a.b:\n  raise a.b\n",
        "async def f(a):\n if a.b is not None:\n  raise a.b\n await g()\n a.b = None\n if a.b:\n  raise a.b\n",
    ),
    (compiling.compiled_modules_compile, "raft/x.py", "class A:\n a = b = 0\n", "class A:\n a = 0\n"),
    (
        compiling.compiled_modules_compile,
        "raft/x.py",
        "class A(NamedTuple):\n a: memoryview\n",
        "class A(NamedTuple):\n a: bytes | memoryview\n",
    ),
    (
        compiling.compiled_modules_compile,
        "raft/x.py",
        "@dataclass\nclass A:\n a: ClassVar[int] = 1\n",
        "@dataclass\nclass A:\n a: int = 1\n",
    ),
    (
        compiling.compiled_modules_compile,
        "raft/x.py",
        "@dataclass(slots=True)\nclass A:\n a = 1\n",
        "class A:\n a = 1\n",
    ),
    (
        compiling.compiled_modules_compile,
        "raft/x.py",
        "class A:\n def f(self): ...\n t = {1: f}\n",
        "class A:\n def f(self): ...\nt = {1: A.f}\n",
    ),
    (words.references_are_words, "raft/x.py", "# DESIGN section 3\n", "# design\n"),
    (words.references_are_words, "raft/x.py", "# pitfall 5\n", "# (pitfall 5: field by field)\n"),
    (words.references_are_words, "raft/x.py", '"""See pitfalls 5 and 6."""\n', "def test_pitfall_05(): ...\n"),
    (words.references_are_words, "docs/x.md", "planted bug 27.\n", "planted bug 27: the page cache\n"),
    (words.references_are_words, "docs/x.md", "see promise 8.\n", "[promise 8](promises.md)\n"),
    (words.references_are_words, "docs/x.md", "since issue 19\n", "this issue\n"),
    (words.references_are_words, "raft/x.py", "# found by seed 600391\n", "a = 'seed 600391'\n"),
    (
        words.promises_are_cited_by_heading,
        "raft/x.py",
        "# docs/promises.md: no heading\n",
        "# (docs/promises.md: identity is not\n# address)\n",
    ),
    (words.links_lead_somewhere, "docs/x.md", "[a](gone.md)\n", "[a](promises.md) [b](https://example.org/a)\n"),
    (words.links_lead_somewhere, "docs/x.md", "# A b\n[a](#a)\n", "# A b, c\n[a](#a-b-c)\n"),
    (names.names_lead_somewhere, "raft/x.py", "# `raftlog.raft.gone`\n", "# `raftlog.raft.types.NOBODY`\n"),
    (names.names_lead_somewhere, "docs/x.md", "`raftlog.raft.types.gone`\n", "`raftlog.raft.consensus`\n"),
    (names.names_lead_somewhere, "docs/x.md", "cluster/gone.py\n", "openraft docs/gone.md, raft/types.py\n"),
    (names.names_lead_somewhere, "raft/x.py", "# Owner: `parts/gone`.\n", "# `parts/writes`, `sim/world`\n"),
    (names.names_lead_somewhere, "docs/x.md", "`gone.py` waits\n", "`replica.py` waits\n"),
    (names.names_lead_somewhere, "raft/x.py", "# `node_end.fail`\n", "# `disk_reports.Hold`, `disk_full`\n"),
    (words.no_riddles, "new/x.py", "# nobody is told\n", "# no node is informed\n"),
    (words.no_riddles, "new/x.md", "whoever asks\n", "each client that asks\n"),
]


@pytest.mark.parametrize(("rule", "path", "bad", "good"), PLANTED, ids=range(len(PLANTED)))
def test_rule_sees_a_planted_breach(rule: Rule, path: str, bad: str, good: str) -> None:
    """Each rule finds what it forbids, once and in that file, and leaves the nearest harmless text alone."""
    found = list(rule([Source(path, bad)]))
    assert found
    assert all(finding.path in {path, path.partition("/")[0]} and finding.mend for finding in found)
    assert list(rule([Source(path, good)])) == []


def test_a_source_archive_has_the_same_files(tmp_path: Path) -> None:
    """Without git, a walk that keeps to `.gitignore` finds what git would list: no caches, builds or environments."""
    shutil.copy(rules.ROOT / ".gitignore", tmp_path)
    kept = {".gitignore", "raft/consensus/log.py", "docs/demo.svg", "bench/results/latest.md", "tests/data/x.py"}
    for path in (*kept, ".venv/bin/x", "raft/__pycache__/log.pyc", "data/x", "runs/a/b", "x.egg-info/y", "a.tmp"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert rules.unignored(tmp_path) == kept | {".gitignore"}


def test_rules_about_folders_see_a_planted_breach() -> None:
    """A test folder that is a package, and an unknown name at the top, are found by their paths."""
    files = [Source("tests/raft/__init__.py", ""), Source("tests/raft/test_log.py", ""), Source("raft/__init__.py", "")]
    assert [finding.path for finding in rules.tests_are_no_package(files)] == ["tests/raft/__init__.py"]
    assert [finding.path for finding in rules.top_level_is_known([Source("notes.txt", "")])] == ["notes.txt"]


def test_a_circle_of_imports_is_a_breach() -> None:
    """Two modules that import each other, one of them for types only, and two folders that do, break the rule."""
    modules = [
        Source("raft/a.py", "from raftlog.raft import b\n"),
        Source("raft/b.py", "if TYPE_CHECKING:\n from raftlog.raft import a\n"),
    ]
    folders = [
        Source("chaos/x/one.py", "from raftlog.chaos.y import two\n"),
        Source("chaos/x/base.py", ""),
        Source("chaos/y/two.py", ""),
        Source("chaos/y/three.py", "from raftlog.chaos.x import base\n"),
    ]
    assert [finding.path for finding in structure.imports_form_no_circle(modules)] == ["raft/a.py"]
    assert [finding.what for finding in structure.imports_form_no_circle(folders)] == [
        "imports in a circle: chaos/x <-> chaos/y"
    ]
    assert list(structure.imports_form_no_circle([*modules[:1], *folders[:3]])) == []


def test_modules_are_listed_in_the_order_of_the_layout() -> None:
    """Packages stand before their modules, each with the sentence that it opens with; tests are not listed."""
    files = [
        Source("raft/consensus/log.py", '"""The tail."""'),
        Source("raft/__init__.py", '"""Pure."""'),
        Source("cluster/replica/replica.py", '"""Owner."""'),
        Source("tests/x.py", '"""Not listed."""'),
    ]
    assert list(architecture.module_list(files)) == [
        "raft/  Pure.",
        "raft/consensus/log.py  The tail.",
        "cluster/replica/replica.py  Owner.",
    ]


def test_layers_are_drawn_from_top_to_bottom() -> None:
    """Each layer is a row, its rooms side by side; contracts of another type have no picture."""
    contracts = """
[[tool.importlinter.contracts]]
name = "a: b over c and d"
type = "layers"
layers = ["b", "c | d"]

[[tool.importlinter.contracts]]
name = "a does not import e"
type = "forbidden"
"""
    lines = [line.strip("| ") for line in architecture.layers_picture(contracts).splitlines()]
    assert [line for line in lines if line and not line.startswith("+")] == [
        "a: b over c and d:",
        "b",
        "c  |  d",
    ]
