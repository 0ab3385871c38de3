"""The page of a run, of chaos and of the simulator: one file that needs nothing else; and drawn by a real browser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from raftlog.chaos.judge.history import BadHistory
from raftlog.chaos.record import page as report
from raftlog.chaos.record.folder import BadFolder, history_file, load
from raftlog.chaos.runs.judgement import judge_run
from raftlog.chaos.runs.result import save
from raftlog.chaos.sim.runs.ending import Exit
from raftlog.cluster.demo.story import COMMAND
from tests.browser import chromium, page
from tests.chaos.record.runs import busy, made, put
from tests.chaos.runs.test_run_commands import app as commands
from tests.sim.runs.test_commands import run as sim
from tests.support import HANG_S

MUTANT = "acknowledged_before_fsync"
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028"


class Page(HTMLParser):
    """Tags and attributes of a page, and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.data = ""
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._in_data = tag == "script" and ("id", "data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An invalid run: a read of a value that no client wrote; and a value that looks like HTML."""
    folder = tmp_path / "run"
    folder.mkdir()
    run = made(folder, [put(5, "r/0/1", "7")])
    busy(run)
    run.losses = {"kill-leader": [0.05, 0.07], "pause-leader": [0.4], "partition-leader": [0.5]}
    history = run.workloads[0].recorder.history
    history.invoke("register-1", "write", "r/0/1", 7, time_ns=10_000_000)
    history.complete("register-1", "ok", 7, index=5, term=1, time_ns=12_000_000)
    history.invoke("register-2", "read", "r/0/1", time_ns=20_000_000)
    history.complete("register-2", "ok", HOSTILE, time_ns=30_000_000)
    save(run, judge_run(run), ["raftlog", "chaos", "run", "all", "--seed", "1"])
    report.write_page(folder)
    return folder


def test_the_page_needs_nothing_else(folder: Path) -> None:
    """No attribute names a resource, no address stands in it, and text of a history stays text."""
    text = (folder / report.PAGE).read_text()
    page = Page(text)
    assert not [pair for pair in page.attributes if pair[0] in ("src", "href", "srcset", "action", "onerror")]
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert page.tags.count("script") == 2
    for word in ("http:", "https:", "@import", "url(", "fetch(", "XMLHttpRequest", "{{"):
        assert word not in text.replace(page.data, ""), word


def test_the_data_is_the_run(folder: Path) -> None:
    """Verdict, command, faults with proof, every operation as a row, and the first impossible one of the bad key."""
    data: dict[str, Any] = json.loads(Page((folder / report.PAGE).read_text()).data)
    result = data["result"]
    assert result == load(folder)
    assert (result["verdict"], result["command"]) == ("invalid", "raftlog chaos run all --seed 1")
    assert result["faults"][0]["proof"] == "pid 1 gone"
    assert result["faults"][0]["recovery_s"] is not None
    assert len(data["rows"]) == data["total"] == 32
    (bad,) = data["bad"]
    assert data["tables"]["keys"][bad["key"]] == "register r/0/1"
    assert bad["impossible"]["at"] == 20_000
    assert bad["impossible"]["process"] == "register-2"
    assert [(each["process"], each["at"]) for each in bad["order"]] == [("register-1", 10_000)]
    assert data["leaderless"] == [[200_000, 500_000]]
    assert (sum(data["rates"]["ok"]), sum(data["rates"]["other"])) == (32, 0)
    by_function = {each["function"]: each["us"] for each in data["latency"]}
    assert by_function == {"write": [2_000] * 4, "read": [10_000] * 4, "append": [1_000] * 4}
    assert (folder.parent / "latest").resolve() == folder.resolve()
    assert "kill-leader" in (folder / "schedule.txt").read_text()


def test_much_is_thinned_out_and_trouble_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what ended well only so many rows are kept; those of a key that is not valid are all there."""
    monkeypatch.setattr(report, "ROWS_MAX", 20)
    data = report.data_of(folder)
    assert data["total"] == 32
    kept = [data["tables"]["workloads"][row[0]] for row in data["rows"]]
    assert kept.count("register") == 2
    assert kept.count("log") == 15
    assert sum(data["rates"]["ok"]) == 32


def test_of_very_many_faults_the_newest_are_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has as many faults and stretches as it can draw, the last ones, and knows how many it left out."""
    monkeypatch.setattr(report, "PARTS_MAX", 1)
    data = report.data_of(folder)
    assert data["left_out"] == {"faults": 0, "stretches": 1}
    assert [each["node"] for each in data["result"]["stretches"]] == [2]


def test_a_run_that_cannot_be_shown_is_an_error(folder: Path) -> None:
    """No run in the folder, a result that is none, a broken line in a history: each is named."""
    with pytest.raises(BadFolder, match="is this the folder of a run"):
        report.data_of(folder.parent)
    path = history_file(folder, "log")
    path.write_bytes(path.read_bytes() + b"x\n")
    with pytest.raises(BadHistory, match=r"history-log\.jsonl: line 61"):
        report.data_of(folder)
    (folder / "result.json").write_text('{"format": 99}')
    with pytest.raises(BadFolder, match="format 1"):
        report.data_of(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def failure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a seed that found a planted bug."""
    parent = tmp_path_factory.mktemp("sim")
    code, printed = sim(
        "--mutant", MUTANT, "--seeds", "0:40", "--seconds", "10", "--jobs", "1", "--report", str(parent)
    )
    assert code == Exit.BROKEN, printed
    assert f"page: {(parent / 'latest').resolve() / report.PAGE}" in printed
    return (parent / "latest").resolve()


@pytest.mark.serial
def test_a_run_of_chaos_in_a_browser(browser: Browser, folder: Path) -> None:
    """The verdict, the anomaly by its key, an address that keeps the view, a filter, and the times of lost leaders."""
    with page(browser, (folder / report.PAGE).as_uri()) as shown:
        expect(shown.locator("h1#verdict.invalid")).to_have_text("invalid")
        expect(shown.get_by_text("All 2 are the same.")).to_have_class("valid")
        expect(shown.locator("figure")).to_have_count(3)
        expect(shown.locator("#view")).to_contain_text("0.000 s to 1.000 s of 1.000 s; 32 operations in view")
        shown.locator("#time").focus()
        shown.keyboard.press("a")
        expect(shown.locator("#key")).to_have_value("register r/0/1")
        expect(shown.locator("#view")).to_contain_text("2 operations in view")
        expect(shown.get_by_role("cell", name="onerror=alert(1)>").first).to_be_visible()
        shown.keyboard.press("0")
        shown.locator("#key").select_option("")
        shown.keyboard.press("/")
        shown.keyboard.type("busy:7")
        expect(shown.locator("#view")).to_contain_text("1 operations in view")
        shown.reload()
        expect(shown.locator("#view")).to_contain_text("1 operations in view")
        expect(shown.locator("#words")).to_have_value("busy:7")


@pytest.mark.serial
def test_a_failure_of_the_simulator_in_a_browser(browser: Browser, failure: Path) -> None:
    """The same kind of page: the broken property, where it broke, faults, the newest events, and what disks hold."""
    result = load(failure)
    assert result["verdict"] == "invalid"
    assert result["command"].endswith(f"--mutant {MUTANT}")
    assert {each["role"] for each in result["stretches"]} >= {"leader", "follower"}
    again = CliRunner().invoke(commands, ["chaos", "report", str(failure)])
    assert again.exit_code == 1
    assert "the cluster broke a promise: persist, then promise" in " ".join(again.output.split())
    with page(browser, (failure / report.PAGE).as_uri()) as shown:
        expect(shown.locator("#says")).to_contain_text("the cluster broke a promise: persist, then promise")
        shown.get_by_role("button", name="anomaly").click()
        expect(shown.locator("#view")).to_contain_text(f"to {result['broken_us'] / 1e6:.6f} s of")
        expect(shown.get_by_role("heading", name="what disks hold (the fault atlas)")).to_be_visible()
        shown.get_by_role("button", name="all", exact=True).click()
        shown.locator("#words").fill("is leader in term")
        found = shown.get_by_role("cell", name="is leader in term")
        expect(found.first).to_be_visible()
        expect(shown.locator("section").filter(has_text="Events in view").locator("td:last-child")).to_have_count(
            found.count()
        )


@pytest.mark.serial
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_a_telephone(browser: Browser, folder: Path, failure: Path, theme: Literal["light", "dark"]) -> None:
    """At 390 pixels nothing is wider than the window, axe finds nothing, and the picture has the theme's colours."""
    for each in (folder, failure):
        with page(browser, (each / report.PAGE).as_uri(), width=390, theme=theme) as shown:
            expect(shown.locator("[data-drawn=yes]")).to_be_attached()
            assert shown.evaluate("document.documentElement.scrollWidth") == 390
            found = Axe().run(shown)
            assert found.violations_count == 0, found.generate_report()
            assert shown.evaluate("colour('--paper')") == {"light": "#ffffff", "dark": "#14181f"}[theme]


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.toxiproxy
@pytest.mark.timeout(300)
def test_a_real_run_in_a_browser(browser: Browser, tmp_path: Path, toxiproxy_path: Path) -> None:
    """Five seconds of load on three real nodes: the page has all operations, and each node as the leader or not."""
    words = [*COMMAND, "chaos", "run", "calm", "--nodes", "3", "--seconds", "5", "--out", str(tmp_path)]
    subprocess.run(words, check=True, timeout=HANG_S)  # Playwright has a loop of asyncio in this thread
    result = load(tmp_path / "latest")
    assert {each["node"] for each in result["stretches"]} == {1, 2, 3}
    with page(browser, (tmp_path / "latest" / report.PAGE).as_uri()) as shown:
        expect(shown.locator("#view")).to_contain_text(f"; {result['operations']:,} operations in view")
        shown.get_by_role("button", name="zoom in").click()
        expect(shown.locator("#view")).not_to_contain_text(f"; {result['operations']:,} operations in view")


@pytest.mark.serial
@pytest.mark.long
def test_a_browser_draws_a_long_run(browser: Browser, tmp_path: Path) -> None:
    """Ten minutes of a busy cluster: 60,000 operations are counted, those that are drawn fit a page of 5 MB."""
    folder = tmp_path / "run"
    folder.mkdir()
    run = made(folder, [])
    busy(run, 60_000)
    save(run, judge_run(run), ["raftlog", "chaos", "run", "all"])
    written = report.write_page(folder)
    assert written.stat().st_size < 5 << 20
    data = report.data_of(folder)
    assert len(data["rows"]) <= report.ROWS_MAX < data["total"] == 60_000
    assert sum(data["rates"]["ok"]) == 60_000
    with page(browser, written.as_uri()) as shown:
        expect(shown.locator("#view")).to_contain_text("of 60,000 operations are on this page")
