"""Logins of browsers: a cookie stands for a token at one node, in requests of that node's own pages alone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raftlog.cluster.admission.logins import LIFE_S, LOGINS_MAX, SILENCE_S, USER_MAX, WRONG_MAX, WRONG_S, Logins
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.log_file import LogSink
from raftlog.cluster.security.tokens import make_token
from raftlog.statemachine.access.commands import AccessAction
from tests.cluster.fake_node import Served, serve
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.http_probe import Reply, ask
from tests.support import streams_served, wait_until_async

OWN = {"Sec-Fetch-Site": "same-origin"}


class Browser:
    """Sends its cookies to every node of the host, as browsers do: they look at no port."""

    def __init__(self) -> None:
        self.cookies: dict[str, str] = {}

    async def ask(
        self, served: Served, method: str, target: str, body: bytes = b"", headers: dict[str, str] = OWN
    ) -> Reply:
        """A request of a page of that node, unless the headers say otherwise."""
        if self.cookies:
            headers = headers | {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        reply = await ask(served.port, method, target, body, headers)
        if (text := reply.headers.get("set-cookie")) is not None:
            name, value = text.split(";")[0].split("=", 1)
            self.cookies[name] = value
        return reply

    async def log_in(self, served: Served, token: str) -> Reply:
        """Shows a token."""
        return await self.ask(served, "POST", "/v1/login", b'{"token":"%b"}' % token.encode())

    async def user(self, served: Served) -> str:
        """The user that the node sees; empty if it sees none."""
        reply = await self.ask(served, "GET", "/v1/access/me")
        return str(reply.json()["user"]) if reply.status == 200 else ""


@pytest.fixture
async def world() -> AccessWorld:
    """A node with access control, and the user alice with rights on `a/`."""
    made = AccessWorld()
    made.user("alice", "read on keys:a/*", "write on keys:a/*")
    return made


@asynccontextmanager
async def pages(world: AccessWorld, *, fast_path: bool = True) -> AsyncIterator[Served]:
    """The node behind a socket."""
    async with serve(world.node, fast_path=fast_path) as served:
        yield served


@pytest.mark.parametrize("fast_path", [True, False])
async def test_a_login_has_the_rights_of_its_token(world: AccessWorld, fast_path: bool) -> None:
    """It reads and writes what the token may, and no more; without the cookie nothing."""
    async with pages(world, fast_path=fast_path) as served:
        browser = Browser()
        assert (await browser.user(served)) == ""
        reply = await browser.log_in(served, world.tokens["alice"].text)
        assert (reply.status, reply.json()["user"]) == (200, "alice")
        assert await browser.user(served) == "alice"
        assert (await browser.ask(served, "PUT", "/v1/kv/a/1", b"v")).status == 200
        assert (await browser.ask(served, "GET", "/v1/kv/a/1")).json()["kv"]["value"] == "v"
        problem = (await browser.ask(served, "GET", "/v1/kv/b/1")).problem()
        assert (problem.code, problem.missing) == ("forbidden", "read on keys:b/1")


async def test_the_cookie_is_hidden_and_bound_to_log_and_node(world: AccessWorld) -> None:
    """No script reads it, no other site sends it, and its name is that of one node of one log. It holds no token."""
    async with pages(world) as served:
        text = (await Browser().log_in(served, world.tokens["alice"].text)).headers["set-cookie"]
        assert re.fullmatch(
            r"raftlog-001122334455-1=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200", text
        ), text
        assert world.tokens["alice"].text not in text


async def test_nodes_of_one_host_keep_their_logins_apart() -> None:
    """A browser is logged in to three nodes at once, by another user at each; no node takes another's cookie."""
    worlds = [AccessWorld() for _ in range(3)]
    browser = Browser()
    for number, world in enumerate(worlds, 1):
        world.node.node_id = number
        world.user(f"user-{number}", "read on keys:*")
    async with pages(worlds[0]) as one, pages(worlds[1]) as two, pages(worlds[2]) as three:
        for number, served in enumerate((one, two, three), 1):
            assert (await browser.log_in(served, worlds[number - 1].tokens[f"user-{number}"].text)).status == 200
        for number, served in enumerate((one, two, three), 1):
            assert await browser.user(served) == f"user-{number}"
        (of_one, secret), (of_two, _), _ = browser.cookies.items()
        stolen = Browser()
        stolen.cookies = {of_one: secret, of_two: secret}
        assert await stolen.user(two) == ""
        assert await stolen.user(one) == "user-1"


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "null"},
    ],
)
async def test_a_page_of_another_site_has_no_use_of_the_cookie(
    world: AccessWorld, headers: dict[str, str], fast_path: bool
) -> None:
    """Neither for reads nor for writes: another origin's form, fetch, frame or image, and a program with the cookie."""
    async with pages(world, fast_path=fast_path) as served:
        browser = Browser()
        await browser.log_in(served, world.tokens["alice"].text)
        assert (await browser.ask(served, "GET", "/v1/kv/a/1", headers=headers)).status == 401
        assert (await browser.ask(served, "PUT", "/v1/kv/a/1", b"v", headers)).status in (401, 403)
        assert world.node.machine.get(b"a/1") is None
        own = {"Origin": "http://127.0.0.1"}  # as the header Host of `ask`
        assert (await browser.ask(served, "PUT", "/v1/kv/a/1", b"v", own)).status == 200


