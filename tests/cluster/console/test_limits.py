"""What a page asks of its node: at most a mebibyte by itself, and nothing while its tab is hidden."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, Request, Response, expect

from raftlog.cluster.api.members import ClusterView, MemberSeen
from raftlog.cluster.http.routes import observe
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.history import History
from tests.browser import held, page
from tests.cluster.fake_node import FakeNode, serve
from tests.support import HANG_S

pytestmark = pytest.mark.serial

SECONDS = 10
MENU = ("overview", "log", "keys", "groups", "data", "explain", "operate", "access")


COUNTED = """
window.unanswered = 0;
const ended = (promise) => promise.finally(() => window.unanswered--);
const [ask, read] = [window.fetch, Response.prototype.json];
window.fetch = (...words) => (window.unanswered++, ask(...words).catch((error) => ended(Promise.reject(error))));
Response.prototype.json = function () { return ended(read.call(this)); };
"""
"""A page whose requests are counted until it has read their answers, and has set the timers that they lead to."""


def settle(shown: Page) -> None:
    """Waits until the page has read all answers. Else more of its clock than of ours would pass while one is under way:
    the page would find its node silent, and send more requests."""
    deadline = time.monotonic() + HANG_S
    while unanswered := shown.evaluate("window.unanswered"):
        assert time.monotonic() < deadline, f"{unanswered} requests without an answer"


def passing(shown: Page) -> Callable[[], list[str]]:
    """Loads the page again. The function lets ten seconds of its clock pass, and returns the paths of its requests."""
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(urlsplit(request.url).path)

    def run() -> list[str]:
        asked.clear()
        for _ in range(SECONDS):
            shown.clock.run_for(1_000)
            settle(shown)
        return list(asked)

    shown.clock.install()
    shown.add_init_script(COUNTED)
    shown.reload()
    expect(shown.get_by_role("status").filter(has_text="live")).to_be_visible()
    settle(shown)  # what a page asks at its begin is no question of a second
    shown.on("request", note)
    return run


def hide(shown: Page, hidden: str) -> None:
    """As a browser does with a tab behind others; headless Chromium hides none."""
    script = "Object.defineProperty(document, 'hidden', {value: HIDDEN, configurable: true});"
    shown.evaluate(script.replace("HIDDEN", hidden) + "document.dispatchEvent(new Event('visibilitychange'))")


def test_an_overview_asks_little(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request a second, whose answer all share. Whatever else it needs it asks when something has happened. The
    node's history stands still: where its clock goes faster than the page's, as on a busy machine, rows are missing."""
    begun_ms = clock.wall_ms()
    monkeypatch.setattr(observe, "clock", SimpleNamespace(wall_ms=lambda: begun_ms, monotonic=clock.monotonic))
    monkeypatch.setattr(History, "age_s", lambda *_: 0.0)
    with held(serve()) as served, page(browser, served.url) as shown:
        asked = passing(shown)()
        assert asked.count("/v1/overview") >= SECONDS - 1
        assert len(asked) <= SECONDS * 1.2, asked


@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=() if each == "explain" else pytest.mark.extra) for each in MENU]
)
def test_a_page_asks_for_no_more_than_a_mebibyte_and_a_hidden_tab_for_nothing(browser: Browser, place: str) -> None:
    """All answers of its first ten seconds together, files included. Then the tab is hidden for ten seconds; once it is
    seen again it asks at once."""
    sizes: list[int] = []

    def note(answer: Response) -> None:
        sizes.append(int(answer.headers.get("content-length", 0)))

    with held(serve()) as served, page(browser, f"{served.url}/#/{place}") as shown:
        shown.on("response", note)
        run = passing(shown)
        run()
        assert 0 < sum(sizes) < 1 << 20, sizes
        hide(shown, "true")
        run()  # an answer under way may set one more timer
        assert run() == []
        with shown.expect_request("**/v1/**"):
            hide(shown, "false")


class _Removed(FakeNode):
    """A node that is no member any more."""

    def cluster(self) -> ClusterView:
        """Only another one."""
        return replace(super().cluster(), members=[MemberSeen(2, "http://127.0.0.1:3", "voter")])


def test_a_node_that_is_no_member_shows_the_members(browser: Browser) -> None:
    """It draws the others, with their addresses."""
    with held(serve(_Removed())) as served, page(browser, served.url) as shown:
        expect(shown.locator("article.node")).to_have_count(1)
        expect(shown.get_by_role("link", name="http://127.0.0.1:3")).to_be_visible()
