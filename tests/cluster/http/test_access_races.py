"""Permissions that change while a write, a read, a page or a stream is under way."""

from __future__ import annotations

import asyncio
import json

import pytest

from raftlog.cluster.runtime import clock
from raftlog.statemachine.access.commands import AccessAction
from tests.cluster.http.access_world import AccessWorld, txn
from tests.cluster.http.fast.fast_wire import request
from tests.support import wait_until_async


@pytest.mark.parametrize("form", ["revoke", "block", "role", "delete", "expire"])
@pytest.mark.parametrize("target", ["/v1/watch?prefix=a/", "/v1/log?follow=true&format=ndjson"])
async def test_a_running_stream_ends_soon_after_its_permission(
    target: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token revoked or expired, the user blocked or deleted, the role changed. The last message says why, and
    nothing that came later is in the stream."""
    async with AccessWorld() as world:
        token = world.user("u", "read on keys:a/*", "read on log")
        now = clock.wall_ms()
        if form == "expire":
            token = world.token("u", expires_ms=now + 300)
        wire = world.connect()
        await wire.feed(request("GET", target, *world.sign("u")))
        await world.ask("root", "PUT", "/v1/kv/a/1", body=b"before")
        await wait_until_async(lambda: b"before" in wire.written, what="the change")
        match form:
            case "revoke":
                world.change(AccessAction.DELETE_TOKEN, token=token.identifier)
            case "block":
                world.change(AccessAction.SET_USER, name="u", roles=("of-u",), is_blocked=True)
            case "role":
                world.role("of-u", "read on keys:b/*")
            case "delete":
                world.change(AccessAction.DELETE_USER, name="u")
            case _:
                pass
        if form != "expire":
            await world.ask("root", "PUT", "/v1/kv/a/1", body=b"after")
        await wait_until_async(lambda: b"0\r\n\r\n" in wire.written, 1.0, what="the end of the stream")
        assert b"after" not in wire.written
        code = b"forbidden" if form in ("role", "block") else b"unauthorized"
        assert b'"code":"' + code in wire.written


@pytest.mark.parametrize("form", ["watch?prefix=a/&from=1", "log?format=ndjson&from=1", "log?format=raw&from=1"])
async def test_a_stream_that_waited_for_room_is_asked_once_more(world: AccessWorld, form: str) -> None:
    """Answers that other clients do not read take all the room, so its next piece waits, for up to
    limits.stream_stall_ms. Meanwhile the permission for these keys is taken away: they are not sent."""
    world.user("u", "read on keys:*", "read on log", "read on groups:*")
    await world.ask("root", "PUT", "/v1/kv/a/1", body=b"before")
    answers = world.service.load.answers
    answers.add(answers.bytes_max)
    wire = world.connect()
    await wire.feed(request("GET", f"/v1/{form}&follow=true" if "log" in form else f"/v1/{form}", *world.sign("u")))
    await wait_until_async(lambda: wire.written, what="the head")
    assert b"before" not in wire.written
    world.role("of-u", "read on keys:b/*", "read on log")
    await world.ask("root", "PUT", "/v1/kv/a/1", body=b"after")
    await world.ask("root", "PUT", "/v1/kv/b/1", body=b"open")
    answers.add(-answers.bytes_max)
    await wait_until_async(lambda: wire.written.endswith(b"0\r\n\r\n") or b"open" in wire.written, what="the rest")
    assert (b"open" in wire.written) == ("ndjson" in form)
    assert b"after" not in wire.written
    assert b"before" not in wire.written


async def test_a_read_sees_each_revocation_that_its_barrier_covers(world: AccessWorld) -> None:
    """A read waits for its index while the permission is taken away: it is refused. So is the next page of a range."""
    world.user("u", "read on keys:a/*")
    for number in range(3):
        await world.ask("root", "PUT", f"/v1/kv/a/{number}", body=b"secret")
    page = json.loads((await world.ask("u", "GET", "/v1/kv?prefix=a/&limit=2")).body)
    world.node.barrier_held = asyncio.Event()
    wires = []
    for target in ("/v1/kv/a/1", "/v1/kv?prefix=a/", f"/v1/kv?prefix=a/&limit=2&continuation={page['continuation']}"):
        wire = world.connect()
        wires.append(wire)
        await wire.feed(request("GET", target, *world.sign("u")))
        assert not wire.written
    world.role("of-u", "read on keys:b/*")
    world.node.barrier_held.set()
    world.node.barrier_held = None
    for wire in wires:
        await wait_until_async(lambda wire=wire: wire.written, what="an answer")  # type: ignore[misc]
        assert wire.replies()[0].problem().code == "forbidden"
        assert b"secret" not in wire.written


async def test_a_write_that_lost_its_permission_on_the_way_is_not_applied(world: AccessWorld) -> None:
    """The node has taken it; before its place in the log the token is revoked. The same for a transaction over several
    prefixes of which one is taken away."""
    token = world.user("u", "write on keys:a/*", "write on keys:b/*")
    for form in ("role", "revoke"):
        world.node.held = asyncio.Event()
        put, both = world.connect(), world.connect()
        await put.feed(request("PUT", "/v1/kv/a/1", *world.sign("u"), body=b"v"))
        steps = [{"operation": "put", "key": f"{prefix}/1", "value": "v"} for prefix in "ab"]
        await both.feed(request("POST", "/v1/kv/txn", *world.sign("u"), body=txn(*steps)))
        held, world.node.held = world.node.held, None
        if form == "role":
            world.role("of-u", "write on keys:b/*")
        else:
            world.change(AccessAction.DELETE_TOKEN, token=token.identifier)
        world.node.held = held
        held.set()
        for wire in (put, both):
            await wait_until_async(lambda wire=wire: wire.written, what="an answer")  # type: ignore[misc]
            problem = wire.replies()[0].problem()
            assert (problem.code, problem.outcome, problem.status) == ("permission_lost", "not_applied", 403)
        world.node.held = None
        if form == "role":
            world.role("of-u", "write on keys:a/*", "write on keys:b/*")
    assert (await world.ask("root", "GET", "/v1/kv/a/1")).status == 404
    assert (await world.ask("root", "GET", "/v1/kv/b/1")).status == 404


async def test_what_was_given_at_another_node_just_before_counts_here(world: AccessWorld) -> None:
    """This node has not applied the change yet. A refusal waits for a read barrier, and is decided again."""
    world.user("u")
    world.node.barrier_held = asyncio.Event()
    wire = world.connect()
    await wire.feed(request("PUT", "/v1/kv/a", *world.sign("u"), body=b"v"))
    assert not wire.written
    world.role("of-u", "write on keys:a")
    world.change(AccessAction.SET_USER, name="u", roles=("of-u",))
    world.node.barrier_held.set()
    world.node.barrier_held = None
    await wait_until_async(lambda: wire.written, what="an answer")
    assert wire.replies()[0].status == 200
