"""Tokens that do not count, and requests that are spelt so that two readers may see two different ones."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from raftlog.cluster.runtime import clock
from raftlog.cluster.security.jwt_names import BadJwt, JwtHolder
from raftlog.statemachine.access.commands import AccessAction
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.fast.fast_wire import request
from tests.support import wait_until_async


def bad_tokens(world: AccessWorld) -> Iterator[tuple[str, int, str]]:
    """Header lines that are no proof, with the status and a word of the answer."""
    text = world.tokens["u"].text
    yield f"Authorization: Bearer {text[:-1]}", 401, "cut short"
    yield f"Authorization: Bearer {text[:30]}", 401, "cut short"
    yield f"Authorization: Bearer {text[:20]}{'A' if text[20] != 'A' else 'B'}{text[21:]}", 401, "wrong character"
    yield "Authorization: Bearer", 401, "Bearer TOKEN"
    yield "Authorization: Bearer ", 401, "Bearer TOKEN"
    yield f"Authorization: Basic {text}", 401, "Bearer TOKEN"
    yield f"Authorization: {text}", 401, "Bearer TOKEN"
    yield f"Authorization: Bearer {text} {text}", 401, "cut short"
    yield "Authorization: Bearer eyJhbGciOiJub25lIn0.e30.", 401, "no identity provider"
    yield f"Authorization: Bearer {world.tokens['gone'].text}", 401, "was revoked"
    yield f"Authorization: Bearer {world.tokens['old'].text}", 401, "has expired"
    yield f"Authorization: Bearer {world.tokens['blocked'].text}", 403, "is blocked"
    yield "Raftlog-Principal: root", 401, "names no user"
    yield "Raftlog-Principal: root\r\nRaftlog-Passed-On: 2", 401, "names no user"
    yield f"Authorization: Bearer {text}\r\nAuthorization: Bearer {world.tokens['root'].text}", 400, "twice"
    yield f"authorization: Bearer {text}\r\nAuthorization: Bearer {text}", 400, "twice"
    yield f"Authorization : Bearer {text}", 400, ""
    yield f"Authorization:\x0bBearer {text}", 400, ""
    yield f"X: y\n Authorization: Bearer {text}", 400, ""


async def test_a_token_that_does_not_count_is_refused_with_the_reason(world: AccessWorld) -> None:
    """Cut short, mistyped, revoked, expired, of a blocked user, in another form, given twice, spelt so that a proxy may
    read it otherwise. Both ways of serving say the same, and no answer holds a part of the token."""
    world.user("u", "write on keys:*")
    gone = world.user("gone")
    world.change(AccessAction.DELETE_TOKEN, token=gone.identifier)
    world.user("old")
    world.token("old", expires_ms=clock.wall_ms() - 1)
    world.user("blocked")
    world.change(AccessAction.SET_USER, name="blocked", is_blocked=True)
    secret = world.tokens["u"].text[14:40]
    assert (await world.ask("u", "GET", "/v1/kv/a")).status == 403  # from now on this token is remembered
    for line, status, word in bad_tokens(world):
        wire = world.connect()
        await wire.feed(request("PUT", "/v1/kv/a", line, body=b"v"))
        reply = wire.replies()[0]
        assert reply.status == status, (line, reply.body)
        assert word in reply.problem().message, (line, reply.body)
        assert secret.encode() not in wire.written
    assert (await world.ask("root", "GET", "/v1/kv/a")).status == 404


async def test_a_token_in_the_url_is_refused_and_not_repeated(
    world: AccessWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a parameter, as a user of the host: a URL is in logs of proxies. No answer repeats it."""
    world.user("u", "read on keys:*")
    text = world.tokens["u"].text
    for target in (
        f"/v1/kv/a?token={text}",
        f"/v1/kv/a?access_token={text}",
        f"/v1/kv/a?authorization=Bearer+{text}",
        f"http://u:{text}@localhost/v1/kv/a",
    ):
        for user in (None, "u"):
            reply = await world.ask(user, "GET", target)
            assert reply.status in (400, 401, 421), (target, reply.status)
            assert text[14:].encode() not in reply.body
    assert text[14:] not in "".join(capsys.readouterr())


