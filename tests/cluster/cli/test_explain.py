"""Why there is no leader or no progress, and what became of a record: on real nodes with real faults, and in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from typer.testing import CliRunner, Result

from raftlog.cluster.api.diagnosis import HELD_MS, diagnose
from raftlog.cluster.api.explain import NEVER_MS, Cause, Leaderless, NodeView, PeerView
from raftlog.cluster.cli.commands import build
from raftlog.cluster.files.errors import DiskFenced, NoSpace
from raftlog.cluster.peers.refusals import SHOWN_MAX
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.ready import SyncBatch
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.http.http_probe import ask
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline, host_of, put_block, sync_with
from tests.support import free_port, streams_served, wait_until_async


@asynccontextmanager
async def doors(nodes: Nodes) -> AsyncIterator[str]:
    """The HTTP side of all nodes that run, where the configuration says that it is; the URLs."""
    async with AsyncExitStack() as stack:
        urls: list[str] = []
        for each in nodes.cluster.node:
            if each.id in nodes.running:
                await stack.enter_async_context(serve(nodes.running[each.id], port=urlsplit(each.url).port or 0))
                urls.append(each.url)
        yield ",".join(urls)


async def explain(url: str, *words: str) -> tuple[Result, Any]:
    """`raftlog explain WORDS` in another thread: how it ended, and its JSON."""
    arguments = ["explain", *words, "-o", "json", "-e", url]
    result = await asyncio.to_thread(CliRunner().invoke, build(), arguments)
    lines = [line for line in result.stdout.splitlines() if not line.startswith("20")]  # the nodes' own log
    return result, json.loads("\n".join(lines))


async def told_by(node: Replica) -> Leaderless:
    """`GET /v1/explain/leaderless` of one node."""
    async with serve(node) as served:
        return msgspec.convert((await ask(served.port, "GET", "/v1/explain/leaderless")).json(), Leaderless)


def codes(causes: list[Cause] | list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """What the causes are, and of whom."""
    rows = [msgspec.to_builtins(cause) for cause in causes]
    return [(row["code"], row["node"], row["peer"]) for row in rows]


async def test_a_link_that_is_cut_one_way_is_named_by_its_direction(tmp_path: Path) -> None:
    """The proxy in the path from 1 to 2 goes away: 1 does not reach 2, 2 reaches 1, and both views together say so."""
    port = free_port()
    nodes = Nodes(tmp_path, 3, {})
    peer = nodes.cluster.node[1].peer
    host, _, inner = peer.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, way = await asyncio.open_connection(host, int(inner))
        with closing(way):
            while data := await reader.read(65_536):
                way.write(data)

    try:
        async with streams_served(forward, port):
            await nodes.start(1, dial__2=f"127.0.0.1:{port}")
            await nodes.start(2)
            await nodes.start(3)
            await nodes.leader()
            assert host_of(nodes.running[1]).transport.links_seen()[2].is_up
        cut_off, reaching = nodes.running[1], host_of(nodes.running[2]).transport
        await wait_until_async(lambda: "Connect call failed" in cut_off.view().peers[0].trouble)
        await wait_until_async(lambda: reaching.links_seen()[1].is_up)
        async with doors(nodes) as urls:
            _, told = await explain(urls)
            cut = next(cause for cause in told["causes"] if cause["code"] == "link_one_way")
            assert (cut["node"], cut["peer"]) == (1, 2)
            assert "node 1 does not reach node 2 (Connect call failed" in cut["words"]
            assert "node 2 reaches node 1" in cut["words"]
        alone = await told_by(cut_off)
        assert ("link_down", 1, 2) in codes(alone.causes)  # it cannot know of the other direction

        link = reaching.link_to(1)
        assert link is not None
        link.redial()  # as node 2 does whenever node 1 has not answered for two election timeouts
        both = codes(diagnose([cut_off.view(), nodes.running[2].view()], {}).causes)
        assert ("link_one_way", 1, 2) in both
        assert ("link_down", 2, 1) not in both
    finally:
        for number in list(nodes.running):
            await nodes.kill(number)


async def test_a_stopped_majority_is_named_with_the_missing_nodes(tmp_path: Path) -> None:
    """One of three is left: no leader, exit code 5, the missing nodes and the needed number. With all back there is a
    leader and no finding.
    """
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.append(await nodes.leader(), b"x")
        await nodes.stop(2)
        await nodes.stop(3)
        left = nodes.running[1]
        await wait_until_async(lambda: not left.view().leader)
        async with doors(nodes) as urls:
            result, told = await explain(urls)
            assert result.exit_code == 5
            assert told["leader"] == 0
            assert told["summary"].startswith(
                "There is no leader. Main cause: of the voters 1, 2 and 3 only node 1 answers, and 2 must: bring "
                "back 1 of the nodes 2 and 3."
            )
            assert [each["node"] for each in told["unreachable"]] == [2, 3]
            assert all(each["reason"].startswith("http://") for each in told["unreachable"])
        alone = await told_by(left)
        assert alone.leader == 0
        assert "with 1 other voter, as an election needs: node 1 with none" in alone.summary
        await nodes.start(2)
        await nodes.start(3)
        leader = await nodes.leader()
        await nodes.all_at(leader.state.core.state.log.last.index)
        async with doors(nodes) as urls:
            result, told = await explain(urls)
            assert (result.exit_code, told["leader"]) == (0, leader.node_id)
            assert "all its records are committed" in told["summary"]


async def test_fenced_full_and_hanging_disks_are_named(tmp_path: Path) -> None:
    """Each is the first cause that the node itself reports, also once it is fenced and serves nothing else."""
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()

        async def full(batch: SyncBatch) -> None:
            raise NoSpace("no room for a segment")

        sync_with(leader, full)  # a disk without room
        waiting = leader.submit(append_block(b"x"), 1, deadline=deadline(10))
        await wait_until_async(lambda: not leader.state.syncer.has_space)
        told = await told_by(leader)
        assert codes(told.causes)[0] == ("disk_full", 1, 0)
        assert "has uncommitted records" in told.summary

        leader.state.disk.stalled_ms = lambda: 60_000  # type: ignore[method-assign]  # and one that hangs
        assert codes((await told_by(leader)).causes)[0] == ("disk_hangs", 1, 0)

        async def broken(batch: SyncBatch) -> None:
            raise DiskFenced("fdatasync: Input/output error")

        sync_with(leader, broken)  # and one that fails
        await asyncio.gather(waiting, return_exceptions=True)
        told = await told_by(leader)
        assert codes(told.causes)[0] == ("disk_fenced", 1, 0)
        assert told.summary.startswith("There is no leader. Main cause: node 1 is fenced")


async def test_status_says_what_explain_would_say_first(tmp_path: Path) -> None:
    """While a full disk refuses every write: below the table, on standard error beside rows, in JSON; once where it
    watches. A healthy node has nothing to say, and `explain` says so in a pipe too.
    """
    async with cluster_of(1, tmp_path) as nodes:
        leader = await nodes.leader()

        async def run(*words: str) -> Result:
            async with doors(nodes) as url:
                return await asyncio.to_thread(CliRunner().invoke, build(), [*words, "-e", url])

        assert "trouble" not in (await run("status", "-o", "json")).stdout
        healthy = (await run("explain", "-o", "tsv")).stdout
        assert f"\nnone\t1\t0\tNode 1 leads term {leader.term}, and all its records are committed.\n" in healthy

        async def full(batch: SyncBatch) -> None:
            raise NoSpace("no room for a segment")

        sync_with(leader, full)
        waiting = leader.submit(append_block(b"x"), 1, deadline=deadline(60))
        await wait_until_async(lambda: not leader.state.syncer.has_space)
        first = "the disk of node 1 is full"
        assert f"\ndisk_full\t1\t0\t{first}" in (await run("explain", "-o", "tsv")).stdout
        assert f'"trouble": "{first}' in (await run("status", "-o", "json")).stdout
        assert f"\n{first}" in (await run("status", "-o", "table")).stdout
        assert first in (await run("status", "-o", "tsv")).stderr
        watched = ("status", "--watch", "--count", "3", "--interval", "0.1", "-o")
        assert (await run(*watched, "tsv")).stderr.count(first) == 1
        assert (await run(*watched, "jsonl")).stdout.count(f'"trouble": "{first}') == 3
        waiting.cancel()


async def test_a_refused_peer_is_named_with_the_reason(tmp_path: Path) -> None:
    """A node of another cluster dials this one: both sides name the peer and the reason; this one keeps
    SHOWN_MAX.
    """
    async with cluster_of(1, tmp_path / "one") as one:
        other = Nodes(tmp_path / "other", 2, {})
        try:
            stranger = await other.start(1, dial__2=one.cluster.node[0].peer)
            await wait_until_async(lambda: bool(stranger.view().peers[0].refuses))
            told = await told_by(stranger)
            refusal = next(cause for cause in told.causes if cause.code == "peer_refuses")
            assert (refusal.node, refusal.peer) == (1, 2)
            assert one.cluster.cluster.log in refusal.words
            mine = await told_by(one.running[1])
            assert "refused" in [cause.code for cause in mine.causes]
        finally:
            await other.kill(1)
        for number in range(2 * SHOWN_MAX):
            host_of(one.running[1]).transport.refusals.refused(f"node 9 at {number}", "a reason")
        assert len(one.running[1].view().refused) == SHOWN_MAX


async def test_explain_shows_the_nodes_that_have_a_record(tmp_path: Path) -> None:
    """The leader shows term, effect, session and the nodes that have the record; the command adds the nodes that
    applied it. A follower names the facts that it does not know. Groups past the record and before it are named.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        opened = encode_block([BlockRecord(Operation.SESSION_OPEN, None, None, None, 600_000)])
        session = (await leader.submit(opened, 1, deadline=deadline())).last
        kept = append_block(b"once", session=session, sequence=4)
        at = (await leader.submit(kept, 1, deadline=deadline(), session=session, sequence=4)).last
        for name, position in ((b"early", 1), (b"late", at + 1)):
            claim = encode_consumer(ConsumerCommand(ConsumerAction.CLAIM, next=position))
            await leader.submit(encode_block([BlockRecord(Operation.CONSUMER, name, claim)]), 1, deadline=deadline())
        put = (await leader.submit(put_block(b"k", b"v"), 1, deadline=deadline())).last
        await nodes.all_at(put)
        async with doors(nodes) as urls:
            _, told = await explain(urls, str(at))
            assert (told["node"], told["state"], told["term"]) == (leader.node_id, "applied", leader.term)
            assert (told["record"]["session"], told["record"]["sequence"]) == (session, 4)
            assert [(each["is_durable"], each["is_applied"]) for each in told["replicas"]] == [(True, True)] * 3
            assert (told["groups_past"], told["groups_before"]) == (["late"], ["early"])
            assert "It is applied on nodes 1, 2 and 3." in told["words"]
            assert f"sequence 4 of session {session}" in " ".join(told["words"])
            _, told = await explain(urls, str(put))
            assert told["record"]["operation"] == "put"
            assert "Result: applied, at revision 2." in told["words"]
        follower = (await nodes.followers())[0]
        async with serve(follower) as served:
            told = (await ask(served.port, "GET", f"/v1/explain/{at}")).json()
            assert "this node has no information: ask the leader" in " ".join(told["words"])
            assert {each["node"]: each.get("is_durable") for each in told["replicas"]}[leader.node_id] is None


