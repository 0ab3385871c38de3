"""Makes random small changes to production code, and reports whether the tests that cover the changed lines fail.

python -m tests.house.mutation map [TESTS …]              notes which test runs which line (takes minutes)
python -m tests.house.mutation run --seed 1 --count 50    samples mutants and runs their tests in a copy of the tree
python -m tests.house.mutation page                       writes the table of docs/mutation.md from docs/mutation.json

`run` keeps each result at once, and a later `run` goes on with the next mutants of that seed. A mutant is one change to
one statement: a condition negated, another comparison, a number off by one, a call dropped, two calls swapped, an early
return. It is killed when one of the tests that cover its lines fails or hangs.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.house.rules import ROOT

DATA: Final = ROOT / "docs/mutation.json"
PAGE: Final = ROOT / "docs/mutation.md"
MAP: Final = ROOT / ".tools/mutation-map.json"
MODULES: Final = (
    "raft/**/*.py", "statemachine/**/*.py", "cluster/replica/**/*.py", "cluster/protocol/**/*.py",
    "cluster/disk/**/*.py", "cluster/files/**/*.py",
)  # fmt: skip
"""Consensus, state machine, and of the server: replica, protocol and disk."""

TESTS: Final = ("tests/raft", "tests/statemachine", "tests/cluster")
MARKS: Final = "not serial and not alone and not long and not spark and not toxiproxy"
TESTS_S_MAX: Final = 25.0
"""Of the tests that cover a line, the quickest ones up to so many seconds are run, as they took without a mutant."""

LIMIT_S: Final = 120.0
"""A mutant whose tests take longer hangs, and is killed."""

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One mutant: in `file` the text from `start` to `end` (line from 1, byte column) becomes `new`."""

    file: str
    kind: str
    start: tuple[int, int]
    end: tuple[int, int]
    old: str
    new: str

    @property
    def name(self) -> str:
        """The same in every run as long as the file does not change."""
        return f"{self.file}:{self.start[0]}:{self.start[1]} {self.kind}"


def changes(file: str, source: str) -> Iterator[Change]:
    """Every mutant of a file."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for kind, target, new in _of_node(node):
            yield _change(file, source, kind, target, target, new)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and isinstance(node, ast.stmt):
                yield from _of_body(file, source, node, name, body)


def _of_node(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Kind, the node to replace, and its new text."""
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not _is_typing(node.test):
        yield "negated condition", node.test, f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        moved = ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
        yield "other comparison", node, f"({ast.unparse(moved)})"
    if isinstance(node, ast.BoolOp):
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield "and for or", node, f"({ast.unparse(other)})"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Constant):
        if node.right.value == 1 and type(node.right.value) is int:
            yield "off by one", node, f"({ast.unparse(node.left)})"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.lower is not None:
        lower = ast.unparse(node.slice.lower)
        yield "off by one", node.slice.lower, f"({lower}) + 1"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield "call dropped", node, "pass"


def _is_typing(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _of_body(file: str, source: str, node: ast.stmt, name: str, body: list[ast.stmt]) -> Iterator[Change]:
    for one, other in pairwise(body):
        if _has_effect(one) and _has_effect(other):
            swapped = f"{ast.unparse(other)}\n{' ' * one.col_offset}{ast.unparse(one)}"
            yield _change(file, source, "order swapped", one, other, swapped)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name == "body":
        for each in body[1:]:
            if not isinstance(each, ast.Return):
                new = f"return None\n{' ' * each.col_offset}{ast.get_source_segment(source, each)}"
                yield _change(file, source, "early return", each, each, new)


def _has_effect(statement: ast.stmt) -> bool:
    """Whether it calls something: the order of other statements seldom shows."""
    is_plain = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign)
    return is_plain and any(isinstance(each, ast.Call) for each in ast.walk(statement))


def _change(
    file: str, source: str, kind: str, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, new: str
) -> Change:
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    start, end = (first.lineno, first.col_offset), (last.end_lineno, last.end_col_offset)
    lines = source.encode().splitlines(keepends=True)
    first_byte, last_byte = (sum(map(len, lines[: line - 1])) + column for line, column in (start, end))
    return Change(file, kind, start, end, source.encode()[first_byte:last_byte].decode(), new)


