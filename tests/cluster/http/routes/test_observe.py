"""A node now, what happened on it, when its log was written, a saved state: `/v1/overview`, `/v1/events` and others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from raftlog.cluster.http.routes import observe
from raftlog.cluster.runtime import logging, recent_events
from raftlog.cluster.runtime.recent_events import FIELD_CHARS_MAX, RecentEvents
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation
from tests.cluster.fake_node import START_MS, FakeNode, Served, serve
from tests.cluster.http.http_probe import ask


@pytest.fixture
def recent(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecentEvents]:
    """The events of this test alone, with the log of a node at the level `error`."""
    kept = RecentEvents(events_max=5)
    monkeypatch.setattr(recent_events, "recent", kept)
    monkeypatch.setattr("raftlog.cluster.http.routes.observe.recent", kept)
    before = structlog.get_config()
    logging.configure("error", "json")
    yield kept
    structlog.configure(**before)


async def test_events_are_kept_whatever_the_level_of_the_log(
    recent: RecentEvents, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lines of level `info` and higher, with their fields; those below the level of the log are not written."""
    logger = logging.get_logger(node=1)
    logger.debug("too_fine")
    logger.info("became_leader", term=4)
    logger.error("disk_full", path=b"/x", lacks=7)
    logging.get_logger(node=2).info("of_another_node")
    answer = (await ask(served.port, "GET", "/v1/events")).json()
    assert [(each["event"], each["level"]) for each in answer["events"]] == [
        ("became_leader", "info"),
        ("disk_full", "error"),
    ]
    assert answer["events"][0]["fields"] == {"node": 1, "term": 4}
    assert answer["events"][1]["fields"]["path"] == "b'/x'"
    assert answer["next"] == answer["events"][-1]["number"]
    written = capfd.readouterr().err
    assert "disk_full" in written
    assert "became_leader" not in written


async def test_events_go_on_behind_a_number(recent: RecentEvents, served: Served) -> None:
    """`after` reads on, oldest first, `limit` at most; without it the newest come. Old ones fall out."""
    for number in range(1, 8):
        recent.add("info", {"event": f"e{number}", "node": 1})

    async def names(query: str) -> list[str]:
        return [each["event"] for each in (await ask(served.port, "GET", f"/v1/events{query}")).json()["events"]]

    assert await names("") == ["e3", "e4", "e5", "e6", "e7"]
    assert await names("?limit=2") == ["e6", "e7"]
    assert await names("?after=4&limit=2") == ["e5", "e6"]
    assert await names("?after=7") == []
    answer = (await ask(served.port, "GET", "/v1/events?after=7")).json()
    assert answer["next"] == 7


async def test_an_overview_is_made_once_for_all_who_ask(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is half a second old."""
    made = 0

    def cluster() -> object:
        nonlocal made
        made += 1
        return FakeNode.cluster(served.node)

    monkeypatch.setattr(served.node, "cluster", cluster)
    monkeypatch.setattr(observe, "OVERVIEW_S", 3_600.0)
    answers = [await ask(served.port, "GET", "/v1/overview") for _ in range(20)]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert made == 1
    monkeypatch.setattr(observe, "OVERVIEW_S", 0.0)
    await ask(served.port, "GET", "/v1/overview")
    assert made == 2
    assert (await ask(served.port, "GET", "/v1/overview?rows=1")).problem().code == "bad_request"


def test_long_fields_of_events_are_cut() -> None:
    """A field may hold a stranger's bytes: the kept part of it is bounded."""
    kept = RecentEvents()
    kept.add("info", {"event": "x", "reason": "a" * 10 * FIELD_CHARS_MAX, "exc_info": ValueError()})
    (event,) = kept.after(0, 1)
    assert event.fields == {"reason": "a" * FIELD_CHARS_MAX}


def fill(node: FakeNode, *times: int) -> None:
    """One record at each of these times, in ms behind the start."""
    for time in times:
        node.time_ms = START_MS + time
        node.submit_now((encode_block([BlockRecord(Operation.APPEND, None, b"x")]), 1))


async def test_density_counts_the_indexes_of_each_span() -> None:
    """The spans are equal, their counts are all indexes between the times, and `indexes` says where each begins."""
    node = FakeNode()
    fill(node, 0, 1, 2, 500, 900, 999)
    async with serve(node) as served:
        answer = (await ask(served.port, "GET", "/v1/log/density?buckets=10")).json()
        assert (answer["from_time"], answer["to_time"]) == (START_MS, START_MS + 1_000)
        assert answer["span_ms"] == 100
        assert answer["counts"] == [5, 0, 0, 0, 0, 1, 0, 0, 0, 2]  # two entries are the node's own
        assert answer["indexes"][5] == 6
        assert sum(answer["counts"]) == node.applied
        part = (await ask(served.port, "GET", f"/v1/log/density?buckets=2&from_time={START_MS + 400}")).json()
        assert part["counts"] == [1, 2]
        assert part["indexes"] == [6, 7]


async def test_density_leaves_the_event_loop_free(served: Served) -> None:
    """Other requests are answered between its searches: each waits for the disk, not the loop."""
    turns = 0

    async def find_time(_: int) -> int:
        nonlocal turns
        await asyncio.sleep(0)
        turns += 1
        return 1

    served.node.find_time = find_time
    await ask(served.port, "GET", "/v1/log/density?buckets=500")
    assert turns == 501


async def test_a_snapshot_is_asked_for_without_a_body(served: Served) -> None:
    """It is about one node's present state, so there is nothing to say."""
    answer = (await ask(served.port, "POST", "/v1/snapshot")).json()
    assert (answer["node"], answer["snapshot"], answer["outcome"]) == (1, served.node.applied, "applied")
    assert "takes no body" in (await ask(served.port, "POST", "/v1/snapshot", b'{"node": 2}')).problem().message
    assert "unknown" in (await ask(served.port, "POST", "/v1/snapshot?node=2")).problem().message