async def test_explain_of_a_missing_index_is_an_error() -> None:
    """Behind the log 425, below the oldest 410, no number 400; other methods get the route's methods."""
    node = FakeNode()
    node.submit_now((append_block(b"x"), 1))
    node.oldest = 2
    async with serve(node) as served:
        assert (await ask(served.port, "GET", "/v1/explain/99")).problem().code == "future_index"
        assert (await ask(served.port, "GET", "/v1/explain/1")).problem().code == "compacted"
        assert (await ask(served.port, "GET", "/v1/explain/x")).problem().code == "bad_request"
        assert (await ask(served.port, "POST", "/v1/explain/2")).problem().code == "method_not_allowed"
        assert (await ask(served.port, "GET", "/v1/explain/3")).json()["state"] == "applied"


def a_view(node: int, **more: Any) -> NodeView:
    """One of three nodes whose links are all well."""
    peers = [PeerView(each, "voter", f"http://h:{each}", True, 10) for each in (1, 2, 3) if each != node]
    view = NodeView(
        "0" * 32,
        node,
        "follower",
        5,
        0,
        0,
        [1, 2, 3],
        [],
        1,
        10,
        4,
        10,
        10,
        10,
        False,
        False,
        0,
        2_000,
        1_200,
        False,
        peers,
        [],
    )
    return msgspec.structs.replace(view, **more)


