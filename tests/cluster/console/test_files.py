"""The files of the console: what a node serves to a browser, and what it serves to programs still."""

from __future__ import annotations

import gzip
import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from raftlog.cluster.config.settings import HttpSettings
from raftlog.cluster.console.files import WIRE_BYTES_MAX, console_files
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.http_probe import ask

FOLDER = Path(__file__).resolve().parents[3] / "cluster" / "console"
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in (".js", ".css", ".html", ".svg")]


@pytest.mark.parametrize("fast_path", [True, False])
async def test_a_browser_gets_the_console_and_a_program_the_routes(fast_path: bool) -> None:
    """By the header Accept, at `/`; the rest of the page is below `/console/`. With `http.console = false` both get the
    routes."""
    async with serve(fast_path=fast_path) as served:
        page = await ask(served.port, "GET", "/", headers=BROWSER)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b'<div id="app">' in gzip.decompress(page.body)
        listed = await ask(served.port, "GET", "/")
        assert listed.headers["content-type"].startswith("text/plain")
        assert b"/v1/log" in listed.body
        script = await ask(served.port, "GET", "/console/app.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert (await ask(served.port, "GET", "/console/none.js")).problem().code == "not_found"
        assert (await ask(served.port, "GET", "/console/../files.py")).problem().code == "not_found"
        assert (await ask(served.port, "POST", "/console/app.js")).problem().code == "method_not_allowed"
    async with serve(fast_path=fast_path, http=HttpSettings(console=False)) as served:
        assert (await ask(served.port, "GET", "/", headers=BROWSER)).headers["content-type"].startswith("text/plain")
        assert (await ask(served.port, "GET", "/console/app.js")).problem().code == "not_found"


@pytest.mark.parametrize("fast_path", [True, False])
async def test_a_browser_asks_for_a_file_only_when_it_has_changed(fast_path: bool) -> None:
    """The tag is that of the content; with it the answer is 304 without a body."""
    async with serve(fast_path=fast_path) as served:
        first = await ask(served.port, "GET", "/console/app.js")
        assert first.headers["cache-control"] == "no-cache"
        again = await ask(served.port, "GET", "/console/app.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        other = await ask(served.port, "GET", "/console/app.js", headers={"If-None-Match": '"other"'})
        assert (other.status, other.body) == (200, first.body)


async def test_nothing_of_another_host_can_run_in_the_console() -> None:
    """The policy forbids scripts in the page's text, frames around it, and requests to others."""
    async with serve() as served:
        for target in ("/", "/console/app.js", "/console/console.css"):
            policy = (await ask(served.port, "GET", target, headers=BROWSER)).headers["content-security-policy"]
            rules = dict(each.split(" ", 1) for each in policy.split("; "))
            assert rules["default-src"] == "'none'"
            assert {rules[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
            assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}


async def test_strangers_get_the_page_and_nothing_of_the_cluster() -> None:
    """The files are the same on every node of the world, and so is the list of routes without its head."""
    world = AccessWorld()
    async with serve(world.node) as served:
        assert (await ask(served.port, "GET", "/", headers=BROWSER)).status == 200
        assert (await ask(served.port, "GET", "/console/app.js")).status == 200
        listed = (await ask(served.port, "GET", "/")).body.decode()
        assert world.node.log_id not in listed
        assert "/v1/log" in listed
        assert (await ask(served.port, "GET", "/v1/status")).problem().code == "unauthorized"


def test_the_console_is_small_and_asks_no_other_host() -> None:
    """All files fit into 150 KiB as they are sent; no own file is longer than 300 lines or names another host."""
    sent = sum(len(file.body) for file in console_files().values())
    assert sent <= WIRE_BYTES_MAX, sent
    own = [path for path in OWN if "vendor" not in path.parts]
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in own}
    assert max(lines.values()) <= 300, lines
    assert sum(lines.values()) <= 3_500, lines
    for path in own:
        hosts = re.findall(r"https?://[^\s\"'`<>)]+", path.read_text("utf-8"))
        assert set(hosts) <= {"http://www.w3.org/2000/svg"}, path


def test_files_of_other_projects_are_as_they_were_published() -> None:
    """Each has its package, version, licence and hash in versions.toml, and its licence lies beside it."""
    vendor = FOLDER / "vendor"
    table = tomllib.loads((vendor / "versions.toml").read_text("utf-8"))
    assert table.keys() == {path.name for path in vendor.iterdir() if path.suffix in (".mjs", ".js", ".css")}
    for name, row in table.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == row["sha256"], name
        assert (vendor / f"LICENSE.{row['package']}").stat().st_size > 500
