"""The page of a run: one file that needs nothing else, whatever is in the histories; and drawn by a real browser."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from raftlog.chaos.judge.history import BadHistory
from raftlog.chaos.runs import report
from raftlog.chaos.runs.judgement import judge_run
from raftlog.chaos.runs.run_folder import BadFolder, history_file, load, save
from tests.browser import chromium, page
from tests.chaos.runs.runs import busy, made, put

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
    assert bad["order"] == [["register-1", 10_000]]
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


def test_a_run_that_cannot_be_shown_is_an_error(folder: Path) -> None:
    """No run in the folder, a result that is none, a broken line in a history: each is named."""
    with pytest.raises(BadFolder, match="is this the folder of a chaos run"):
        report.data_of(folder.parent)
    path = history_file(folder, "log")
    path.write_bytes(path.read_bytes() + b"x\n")
    with pytest.raises(BadHistory, match=r"history-log\.jsonl: line 61"):
        report.data_of(folder)
    (folder / "result.json").write_text('{"format": 99}')
    with pytest.raises(BadFolder, match="format 1"):
        report.data_of(folder)


@pytest.mark.serial
def test_a_browser_draws_it(folder: Path) -> None:
    """Chromium runs the page to its end: the verdict is on it, the bad key is chosen, and its operation named."""
    with chromium() as browser, page(browser, (folder / report.PAGE).as_uri()) as shown:
        expect(shown.locator("[data-drawn=yes]")).to_be_attached()
        expect(shown.locator("h1#verdict.invalid")).to_have_text("invalid")
        expect(shown.get_by_text("fits nowhere").first).to_be_visible()
        expect(shown.locator("#failover")).to_be_visible()  # it was hidden, and the histograms are drawn
        expect(shown.locator("#alike.valid")).to_have_text("All 2 are the same.")


@pytest.mark.serial
@pytest.mark.long
def test_a_browser_draws_a_long_run(tmp_path: Path) -> None:
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
    with chromium() as browser, page(browser, written.as_uri()) as shown:
        expect(shown.get_by_text("operations are drawn").first).to_be_attached()
