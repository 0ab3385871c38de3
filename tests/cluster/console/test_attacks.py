"""Attacks on the console with a real browser: another origin, a frame, cookies of other nodes, logins that have ended.

tests/cluster/http/test_login.py proves which requests a node takes; these prove that a browser sends them so.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from raftlog.cluster.admission.logins import WRONG_MAX
from raftlog.cluster.api.errors import ApiError, Code
from tests.browser import held, page
from tests.cluster.console.sending import log_in
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.access_world import ADMIN, AccessWorld
from tests.support import HANG_S, http_served

pytestmark = pytest.mark.serial

EVIL = """<!doctype html>
<form method=post enctype=text/plain action="NODE/v1/log" target=answer><input name=a value=b></form>
<iframe name=answer></iframe><iframe src="NODE/"></iframe><img src="NODE/v1/kv/a/1">
<script>
const seen = [];
const attack = (path, more) => fetch("NODE" + path, {credentials: "include", ...more})
  .then((reply) => reply.text()).then((text) => seen.push(text), () => seen.push("refused"));
const blind = {mode: "no-cors"};
document.forms[0].submit();
Promise.all([
  attack("/v1/kv/a/1"), attack("/v1/status"), attack("/v1/kv/a/evil", {method: "PUT", body: "evil"}),
  attack("/v1/log", {method: "POST", body: "evil"}), attack("/v1/log", {...blind, method: "POST", body: "evil"}),
  attack("/v1/login", {...blind, method: "DELETE"}), attack("/v1/login", {...blind, method: "POST", body: "{}"}),
]).then(() => { document.title = "done: " + seen.join(); });
</script>"""


def another_origin(folder: Path) -> AbstractContextManager[str]:
    """A server of files on another port of the same host: the same site, but another origin."""
    return http_served(partial(SimpleHTTPRequestHandler, directory=str(folder)))


def world_of(*names: str, node: int = 1) -> AccessWorld:
    """A node with access control. Its users may watch the cluster, and read and write keys below `a/`."""
    world = AccessWorld()
    world.node.node_id = node
    for name in names:
        world.user(name, "watch on cluster", "read on keys:a/*", "write on keys:a/*", "append on log", "read on log")
    return world


def enter(shown: Page, world: AccessWorld, name: str) -> None:
    """Logs a user in."""
    log_in(shown, world.tokens[name].text)
    expect(shown.get_by_role("button", name="Log out")).to_be_visible()
    expect(shown.get_by_text(name, exact=True)).to_be_visible()


def change(served: Served, world: AccessWorld, **fields: object) -> None:
    """The admin changes users or tokens, from a terminal."""
    head = {"Authorization": f"Bearer {world.tokens[ADMIN].text}"}
    with urlopen(Request(f"{served.url}/v1/access", json.dumps(fields).encode(), head), timeout=HANG_S) as reply:
        assert reply.status == 200


def test_a_page_of_another_port_can_do_nothing_with_a_login(browser: Browser, tmp_path: Path) -> None:
    """Cookies ignore ports, so its requests carry the cookie: a form, reads, writes, a log-out, an image and a frame.
    The same write of the console's own page is taken."""
    world = world_of("alice")
    with held(serve(world.node)) as served, another_origin(tmp_path) as evil, page(browser, served.url) as shown:
        (tmp_path / "evil.html").write_text(EVIL.replace("NODE", served.url))
        enter(shown, world, "alice")
        before = world.node.applied
        other = shown.context.new_page()
        other.goto(f"{evil}/evil.html")
        expect(other).to_have_title(re.compile("done: (refused|,)+"))  # an answer to no-cors is empty
        form, console = (frame.url for frame in other.frames[1:])
        assert (form, console.partition(":")[0]) == (f"{served.url}/v1/log", "chrome-error")
        assert world.node.applied == before
        assert world.node.machine.get(b"a/evil") is None
        own = "fetch('/v1/kv/a/own', {method: 'PUT', body: 'x'}).then((reply) => reply.status)"
        assert shown.evaluate(own) == 200
        assert world.node.machine.get(b"a/own") is not None
        shown.reload()
        expect(shown.get_by_role("button", name="Log out")).to_be_visible()


def test_a_browser_is_logged_in_to_three_nodes_of_one_host_at_once(browser: Browser) -> None:
    """Each node knows its own user; the end of one login leaves the others as they are."""
    worlds = [world_of(f"user-{node}", node=node) for node in (1, 2, 3)]
    with ExitStack() as stack:
        nodes = [stack.enter_context(held(serve(world.node))) for world in worlds]
        shown = stack.enter_context(page(browser, nodes[0].url))
        for number, served in enumerate(nodes, 1):
            shown.goto(served.url)
            enter(shown, worlds[number - 1], f"user-{number}")
        for number, served in enumerate(nodes, 1):
            shown.goto(served.url)
            expect(shown.get_by_text(f"user-{number}", exact=True)).to_be_visible()
        shown.get_by_role("button", name="Log out").click()
        expect(shown.get_by_label("Token")).to_be_visible()
        shown.goto(nodes[0].url)
        expect(shown.get_by_text("user-1", exact=True)).to_be_visible()