def test_explain_names_a_node_that_lost_acknowledged_entries() -> None:
    """Its floor says so; without one there is no such cause."""
    views = [a_view(1, role="leader"), a_view(2), a_view(3, role="healing", floor=4)]
    (told,) = [cause for cause in diagnose(views, {}).causes if cause.code == "healing"]
    assert told.node == 3
    assert "lost entries that it had acknowledged" in told.words


async def test_explain_names_a_consumer_group_that_holds_retention_back(tmp_path: Path) -> None:
    """The one that is farthest behind, once it has stood still for ten minutes; none that has read everything, and none
    where retention waits for no group."""
    keeps: dict[str, Any] = {"retention__bytes": 1 << 30, "retention__held_bytes": 1 << 31}
    async with cluster_of(1, tmp_path, **keeps) as nodes:
        node = await nodes.leader()

        async def move(name: bytes, action: ConsumerAction, position: int) -> None:
            group = node.machine.consumers.get(name)
            command = encode_consumer(ConsumerCommand(action, group.generation if group else 0, position, b"me"))
            block = encode_block([BlockRecord(Operation.CONSUMER, key=name, value=command)])
            await node.submit(block, 1, deadline=deadline())

        last = (await nodes.append(node, b"x")).last
        await move(b"sink/orders", ConsumerAction.CLAIM, 1)
        await move(b"ahead", ConsumerAction.CLAIM, last)
        view = node.view()
        assert (view.held_by, view.held_next) == ("sink/orders", 1)
        assert 0 <= view.held_ms < HELD_MS
        assert "log_held" not in [cause.code for cause in diagnose([view], {}).causes]
        stood = msgspec.structs.replace(view, held_ms=HELD_MS + 120_000)
        (cause,) = [cause for cause in diagnose([stood], {}).causes if cause.code == "log_held"]
        assert "the consumer group sink/orders has stood at index 1 for 12 minutes" in cause.words
        for name in (b"sink/orders", b"ahead"):
            await move(name, ConsumerAction.COMMIT, last + 1)
        assert node.view().held_by == ""
    async with cluster_of(1, tmp_path / "second") as nodes:
        node = await nodes.leader()
        await move(b"sink/orders", ConsumerAction.CLAIM, 1)
        assert node.view().held_by == ""


