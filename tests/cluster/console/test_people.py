"""The console for everybody: axe, the keyboard, a phone, another time zone, a node that is slow or gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, Route, expect

from raftlog import SyncClient
from raftlog.cluster.api.members import ClusterView, MemberSeen
from tests.browser import held, page
from tests.cluster.console.sending import log_in, nodes_in
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.http.access_world import AccessWorld

pytestmark = pytest.mark.serial

PHONE = 390
BESIDE_THE_MENU = (
    *("entry?at=12", "keys?prefix=sensor", "keys?key=sensor/1", "nowhere", "log?operation=put", "log?as_of=20"),
    *("keys?prefix=sensor&compare=20", "keys?key=sensor/1&as_of=40"),
)
"""Places that no entry of the menu leads to."""


class _WithAnother(FakeNode):
    """One of two nodes."""

    def cluster(self) -> ClusterView:
        """Both."""
        own = super().cluster()
        return replace(own, members=[*own.members, MemberSeen(2, "http://127.0.0.1:3", "voter")])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The leader of three nodes, with keys, records and a group."""
    with nodes_in(tmp_path_factory.mktemp("people"), 3) as cluster:
        with SyncClient(cluster.urls, deadline_s=30) as client:
            for number in range(60):
                client.put(b"sensor/%d" % (number % 20), b'{"celsius": %d}' % number)
            client.consumer("billing").claim(owner="host-1")
            leader = client.status().leader
        assert leader is not None
        yield leader.url


def settled(shown: Page) -> Page:
    """The page, once the node has answered all that it shows."""
    expect(shown.get_by_role("status").filter(has_text="live")).to_be_visible()
    expect(shown.get_by_text("Asking the node")).to_have_count(0)
    return shown


def judge(shown: Page, place: str) -> None:
    """Fails with what axe finds, and if the page is wider than its window."""
    found = Axe().run(settled(shown), options={"resultTypes": ["violations"]}).response["violations"]
    words = [f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes']]}" for each in found]
    assert not words, f"{place}: {words}"
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{place} is wider than its window"


def focused(shown: Page) -> str:
    """The text of what has the focus."""
    return str(shown.evaluate("document.activeElement.innerText"))


def test_axe_finds_nothing_on_the_overview(url: str, browser: Browser) -> None:
    """One page, one theme; the rest takes a minute: `test_axe_finds_nothing_on_any_page`."""
    with page(browser, url) as shown:
        judge(shown, "the overview")


def test_axe_sees_a_text_that_is_too_faint(url: str, browser: Browser) -> None:
    """The check can fail: a heading in the colour of the paper, and a button without a name."""
    with page(browser, url) as shown:
        settled(shown).evaluate("document.body.append(document.createElement('button'))")
        with pytest.raises(AssertionError, match="button-name"):
            judge(shown, "the overview")


def test_reports_of_the_browser_are_seen(browser: Browser, tmp_path: Path) -> None:
    """The check of `page` can fail: an error of a script is in the reports, and so is a breach of the policy."""
    broken = tmp_path / "broken.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'self' 'nonce-1'\">"
    broken.write_text(f"{policy}<script nonce=1>nothing()</script><script>document.title = 1</script>")
    with pytest.raises(AssertionError, match=r"(?s)nothing is not defined|Content Security Policy") as caught:
        with page(browser, broken.as_uri()):
            pass
    assert "nothing is not defined" in str(caught.value)
    assert "Content Security Policy" in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1_200, PHONE])
def test_axe_finds_nothing_on_any_page(url: str, browser: Browser, theme: Literal["light", "dark"], width: int) -> None:
    """Each page of the menu, what lies behind them, the keys in their dialog, and the open menu of a phone."""
    with page(browser, url, theme=theme, width=width) as shown:
        places = [str(each.get_attribute("href")) for each in shown.locator("nav a").all()]
        assert len(places) >= 4
        for place in (*places, *(f"#/{each}" for each in BESIDE_THE_MENU)):
            shown.goto(f"{url}/{place}")
            judge(shown, place)
        if width == PHONE:
            shown.locator(".menu").click()
            judge(shown, "the open menu")
        shown.keyboard.press("?")
        judge(shown, "the keys")


