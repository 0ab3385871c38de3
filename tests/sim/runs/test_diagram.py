"""The space-time diagram: what the page holds, that it needs nothing else, and that a browser draws it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from raftlog.chaos.sim.ground.trace import Recorder
from raftlog.chaos.sim.runs.diagram import WINDOW_US, Caption, page, picture
from raftlog.chaos.sim.runs.runner import Job, run_job
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, RequestVote
from raftlog.raft.types import NodeId
from tests.raft.lab import make_core

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def vote(to: NodeId) -> RequestVote:
    return RequestVote(sender=1, to=to, term=4, last_index=3, last_term=2)


def recorded() -> Recorder:
    """Three nodes; a message that arrives, one that is lost; a fault that lasts and one that does not; a crash."""
    recorder = Recorder()
    for node in (1, 2, 3):
        recorder.state(0, node, None)
        recorder.state(0, node, make_core(node, 3))
    recorder.sent(1, 1_000, vote(2))
    recorder.sent(2, 1_000, vote(3))
    recorder.sent(3, 1_000, AppendEntries(sender=1, to=2, term=4, prev_index=1, prev_term=1, commit=1, round=1))
    recorder.delivered(1, 2_000)
    recorder.delivered(1, 2_500)  # a copy
    recorder.lost(2, 2_200, "cut")
    recorder.fault(3_000, 1, "cut link", (1, 2), "both ways", 4_000)
    recorder.fault(3_500, 2, "kill", (3,), "")
    recorder.state(3_500, 3, None)
    recorder.line(9_000, 2, "answers", "</script><b>")
    return recorder


def told(recorder: Recorder, window_us: int = WINDOW_US) -> dict[str, Any]:
    return picture(list(recorder.events), Caption("t", "c", ["f"], (9_500, "p", "d")), window_us)


def test_each_copy_of_a_message_is_an_arrow_with_its_fate() -> None:
    """Delivered twice are two arrows, a lost one says why, one under way ends at the end of the picture."""
    arrows = [(each["number"], each["fate"], each["sent_us"], each["end_us"]) for each in told(recorded())["messages"]]
    assert arrows == [
        (1, "delivered", 1_000, 2_000),
        (1, "delivered", 1_000, 2_500),
        (2, "lost", 1_000, 2_200),
        (3, "flying", 1_000, 9_500),
    ]
    lost = told(recorded())["messages"][2]
    assert (lost["from"], lost["to"], lost["kind"]) == (1, 3, "RequestVote")
    assert lost["text"].endswith("lost: cut")


def test_lanes_faults_and_the_broken_property_are_there() -> None:
    """Each node's stretches of role and term, each fault with its nodes and how long it lasts, and where it ended."""
    value = told(recorded())
    assert value["nodes"] == [1, 2, 3]
    assert [(span["role"], span["from_us"], span["to_us"]) for span in value["spans"][3]] == [
        ("down", 0, 0),
        ("follower", 0, 3_500),
        ("down", 3_500, 9_500),
    ]
    assert [(each["kind"], each["nodes"], each["lasts_us"]) for each in value["faults"]] == [
        ("cut link", [1, 2], 4_000),
        ("kill", [3], 0),
    ]
    assert value["broken"] == {"at_us": 9_500, "property": "p", "detail": "d"}
    assert (value["start_us"], value["end_us"]) == (0, 9_500)


def test_the_page_is_a_window_on_the_end() -> None:
    """Events before the window are left out, except faults that last into it and the state of each node."""
    value = told(recorded(), 4_000)  # from 5.5 ms on
    assert [each["kind"] for each in value["faults"]] == ["cut link"]
    assert [span["role"] for span in value["spans"][3]] == ["down"]
    assert value["messages"] == []
    assert [line["at_us"] for line in value["lines"]] == [9_000]


def test_a_message_from_before_the_record_is_an_arrow_all_the_same() -> None:
    """A recorder forgets the oldest events: an arrival whose sending is gone comes from just before."""
    recorder = Recorder(events_max=1)
    recorder.sent(1, 1_000, vote(2))
    recorder.delivered(1, 9_000)
    (arrow,) = told(recorder)["messages"]
    assert (arrow["kind"], arrow["sent_us"], arrow["end_us"]) == ("RequestVote", 8_000, 9_000)


def test_heartbeats_and_their_answers_are_quiet() -> None:
    """What moves no entry and refuses nothing is hidden at first; an answer to entries, and a refusal, is not."""
    recorder = Recorder()
    fields: dict[str, Any] = {"sender": 2, "to": 1, "term": 1, "round": 3}
    recorder.sent(1, 1, AppendEntries(sender=1, to=2, term=1, prev_index=7, prev_term=1, commit=5, round=3))
    recorder.sent(2, 2, AppendEntriesReply(success=True, match=7, prev_index=7, **fields))
    recorder.sent(3, 3, AppendEntriesReply(success=True, match=9, prev_index=7, **fields))
    recorder.sent(4, 4, AppendEntriesReply(success=False, match=0, prev_index=7, hint_index=7, **fields))
    assert [each["quiet"] for each in told(recorder)["messages"]] == [True, True, False, False]


class Elements(HTMLParser):
    """Which elements there are, what they refer to, and the JSON in the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.data = ""
        self._is_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        self._is_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data += data
            self._is_data = False


def test_the_page_needs_nothing_else() -> None:
    """No address outside, no element that loads one; and text from the run cannot become an element."""
    text = page(
        recorded().events, Caption("seed 1", "raftlog sim --replay 1", ["a <b> fact"], (9_500, "p", "<i>d</i>"))
    )
    elements = Elements()
    elements.feed(text)
    assert elements.links == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "b" not in elements.tags
    assert "i" not in elements.tags
    value = json.loads(elements.data)
    assert value["lines"][-1]["text"] == "answers </script><b>"
    assert value["facts"] == ["a <b> fact"]
    for name in ("canvas", "tools", "rows", "facts", "detail", "command", "title", "tip", "count"):
        assert f'id="{name}"' in text


def test_an_empty_record_is_a_page_too() -> None:
    """A seed that breaks before anything happened."""
    assert picture([], Caption("t", "c"), WINDOW_US)["nodes"] == []
    assert "<canvas" in page([], Caption("t", "c"))


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine: `apt-get install chromium`")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    """The script of the page runs to its end in a real browser, and draws arrows of a real seed."""
    recorder = Recorder()
    assert run_job(Job(1, 3), recorder).broken is None
    path = tmp_path / "diagram.html"
    path.write_text(page(recorder.events, Caption("seed 1", "c", [], (recorder.end_us, "p", "d"))))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom",
        f"--user-data-dir={tmp_path / 'profile'}", path.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout
    drawn = re.search(r'data-arrows="(\d+)"', dom)
    assert drawn is not None
    assert int(drawn[1]) > 0
    assert "events from" in dom
