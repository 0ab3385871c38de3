"""Consumer groups through both clients and the command line: what a handle owns, commits and loses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ConsumerFenced, ConsumerNotFound, NotApplied
from tests.cluster.cli.test_cli import Running
from tests.cluster.fake_node import serve


@pytest.fixture
def running(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A node and its command line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    running = Running()
    yield running
    running.stop()


async def test_two_owners_of_one_group() -> None:
    """The second claim fences the first handle, which gets an error; the second continues at the first one's
    position.
    """
    async with serve() as served, Client(served.url) as client, Client(served.url) as other:
        first = await client.append(b"a")
        old, new = client.consumer("g/1"), other.consumer("g/1")
        with pytest.raises(ConsumerNotFound):
            await old.status()
        with pytest.raises(ValueError, match="claim"):
            await old.commit(1)
        await old.claim(owner="old", start=first.first)
        await old.commit(first.last + 1)
        assert (await new.claim(owner="new")).position.next == {"0": first.last + 1}
        with pytest.raises(ConsumerFenced) as fenced:
            await old.commit(first.last + 1)
        assert fenced.value.problem is not None
        assert new.owned is not None
        assert fenced.value.problem.generation == new.owned.generation
        with pytest.raises(NotApplied, match="below that of the group"):
            await new.commit(first.first)
        await new.commit(first.first, reset=True)
        status = await new.status()
        assert (status.lag, status.owner, status.position.next) == (1, "new", {"0": first.first})
        with pytest.raises(ConsumerFenced):
            await old.delete()
        assert (await new.delete()).deleted == 1


async def test_records_are_committed_once_their_reader_comes_back() -> None:
    """The one that is being worked on when the reader leaves is not done: it comes again."""
    async with serve() as served, Client(served.url) as client:
        for number in range(5):
            await client.append(b"%d" % number)
        consumer = client.consumer("g")
        await consumer.claim()
        async with aclosing(consumer.records(every_s=0)) as records:
            async for record in records:
                if record.value == b"2":
                    break
        assert [record.value async for record in consumer.records(every_s=0, limit=2)] == [b"2", b"3"]
        assert [record.value async for record in consumer.records(every_s=60)] == [b"4"]
        assert (await consumer.status()).lag == 0
        commits = [entry for entry, _ in served.node.log if b"g" in entry.data]
        assert [record.value async for record in consumer.records()] == []
        assert len([entry for entry, _ in served.node.log if b"g" in entry.data]) == len(commits)


async def test_a_reader_that_was_fenced_stops() -> None:
    """Its next commit fails, and is not tried a second time."""
    async with serve() as served, Client(served.url) as client, Client(served.url) as other:
        for number in range(5):
            await client.append(b"%d" % number)
        consumer = client.consumer("g")
        await consumer.claim()
        seen = []

        async def read() -> None:
            async with aclosing(consumer.records(every_s=0)) as records:
                async for record in records:
                    seen.append(record.value)
                    if len(seen) == 2:
                        await other.consumer("g").claim()

        with pytest.raises(ConsumerFenced):
            await read()
        assert seen == [b"0", b"1"]


def test_the_blocking_client_does_the_same() -> None:
    """Claim, read, commit, be fenced, delete."""
    running = Running()
    try:
        with SyncClient(running.url) as client, SyncClient(running.url) as other:
            for number in range(4):
                client.append(b"%d" % number)
            consumer = client.consumer("g")
            with pytest.raises(ValueError, match="claim"):
                next(consumer.records())
            consumer.claim(owner="me", start=client.status().oldest)
            assert [record.value for record in consumer.records(limit=3, every_s=0)] == [b"0", b"1", b"2"]
            assert consumer.status().lag == 1
            found = consumer.records()
            assert next(found).value == b"3"
            found.close()
            assert consumer.status().lag == 1
            taker = other.consumer("g")
            taker.claim()
            with pytest.raises(ConsumerFenced):
                list(consumer.records())
            taker.commit(1, reset=True)
            assert taker.delete().deleted == 1
    finally:
        running.stop()


def test_consumer_commands_print_and_move_groups(running: Running) -> None:
    """claim, commit, list, show, reset and delete; 3 where there is no such group, 4 where the owner is another."""
    for value in ("a", "b", "c"):
        running.json("append", value)
    assert running.run("consumers", "show", "g").exit_code == 3
    claimed = running.json("consumers", "claim", "g", "--owner", "me", "--start", "2")
    generation = str(claimed["generation"])
    assert (claimed["position"]["next"], claimed["owner"]) == ({"0": 2}, "me")
    assert running.run("consumers", "claim", "g", "-o", "raw").stdout.strip() > generation
    fenced = running.run("consumers", "commit", "g", "--to", "4", "--generation", generation)
    assert (fenced.exit_code, "claimed it since" in fenced.stderr) == (4, True)
    generation = running.run("consumers", "claim", "g", "-o", "raw").stdout.strip()
    assert running.json("consumers", "commit", "g", "--to", "4", "--generation", generation)["index"] > 4
    (listed,) = running.json("consumers", "list")["consumers"]
    assert (listed["name"], listed["position"]["next"], listed["lag"] > 0) == ("g", {"0": 4}, True)
    assert listed["owner"].startswith("raftlog on ")
    header, row = running.run("consumers", "list", "-o", "tsv").stdout.splitlines()
    assert dict(zip(header.split("\t"), row.split("\t"), strict=True))["next"] == "4"
    assert running.json("consumers", "reset", "g", "--to", "1")["position"]["next"] == {"0": 1}
    assert running.run("consumers", "show", "g", "-o", "raw").stdout == "1\n"
    assert running.run("consumers", "delete", "g", "--generation", generation).exit_code == 4
    assert running.json("consumers", "delete", "g")["deleted"] == 1
    assert running.run("consumers", "delete", "g").exit_code == 3


def test_log_with_a_group_goes_on_where_it_stopped(running: Running) -> None:
    """Each run prints what came since; a group and a place of one's own do not go together."""
    running.json("append", "a", "b", "c")
    assert running.run("log", "--group", "g", "--limit", "2", "-o", "raw").stdout == "a\nb\n"
    assert running.run("log", "--group", "g", "-o", "raw").stdout == "c\n"
    assert running.run("log", "--group", "g", "-o", "raw").stdout == ""
    running.json("append", "d")
    assert running.run("log", "--group", "g", "-o", "raw").stdout == "d\n"
    refused = running.run("log", "--group", "g", "--from", "1")
    assert (refused.exit_code, "consumers reset" in refused.stderr) == (2, True)