@pytest.mark.long
@pytest.mark.parametrize(("theme", "width"), [("light", 1_200), ("dark", PHONE)])
def test_axe_finds_nothing_where_the_console_refuses(
    browser: Browser, theme: Literal["light", "dark"], width: int
) -> None:
    """The login with a wrong token; each page of a user without rights; a node that is gone."""
    world = AccessWorld()
    token = world.user("stranger", "read on keys:a/*")
    gone = "net::ERR"
    with held(serve(world.node)) as served, page(browser, served.url, theme=theme, width=width, allowed=gone) as shown:
        log_in(shown, "rl_wrong")
        expect(shown.get_by_role("alert")).to_be_visible()
        judge(shown, "the login")
        log_in(shown, token.text)
        expect(shown.get_by_role("button", name="Log out")).to_be_visible()
        for place in [str(each.get_attribute("href")) for each in shown.locator("nav a").all()]:
            shown.goto(f"{served.url}/{place}")
            judge(shown, f"{place} without rights")
        shown.route("**/v1/**", lambda route: route.abort())
        expect(shown.get_by_text("Node 1 does not answer")).to_be_visible()
        found = Axe().run(shown, options={"resultTypes": ["violations"]}).response["violations"]
        assert not found, [each["id"] for each in found]


def test_the_keyboard_goes_everywhere(url: str, browser: Browser) -> None:
    """The first stop skips the menu; a letter goes to a page, whose name then has the focus; / goes to the search, in
    which letters are letters."""
    with page(browser, url) as shown:
        settled(shown).keyboard.press("Tab")
        assert focused(shown) == "Skip to the page"
        shown.keyboard.press("Enter")
        assert focused(shown) == "Overview"
        shown.keyboard.press("Tab")
        assert focused(shown) != "Overview"
        shown.keyboard.press("k")
        expect(shown.get_by_role("heading", name="Keys", exact=True)).to_be_focused()
        settled(shown).keyboard.press("/")
        expect(shown.get_by_role("searchbox")).to_be_focused()
        shown.keyboard.type("log?")
        expect(shown.get_by_role("searchbox")).to_have_value("log?")
        assert shown.url.endswith("#/keys")


def test_the_keys_are_listed_in_a_dialog(url: str, browser: Browser) -> None:
    """It has a name and takes the focus; Esc closes it, and the focus is where it was. Letters can be switched off."""
    with page(browser, url) as shown:
        settled(shown).get_by_role("button", name="Keys").focus()
        shown.keyboard.press("Enter")
        dialog = shown.get_by_role("dialog", name="Keys")
        expect(dialog).to_contain_text("search on this page")
        assert dialog.evaluate("box => box.contains(document.activeElement)")
        shown.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(shown.get_by_role("button", name="Keys")).to_be_focused()
        shown.keyboard.press("?")
        dialog.get_by_label("Single letters are keys").uncheck()
        dialog.get_by_role("button", name="Close").click()
        shown.keyboard.press("l")
        shown.get_by_role("button", name="Keys").click()
        assert shown.url.endswith("/#/overview") or "#" not in shown.url
        dialog.get_by_label("Single letters are keys").check()
        shown.keyboard.press("Escape")
        shown.keyboard.press("l")
        expect(shown).to_have_url(f"{url}/#/log")


def test_a_phone_has_a_menu(url: str, browser: Browser) -> None:
    """It says on which page one is; it opens, a choice or Esc closes it, and nothing is wider than the window."""
    with page(browser, url, width=PHONE) as shown:
        menu, pages = shown.locator(".menu"), shown.get_by_role("navigation", name="Pages")
        expect(menu).to_contain_text("Overview")
        expect(pages).to_be_hidden()
        menu.click()
        expect(menu).to_have_attribute("aria-expanded", "true")
        shown.keyboard.press("Escape")
        expect(pages).to_be_hidden()
        menu.click()
        pages.get_by_role("link", name="Groups").click()
        expect(pages).to_be_hidden()
        expect(menu).to_contain_text("Groups")
        assert settled(shown).evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_times_are_local_or_of_utc(url: str, browser: Browser) -> None:
    """A switch on each page, which a change of the page leaves as it is."""
    with page(browser, f"{url}/#/entry?at=12", timezone_id="Asia/Kathmandu") as shown:
        time = shown.locator("dd time").first
        at = datetime.fromisoformat(str(time.get_attribute("datetime")))
        expect(time).to_contain_text((at + timedelta(hours=5, minutes=45)).strftime("%Y-%m-%d %H:%M:%S"))
        shown.get_by_role("button", name="UTC").click()
        expect(time).to_contain_text(at.strftime("%Y-%m-%d %H:%M:%S"))
        shown.get_by_role("link", name="after").click()
        expect(shown.get_by_role("heading", name="Record 13")).to_be_visible()
        expect(shown.get_by_role("button", name="UTC")).to_have_attribute("aria-pressed", "true")
        after = datetime.fromisoformat(str(time.get_attribute("datetime")))
        expect(time).to_contain_text(after.strftime("%Y-%m-%d %H:%M:%S"))