def test_explain_names_nodes_that_still_fetch_older_records() -> None:
    """A node that was built from a snapshot is named with the records that are not on its disk yet; no other node is
    named.
    """
    views = [a_view(1, role="leader"), a_view(2), a_view(3, disk_oldest=283)]
    told = [cause for cause in diagnose(views, {}).causes if cause.code == "fetches_older"]
    assert [(cause.node, "records 1 to 282" in cause.words) for cause in told] == [(3, True)]


def test_explain_names_members_that_hold_the_cluster_version_back() -> None:
    """A leader that knows a newer version names the members that do not. Once it is raised, or if no member knows a
    newer one, nothing is named; unconnected nodes are named elsewhere.
    """
    knows = {2: 2, 3: 1}

    def told(**more: Any) -> list[int]:
        view = a_view(1, role="leader", leader=1, **{"cluster_version": 1, "known_version": 2} | more)
        peers = [
            msgspec.structs.replace(peer, match=10, contact_ms=1, known_version=knows.get(peer.node))
            for peer in view.peers
        ]
        causes = diagnose([msgspec.structs.replace(view, peers=peers)], {}).causes
        return [cause.node for cause in causes if cause.code == "older_version"]

    assert told() == [3]
    assert told(known_version=1) == []
    assert told(cluster_version=2) == []
    del knows[3]
    assert told() == []


def test_explain_counts_the_nodes_that_a_majority_lacks() -> None:
    """Where each missing node is needed it names them, else how many of them; one node answers, two nodes answer."""

    def told(*answering: int, voters: int = 5) -> str:
        views = [a_view(node, voters=[*range(1, voters + 1)]) for node in answering]
        silent = {node: "refused" for node in range(1, voters + 1) if node not in answering}
        return next(cause.words for cause in diagnose(views, silent).causes if cause.code == "no_majority")

    assert (
        told(2)
        == "of the voters 1, 2, 3, 4 and 5 only node 2 answers, and 3 must: bring back 2 of the nodes 1, 3, 4 and 5"
    )
    assert "only nodes 2 and 3 answer, and 3 must: bring back 1 of the nodes 1, 4 and 5" in told(2, 3)
    assert told(2, voters=2) == "of the voters 1 and 2 only node 2 answers, and 2 must: bring back node 1"