async def test_a_follower_passes_the_token_of_a_login_on_to_the_leader(world: AccessWorld) -> None:
    """The leader does not know the follower's logins, and without TLS no certificate vouches for a name."""
    world.user("omar", "members on cluster")
    seen: list[bytes] = []

    async def leader(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))

    async with streams_served(leader) as port, pages(world) as served:
        browser = Browser()
        await browser.log_in(served, world.tokens["omar"].text)
        world.node.leader = LeaderHint(2, f"http://127.0.0.1:{port}")
        assert (
            await browser.ask(served, "POST", "/v1/members", b'{"change":"remove","node":3}')
        ).problem().code == "leader_lost"
    assert b"Bearer " + world.tokens["omar"].text.encode() in seen[0]
    assert b"Cookie" not in seen[0]


async def test_a_login_ends_with_its_token_its_user_and_its_log_out(world: AccessWorld) -> None:
    """At once, in the next request; a role that shrinks shrinks it."""
    async with pages(world) as served:

        async def logged_in() -> Browser:
            browser = Browser()
            assert (await browser.log_in(served, world.token("alice").text)).status == 200
            return browser

        browser = await logged_in()
        before = dict(browser.cookies)
        assert (await browser.ask(served, "DELETE", "/v1/login")).status == 200
        browser.cookies = before
        assert await browser.user(served) == ""
        browser = await logged_in()
        world.change(AccessAction.DELETE_TOKEN, token=world.tokens["alice"].identifier)
        assert await browser.user(served) == ""
        browser = await logged_in()
        world.role("of-alice", "read on keys:b/*")
        assert (await browser.ask(served, "GET", "/v1/kv/a/1")).problem().code == "forbidden"
        world.change(AccessAction.SET_USER, name="alice", roles=("of-alice",), is_blocked=True)
        assert await browser.user(served) == ""
        world.change(AccessAction.DELETE_USER, name="alice")
        assert await browser.user(served) == ""


