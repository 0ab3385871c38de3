"""Extends pytest: shows figures and skips, refuses missing tools in CI, and runs long tests only on request.

- Tests marked `spark` or `toxiproxy` start processes, those marked `alone` measure time: they are marked `serial` too.
- Tests marked `long` run only when the marker expression or a `file::test` argument names them.
- With CI set, a skip whose reason is Java, Toxiproxy or Spark is a failure: there the machine is meant to have them.
- A test that was only too slow (`tests.support.TooSlow`: a condition that did not come true in time) is run once more,
  and both runs are reported: the disk of a shared machine stalls now and then. No other failure gets a second chance.
- What a test measures (`record_property("measured", text)`) is shown at the end, also when it passed.
- `--rewrite` is for the stories of tests/raft/scripts (tests/raft/script.py).
- RAFTLOG_SKIPS_FILE names a file that carries the table from one pytest run to the next (.ci/test runs three).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.support import TooSlow

_REQUIRED_IN_CI = re.compile(r"java|jdk|toxiproxy|spark", re.IGNORECASE)

_TOO_SLOW = "too slow"  # a property of such a report
_FIRST_TIME = "too slow the first time"  # a property of the reports of the second time: how it failed

Skip = tuple[str, str]  # reason, file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the stories of tests/raft/scripts show")


@pytest.hookimpl(tryfirst=True)  # before pytest itself applies the marker expression
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in ("spark", "toxiproxy", "alone")):
            item.add_marker("serial")
    named = "long" in config.option.markexpr or any("::" in argument for argument in config.args)
    if not named:
        long = [item for item in items if item.get_closest_marker("long")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failed = [report for report in reports if report.failed]
    if failed and all((_TOO_SLOW, True) in report.user_properties for report in failed):
        item._initrequest()  # type: ignore[attr-defined]  # as pytest does before the first time
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            report.user_properties.append((_FIRST_TIME, failed[0].longreprtext))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(TooSlow):
        report.user_properties.append((_TOO_SLOW, True))
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
    slow = {
        report.nodeid: text for report in ended for name, text in report.user_properties if name == _FIRST_TIME
    }  # by test: a report for each of its phases has it
    for nodeid, text in slow.items():
        terminalreporter.section(f"{_FIRST_TIME}, and run once more: {nodeid}")
        terminalreporter.line(str(text))
    reports = terminalreporter.getreports("skipped")
    skips: list[Skip] = [(_reason(report), report.nodeid.partition("::")[0]) for report in reports]
    if shared := os.environ.get("RAFTLOG_SKIPS_FILE"):
        file = Path(shared)
        if file.exists():
            skips = [(reason, where) for reason, where in json.loads(file.read_text("utf-8"))] + skips
        file.write_text(json.dumps(skips), encoding="utf-8")
    terminalreporter.section("skipped, and why")
    for line in table(skips):
        terminalreporter.line(line)


def table(skips: list[Skip]) -> list[str]:
    """One line per reason and file, most frequent first, under a heading; or one line that says that there is none."""
    if not skips:
        return ["nothing was skipped"]
    rows = [("tests", "file", "why")]
    rows += [(str(count), where, reason) for (reason, where), count in Counter(skips).most_common()]
    width = max(len(row[1]) for row in rows)
    return [f"{count:>5}  {where:<{width}}  {reason}" for count, where, reason in rows]
