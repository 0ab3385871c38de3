"""The page Data in a real Chromium: imports, sinks and readers, each with the command that shows more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from raftlog import SyncClient
from tests.browser import held, page
from tests.cluster.console.sending import log_in
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld

pytestmark = pytest.mark.serial

SCRIPT = '<img src=x onerror=alert(1)>"; DROP'
SCHEMA = {
    "version": 1,
    "format": "csv",
    "columns": [{"name": "at", "type": "string"}, {"name": "mag", "type": "number"}],
}
WRONG = (b"{", b"7", b"null", b'{"columns": 3}', b'{"columns": [null, 4, {"name": {}}]}', b"\xff", b"[" * 10_000)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A node without data."""
    with held(serve()) as served:
        yield served.url


def test_imports_sinks_and_readers_are_shown_with_their_commands(url: str, browser: Browser) -> None:
    """Empty at first, with the commands that begin; then each kind in its table, whatever its schema holds."""
    with page(browser, f"{url}/#/data") as shown, SyncClient([url]) as client:
        expect(shown.get_by_text("Nothing was imported.")).to_be_visible()
        expect(shown.get_by_text("raftlog sink run sinks.toml")).to_be_visible()
        for number, source in enumerate(("quakes.csv", SCRIPT), 1):
            client.put(b"raftlog/import/%020d" % number, json.dumps(SCHEMA | {"source": source}).encode())
        for number, value in enumerate(WRONG, 100):
            client.put(b"raftlog/import/%020d" % number, value)
        client.append(b"a record")
        client.consumer("sink/warehouse").claim(owner="host-1", start=1)
        client.consumer("it's").claim(owner="")
        imports = shown.get_by_role("region", name="Imports")
        expect(imports.get_by_role("row", name="quakes.csv").first).to_contain_text("at string, mag number")
        expect(imports).to_contain_text(SCRIPT)
        expect(imports.get_by_text("no schema that this page can read")).to_have_count(len(WRONG) - 1)
        sinks, readers = shown.get_by_role("region", name="Readers").all()
        expect(sinks.get_by_role("row", name="warehouse")).to_contain_text("host-1")
        expect(sinks).to_contain_text("raftlog sink status sinks.toml warehouse")
        expect(readers).to_contain_text("raftlog consumers show 'it'\\''s'")
        copy = sinks.get_by_role("button", name="Copy: raftlog sink status")
        copy.click()
        expect(copy).to_have_text("Copied")


def test_without_the_grants_the_page_names_them(browser: Browser) -> None:
    """Each part that the user may not see names its grant; the rest of the page is there."""
    world = AccessWorld()
    token = world.user("ada")
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/data") as shown:
        log_in(shown, token.text)
        expect(shown.get_by_role("alert").first).to_contain_text("The missing grant: read on keys:raftlog/import/")
        expect(shown.get_by_text("The missing grant: read on groups:*")).to_have_count(2)
        expect(shown.get_by_role("heading", name="Ask with SQL")).to_be_visible()