def changed(source: str, change: Change) -> str:
    """The source with the mutant."""
    lines = source.encode().splitlines(keepends=True)
    first, last = (sum(map(len, lines[: line - 1])) + column for line, column in (change.start, change.end))
    data = source.encode()
    return (data[:first] + change.new.encode() + data[last:]).decode()


def make_map(tests: Sequence[str]) -> None:
    """Runs tests with coverage, and adds which test ran which line, and how long it took, to the map."""
    import coverage

    known: dict[str, Any] = json.loads(MAP.read_text()) if MAP.exists() else {"lines": {}, "seconds": {}}
    with tempfile.TemporaryDirectory() as folder:
        settings, junit = Path(folder, "coveragerc"), Path(folder, "junit.xml")
        data_file = Path(folder, "coverage")
        packages = "".join(f"    raftlog.{name}\n" for name in ("raft", "statemachine", "cluster"))
        settings.write_text(f"[run]\ndata_file = {data_file}\nsource =\n{packages}")
        words = ["-q", "-m", MARKS, "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
        words += [f"--junitxml={junit}", "-o", "junit_family=xunit1", "--hypothesis-seed=0"]
        subprocess.run([sys.executable, "-m", "pytest", *words, *tests], cwd=ROOT, check=False)
        for case in xml.etree.ElementTree.parse(junit).iter("testcase"):
            if case.find("failure") is None and case.find("skipped") is None and case.find("error") is None:
                name = f"{case.get('file')}::{case.get('name')}"
                known["seconds"][name] = round(float(case.get("time", "0")), 3)
        data = coverage.CoverageData(str(data_file))
        data.read()
        for path in data.measured_files():
            file = Path(path).resolve().relative_to(ROOT).as_posix()
            lines = known["lines"].setdefault(file, {})
            for line, contexts in data.contexts_by_lineno(path).items():
                found = {each.partition("|")[0] for each in contexts if each}
                lines[str(line)] = sorted({*lines.get(str(line), ()), *found})
    MAP.write_text(json.dumps(known))


def covering(change: Change, known: dict[str, Any]) -> list[str]:
    """The tests that run a line of the change, quickest first, up to `TESTS_S_MAX`."""
    lines = known["lines"].get(change.file, {})
    found = {name for line in range(change.start[0], change.end[0] + 1) for name in lines.get(str(line), ())}
    chosen: list[str] = []
    total = 0.0
    for name in sorted(found & set(known["seconds"]), key=lambda name: (known["seconds"][name], name)):
        total += known["seconds"][name]
        if chosen and total > TESTS_S_MAX:
            break
        chosen.append(name)
    return chosen


def candidates(seed: int, known: dict[str, Any], only: str) -> list[Change]:
    """All mutants of all modules that a test covers, in an order of chance in which the kinds take turns."""
    found = [
        each
        for pattern in MODULES
        for path in sorted(ROOT.glob(pattern))
        if only in path.as_posix()
        for each in changes(path.relative_to(ROOT).as_posix(), path.read_text())
        if covering(each, known)
    ]
    random.Random(seed).shuffle(found)
    turns: Counter[str] = Counter()
    order: list[tuple[int, int]] = []
    for position, each in enumerate(found):
        order.append((turns[each.kind], position))
        turns[each.kind] += 1
    return [found[position] for _, position in sorted(order)]


def run(seed: int, count: int, only: str) -> None:
    """Tries so many more mutants, each in a copy of the tree, and keeps what became of them."""
    known, done = json.loads(MAP.read_text()), results()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
        for file in files:
            if (ROOT / file).is_file():
                (copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, copy / file)
        links = copy / "links" / "raftlog"  # the copy as the one package `raftlog`, as .ci/setup makes it of the tree
        links.mkdir(parents=True)
        for part in ("raft", "statemachine", "cluster", "chaos", "spark_export"):
            (links / part).symlink_to(copy / part)
        for name in ("__init__.py", "py.typed"):
            (links / name).symlink_to(copy / "cluster" / "client" / "public" / name)
        for change in candidates(seed, known, only):
            if count <= 0:
                break
            if change.name in done:
                continue
            count -= 1
            done[change.name] = {**asdict(change), **_tried(copy, change, covering(change, known))}
            told = f"{change.name}: {change.old!r:.60} -> {change.new!r:.60}"
            print(f"{done[change.name]['outcome']:>8} {told}", flush=True)
            DATA.write_text(json.dumps({name: done[name] for name in sorted(done)}, indent=1) + "\n")
    print(table(done))


def _tried(copy: Path, change: Change, tests: Sequence[str]) -> dict[str, Any]:
    """What became of a mutant."""
    path = copy / change.file
    source = path.read_text()
    try:
        mutated = changed(source, change)
        compile(mutated, change.file, "exec")
        path.write_text(mutated)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
        environment = {**os.environ, "PYTHONPATH": f"{copy / 'links'}:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {"outcome": "killed", "by": "time", "tests": len(tests)}
        if done.returncode == 0:
            return {"outcome": "survived", "by": "", "tests": len(tests)}
        failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "an error")
        return {"outcome": "killed", "by": failed.split(" - ")[0][:200], "tests": len(tests)}
    except SyntaxError:
        return {"outcome": "void", "by": "no Python", "tests": 0}
    finally:
        path.write_text(source)


def results() -> dict[str, dict[str, Any]]:
    """The results of the mutants tried so far, by name."""
    found: dict[str, dict[str, Any]] = json.loads(DATA.read_text()) if DATA.exists() else {}
    return found


def table(done: dict[str, dict[str, Any]]) -> str:
    """Per module how many were tried, killed, equivalent (`why` says so), killed since, and survive."""
    rows: dict[str, list[int]] = {}
    for each in done.values():
        if each["outcome"] != "void":
            row = rows.setdefault(each["file"], [0, 0, 0, 0])
            row[("killed", "equivalent", "since", "survived").index(fate(each))] += 1
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = [
        "| module | tried | killed | equivalent | killed by a test added since | survive | share |",
        "| --- |" + " --- |" * 6,
    ]
    for file, (killed, equivalent, since, left) in rows.items():
        real = killed + since + left
        share = f"{100 * left / real:.0f} %" if real else ""
        lines.append(f"| {file} | {real + equivalent} | {killed} | {equivalent} | {since} | {left} | {share} |")
    return "\n".join(lines)


HEAD: Final = """# Random mutations

`python -m tests.house.mutation` makes small random changes to production code, one at a time, and runs the tests that
cover the changed lines. It shows which lines no test defends. The planted bugs of [mutants.md](mutants.md) are chosen
by hand; these are not. The data is [mutation.json](mutation.json). `run` goes on with the next mutants of a seed; this
page is written by `python -m tests.house.mutation page`.

A mutant is killed when one of its tests fails or takes longer than two minutes. Of all tests that cover a line the
quickest are run, up to 25 s. Tests that start processes are not among them. The places below are those of commit
8b7c2e1, before the node was divided and the files moved. Every survivor was read. An equivalent one
changes nothing that a caller can see. One that a test added since kills is counted as killed in the share.

"""


def page(done: dict[str, dict[str, Any]]) -> str:
    """docs/mutation.md: the table, and each survivor with the result of its review."""
    lines = [table(done), "", "| survivor | change | |", "| --- | --- | --- |"]
    for name, each in sorted(done.items()):
        if each["outcome"] == "survived":
            old, new = (" ".join(each[key].split()).replace("|", "\\|")[:70] for key in ("old", "new"))
            lines.append(f"| {name} | `{old}` -> `{new}` | {fate(each)}: {each.get('why', 'not read yet')} |")
    return HEAD + "\n".join(lines) + "\n"


def fate(each: dict[str, Any]) -> str:
    """killed, equivalent, since (a test that was added kills it), or survived."""
    if each["outcome"] == "killed":
        return "killed"
    return str(each.get("fate", "survived"))


def main() -> None:
    """One of the three."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.mutation")
    parser.add_argument("what", choices=("map", "run", "page"))
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--only", default="", help="modules whose path has this")
    options = parser.parse_args()
    if options.what == "map":
        make_map(options.tests)
    elif options.what == "run":
        run(options.seed, options.count, options.only)
    else:
        PAGE.write_text(page(results()))


if __name__ == "__main__":
    main()
