"""Measures which branches of raft/ and statemachine/ their own tests take, and compares with docs/testing.md.

`make coverage` runs it: it takes about a minute and so is no part of `make test`. It fails below the bound, for a place
that no test reaches and the page does not list with its reason, for a place that is listed and reached, and for a
module without a test file of its name. Places are named by their source text, which survives an edit elsewhere.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"
BOUND_PERCENT = 98
# package -> its own tests. The decisions about files (raft/wal/) are tested where they are carried out, too: on
# the simulator's disk in memory, and on real files.
PACKAGES = {
    "raft": ("tests/raft", "tests/sim/disk/test_*.py", "tests/cluster/disk/test_*.py", "tests/cluster/files/test_*.py"),
    "statemachine": ("tests/statemachine",),
}
# Values without behaviour, or what another file of tests is about.
WITHOUT_OWN_FILE = {
    "raft/events.py": "values",
    "statemachine/entries.py": "test_machine.py: entries out of order, and unknown ones, change nothing",
    "statemachine/access/admission.py": "test_access.py: requests without a principal, and those of others",
    "statemachine/access/needs.py": "test_access.py: every write needs each of its grants; hidden records",
    "statemachine/access/permissions.py": "test_grants.py: compiled ranges beside a naive search",
    "raft/messages.py": "values; their bytes: test_codec.py",
    "raft/codec/checks.py": "test_codec.py: any bytes are accepted or refused by these errors",
    "raft/codec/entry.py": "test_codec.py: golden bytes and any bytes",
    "raft/codec/frame.py": "test_codec.py: golden bytes and any bytes",
    "raft/codec/index_rows.py": "test_codec.py: rows point at the headers that they name",
    "raft/codec/mark.py": "test_codec.py: golden bytes and any bytes",
    "raft/codec/message.py": "test_codec.py: golden bytes and any bytes",
    "raft/codec/raw.py": "test_codec.py: golden bytes and any bytes",
    "raft/wal/operations.py": "values; carried out in test_journal_crash.py",
    "raft/refusals.py": "values",
    "raft/consensus/roles.py": "values",
    "raft/types.py": "values",
    "raft/changes.py": "test_membership.py, test_configuration_twin.py",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A line that no test runs, or that is left in only one of its directions: equal where path and text are."""

    path: str
    text: str
    line: int = field(default=0, compare=False)


def measure(package: str, *arguments: str) -> dict[str, object]:
    """Run the package's tests and give coverage's report. Raises CalledProcessError where a test fails."""
    report = ROOT / ".tools" / f"coverage-{package}.json"
    report.parent.mkdir(exist_ok=True)
    tests = sorted(str(path.relative_to(ROOT)) for pattern in PACKAGES[package] for path in ROOT.glob(pattern))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "--durations=0",
        "--durations-min=99",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=1",
        f"--cov={package}",
        "--cov-branch",
        f"--cov-report=json:{report}",
        *tests,
        *arguments,
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    measured: dict[str, object] = json.loads(report.read_text(encoding="utf-8"))
    return measured


def places(path: str, lines: list[str], missing_lines: list[int], missing_branches: list[list[int]]) -> list[Place]:
    """Each once, in the order of the file; a missing branch to missing lines is not listed again."""
    gone = set(missing_lines)
    numbers = sorted(gone | {start for start, end in missing_branches if start not in gone and end not in gone})
    found = dict.fromkeys(Place(path, lines[number - 1].strip(), number) for number in numbers)
    return list(found)


_ROW = re.compile(r"\| `([a-z_/]+\.py)` \| `(.+)` \| (\S.*) \|")


def listed(page: str) -> list[Place]:
    """The rows `| path | text | reason |` of the page's table; a bar in a text is written with a backslash."""
    rows = [_ROW.fullmatch(line) for line in page.splitlines()]
    return [Place(row[1], row[2].replace("\\|", "|")) for row in rows if row and row[1].partition("/")[0] in PACKAGES]


def modules_without_tests() -> Iterator[str]:
    """Modules that have no test file whose name begins with theirs."""
    for package in PACKAGES:
        names = [path.name for path in (ROOT / "tests" / package).rglob("test_*.py")]
        for module in sorted((ROOT / package).rglob("*.py")):
            path = module.relative_to(ROOT).as_posix()
            if module.name == "__init__.py" or path in WITHOUT_OWN_FILE:
                continue
            if not any(name.startswith(f"test_{module.stem}") for name in names):
                yield path


def check(package: str, measured: dict[str, object], page: str) -> list[str]:
    """The findings, one line each."""
    files = measured["files"]
    totals = measured["totals"]
    assert isinstance(files, dict)
    assert isinstance(totals, dict)
    percent = float(totals["percent_covered"])
    size = f"{totals['num_statements']} statements and {totals['num_branches']} branches"
    print(f"coverage: {package} {percent:.2f} % of {size}")
    wrong = []
    if percent < BOUND_PERCENT:
        wrong.append(f"{package}: {percent:.2f} %, the bound is {BOUND_PERCENT} %")
    expected = [place for place in listed(page) if place.path.startswith(f"{package}/")]
    missed: list[Place] = []
    for path, file in sorted(files.items()):
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        missed += places(path, lines, file["missing_lines"], file["missing_branches"])
    wrong += [f"{place.path}:{place.line}: no test reaches `{place.text}`" for place in missed if place not in expected]
    wrong += [
        f"{place.path}: `{place.text}` is listed in docs/testing.md, and reached or gone; take it out"
        for place in expected
        if place not in missed
    ]
    return wrong


def main(arguments: list[str]) -> int:
    """Measure both packages; 0 if all is as the page says."""
    wrong = [f"{path} has no tests/…/test_{Path(path).stem}*.py" for path in modules_without_tests()]
    page = PAGE.read_text(encoding="utf-8")
    for package in PACKAGES:
        wrong += check(package, measure(package, *arguments), page)
    for line in wrong:
        print(f"coverage: {line}")
    fix = "test these places, or list them with their reasons in docs/testing.md"
    print(f"coverage: FAILED, {len(wrong)} findings; fix: {fix}" if wrong else "coverage: ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
