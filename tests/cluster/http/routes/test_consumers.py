"""Tests `/v1/consumers` over the wire: claims, commits, fencing, lag, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.consumer_lag import Lags
from raftlog.cluster.runtime import clock
from raftlog.statemachine.commands import ConsumerGroup, Limits
from tests.cluster.fake_node import LOG_ID, START_MS, FakeNode, Served, serve
from tests.cluster.http.http_probe import Reply, ask, of_session, open_session


def position(index: int, log: str = LOG_ID) -> dict[str, Any]:
    """A position on the wire."""
    return {"log": log, "next": {"0": index}}


async def send(
    served: Served, method: str, target: str, body: Any = None, headers: dict[str, str] | tuple[()] = ()
) -> Reply:
    """A request with a JSON body."""
    data = None if body is None else json.dumps(body).encode()
    return await ask(served.port, method, target, data, headers)


async def claim(served: Served, name: str = "g", **body: Any) -> int:
    """The generation of a claim that must succeed."""
    reply = await send(served, "POST", f"/v1/consumers/{name}/claim", body or None)
    assert reply.status == 200, reply
    generation: int = reply.json()["generation"]
    return generation


async def append(served: Served, count: int) -> None:
    """Records to read."""
    for _ in range(count):
        assert (await ask(served.port, "POST", "/v1/log", b"x")).status == 200


async def test_claim_commit_and_read(served: Served) -> None:
    """An empty body is enough for a claim; a read returns the values of the commit, with the lag."""
    await append(served, 4)  # 3 to 6
    reply = await send(served, "POST", "/v1/consumers/g/claim")
    assert reply.json() == {
        "outcome": "applied",
        "result": "applied",
        "name": "g",
        "position": position(1),
        "generation": 7,
        "owner": "",
        "index": 7,
        "term": 1,
    }
    moved = await send(served, "PUT", "/v1/consumers/g", {"generation": 7, "position": position(5)})
    assert (moved.json()["position"], moved.json()["generation"], moved.json()["index"]) == (position(5), 7, 8)
    clock_before = clock.wall_ms()
    told = (await ask(served.port, "GET", "/v1/consumers/g")).json()
    seconds = told.pop("lag_seconds")
    assert (clock_before - START_MS) / 1000 - 1 < seconds <= (clock.wall_ms() - START_MS) / 1000
    assert told == {
        "name": "g",
        "position": position(5),
        "generation": 7,
        "owner": "",
        "lag": 2,
        "updated_ms": START_MS,
        "index": 8,
        "term": 1,
    }
    listed = (await ask(served.port, "GET", "/v1/consumers")).json()
    assert [each["name"] for each in listed["consumers"]] == ["g"]
    assert (listed["log"], listed["last_user_index"], listed["index"]) == (LOG_ID, 6, 8)


async def test_the_older_owner_is_fenced(served: Served) -> None:
    """412 with the group's generation and position, and the owner's own name."""
    old = await claim(served, owner="old")
    new = await claim(served, owner="new")
    problem = (await send(served, "PUT", "/v1/consumers/g", {"generation": old, "position": position(2)})).problem()
    assert (problem.code, problem.generation, problem.outcome) == (Code.CONSUMER_FENCED, new, "not_applied")
    assert problem.position is not None
    assert problem.position.next == {"0": 1}
    assert "(new)" in problem.message
    assert (
        await ask(served.port, "DELETE", f"/v1/consumers/g?generation={old}")
    ).problem().code is Code.CONSUMER_FENCED
    assert (await ask(served.port, "DELETE", f"/v1/consumers/g?generation={new}")).json()["deleted"] == 1
    assert (await ask(served.port, "DELETE", "/v1/consumers/g")).json()["deleted"] == 0
    assert (await ask(served.port, "GET", "/v1/consumers/g")).problem().code is Code.CONSUMER_NOT_FOUND
    gone = await send(served, "PUT", "/v1/consumers/g", {"generation": new, "position": position(2)})
    assert gone.problem().code is Code.CONSUMER_NOT_FOUND


async def test_positions_go_back_by_reset_alone(served: Served) -> None:
    """The owner's reset keeps the generation; one without a generation takes the group over, and may make it."""
    await append(served, 3)
    generation = await claim(served, position=position(4))
    back = await send(served, "PUT", "/v1/consumers/g", {"generation": generation, "position": position(2)})
    problem = back.problem()
    assert (problem.code, problem.generation, "reset" in problem.message) == (Code.REFUSED, generation, True)
    body = {"generation": generation, "position": position(2), "reset": True}
    assert (await send(served, "PUT", "/v1/consumers/g", body)).json()["generation"] == generation
    body = {"position": position(3), "reset": True, "owner": "operator"}
    taken = (await send(served, "PUT", "/v1/consumers/g", body)).json()
    assert (taken["position"], taken["owner"]) == (position(3), "operator")
    assert taken["generation"] == taken["index"] > generation
    assert (await send(served, "PUT", "/v1/consumers/new", body)).json()["position"] == position(3)