def test_after_the_log_out_nothing_is_left(browser: Browser) -> None:
    """Neither on the page nor by the cookie that the browser had."""
    world = world_of("alice")
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        enter(shown, world, "alice")
        shown.evaluate("fetch('/v1/kv/a/secret', {method: 'PUT', body: 'x'})")
        shown.goto(f"{served.url}/#/keys?prefix=a/")
        expect(shown.get_by_role("link", name="a/secret")).to_be_visible()
        cookies: Any = shown.context.cookies()  # of one type when read, and of another when set
        assert [each["httpOnly"] for each in cookies] == [True]
        shown.get_by_role("button", name="Log out").click()
        expect(shown.get_by_label("Token")).to_be_visible()
        assert "a/secret" not in shown.content()
        shown.context.add_cookies(cookies)
        shown.reload()
        expect(shown.get_by_label("Token")).to_be_visible()
        assert shown.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0


def test_a_login_ends_with_its_token_while_the_page_is_open(browser: Browser) -> None:
    """The next answer hides the page, and asks for a token."""
    world = world_of("alice")
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        enter(shown, world, "alice")
        expect(shown.get_by_label("State of the cluster")).to_be_visible()
        change(served, world, action="delete_token", token=world.tokens["alice"].identifier)
        expect(shown.get_by_label("Token")).to_be_visible()
        expect(shown.get_by_label("State of the cluster")).to_be_hidden()
        expect(shown).to_have_title("log in, raftlog: node 1")


def test_a_form_outlives_the_end_of_its_login(browser: Browser) -> None:
    """The typed text is there after the next login of the same user; another user gets a page of its own."""
    world = world_of("alice", "bob")
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        enter(shown, world, "alice")
        shown.goto(f"{served.url}/#/keys?prefix=a/")
        for name, text in (("alice", "typed by alice"), ("bob", "a/")):
            search = shown.get_by_role("searchbox")
            expect(shown.get_by_text("as of revision")).to_be_visible()
            search.fill("typed by alice")
            shown.context.clear_cookies()
            shown.evaluate("dispatchEvent(new Event('resume'))")  # as after minutes of silence
            expect(search).to_be_hidden()
            enter(shown, world, name)
            expect(shown.get_by_role("searchbox")).to_have_value(text)


def test_a_role_that_shrinks_is_named_where_its_data_was(browser: Browser) -> None:
    """The missing grant, instead of an empty panel."""
    world = world_of("alice")
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        enter(shown, world, "alice")
        expect(shown.get_by_text("Newest events")).to_be_visible()
        change(served, world, action="set_role", name="of-alice", grants=["read on keys:a/*"])
        expect(shown.get_by_role("alert").filter(has_text="watch on cluster")).to_be_visible()
        expect(shown.get_by_text("Newest events")).to_have_count(0)


def test_what_a_user_may_not_see_any_more_leaves_the_page(browser: Browser) -> None:
    """Without its grant the page keeps no chart and no verdict of before; a blocked user keeps none of the cards."""
    world = world_of("alice")
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        enter(shown, world, "alice")
        charts, cards = shown.get_by_text("This node in the last"), shown.locator("article.node")
        expect(charts).to_be_visible()
        change(served, world, action="set_role", name="of-alice", grants=["read on keys:a/*"])
        expect(charts).to_have_count(0)
        expect(cards).to_have_count(1)
        change(served, world, action="set_user", name="alice", roles=["of-alice"], blocked=True)
        expect(shown.get_by_role("alert").filter(has_text="is blocked")).to_be_visible()
        expect(cards).to_have_count(0)
        change(served, world, action="set_user", name="alice", roles=["of-alice"], blocked=False)
        change(served, world, action="set_role", name="of-alice", grants=["watch on cluster", "read on log"])
        expect(charts).to_be_visible()
        shown.get_by_role("link", name="Explain").click()
        expect(shown.get_by_label("State of the cluster")).to_be_visible()
        change(served, world, action="set_role", name="of-alice", grants=["read on log"])
        expect(shown.get_by_role("alert").filter(has_text="watch on cluster")).to_be_visible()
        expect(shown.get_by_label("State of the cluster")).to_have_count(0)


def test_wrong_tokens_end_in_a_sentence(browser: Browser) -> None:
    """The form says each time that the token is wrong, and then how long it takes no more."""
    world = world_of("alice")
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        for number in range(WRONG_MAX + 1):
            with shown.expect_response("**/v1/login") as reply:
                log_in(shown, f"rl_wrong_{number}")
            assert reply.value.status == (401 if number < WRONG_MAX else 429)
        expect(shown.get_by_role("alert")).to_contain_text(f"{WRONG_MAX} wrong tokens")


def test_without_a_login_the_page_asks_for_a_token(browser: Browser) -> None:
    """A form with one field, which a password manager fills in; nothing of the cluster is on the page."""
    world = AccessWorld()
    with held(serve(world.node)) as served, page(browser, f"{served.url}/") as shown:
        expect(shown.get_by_label("Token")).to_have_attribute("autocomplete", "current-password")
        assert world.node.log_id not in shown.content()


def test_without_a_leader_the_page_asks_for_a_token_still(browser: Browser) -> None:
    """A node refuses a stranger only once a leader agrees. The page asks for a token at once, and the login counts."""
    world = world_of("alice")

    async def no_barrier(_: float) -> None:
        raise ApiError(Code.NO_LEADER, "there is no leader")

    world.node.read_barrier = no_barrier  # type: ignore[method-assign,assignment]
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        enter(shown, world, "alice")
        expect(shown.locator("article.node")).to_have_count(1)
