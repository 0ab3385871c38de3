"""The pages of the console in a real Chromium, over a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from raftlog import SyncClient
from tests.browser import held, page
from tests.cluster.console.sending import nodes_in
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld

pytestmark = pytest.mark.serial

SCRIPT = '<script>document.title="broken"</script> <img src=x onerror=alert(1)>'
STRANGE = ("a\u202eb", SCRIPT, "ü" * 2_000)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node, with strange values."""
    with nodes_in(tmp_path_factory.mktemp("console")) as cluster:
        with SyncClient(cluster.urls, deadline_s=30) as client:
            for value in (*map(str.encode, STRANGE), b'{"deep": [1, {"x": null}]}', b"\x00\x1b[31m", b"\xff\x00bytes"):
                client.put(b"strange", value)
            client.put(SCRIPT.encode(), b"a key")
            client.consumer("billing").claim(owner="host-1")
            for number in range(300):
                client.append(b"record %d" % number)
        yield cluster.urls[0]


def test_the_log_ends_with_the_newest_records(url: str, browser: Browser) -> None:
    """Only the visible rows are there, and the list is as tall as the whole log."""
    with page(browser, f"{url}/#/log") as shown:
        expect(shown.get_by_text("record 299", exact=True)).to_be_visible()
        expect(shown.get_by_text("record 10", exact=True)).to_have_count(0)
        assert shown.locator(".list .row").count() < 100
        expect(shown.get_by_label("Records over time")).to_be_visible()
    with page(browser, f"{url}/#/log?at=12") as shown:
        expect(shown.get_by_text("record 10", exact=True)).to_be_visible()


def test_groups_are_shown_with_their_lag(url: str, browser: Browser) -> None:
    """Name, owner, and how many records it has not read."""
    with page(browser, f"{url}/#/groups") as shown:
        expect(shown.get_by_text("billing")).to_be_visible()
        expect(shown.get_by_text("host-1")).to_be_visible()
        expect(shown.locator("td.n.unknown")).to_be_visible()


def test_values_are_text_whatever_they_hold(url: str, browser: Browser) -> None:
    """A script in a value or key is shown; bytes are shown as hex; JSON has indents."""
    with page(browser, f"{url}/#/keys?key=strange") as shown:
        for value in STRANGE:
            shown.locator("pre:not(.diff)", has_text=value.replace("\u202e", "⟨U+202E⟩")).wait_for(state="attached")
        shown.locator("pre:not(.diff)", has_text='"deep": [').wait_for(state="attached")
        shown.locator("pre:not(.diff)", has_text="000000  ff 00 62 79 74 65 73").first.wait_for(state="attached")
        expect(shown.get_by_text("The key did not exist before.")).to_be_visible()
        expect(shown).to_have_title("raftlog: node 1")
    with page(browser, f"{url}/#/keys?prefix={quote('<', safe='')}") as shown:
        expect(shown.get_by_text(SCRIPT)).to_be_visible()
    with page(browser, f"{url}/#/keys?key={quote(SCRIPT, safe='')}") as shown:
        expect(shown.locator("pre", has_text="a key")).to_be_visible()


def test_an_empty_list_of_keys_says_so(url: str, browser: Browser) -> None:
    """A prefix that no key has."""
    with page(browser, f"{url}/#/keys?prefix=none") as shown:
        expect(shown.get_by_text("No key begins so")).to_be_visible()


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


def test_without_a_login_the_page_asks_for_a_token(browser: Browser) -> None:
    """A form with one field, which a password manager fills in; nothing of the cluster is on the page."""
    world = AccessWorld()
    with held(serve(world.node)) as served, page(browser, f"{served.url}/") as shown:
        expect(shown.get_by_label("Token")).to_have_attribute("autocomplete", "current-password")
        assert world.node.log_id not in shown.content()
