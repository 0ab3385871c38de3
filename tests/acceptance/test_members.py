"""Members come and go while writes go on: real processes, real files, and those of docs/operations/members.md."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from raftlog.cluster.api.members import ChangeAnswer, ChangeIn, MemberAnswer, Members
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError, NotApplied
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import SETTINGS, Measure, own_cluster
from tests.acceptance.load import Load
from tests.acceptance.logs import check_exactly_once, distribution
from tests.support import free_ports, raftlog, stretch, wait_until

PATIENCE_S = 60.0  # the machine may be busy with other things
TRANSFER_MS, SANE_MS = 100.0, 2_000.0
THINK_S = 0.002
pytestmark = pytest.mark.timeout(600)  # starting a process may take long then
FULL = [pytest.mark.long, pytest.mark.timeout(10_000)]  # 200 changes: 20 to 90 minutes, by what else runs


@pytest.fixture
def own(tmp_path: Path, secure: bool) -> Iterator[LocalCluster]:
    """Three nodes of this test alone: their members change."""
    with own_cluster(tmp_path, SETTINGS, PATIENCE_S, secure=secure) as cluster:
        yield cluster


async def operate(cluster: LocalCluster, *words: object) -> None:
    """A command that succeeds, as an operator gives it in the cluster's folder."""
    more = ("-e", ",".join(cluster.urls))
    done = await asyncio.to_thread(raftlog, *words, *more, cwd=cluster.folder)
    print(words, done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr


def longest_gap(times: Sequence[float]) -> str:
    """Between two writes, in words."""
    gap = max(later - earlier for earlier, later in itertools.pairwise(times))
    return f"longest gap between writes: {gap * 1000:.0f} ms"


def places(cluster: LocalCluster) -> tuple[str, str]:
    """Addresses for a new node: for its peers, for clients."""
    peer, http = free_ports(2)
    return f"127.0.0.1:{peer}", f"{cluster.scheme}://127.0.0.1:{http}"


def settled(cluster: LocalCluster) -> Members:
    """The members as the leader has them, once no change is under way."""

    def calm() -> Members | Literal[False]:
        with suppress(ClientError), SyncClient(cluster.urls, deadline_s=5) as client:
            members = client.members()
            if members.leader is None or members.is_changing:
                return False
            with SyncClient(members.leader.url, bound=True, deadline_s=5) as leader:
                members = leader.members()
            is_leading = any(member.match is not None for member in members.members)
            if is_leading and not members.is_changing:
                return members
        return False

    members = wait_until(calm, PATIENCE_S, what="no change under way", every_s=0.1)
    assert isinstance(members, Members)
    return members


def voters(members: Members) -> list[int]:
    """The numbers of those that vote."""
    return [member.node for member in members.members if member.role == "voter"]


async def test_a_fourth_node_joins_and_leaves_while_writes_go_on(own: LocalCluster, record_property: Measure) -> None:
    """The story of docs/operations/members.md by its commands: add, format, start, promote, remove, stop (code 15).
    No write is lost or doubled, and none waits longer than an election would take."""
    peer, url = places(own)
    async with Load(own.urls, think_s=THINK_S) as load:
        await load.more(200)
        mark = len(load.acknowledged)
        await operate(own, "members", "add", "4", "--peer", peer, "--url", url, "--learner")
        assert own.adopt((own.folder / "join-4.toml").read_text()) == 4
        own.start_node(4)
        await operate(own, "members", "promote", "4", "--wait", PATIENCE_S)
        await asyncio.to_thread(own.wait_ready, [4], PATIENCE_S)
        assert voters(await asyncio.to_thread(settled, own)) == [1, 2, 3, 4]
        load.urls = own.urls
        await load.more(200)
        await operate(own, "members", "remove", "4", "--wait", PATIENCE_S)
        load.urls = own.urls[:3]
        assert await asyncio.to_thread(own.dismiss, 4) == 15
        await load.more(200)
        times = [write.at for write in load.acknowledged[mark:]]
    record_property("measured", f"{longest_gap(times)}; {dict(load.answers)}")
    assert voters(settled(own)) == [1, 2, 3]
    await check_exactly_once(own, load)


async def test_the_leader_is_removed(own: LocalCluster, record_property: Measure) -> None:
    """It hands over first, says what it is in /readyz, ends with 15; the other two go on."""
    async with Load(own.urls, think_s=THINK_S) as load:
        await load.more(200)
        leader = own.leader()
        moment = time.monotonic()
        await operate(own, "members", "remove", leader, "--wait", PATIENCE_S)
        wait_until(lambda: own.ask(leader, "/readyz")[1].startswith(b"removed"), PATIENCE_S, what="/readyz: removed")
        assert await asyncio.to_thread(own.dismiss, leader) == 15
        load.urls = own.urls
        await load.more(200)
        times = [write.at for write in load.acknowledged if write.at > moment]
    record_property("measured", f"{longest_gap(times)}; {dict(load.answers)}")
    assert voters(settled(own)) == sorted({1, 2, 3} - {leader})
    await check_exactly_once(own, load)


async def test_a_wiped_follower_is_replaced(own: LocalCluster) -> None:
    """Its folder is gone, and it may not come back as if nothing was: `members replace` gives its number to a new disk,
    which gets the whole log and votes."""
    async with Load(own.urls, think_s=THINK_S) as load:
        await load.more(200)
        lost = next(node for node in own.nodes if node != own.leader())
        own.kill(lost)
        shutil.rmtree(own.data(lost))
        await operate(own, "members", "replace", lost)
        assert own.adopt((own.folder / f"join-{lost}.toml").read_text()) == lost
        own.start_node(lost)
        await asyncio.to_thread(_make_voter, own, lost)
        await asyncio.to_thread(own.wait_ready, [lost], PATIENCE_S)
        await load.more(200)
    await check_exactly_once(own, load)


@pytest.mark.alone
@pytest.mark.parametrize(("times", "is_full"), [(6, False), pytest.param(50, True, marks=FULL)], ids=["short", "full"])
async def test_leadership_is_handed_over(
    own: LocalCluster, times: int, is_full: bool, record_property: Measure
) -> None:
    """Under load, in turn to each: the median is below 100 ms and no write is lost; a hand-over to a dead node is given
    up, and writes go on."""
    took: list[float] = []
    async with Load(own.urls, think_s=THINK_S) as load:
        with SyncClient(own.urls, deadline_s=PATIENCE_S) as client:
            for _ in range(times):
                await load.more(50)
                to = own.leader() % 3 + 1
                answer = await asyncio.to_thread(client.transfer_leadership, to)
                assert answer.leader.node == to
                took.append(answer.elapsed_ms / 1_000)
            leader = own.leader()
            dead = leader % 3 + 1
            own.kill(dead)
            with pytest.raises(NotApplied):
                await asyncio.to_thread(client.transfer_leadership, dead)
            await load.more(50)
            assert own.leader() == leader
            own.start_node(dead)
            await asyncio.to_thread(own.wait_ready, None, PATIENCE_S)
    record_property("measured", f"hand-over to the new leader's first word: {distribution(took)}; {dict(load.answers)}")
    median_ms = sorted(took)[len(took) // 2] * 1_000
    assert median_ms < (TRANSFER_MS if is_full else SANE_MS * stretch())
    await check_exactly_once(own, load)


def test_impossible_member_changes_are_refused(own: LocalCluster) -> None:
    """With words that say what to do, on any node; a client that knows only a follower is led to the leader."""
    leader = own.leader()
    follower = next(node for node in own.nodes if node != leader)
    peer, url = places(own)
    refusals = [
        (ChangeIn("remove", 9), "unknown_node", "is no member"),
        (ChangeIn("promote", follower), "nothing_changes", "is a voter already"),
        (ChangeIn("add", 1, peer=peer, url=url), "already_member", "is a voter already"),
        (ChangeIn("add", 7, peer=own.place(follower).peer, url=url), "invalid", "give node 7 others"),
        (ChangeIn("add", 7, peer=own.place(follower).url[7:], url=url), "invalid", "give node 7 others"),
    ]
    with SyncClient(own.urls, deadline_s=PATIENCE_S) as client:
        for change, why, words in refusals:
            with pytest.raises(NotApplied, match=words) as taken:
                client.change_members(change)
            assert taken.value.problem is not None
            assert taken.value.problem.why == why
    with SyncClient(own.url(follower), bound=True, deadline_s=5) as client, pytest.raises(NotApplied) as refused:
        client.change_members(ChangeIn("remove", 9))  # which the follower passes on
    assert refused.value.problem is not None
    assert refused.value.problem.why == "unknown_node"
    assert refused.value.problem.node == leader
    own.kill(follower)
    other = next(node for node in own.nodes if node not in (leader, follower))

    def is_refused() -> bool:
        with SyncClient(own.urls, deadline_s=5) as client:
            try:
                client.change_members(ChangeIn("remove", other))
            except NotApplied as error:
                return error.problem is not None and error.problem.why == "quorum_lost"
        raise AssertionError("with one of three dead a living one was removed")

    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 2.0, what="the dead one counts as silent")
    assert wait_until(is_refused, PATIENCE_S, what="quorum_lost")
    assert voters(settled(own)) == [1, 2, 3]


# ---------------------------------------------------------------------------------------------------------------
# Many changes.


@pytest.mark.parametrize(("times", "seed"), [(10, 1), pytest.param(200, 2, marks=FULL)], ids=["short", "full"])
async def test_random_changes_under_load_with_kills(
    own: LocalCluster, times: int, seed: int, record_property: Measure
) -> None:
    """Nodes are added, removed, replaced (also by themselves with a new disk), leaders hand over; in every third
    change a node is killed right after it began and comes back. Nothing acknowledged is lost, and somebody leads."""
    chance = random.Random(seed)
    done: list[str] = []
    async with Load(own.urls, think_s=THINK_S) as load:
        for number in range(times):
            await load.more(30, PATIENCE_S)
            begun = time.monotonic()
            done.append(await asyncio.to_thread(_change_something, own, chance, number % 3 == 1, load))
            print(f"{number + 1} of {times}: {done[-1]}, {time.monotonic() - begun:.1f} s", flush=True)  # seen with -s
        load.urls = own.urls
        await load.more(50, PATIENCE_S)
    members = settled(own)
    record_property("measured", f"{' '.join(done)}; voters at the end {voters(members)}; {dict(load.answers)}")
    assert voters(members) == own.nodes
    await check_exactly_once(own, load)


def _change_something(cluster: LocalCluster, chance: random.Random, with_kill: bool, load: Load) -> str:
    """Makes one random change to its end; returns its name."""
    before = settled(cluster)
    present = voters(before)
    kinds = ["replace", "wipe", "transfer"]
    kinds += ["add"] if len(present) < 5 else []
    kinds += ["remove"] if len(present) > 3 else []
    kind = chance.choice(kinds)
    target = chance.choice(present)
    number = max(cluster.nodes) + 1
    peer, url = places(cluster)
    if kind == "wipe":
        assert before.leader is not None
        target = next(node for node in present if node != before.leader.node)
        cluster.kill(target)
    change = {
        "add": ChangeIn("add", number, peer=peer, url=url, incarnation=secrets.token_hex(16)),
        "remove": ChangeIn("remove", target),
        "replace": ChangeIn("replace", target, by=number, peer=peer, url=url, incarnation=secrets.token_hex(16)),
        "wipe": ChangeIn("replace", target, incarnation=secrets.token_hex(16)),
    }.get(kind)
    killed = 0
    answer = _ask(cluster, change) if change is not None else None
    if answer is not None and answer.join is not None:
        cluster.adopt(answer.join)
        cluster.start_node(answer.node)
    if with_kill:
        killed = chance.choice([node for node in present if cluster.pid(node) is not None])
        cluster.kill(killed)
        cluster.start_node(killed)
    match kind:
        case "add" | "wipe":
            assert answer is not None
            _make_voter(cluster, answer.node)
        case "replace":
            assert answer is not None
            _make_voter(cluster, answer.node)
            _remove(cluster, target)
        case "remove":
            _remove(cluster, target)
        case "transfer":
            _transfer(cluster)
    load.urls = cluster.urls
    cluster.wait_ready(timeout_s=PATIENCE_S)
    return f"{kind}({answer.node if answer else ''})" + (f"+kill({killed})" if killed else "")


def _ask(cluster: LocalCluster, change: ChangeIn) -> ChangeAnswer:
    """Asks until it is accepted; a change refused because a node is missing is asked again."""

    def ask() -> ChangeAnswer | Literal[False]:
        with SyncClient(cluster.urls, deadline_s=10) as client:
            try:
                return client.change_members(change)
            except NotApplied as error:
                if error.problem is None or error.problem.retryable or error.problem.why == "quorum_lost":
                    return False
                raise

    answer = wait_until(ask, PATIENCE_S, what=f"{change} taken", every_s=0.2)
    assert isinstance(answer, ChangeAnswer)
    return answer


def _make_voter(cluster: LocalCluster, node: int) -> None:
    """Waits until it votes; what a lost leader forgot is said again, as an operator would."""

    def is_voter() -> bool:
        members = settled(cluster)
        member = _member(members, node)
        if member is not None and member.role == "voter":
            return True
        place = cluster.place(node)  # with its leader the second step of a replacement by itself may be lost
        again = ChangeIn("add", node, peer=place.peer, url=place.url, incarnation=place.incarnation)
        with suppress(ClientError), SyncClient(cluster.urls, deadline_s=5) as client:
            client.change_members(again if member is None else ChangeIn("promote", node))
        return False

    wait_until(is_voter, PATIENCE_S, what=f"node {node} votes", every_s=0.1)


def _remove(cluster: LocalCluster, node: int) -> None:
    """Makes sure that it is out, and stops it."""

    def is_out() -> bool:
        if _member(settled(cluster), node) is None:
            return True
        with suppress(ClientError), SyncClient(cluster.urls, deadline_s=5) as client:
            client.change_members(ChangeIn("remove", node))
        return False

    wait_until(is_out, PATIENCE_S, what=f"node {node} is out", every_s=0.1)
    # 0: it was killed before the signal; -15: it was just restarting, and did not handle the signal yet
    assert cluster.dismiss(node) in (0, 15, -signal.SIGTERM)
    assert cluster.status(node) is None, "who asks a node that left gets the answer of one that is down"


def _transfer(cluster: LocalCluster) -> None:
    with suppress(ClientError), SyncClient(cluster.urls, deadline_s=10) as client:  # a killed one cannot take it
        client.transfer_leadership()


def _member(members: Members, node: int) -> MemberAnswer | None:
    return next((member for member in members.members if member.node == node), None)