def test_groups_are_shown_with_their_lag(url: str, browser: Browser) -> None:
    """Name, owner, and how many records it has not read."""
    with page(browser, f"{url}/#/groups") as shown:
        expect(shown.get_by_text("billing")).to_be_visible()
        expect(shown.get_by_text("host-1")).to_be_visible()
        expect(shown.locator("td.n.unknown")).to_be_visible()


def test_ages_are_right_where_the_browsers_clock_is_not(url: str, browser: Browser) -> None:
    """A browser that is two hours late or early: a group that moved just now did so seconds or minutes ago."""
    for hours in (-2, 2):
        with page(browser, f"{url}/#/groups") as shown:
            shown.clock.set_system_time(datetime.now(UTC) + timedelta(hours=hours))
            shown.reload()
            moved = shown.locator("tr", has_text="billing").locator("td").filter(has_text="ago")
            expect(moved).to_be_visible()
            assert " h " not in moved.inner_text()


def test_an_answer_that_is_late_is_seen(browser: Browser) -> None:
    """After a second the frame says that the node is slow; with the answer it is live again."""
    with held(serve()) as served, page(browser, f"{served.url}/#/keys") as shown:
        late: list[Route] = []
        settled(shown).route("**/v1/kv?**", lambda route: late.append(route))
        shown.get_by_role("button", name="Show").click()
        expect(shown.get_by_role("status").filter(has_text="slow")).to_be_visible()
        for route in late:
            route.continue_()
        settled(shown)


def test_a_node_that_is_gone_names_the_others(browser: Browser) -> None:
    """The title and the frame say it at once, and where the others are; the page goes on once the node answers."""
    with held(serve(_WithAnother())) as served, page(browser, served.url, allowed="net::ERR") as shown:
        expect(settled(shown)).to_have_title(re.compile("raftlog: node 1$"))
        shown.route("**/v1/**", lambda route: route.abort())
        alert = shown.get_by_role("alert").filter(has_text="Node 1 does not answer: the node cannot be reached")
        expect(alert.get_by_role("link")).to_have_attribute("href", "http://127.0.0.1:3")
        expect(alert).to_contain_text("What is below came at")
        expect(shown).to_have_title("■ no answer, raftlog: node 1")
        shown.unroute_all()
        expect(alert).to_have_count(0)
        expect(shown).not_to_have_title(re.compile("no answer"))


def test_a_page_that_asks_once_sees_that_its_node_is_gone(browser: Browser) -> None:
    """Keys asks the node once: its frame says `no answer` all the same, and since when what it shows is old."""
    with held(serve(_WithAnother())) as served, page(browser, f"{served.url}/#/keys", allowed="net::ERR") as shown:
        expect(settled(shown).get_by_text("0 keys, as of revision")).to_be_visible()
        shown.route("**/v1/**", lambda route: route.abort())
        shown.route("**/version", lambda route: route.abort())
        alert = shown.get_by_role("alert").filter(has_text="Node 1 does not answer")
        expect(alert.get_by_role("link")).to_have_attribute("href", "http://127.0.0.1:3")
        shown.unroute_all()
        expect(alert).to_have_count(0)


def test_an_unknown_page_says_so(browser: Browser) -> None:
    """It shows no other page, and links to those that there are."""
    with held(serve()) as served, page(browser, f"{served.url}/#/nowhere") as shown:
        expect(shown.get_by_role("heading", name="There is no page called nowhere")).to_be_visible()
        shown.get_by_role("main").get_by_role("link", name="Keys").click()
        expect(shown).to_have_url(f"{served.url}/#/keys")


def test_without_scripts_the_commands_are_named(browser: Browser) -> None:
    """A browser without JavaScript."""
    with held(serve()) as served, page(browser, served.url, java_script_enabled=False) as shown:
        expect(shown.locator("noscript p")).to_contain_text("The console needs JavaScript")
        expect(shown.locator("noscript pre")).to_be_visible()
        expect(shown.locator("noscript pre")).to_contain_text("raftlog log --follow")


def test_who_wants_no_motion_gets_none(url: str, browser: Browser) -> None:
    """Nothing on the overview changes slowly."""
    script = (
        "[...document.querySelectorAll('*')].filter(each => getComputedStyle(each).transitionDuration !== '0s').length"
    )
    with page(browser, url, reduced_motion="reduce") as shown:
        assert settled(shown).evaluate(script) == 0