async def test_wrong_tokens_are_slowed_down(world: AccessWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five a minute from one address, whatever was wrong with them; then even a right one waits."""
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    async with pages(world) as served:
        for number in range(WRONG_MAX):
            assert (await Browser().log_in(served, f"rl_wrong_{number}")).problem().code == "unauthorized"
        refused = await Browser().log_in(served, world.tokens["alice"].text)
        assert refused.problem().code == "over_quota"
        assert 1 <= int(refused.headers["retry-after"]) <= WRONG_S + 1
        now += WRONG_S
        assert (await Browser().log_in(served, world.tokens["alice"].text)).status == 200


async def test_wrong_tokens_at_the_same_time_are_slowed_down_too(world: AccessWorld) -> None:
    """They wait together for news of a token that this node does not know."""
    world.node.barrier_held = asyncio.Event()
    async with pages(world) as served:
        token = make_token().text
        asked = [asyncio.ensure_future(Browser().log_in(served, token)) for _ in range(3 * WRONG_MAX)]
        await wait_until_async(lambda: world.node.barriers >= len(asked), what="all of them wait")
        world.node.barrier_held.set()
        codes = [(await each).problem().code for each in asked]
        assert sorted(codes) == [*["over_quota"] * 2 * WRONG_MAX, *["unauthorized"] * WRONG_MAX]


async def test_bad_logins(world: AccessWorld) -> None:
    """No JSON, no token, access control that is off, another site's form: one sentence each, and no cookie."""
    async with pages(world) as served:
        for body in (b"", b"token=x", b"{}", b'{"token":1}', b'{"token":"x","user":"root"}'):
            reply = await Browser().ask(served, "POST", "/v1/login", body)
            assert reply.problem().code == "bad_request", body
            assert "set-cookie" not in reply.headers
        foreign = {"Origin": "https://evil.example"}
        body = b'{"token":"%b"}' % world.tokens["alice"].text.encode()
        assert (await ask(served.port, "POST", "/v1/login", body, foreign)).problem().code == "forbidden"
    async with serve() as served:
        assert "access control is off" in (await Browser().log_in(served, "rl_x_y")).problem().message


async def test_a_node_without_a_leader_logs_in_by_its_own_state(world: AccessWorld) -> None:
    """People look at a cluster when it matters most. An unknown token is looked for once, and not for long."""
    async with pages(world) as served:

        def no_barrier(_: float) -> object:
            raise ApiError("no_leader", "there is no leader")  # type: ignore[arg-type]

        world.node.read_barrier = no_barrier  # type: ignore[method-assign,assignment]
        browser = Browser()
        assert (await browser.log_in(served, world.tokens["alice"].text)).status == 200
        assert (await browser.ask(served, "GET", "/v1/status")).status == 200
        assert (await browser.log_in(served, "rl_un_known")).problem().code == "unauthorized"


def test_logins_end_by_age_and_silence_and_are_bounded() -> None:
    """Twelve hours, thirty minutes of silence, a thousand at once: the longest silent goes first."""
    logins = Logins()
    secret = logins.open("u", "t", 0.0)
    assert logins.token(secret, SILENCE_S - 1) == "t"
    assert logins.token(secret, 2 * SILENCE_S - 2) == "t"
    assert logins.token(secret, 3 * SILENCE_S) is None
    assert logins.token(secret, 3 * SILENCE_S) is None
    secret = logins.open("u", "t", 0.0)
    for used in range(0, int(LIFE_S), int(SILENCE_S) - 1):
        assert logins.token(secret, float(used)) == "t"
    assert logins.token(secret, LIFE_S) is None
    first = logins.open("u", "first", 0.0)
    others = [logins.open(f"other {number}", "other", 0.0) for number in range(LOGINS_MAX - 1)]
    assert logins.token(first, 1.0) == "first"
    logins.open("u", "one more", 1.0)
    assert logins.token(others[0], 1.0) is None
    assert logins.token(first, 1.0) == "first"


async def test_the_logins_of_one_user_end_no_other_users(world: AccessWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user has an eighth of them: one more ends its own. Each one counts as a request of its user."""
    logins = Logins()
    victim = logins.open("victim", "v", 0.0)
    greedy = [logins.open("greedy", "g", 1.0) for _ in range(LOGINS_MAX + 1)]
    assert logins.token(victim, 2.0) == "v"
    assert [logins.token(each, 2.0) for each in greedy[-USER_MAX - 1 :]] == [None, *["g"] * USER_MAX]
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    async with serve(world.node, principal_requests_max=2) as served:
        replies = [await Browser().log_in(served, world.tokens["alice"].text) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert (await Browser().log_in(served, world.tokens["root"].text)).status == 200


async def test_failed_requests_flood_no_audit_log(world: AccessWorld, tmp_path: Path) -> None:
    """Each client may send them, logins even without a name. They have a line for each reason, as refusals have, since
    a flood would rotate the file until it has none of the lines before. What may have changed something has a line
    each."""

    def lost(*_: object, **__: object) -> object:
        raise ApiError(Code.TIMEOUT, "the outcome is not known")

    sink = LogSink()
    sink.open(tmp_path / "audit.log", 1 << 20, 1, is_stderr=False)
    async with world:
        world.runner._api._audit._file = sink
        for _ in range(3 * WRONG_MAX):
            for body in (b"{}", b'{"token":"rl_wrong"}'):
                await world.ask(None, "POST", "/v1/login", body=body)
            await world.ask("alice", "DELETE", "/v1/kv")
        world.node.submit = lost  # type: ignore[method-assign,assignment]
        for _ in range(2):
            await world.ask("alice", "DELETE", "/v1/kv?prefix=a/")
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        assert [(line["result"], line["code"], line["user"]) for line in lines] == [
            ("failed", "bad_request", ""),
            ("refused", "unauthorized", ""),
            ("failed", "bad_request", "alice"),
            ("failed", "over_quota", ""),
            *[("failed", "timeout", "alice")] * 2,
        ]
    sink.close()
