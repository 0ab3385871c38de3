"""Runs every block of commands in README.md and docs/ as it stands.

A block that no test runs is marked on its page with the reason: `<!-- not run: REASON -->` in the line above it.
The blocks of a page run in their order, in one shell, against three fresh nodes. Only the ports are others than in the
text, so that the test can run beside anything. A comment `ends with N` names the exit code of its line.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from raftlog import NewRecord, SyncClient
from raftlog.cluster.cli.frame.last_cluster import DEFAULT_PORT
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.house.rules import ROOT
from tests.support import HANG_S, free_ports, hang_s

COMMANDS: Final = re.compile(
    r"\$?\s*(raftlog|curl|make|mkdir|pip|kill|until|prlimit|cd|\. |NODE=|[\w./-]*python[\d.]* |\.venv/)"
)
"""A block that begins so is one of commands; any other shows a file, an answer, bytes or a drawing."""

RUN: Final = ("docs/http_api.md", "README.md", "docs/cli.md", "docs/import.md", "docs/python.md")
"""Pages whose blocks all run, each against a fresh cluster, but for the lines below."""

RUN_BLOCKS: Final = (
    ("docs/operations/log.md", "raftlog log --group billing"),
    *(
        (f"docs/operations/{page}.md", start)  # tests/acceptance/test_stories.py
        for page, start in (
            ("members", "raftlog members add 4"),
            ("members", "raftlog members remove 4"),
            ("members", "raftlog members replace 3  "),
            ("members", "raftlog cert renew tls/node-3.pem"),
            ("backup", "raftlog backup nightly"),
            ("backup", "mkdir new && cp data/cluster.toml"),
            ("backup", "raftlog create 10.0.0.1 10.0.0.2 10.0.0.3 --folder new"),
            ("backup", "raftlog restore nightly --cluster cluster"),
        )
    ),
)
"""Single blocks of other pages, by how they begin."""

LINES_NOT_RUN: Final = {
    "make ": "the targets set up a whole checkout",
    ". .venv/bin/activate": "the tests have their own environment",
    "raftlog up": "the cluster of the test runs already",
    "raftlog export": "Spark: tests/spark_export runs exports",
    "raftlog analyze": "Spark: tests/spark_export/tables/test_truth.py asks about an imported file",
    "raftlog chaos run": "takes a minute: `make chaos`, and tests/chaos",
}
"""How a line of a page that runs may begin all the same, and why it is left out."""

ELSEWHERE: Final = {
    "docs/analytics.md": "tests/spark_export/analytics/test_guide.py",
    "docs/postgres.md": "tests/cluster/importer/postgres/test_page.py",
    "docs/query.md": "tests/spark_export/tables/test_page.py",
    "docs/sinks.md": "tests/cluster/sinks/test_command.py",
    "docs/spark.md": "tests/spark_export/source/test_docs.py",
    "docs/three_machines.md": "tests/acceptance/test_three_machines.py",
}
"""Pages with the test that runs their blocks, but for those that are marked."""

NOT_RUN: Final = re.compile(r"<!-- not run: (.+) -->")
"""The mark above a block that no test runs, with the reason."""

SHELL: Final = r"""
set -euo pipefail
curl() {
    local more=() out code=0
    case "$*" in *" -N "*|"-N "*|*follow=true*) more=(--max-time 1) ;; esac
    out=$(command curl -sS --fail-with-body "${more[@]}" "$@" | tr -d '\0') || code=$?
    printf '%s\n' "$out"
    [[ $out =~ \"session\":\ ?([0-9]+) ]] && SESSION=${BASH_REMATCH[1]}
    [[ $out =~ \"generation\":\ ?([0-9]+) ]] && GENERATION=${BASH_REMATCH[1]}
    [[ $out =~ \"log\":\ ?\"([0-9a-f]{32}) ]] && LOG=${BASH_REMATCH[1]}
    [ $code = 0 ] || { [ $code = 28 ] && [ ${#more[@]} -gt 0 ]; }
}
raftlog() {
    local code=0
    case "$*" in
    *--watch*|watch*|*--follow*)
        timeout 3 "$PYTHON" -m raftlog.cluster.cli.main "$@" || code=$?; [ $code = 124 ] || return $code ;;
    node*) exec ${MACHINE:-} "$PYTHON" -m raftlog.cluster.cli.main "$@" ;; # in the background: the job is the node
    *) "$PYTHON" -m raftlog.cluster.cli.main "$@" ;;
    esac
}
trap 'for job in $(jobs -p); do kill $job; wait $job || true; done' EXIT
"""


class Block(NamedTuple):
    """A block of a page: where it begins, in which language (shell unless it is fenced), and its text."""

    page: str
    line: int
    language: str
    text: str
    why_not_run: str = ""  # of its mark

    @property
    def has_commands(self) -> bool:
        """Whether it is one to run: Python, or lines for a shell."""
        return self.language in ("python", "sh", "console") or (self.language == "" and bool(COMMANDS.match(self.text)))


def blocks(page: str) -> list[Block]:
    """Fenced blocks, and paragraphs that are indented by four spaces."""
    found: list[Block] = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        start, above = at, lines[at - 1].strip() if at else ""
        mark = NOT_RUN.fullmatch(above)
        why = mark[1] if mark else ""
        if fence := re.match(r"```(\w*)$", lines[at]):
            at = lines.index("```", at + 1)
            found.append(Block(page, start + 2, fence[1] or "text", "\n".join(lines[start + 1 : at]), why))
        elif lines[at].startswith("    ") and (mark or not above):
            while at + 1 < len(lines) and lines[at + 1].startswith("    "):
                at += 1
            found.append(Block(page, start + 1, "", "\n".join(line[4:] for line in lines[start : at + 1]), why))
        at += 1
    return found


def pages() -> list[str]:
    """README and every page of the docs."""
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def found_block(start: str) -> Block:
    """The one block of the pages of RUN_BLOCKS that begins so."""
    searched = dict.fromkeys(page for page, _ in RUN_BLOCKS)
    (block,) = (each for page in searched for each in blocks(page) if each.text.startswith(start))
    return block


def is_run(block: Block) -> bool:
    """Whether this test runs it."""
    picked = any(block.page == page and block.text.startswith(start) for page, start in RUN_BLOCKS)
    return block.has_commands and (block.page in RUN or picked)


def as_script(text: str) -> str:
    """The lines for the shell, without those that are left out; `ends with N` is checked."""
    wanted: list[str] = []
    for line in text.splitlines():
        if any(line.startswith(start) for start in LINES_NOT_RUN):
            rest = line.partition(" && ")[2]  # what follows it needs it
            assert not rest or rest.startswith(("raftlog verify",)), line
            continue
        if ends := re.search(r"# ends with (\d+)", line):
            command = line.partition("  #")[0]
            line = f"code=0; {command} || code=$?; [ $code = {ends[1]} ]"
        wanted.append(line)
    return "\n".join(wanted)


def ports_replaced(text: str, ports: dict[int, int]) -> str:
    """The text with the ports of this test; a port that the docs must not use is an error."""
    named = {int(port) for port in re.findall(r"(?:127\.0\.0\.1|localhost):(\d+)", text)}
    assert named <= ports.keys(), f"the docs use one set of ports: {sorted(named - ports.keys())} are none of them"
    return re.sub(r"(127\.0\.0\.1|localhost):(\d+)", lambda found: f"{found[1]}:{ports[int(found[2])]}", text)


def run_python(text: str) -> None:
    """Python of a page, with `await` at its top; a stream that would never end stops where the log does."""
    text = text.replace("follow=True", "follow=False")
    code = compile(text, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, {"__name__": "docs"})  # noqa: S307  # the page itself
    if inspect.iscoroutine(result):
        asyncio.run(asyncio.wait_for(result, hang_s()))


class Place(NamedTuple):
    """Where blocks run. `ports` maps the ports of the docs to those of this cluster."""

    cluster: LocalCluster
    ports: dict[int, int]
    environment: dict[str, str]
    folder: Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Three nodes as `raftlog up --nodes 3` has them, on free ports, and the files that the blocks name."""
    fresh = free_ports(8)
    base = DEFAULT_PORT
    ports = dict(zip([*range(base, base + 4), *range(base + 100, base + 104)], fresh, strict=True))
    (tmp_path / "picture.jpg").write_bytes(b"\xff\xd8" + bytes(range(1, 256)))
    (tmp_path / "records.ndjson").write_text('{"value": "one"}\n{"value": "two"}\n')
    line = '1.2.3.4 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 5\n'
    (tmp_path / "access.log").write_text(line * 30)
    page = (ROOT / "docs/import.md").read_text(encoding="utf-8")
    (tmp_path / "quakes.csv").write_text(page.partition("```text\n")[2].partition("```")[0])
    (tmp_path / "sensors.csv").write_text("id,at\na,2026-01-31T12:00:00Z\n,2026-01-31T12:00:01Z\n")
    with LocalCluster(tmp_path / "data", 3, ports=fresh[4:7] + fresh[0:3]) as cluster:
        cluster.restore()
        cluster.leader()
        environment = os.environ | {
            "RAFTLOG_ENDPOINTS": ",".join(cluster.urls),
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(tmp_path),
            "COLUMNS": "100",
        }
        yield Place(cluster, ports, environment, tmp_path)


@pytest.mark.serial
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(page: str, place: Place) -> None:
    """One after the other in a shell under `set -e`, then its Python: every request and command succeeds."""
    found = [block for block in blocks(page) if is_run(block)]
    assert found
    shell(place, [block for block in found if block.language == ""])
    if python := [block.text for block in found if block.language == "python"]:
        run_python(ports_replaced("\n".join(python), place.ports))


@pytest.mark.serial
def test_the_stories_of_operations_run(place: Place) -> None:
    """Consumer groups, as the page has them, under `set -e`. Those of members and restore: tests/acceptance."""
    with SyncClient(place.cluster.urls) as client:
        client.append_many([NewRecord(b"record %d" % number) for number in range(30)])
    shell(place, [found_block(RUN_BLOCKS[0][1])])


def shell(place: Place, found: list[Block]) -> None:
    """Runs blocks in one shell; a failure names the line of the page."""
    script = [SHELL]
    for block in found:
        script.append(f"echo '== {block.page}:{block.line}' >&2")
        script.append(as_script(ports_replaced(block.text, place.ports)))
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-2000:]}"


def test_every_block_runs_or_is_marked_with_the_reason() -> None:
    """A new block of commands on a page is run by this file or the page's own test, or has the mark above it. A mark
    stands above a block that is not run, and nowhere else."""
    found = [block for page in pages() for block in blocks(page)]
    assert sum(map(is_run, found)) > 20
    for block in found:
        is_elsewhere = block.page in ELSEWHERE and block.has_commands
        if block.why_not_run:
            assert block.has_commands, f"{block.page}:{block.line}: a mark above a block without commands"
            assert not is_run(block), f"{block.page}:{block.line} is run: take its mark away"
        else:
            assert not block.has_commands or is_run(block) or is_elsewhere, (
                f"{block.page}:{block.line}: no test, no mark"
            )
    marks = sum(len(NOT_RUN.findall((ROOT / page).read_text("utf-8"))) for page in pages())
    assert marks == sum(bool(block.why_not_run) for block in found), "a mark stands in the line above its block"
    for page, test in ELSEWHERE.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text("utf-8"), f"{test} does not name {page}"


def test_docs_blocks_use_one_set_of_ports() -> None:
    """Every address of the docs is a port of `raftlog up --nodes 3`, of a fourth node, 72xx (moved, or of probes), or
    9090 of Prometheus, in a namespace of its own."""
    allowed = {*range(7001, 7005), *range(7101, 7105), 7201, 7203, 9090}
    wrong = [
        f"{page}: {port}"
        for page in pages()
        for port in re.findall(r"(?:127\.0\.0\.1|localhost):(\d+)", (ROOT / page).read_text(encoding="utf-8"))
        if int(port) not in allowed
    ]
    assert wrong == []


def reasons() -> Iterator[str]:
    """The blocks that are left out, and the reasons, as the summary of the test run prints them."""
    for page in pages():
        if marks := [block.why_not_run for block in blocks(page) if block.why_not_run]:
            yield f"{len(marks)} blocks of {page} are not run: {', '.join(dict.fromkeys(marks))}"
    for start, why in LINES_NOT_RUN.items():
        yield f"lines that begin `{start.strip()}` are not run by test_docs_blocks.py: {why}"


def test_blocks_that_do_not_run_are_listed(record_property: Callable[[str, object], None]) -> None:
    """The end of a run prints, under "measured", which blocks and lines are left out, with the reason of each."""
    told = [*reasons()]
    assert all(reason.rpartition(": ")[2].strip() for reason in told)
    record_property("measured", "; ".join(told))
