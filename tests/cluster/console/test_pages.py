"""The pages of the console in a real Chromium, over a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from raftlog import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.browser import drawn
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld

SCRIPT = '<script>document.title="broken"</script> <img src=x onerror=alert(1)>'
JSON = '{"deep": [1, {"x": null}]}'
CONTROL = "\x00\x1b[31m"  # a browser drops such characters from its text
STRANGE = ("a\u202eb", SCRIPT, JSON, CONTROL, "ü" * 2_000)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node, with strange values."""
    with LocalCluster(tmp_path_factory.mktemp("console"), 1) as cluster:
        cluster.start()
        cluster.wait_ready()
        with SyncClient(cluster.urls, deadline_s=30) as client:
            for value in (*map(str.encode, STRANGE), b"\xff\x00bytes"):
                client.put(b"strange", value)
            client.put(SCRIPT.encode(), b"a key")
            client.consumer("billing").claim(owner="host-1")
            for number in range(300):
                client.append(b"record %d" % number)
        yield cluster.urls[0]
        cluster.kill(*cluster.running)


def page(url: str, place: str, tmp_path: Path) -> str:
    """The drawn page, whose scripts reported nothing: no error, nothing that the policy refused."""
    text, reports = drawn(f"{url}/#/{place}", tmp_path / "profile")
    assert not reports, reports
    assert "broken" not in text.partition("</title>")[0]
    return text


@pytest.mark.serial
def test_the_overview_says_which_node_leads_and_that_all_is_well(url: str, tmp_path: Path) -> None:
    """The verdict in words, the node as the leader, the newest record, the newest events."""
    text = page(url, "overview", tmp_path)
    assert "<title>raftlog: node 1</title>" in text
    assert "Node 1 leads" in text
    assert '<article class="node leads">' in text
    assert '<span class="role">leader</span>' in text
    assert "became leader" in text
    assert 'role="alert"' not in text


@pytest.mark.serial
def test_the_log_ends_with_the_newest_records(url: str, tmp_path: Path) -> None:
    """Only the visible rows are there, and the list is as tall as the whole log."""
    text = page(url, "log", tmp_path)
    assert "record 299" in text
    assert "record 10<" not in text
    assert text.count('class="row') < 100
    assert 'aria-label="Records over time"' in text
    assert "record 10<" in page(url, "log?at=12", tmp_path)


@pytest.mark.serial
def test_groups_are_shown_with_their_lag(url: str, tmp_path: Path) -> None:
    """Name, owner, and how many records it has not read."""
    text = page(url, "groups", tmp_path)
    assert "billing" in text
    assert "host-1" in text
    assert 'class="n unknown"' in text


@pytest.mark.serial
def test_values_are_text_whatever_they_hold(url: str, tmp_path: Path) -> None:
    """A script in a value or key is shown; bytes are shown as hex; JSON has indents."""
    text = unescape(page(url, "keys?key=strange", tmp_path))
    for value in STRANGE:
        assert value in text or value in (JSON, CONTROL), value
    assert '  "deep": [' in text
    assert "000000  ff 00 62 79 74 65 73" in text
    assert "The key did not exist before." in text
    assert SCRIPT in unescape(page(url, "keys?prefix=" + quote("<", safe=""), tmp_path))
    assert "a key" in page(url, "keys?key=" + quote(SCRIPT, safe=""), tmp_path)


@pytest.mark.serial
def test_places_that_do_not_exist_say_why(url: str, tmp_path: Path) -> None:
    """A record of the future, an index that is none, a missing key, an unknown page."""
    assert "not in this node's log" in unescape(page_with_refusals(url, "entry?at=900719925474099", tmp_path))
    assert "must be a whole number" in page_with_refusals(url, "entry?at=99007199254740993", tmp_path)
    assert "must be a whole number" in page_with_refusals(url, "entry?at=x", tmp_path)
    assert "there is no such key" in page_with_refusals(url, "keys?key=none", tmp_path)
    assert "No key begins so" in page(url, "keys?prefix=none", tmp_path)
    assert "Node 1 leads" in page(url, "unknown", tmp_path)


def page_with_refusals(url: str, place: str, tmp_path: Path) -> str:
    """A page that shows a refusal."""
    text = page(url, place, tmp_path)
    assert 'role="alert"' in text
    return text


@pytest.mark.serial
def test_reports_of_the_browser_are_seen(tmp_path: Path) -> None:
    """The check of `page` can fail: an error of a script is in the reports, and so is a breach of the policy."""
    broken = tmp_path / "broken.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'self' 'nonce-1'\">"
    broken.write_text(f"{policy}<script nonce=1>nothing()</script><script>document.title = 1</script>")
    _, reports = drawn(broken.as_uri(), tmp_path / "profile")
    assert "nothing is not defined" in reports
    assert "Content Security Policy" in reports


@pytest.mark.serial
async def test_without_a_login_the_page_asks_for_a_token(tmp_path: Path) -> None:
    """A form with one field, which a password manager fills in; nothing of the cluster is on the page."""
    world = AccessWorld()
    async with serve(world.node) as served:
        text, reports = await asyncio.to_thread(drawn, f"{served.url}/", tmp_path / "profile")
    assert not reports, reports
    assert 'autocomplete="current-password"' in text
    assert world.node.log_id not in text
