"""The house rules hold, and each of them sees what it is there to see."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import tidy_architecture, tidy_imports, tidy_rules
from tests.tidy_rules import Finding, Rule, Source

RULES: tuple[Rule, ...] = (*tidy_rules.RULES, *tidy_imports.RULES, tidy_architecture.page_lists_every_module)


@pytest.fixture(scope="module")
def files() -> list[Source]:
    """Every text file of the project."""
    return tidy_rules.project_files()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule, files: list[Source]) -> None:
    """No file of the project breaks the rule; each that does is printed with its line and the mend."""
    findings = [str(finding) for finding in rule(files)]
    if findings:
        pytest.fail(f"{rule.__doc__}\n" + "\n".join(findings), pytrace=False)


HOST = "https://registry.example/sim" + "ple"
GONE = "/ho" + "me/someone/raftlog"
PAGE = f"{tidy_architecture.BEGIN}\n{{}}\n{tidy_architecture.END}\n"

# rule, path, a text that breaks it, a text beside it that does not
PLANTED: list[tuple[Callable[[Iterable[Source]], Iterator[Finding]], str, str, str]] = [
    (tidy_rules.modules_open_with_a_sentence, "raft/x.py", "import abc\n", '"""Says it."""\n'),
    (tidy_rules.modules_open_with_a_sentence, "raft/x.py", '"""No end"""\n', '"""See 3.4, e.g. here."""\n'),
    (tidy_rules.modules_open_with_a_sentence, "raft/x.py", '"""One. Two."""\n', '"""One.\n\nTwo.\n"""\n'),
    (tidy_rules.files_are_short, "raft/x.py", "#\n" * 451, "#\n" * 450),
    (tidy_rules.no_registry_is_named, "Makefile", f"URL={HOST}\n", "# from PyPI\n"),
    (tidy_rules.no_path_of_a_machine, "docs/x.md", f"see {GONE}\n", "see ./ho" + "me/x and /v1/log\n"),
    (tidy_rules.tests_do_not_sleep, "tests/x.py", "time.sleep(1)\n", "await asyncio.sleep(0)\n"),
    (tidy_rules.tests_say_what_they_prove, "tests/test_x.py", "def test_a(): ...\n", "def helper(): ...\n"),
    (tidy_rules.pure_packages_are_deterministic, "raft/x.py", "a = 1.5\n", "a = 1\n"),
    (tidy_rules.pure_packages_are_deterministic, "raft/x.py", "a = b / c\n", "a = b // c\n"),
    (tidy_rules.pure_packages_are_deterministic, "raft/x.py", "for a in {1, 2}: ...\n", "a in {1, 2}\n"),
    (tidy_rules.pure_packages_are_deterministic, "raft/x.py", "list(set(a))\n", "sorted(set(a))\n"),
    (tidy_rules.pure_packages_are_deterministic, "raft/x.py", "hash(a)\n", "crc(a)\n"),
    (tidy_rules.only_disk_opens_files, "cluster/node.py", "open(a)\n", "door.open()\n"),
    (tidy_rules.only_disk_opens_files, "cluster/node.py", "path.open('rb')\n", "session.open('rest')\n"),
    (tidy_rules.only_disk_opens_files, "cluster/node.py", "path.read_text()\n", "request.read()\n"),
    (tidy_rules.only_clock_reads_time, "cluster/node.py", "import time\n", "from cluster import clock\n"),
    (tidy_rules.only_clock_reads_time, "cluster/node.py", "loop.time()\n", "clock.now_ms\n"),
    (tidy_rules.decoders_are_made_at_import, "cluster/x.py", "def f(a):\n return msgspec.json.decode(a, type=T)\n",
     "D = msgspec.json.Decoder(T)\ndef f(a):\n return D.decode(a), msgspec.json.decode(a)\n"),
    (tidy_rules.decoders_are_made_at_import, "chaos/x.py", "f = lambda a: json.Decoder(T).decode(a)\n",
     "def f(a):\n return json.Decoder().decode(a), FrameDecoder(a)\n"),
    (tidy_rules.decoders_are_made_at_import, "spark_export/x.py", "def f(a):\n return msgspec.convert(a, T)\n",
     "_D = msgspec.json.Decoder(T)\ndef f(a):\n return msgspec.convert(a, T)\n"),
    (tidy_rules.decoders_are_made_at_import, "cluster/x.py", "def f():\n return Request(answers.plain(T))\n",
     "_t = answers.plain(T)\ndef f():\n return Request(_t)\n"),
    (tidy_imports.pure_packages_import_only_values, "raft/x.py", "import os.path\n", "from raft import log\n"),
    (tidy_imports.pure_packages_import_only_values, "raft/x.py", "import xxhash\n", "import msgpack\n"),
    (tidy_imports.sim_takes_little_from_chaos, "chaos/sim/x.py", "import chaos.deployment\n", "import chaos.models\n"),
    (tidy_imports.sim_takes_little_from_chaos, "chaos/sim/x.py", "from .. import toxiproxy\n", "from . import world\n"),
    (tidy_architecture.page_lists_every_module, "docs/architecture.md", PAGE.format("| `raft/x.py` | Was. |"),
     PAGE.format("| module | what it is for |\n| --- | --- |")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "bad", "good"), PLANTED, ids=range(len(PLANTED)))
def test_rule_sees_a_planted_breach(rule: Rule, path: str, bad: str, good: str) -> None:
    """Each rule finds what it forbids, once and in that file, and leaves the nearest harmless text alone."""
    found = list(rule([Source(path, bad)]))
    assert found
    assert all(finding.path == path and finding.mend for finding in found)
    assert list(rule([Source(path, good)])) == []


def test_a_source_archive_has_the_same_files(tmp_path: Path) -> None:
    """Without git, a walk that keeps to `.gitignore` finds what git would list: no caches, builds or environments."""
    shutil.copy(tidy_rules.ROOT / ".gitignore", tmp_path)
    kept = {".gitignore", "raft/log.py", "docs/demo.svg", "bench/results/latest.json", "tests/data/x.py"}
    for path in (*kept, ".venv/bin/x", "raft/__pycache__/log.pyc", "data/x", "runs/a/b", "x.egg-info/y", "a.tmp"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert tidy_rules.unignored(tmp_path) == kept | {".gitignore"}


def test_rules_about_folders_see_a_planted_breach() -> None:
    """A test folder that is no package, and an unknown name at the top, are found by the folder's own name."""
    lonely = [Source("tests/__init__.py", ""), Source("tests/raft/test_log.py", "")]
    assert [finding.path for finding in tidy_rules.test_folders_are_packages(lonely)] == ["tests/raft"]
    assert [finding.path for finding in tidy_rules.top_level_is_known([Source("notes.txt", "")])] == ["notes.txt"]


def test_module_table_is_rewritten_between_its_markers() -> None:
    """The helper lists packages before modules in the order of the layout, and keeps the text around the table."""
    files = [
        Source("raft/log.py", '"""The tail | the rest."""'),
        Source("raft/__init__.py", '"""Pure."""'),
        Source("cluster/node.py", '"""Owner."""'),
        Source("tests/x.py", '"""Not listed."""'),
    ]
    page = tidy_architecture.rewritten("above\n" + PAGE.format("old") + "below\n", files)
    assert page.startswith("above\n")
    assert page.endswith("below\n")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `raft/` | Pure. |",
        "| `raft/log.py` | The tail \\| the rest. |",
        "| `cluster/node.py` | Owner. |",
    ]
    assert list(tidy_architecture.page_lists_every_module([*files, Source("docs/architecture.md", page)])) == []