@pytest.mark.parametrize("at", ["fast", "aiohttp"])
async def test_pipelined_requests_are_each_decided_by_their_own_header(at: str) -> None:
    """The bytes of several requests in one packet, hot and not, some in forms that only aiohttp reads: none is served
    with the token of the one before it."""
    async with AccessWorld(fast_path=at == "fast") as world:
        world.user("u", "write on keys:a")
        wire = world.connect()
        put = request("PUT", "/v1/kv/a", *world.sign("u"), body=b"v")
        none = request("PUT", "/v1/kv/a", body=b"v")
        odd = request("PUT", "/v1/kv/a", "X-Odd: \xe4", body=b"v").decode().encode("latin-1")
        smuggled = request("PUT", "/v1/kv/a", *world.sign("u"), body=none)
        await wire.feed(put + none + put + request("GET", "/v1/status") + smuggled + put + odd)
        await wait_until_async(lambda: wire.written.count(b"HTTP/1.1 ") == 7, what="all answers")
        assert [reply.status for reply in wire.replies()] == [200, 401, 200, 401, 200, 200, 401]


async def test_hosts_and_origins_are_checked_whatever_the_token(world: AccessWorld) -> None:
    """A foreign Host or a foreign page's write is refused before the token is looked at, and after it as well."""
    world.user("u", "write on keys:*")
    for user in (None, "u"):
        wire = world.connect()
        lines = "\r\n".join(["PUT /v1/kv/a HTTP/1.1", "Host: evil.example", *world.sign(user), "Content-Length: 1"])
        await wire.feed(f"{lines}\r\n\r\nv".encode())
        assert wire.replies()[0].status == 421
    reply = await world.ask("u", "PUT", "/v1/kv/a", "Origin: http://evil.example", body=b"v")
    assert reply.problem().code == "forbidden"
    assert (await world.ask("root", "GET", "/v1/kv/a")).status == 404


class Keys:
    """An identity provider, whose key may be withdrawn."""

    generation_now = 1

    def holder(self, text: str) -> JwtHolder:
        if self.generation_now != 1:
            raise BadJwt("the provider has no key 'old'")
        if text != "a.b.c":
            raise BadJwt("its signature is not that of the identity provider")
        return JwtHolder("jwt:alice", ("reader", "no-such-role"), clock.wall_ms() / 1_000 + 60)

    def generation(self) -> int:
        return self.generation_now


async def test_a_token_of_the_identity_provider_brings_its_roles() -> None:
    """Its roles count beside those of a user of the same name, and such a user can be blocked."""
    async with AccessWorld() as world:
        world.service.access._provider = Keys()  # type: ignore[assignment]
        bearer = "Authorization: Bearer a.b.c"
        assert (await world.ask(None, "GET", "/v1/kv/a", bearer)).status == 404
        assert (await world.ask(None, "PUT", "/v1/kv/a", bearer, body=b"v")).problem().missing == "write on keys:a"
        world.role("writes-a", "write on keys:a")
        world.change(AccessAction.SET_USER, name="jwt:alice", roles=("writes-a",))
        assert (await world.ask(None, "PUT", "/v1/kv/a", bearer, body=b"v")).status == 200
        world.change(AccessAction.SET_USER, name="jwt:alice", is_blocked=True)
        assert "is blocked" in (await world.ask(None, "GET", "/v1/kv/a", bearer)).problem().message
        wrong = (await world.ask(None, "GET", "/v1/kv/a", "Authorization: Bearer a.b.d")).problem()
        assert (wrong.code, "signature" in wrong.message) == ("unauthorized", True)


async def test_a_token_of_a_withdrawn_key_counts_no_more() -> None:
    """Even one that this node has checked before: a stolen key is taken out of the provider's keys for that."""
    async with AccessWorld() as world:
        world.service.access._provider = provider = Keys()  # type: ignore[assignment]
        bearer = "Authorization: Bearer a.b.c"
        assert (await world.ask(None, "GET", "/v1/kv/a", bearer)).status == 404
        provider.generation_now = 2
        assert "no key 'old'" in (await world.ask(None, "GET", "/v1/kv/a", bearer)).problem().message


async def test_a_whole_token_in_place_of_its_id_is_refused_and_not_repeated() -> None:
    """It would stand in the log of the cluster, and in the audit log."""
    async with AccessWorld() as world:
        token = world.user("u", "read on keys:*")
        body = json.dumps({"action": "delete_token", "token": token.text}).encode()
        refused = await world.ask("root", "POST", "/v1/access", body=body)
        assert (refused.status, "id alone" in refused.problem().message) == (400, True)
        assert token.text.encode() not in refused.body


async def test_a_single_grant_is_added_to_a_role(world: AccessWorld) -> None:
    """The others stay."""
    world.role("r", "read on log")
    body = json.dumps({"action": "grant_role", "name": "r", "grants": ["append on log"]}).encode()
    assert (await world.ask("root", "POST", "/v1/access", body=body)).status == 200
    assert [*map(str, world.node.machine.access.roles["r"])] == ["read on log", "append on log"]
