"""`GET /v1/cluster`: what one node knows of all members, and how old it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from raftlog.cluster.api.members import MemberSeen
from tests.cluster.fake_node import Served
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.http.http_probe import ask
from tests.cluster.http.test_node import served_cluster
from tests.support import wait_until_async

OF_THE_LOG = ("role", "term", "durable", "applied", "lag", "lag_seconds", "log_age_ms")


def seen_by(served: Served) -> dict[int, MemberSeen]:
    """The members by their number, as that node knows them."""
    return {each.node: each for each in served.node.cluster().members}


def is_whole(served: Served) -> bool:
    """Whether every report of every other node has come there once."""
    return all(each.disk and each.program and each.contact_ms != -1 for each in seen_by(served).values())


async def test_the_leader_knows_how_far_all_are_and_a_follower_itself_and_its_leader(tmp_path: Path) -> None:
    """Positions and their age at the leader; at a follower nothing of the other follower's log. Each node knows disk,
    program and link of every other one, of what they send each other anyway."""
    async with served_cluster(tmp_path) as (nodes, servers):
        leader, one, other = (server.node.node_id for server in servers)
        settled = await nodes.append(servers[0].node, b"v")
        await wait_until_async(lambda: all(map(is_whole, servers)), what="a report of each node to each other")
        await wait_until_async(
            lambda: all((each.durable or 0) >= settled.last for each in seen_by(servers[0]).values()), what="the copies"
        )
        seen = seen_by(servers[0])
        assert [seen[node].role for node in (leader, one, other)] == ["leader", "follower", "follower"]
        assert {each.term for each in seen.values()} == {servers[0].node.term}
        assert [seen[node].applied is None for node in (leader, one, other)] == [False, True, True]
        assert seen[leader].link is None
        for each in (seen[one], seen[other]):
            assert each.link is not None
            assert each.disk is not None
            assert each.link.is_up
            assert each.link.round_trip_us is not None or sys.platform != "linux"
            assert (each.disk.size_bytes or 0) > each.disk.free_bytes > 0
            assert each.program_age_ms == 0
            assert (each.log_age_ms or 0) >= 0 <= (each.contact_ms or 0)
        await wait_until_async(lambda: (seen_by(servers[1])[one].applied or 0) >= settled.last, what="its own place")
        seen = seen_by(servers[1])
        assert (seen[leader].role, seen[leader].durable) == ("leader", None)
        assert [getattr(seen[other], name) for name in OF_THE_LOG] == [None] * len(OF_THE_LOG)
        answer = (await ask(servers[1].port, "GET", "/v1/cluster")).json()
        assert [each["node"] for each in answer["members"]] == sorted([leader, one, other])
        assert answer["leader"]["node"] == leader
        assert (await ask(servers[1].port, "GET", "/v1/cluster?node=1")).problem().code == "bad_request"


async def test_what_a_stopped_node_said_stays_and_gets_old(tmp_path: Path) -> None:
    """Position, disk and program are those from before; their ages and the lag rise, and the link is down."""
    async with served_cluster(tmp_path) as (nodes, servers):
        stopped = servers[1].node.node_id

        def seen() -> MemberSeen:
            return seen_by(servers[0])[stopped]

        def ages() -> list[int]:
            member = seen()
            assert member.disk is not None
            return [
                each or 0 for each in (member.log_age_ms, member.contact_ms, member.program_age_ms, member.disk.age_ms)
            ]

        def is_dropped(count: int) -> bool:
            link = seen().link
            return link is not None and not link.is_up and link.dropped > count

        settled = await nodes.append(servers[0].node, b"v")
        await wait_until_async(
            lambda: is_whole(servers[0]) and (seen().durable or 0) >= settled.last, what="its copy and reports"
        )
        program = seen().program
        await nodes.stop(stopped)
        settled = await nodes.append(servers[0].node, b"more")
        await wait_until_async(lambda: is_dropped(0), what="a message that is not sent")
        first, before = seen(), ages()
        assert (first.lag or 0) >= 1
        assert (first.durable or 0) < settled.last
        assert first.link is not None
        assert first.link.round_trip_us is None
        assert first.program == program
        await nodes.append(servers[0].node, b"more")
        await wait_until_async(
            lambda: all(new > old > 0 for new, old in zip(ages(), before, strict=True)), what="values that get old"
        )
        later = seen()
        assert later.durable == first.durable
        assert (later.lag or 0) > (first.lag or 0)
        dropped = first.link.dropped
        await wait_until_async(lambda: is_dropped(dropped), what="one more message that is not sent")


async def test_a_user_without_the_grant_sees_the_members_and_which_node_leads() -> None:
    """No disk, version or position of a member; `watch on cluster` shows them."""
    async with AccessWorld() as world:
        world.user("nobody")
        world.user("ada", "watch on cluster")
        (hidden,) = json.loads((await world.ask("nobody", "GET", "/v1/cluster")).body)["members"]
        assert {name for name, value in hidden.items() if value is not None} <= {"node", "url", "member", "role"}
        (shown,) = json.loads((await world.ask("ada", "GET", "/v1/cluster")).body)["members"]
        assert shown["disk"]["free_bytes"] == 5 * 10**9