async def test_a_name_of_any_text(served: Served) -> None:
    """Escaped in the path, as it is in the answer."""
    await claim(served, "a%2Fb%20%C3%BC")
    assert (await ask(served.port, "GET", "/v1/consumers/a%2Fb%20%C3%BC")).json()["name"] == "a/b ü"


async def test_a_repeated_request_gets_its_first_answer(served: Served) -> None:
    """Under a session a claim is one claim, however often it is sent, and a commit is not fenced by itself."""
    headers = of_session(await open_session(served.port), 1)
    first = (await send(served, "POST", "/v1/consumers/g/claim", headers=headers)).json()
    again = (await send(served, "POST", "/v1/consumers/g/claim", headers=headers)).json()
    assert again == {**first, "result": "repeated"}
    assert served.node.machine.consumers.get(b"g").generation == first["generation"]


async def test_a_full_table_refuses_new_groups() -> None:
    """`consumers_max` is a parameter of the cluster; the refusal names it, and no group is evicted."""
    async with serve(FakeNode(Limits(consumers_max=1))) as served:
        await claim(served)
        problem = (await send(served, "POST", "/v1/consumers/h/claim")).problem()
        assert (problem.code, problem.status, "consumers_max" in problem.message) == (Code.CONSUMERS_FULL, 429, True)
        await claim(served)


async def test_reads_wait_for_the_barrier_unless_they_are_stale(served: Served) -> None:
    """Linearizable by default, as every read; `min_index` is for stale ones."""
    await claim(served)
    await ask(served.port, "GET", "/v1/consumers/g")
    await ask(served.port, "GET", "/v1/consumers")
    assert served.node.barriers == 2
    await ask(served.port, "GET", "/v1/consumers/g?consistency=stale&min_index=3")
    assert served.node.barriers == 2


async def test_lag_is_that_of_user_records(served: Served) -> None:
    """Commits are records too: a group that has read everything else has no lag, in records and in seconds. The seconds
    are those of the first user record to read, not of internal records before it.
    """
    await append(served, 1)
    generation = await claim(served, position=position(4))
    for _ in range(300):
        await send(served, "PUT", "/v1/consumers/g", {"generation": generation, "position": position(4)})
    told = (await ask(served.port, "GET", "/v1/consumers/g")).json()
    assert (told["lag"], told["lag_seconds"]) == (0, 0.0)
    served.node.time_ms = clock.wall_ms() - 5_000
    await append(served, 1)
    for _ in range(2):  # looked up, then remembered
        told = (await ask(served.port, "GET", "/v1/consumers/g")).json()
        assert told["lag"] == 302
        assert 5 <= told["lag_seconds"] < 60


async def test_status_and_metrics_show_the_farthest_groups() -> None:
    """No more than `limits.consumers_shown_max`, those that are the most records behind, by name."""
    async with serve(consumers_shown_max=2) as served:
        await append(served, 5)
        for name, index in (("c", 2), ("b", 6), ("a", 4)):
            await claim(served, name, position=position(index))
        shown = (await ask(served.port, "GET", "/v1/status")).json()["consumers"]
        assert [(each["name"], each["lag"]) for each in shown] == [("a", 4), ("c", 6)]
        text = (await ask(served.port, "GET", "/metrics")).body.decode()
        assert 'raftlog_consumer_lag_records{consumer="a"} 4.0' in text
        assert 'raftlog_consumer_lag_seconds{consumer="c"}' in text
        assert 'consumer="b"' not in text


async def test_an_unknown_lag_is_left_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of the log that fails must not make the status fail; the lag in records is known all the same."""
    await append(served, 1)
    await claim(served)

    async def gone(*_: object) -> None:
        raise ApiError(Code.COMPACTED, "gone")

    monkeypatch.setattr(served.node, "read_log", gone)
    told = (await ask(served.port, "GET", "/v1/consumers/g")).json()
    assert (told["lag"], told["lag_seconds"]) == (3, None)
    monkeypatch.undo()
    served.node.is_fenced = True
    shown = (await ask(served.port, "GET", "/v1/status")).json()["consumers"]
    assert shown[0]["lag_seconds"] is None


async def test_the_lag_in_seconds_is_the_age_of_the_first_record_that_is_left_to_read(served: Served) -> None:
    """For a group at any position, also at one that was trimmed: of the user records from there on that are still
    there, it is the first one that counts."""
    node = served.node
    times: dict[int, int] = {}
    for number in range(6):
        node.time_ms = clock.wall_ms() - (6 - number) * 100_000
        await append(served, 1)
        times[node.applied] = node.time_ms
        await claim(served, f"g{number}")
    for oldest in range(1, node.applied + 1):
        node.oldest = oldest
        lags = Lags(node)
        for place in range(1, node.applied + 2):
            told = (await lags.status(b"g", ConsumerGroup(place, 1, b"", 0, 0))).lag_seconds
            left = [time_ms for index, time_ms in times.items() if index >= max(place, oldest)]
            if left:
                assert told is not None
                assert abs(told - (clock.wall_ms() - left[0]) / 1_000) < 90, (oldest, place)
            else:
                assert not told or place < oldest