@pytest.mark.parametrize(
    ("voter", "words"),
    [
        ({"last": 12}, "its log is newer, it ends with 12 of term 4"),
        ({"leader": 3}, "it follows node 3"),
        ({"vote": 3, "term": 6}, "it gave its vote of term 6 to node 3"),
        ({"term": 7}, "it is in term 7 already"),
        ({}, "it would grant the vote now"),
    ],
)
def test_explain_names_the_reason_of_a_refused_vote(voter: dict[str, Any], words: str) -> None:
    """With the voter's own view the reason is named; without it, that no candidate asked."""
    asking = a_view(1, role="candidate", term=6)
    refused = [msgspec.structs.replace(peer, vote=False if peer.node == 2 else None) for peer in asking.peers]
    asking = msgspec.structs.replace(asking, peers=refused)
    told = diagnose([asking, a_view(2, **voter)], {})
    refusal = next(cause for cause in told.causes if cause.code == "vote_refused")
    assert (refusal.node, refusal.peer) == (2, 1)
    assert words in refusal.words
    assert ("vote_unanswered", 3, 1) in codes(told.causes)
    alone = diagnose([asking], {})
    assert "its own reason is not known, because it does not answer" in next(
        cause.words for cause in alone.causes if cause.code == "vote_refused"
    )


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_link_is_silent_only_where_its_receiver_reaches_its_sender(is_cut: bool) -> None:
    """What comes from a node that the receiver cannot dial is not believed, so it does not count as heard."""
    leader, follower = a_view(2, role="leader", leader=2), a_view(1, leader=2)
    peers = [
        msgspec.structs.replace(peer, heard_ms=9_000, is_up=not is_cut) if peer.node == 2 else peer
        for peer in follower.peers
    ]
    found = codes(diagnose([leader, msgspec.structs.replace(follower, peers=peers)], {}).causes)
    assert (("link_silent", 2, 1) in found, ("link_one_way", 1, 2) in found) == (not is_cut, is_cut)


def test_explain_names_the_followers_that_stop_commits() -> None:
    """It names silent followers, their missing entries, followers of another leader, and entries without a majority."""
    leader = a_view(1, role="leader", leader=1, last=20, committed=10)
    contact_ms = {2: 9_000, 3: 5}
    peers = [msgspec.structs.replace(peer, match=10, contact_ms=contact_ms[peer.node]) for peer in leader.peers]
    told = diagnose([msgspec.structs.replace(leader, peers=peers), a_view(3, leader=2)], {2: "connection refused"})
    assert told.leader == 1
    assert codes(told.causes) == [
        ("follower_silent", 2, 1),
        ("not_following", 3, 1),
        ("unreachable", 2, 0),
        ("not_committed", 1, 0),
        ("lags", 2, 1),
        ("lags", 3, 1),
    ]


async def test_explain_names_full_disks_and_their_consequences(tmp_path: Path) -> None:
    """Two followers are full. The output names their missing entries, the refusal of writes by a leader with space, the
    nodes that get no entries, and a leader that handed over for its disk.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()

        async def is_quiet() -> bool:
            return not (await told_by(leader)).causes

        await wait_until_async(is_quiet, what="both followers have all that a new leader writes")
        views = [node.view() for node in nodes.running.values()]
        (at,) = [number for number, each in enumerate(views) if each.node == leader.node_id]
        one, other = leader.view().peers
        peers = [
            msgspec.structs.replace(one, disk_lacks_bytes=4_096, is_held=True),
            msgspec.structs.replace(other, disk_lacks_bytes=0),
        ]
        views[at] = msgspec.structs.replace(
            views[at],
            takes_writes=False,
            handed_over="to node 2, because its disk was full",
            handed_over_ms=12,
            peers=peers,
        )
        causes = {(cause.code, cause.node): cause.words for cause in diagnose(views[at : at + 1], {}).causes}
        number = leader.node_id
        assert causes["no_room", number].startswith(
            f"node {number} leads and refuses writes: no majority of the voters"
        )
        assert causes["handed_over", number].endswith("12 ms ago, to node 2, because its disk was full")
        assert "it needs 4096 more bytes to accept writes" in causes["disk_full", one.node]
        assert causes["disk_full", other.node].startswith(f"the disk of node {other.node} is full: it goes on when")
        assert f"sends node {one.node} no entries, because the disk there is full" in causes["lags", one.node]


@pytest.mark.parametrize("heard_ms", [NEVER_MS, 0, 1_200, 1_201])
def test_explain_names_a_leader_that_does_not_answer_only_where_its_follower_hears_it(heard_ms: int) -> None:
    """Never, just now, or as long ago as is still no silence; and a moment longer."""
    peers = [PeerView(each, "voter", f"http://h:{each}", True, heard_ms) for each in (1, 3)]
    told = diagnose([a_view(2, leader=1, peers=peers)], {1: "no answer", 3: "no answer"})
    assert told.leader == (1 if 0 <= heard_ms <= 1_200 else 0)
