"""Extends pytest: shows figures and skips, refuses missing tools in CI, and runs long tests only on request.

- Tests marked `spark` or `toxiproxy` start processes, those marked `alone` measure time: they are marked `serial` too.
- Tests marked `long` run only when the marker expression or a `file::test` argument names them.
- With CI set, a skip whose reason is Java, Toxiproxy, Spark or pyright is a failure: there the machine is meant to have
  them.
- Tests marked `extra`, for tests/extra.py or where they stand, are for `make test-all`; .ci/test leaves them out of
  `make test`.
- A failing run ends with the commands that repeat each failure alone. All random choices come from one seed
  (`tests.support.seed_of_run`), which these commands name.
- What a test measures (`record_property("measured", text)`) is shown at the end, also when it passed.
- `--rewrite` is for the stories of tests/raft/scripts (tests/raft/script.py).
- RAFTLOG_SKIPS_FILE and RAFTLOG_FAILED_FILE name files that carry the table and these commands from one pytest run to
  the next (.ci/test runs three). A pytest that a test starts does not have them: its failures are wanted.
- RAFTLOG_SERIAL_FILE names a file that gets the files of the tests marked `serial`, so that the next run of .ci/test
  collects only those.
"""

import gc
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.extra import is_extra
from tests.support import SEED_VARIABLE, seed_of_run

_REQUIRED_IN_CI = re.compile(r"java|jdk|toxiproxy|spark|pyright", re.IGNORECASE)

Skip = tuple[str, str]  # reason, file
SKIPS, FAILED, SERIAL = "RAFTLOG_SKIPS_FILE", "RAFTLOG_FAILED_FILE", "RAFTLOG_SERIAL_FILE"
_SHARED = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the stories of tests/raft/scripts show")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SHARED] = {name: os.environ.pop(name) for name in (SKIPS, FAILED) if name in os.environ}
    seed = seed_of_run()  # in the environment from now on, for the processes of pytest-xdist too
    if getattr(config.option, "hypothesis_seed", seed) is None:
        config.option.hypothesis_seed = str(seed)


def pytest_unconfigure(config: pytest.Config) -> None:
    shared = config.stash[_SHARED]
    os.environ |= shared


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: no collection of garbage walks it, neither now nor in the tests."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(tryfirst=True)  # before pytest itself applies the marker expression
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_extra(item.nodeid):
            item.add_marker("extra")
        if any(item.get_closest_marker(name) for name in ("spark", "toxiproxy", "alone")):
            item.add_marker("serial")
    _write_serial_files(items)
    named = "long" in config.option.markexpr or any("::" in argument for argument in config.args)
    if not named:
        long = [item for item in items if item.get_closest_marker("long")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]


def _write_serial_files(items: list[pytest.Item]) -> None:
    """One of the processes of pytest-xdist does it; none of them leaves the variable to the processes of its tests."""
    path = os.environ.pop(SERIAL, None)
    if path is not None and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        files = {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker("serial")}
        Path(path).write_text("\n".join(sorted(files, key=_order)), encoding="utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail_if_required(report)
    return report


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = _reason(report)
    if os.environ.get("CI") and _REQUIRED_IN_CI.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept: {reason}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple | list) else str(longrepr)
    return reason.removeprefix("Skipped: ")


def _order(file: str) -> tuple[bool, str]:
    """Spark first, which one process runs for longest; then those of whole clusters, whose names come first anyway."""
    return not file.startswith(_SPARK), file


_SPARK = "tests/spark_export/"


class _FilesOfTests(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, but one process has all tests of Spark: one session, which takes seconds to start."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "spark" if path.startswith(_SPARK) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _FilesOfTests(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several processes: the one that started it has their reports too
        return
    ended: list[pytest.TestReport] = [
        report
        for word in ("passed", "failed", "error")
        for report in terminalreporter.getreports(word)
        if isinstance(report, pytest.TestReport)  # no file that could not be read
    ]
    measured = [
        (report.nodeid, text) for report in ended for name, text in report.user_properties if name == "measured"
    ]
    if measured:
        terminalreporter.section("measured")
        for where, text in measured:
            terminalreporter.line(f"{where}\n    {text}")
    reports = terminalreporter.getreports("skipped")
    skips: list[Skip] = [(_reason(report), report.nodeid.partition("::")[0]) for report in reports]
    if shared := config.stash[_SHARED].get(SKIPS):
        file = Path(shared)
        if file.exists():
            skips = [(reason, where) for reason, where in json.loads(file.read_text("utf-8"))] + skips
        file.write_text(json.dumps(skips), encoding="utf-8")
    terminalreporter.section("skipped, and why")
    for line in table(skips):
        terminalreporter.line(line)
    failed = dict.fromkeys(
        report.nodeid for word in ("failed", "error") for report in terminalreporter.getreports(word)
    )
    commands = [f"{SEED_VARIABLE}={seed_of_run()} .venv/bin/python -m pytest {shlex.quote(each)}" for each in failed]
    if commands:
        terminalreporter.section("to repeat each failure alone")
        for line in commands:
            terminalreporter.line(line)
        if shared := config.stash[_SHARED].get(FAILED):
            with Path(shared).open("a", encoding="utf-8") as of_all_parts:
                of_all_parts.writelines(f"{line}\n" for line in commands)


def table(skips: list[Skip]) -> list[str]:
    """One line per reason and file, most frequent first, under a heading; or one line that says that there is none."""
    if not skips:
        return ["nothing was skipped"]
    rows = [("tests", "file", "why")]
    rows += [(str(count), where, reason) for (reason, where), count in Counter(skips).most_common()]
    width = max(len(row[1]) for row in rows)
    return [f"{count:>5}  {where:<{width}}  {reason}" for count, where, reason in rows]
