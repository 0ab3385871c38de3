"""A node cut off by the real Toxiproxy: the majority goes on, the minority promises nothing, and healing catches up."""

import asyncio
import time
from collections import Counter

import pytest

from raftlog import Client, ClientError
from raftlog.chaos.deploy.deployment import Deployment, peer_proxy
from raftlog.cluster.api.errors import Outcome, Problem
from raftlog.cluster.api.headers import H_DEADLINE
from raftlog.cluster.client.flow import LostAnswer
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.load import Door, Load, check_no_election, problem_of
from tests.acceptance.logs import check_exactly_once, equal_logs, is_append
from tests.chaos.deploy.cuts import cut, cut_client, isolate, refuse_clients, refuse_peers
from tests.support import TooSlow, wait_until_async

pytestmark = pytest.mark.toxiproxy

DEADLINE_S = 1.5


def _applied(cluster: LocalCluster, node: int) -> int:
    told = cluster.status(node)
    return told.applied if told else 0


def _last(cluster: LocalCluster, node: int) -> int:
    told = cluster.status(node)
    assert told is not None
    return told.last


async def test_a_cut_is_one_direction_between_two_nodes(proxied: Deployment) -> None:
    """By the server's own list a cut of 1→2 is one toxic, upstream on that one proxy; isolating a node is every proxy
    to and from it; healing leaves none. And no node knows another's own address but from the log."""
    clean = await asyncio.to_thread(proxied.toxiproxy.toxics)
    assert len(clean) == 3 * 2 + 3
    assert not any(clean.values())

    def lossy() -> set[str]:
        return {name for name, toxics in proxied.toxiproxy.toxics().items() if toxics}

    await asyncio.to_thread(cut, proxied, peer_proxy(1, 2))
    assert await asyncio.to_thread(lossy) == {"peer-1-2"}
    await asyncio.to_thread(proxied.heal)
    await asyncio.to_thread(isolate, proxied, 3)
    assert await asyncio.to_thread(lossy) == {"peer-1-3", "peer-3-1", "peer-2-3", "peer-3-2"}
    await asyncio.to_thread(proxied.heal)
    assert await asyncio.to_thread(proxied.toxiproxy.toxics) == clean
    dialled = proxied.cluster.settings_file(1).read_text()
    assert all(proxied.cluster.place(node).peer not in dialled for node in (2, 3))


async def test_a_follower_cut_off_catches_up(proxied: Deployment) -> None:
    """While nothing between it and its peers arrives a follower stands still and the others take writes; after the
    heal it has everything, without an election having been forced on the others."""
    leader = proxied.cluster.leader()
    follower = next(node for node in proxied.cluster.nodes if node != leader)
    others = [proxied.url(node) for node in proxied.cluster.nodes if node != follower]
    async with Load(others) as load:
        await load.more(50)
        await asyncio.to_thread(isolate, proxied, follower)
        before_the_cut = _last(proxied.cluster, leader)  # what it has not applied yet included
        await load.more(300)
        assert load.acknowledged[-1].index > before_the_cut
        assert _applied(proxied.cluster, follower) <= before_the_cut, "the cut let entries through"
        before = proxied.cluster.status(leader)
        await asyncio.to_thread(proxied.heal)
        await wait_until_async(
            lambda: _applied(proxied.cluster, follower) >= load.acknowledged[-1].index,
            15,
            what="the follower to catch up",
        )
        # A return that deposes the leader is what pre-vote and vote stickiness should prevent.
        check_no_election(before, proxied.cluster.status(leader))
    await check_exactly_once(proxied.cluster, load)


@pytest.mark.parametrize("how", ["silent", "refused"])
async def test_a_leader_in_the_minority_promises_nothing(proxied: Deployment, how: str) -> None:
    """Cut off from both followers, silently or with closed connections, the leader answers every write within its
    deadline with unknown or not_applied, and every read with an error; the others elect; after the heal its
    log is theirs."""
    old = proxied.cluster.leader()
    others = [proxied.url(node) for node in proxied.cluster.nodes if node != old]
    written: list[bytes] = []
    async with Load(others) as load:
        await load.more(20)
        await asyncio.to_thread(isolate if how == "silent" else refuse_peers, proxied, old)

        async def ask(method: str, target: str, body: bytes | None) -> tuple[float, Problem]:
            door = Door(proxied.url(old))
            began = time.monotonic()
            answer = await door.ask(
                method, target, body=body, headers={H_DEADLINE: str(int(DEADLINE_S * 1000))}, timeout_s=10
            )
            took = time.monotonic() - began
            door.close()
            assert not isinstance(answer, LostAnswer), f"{method} {target}: {answer}"
            assert answer.head.status >= 400, f"a minority answered {method} {target}: {answer}"
            return took, problem_of(answer)

        for attempt in range(3):
            written += [b"minority-%d-%d" % (attempt, number) for number in range(8)]
            told = await asyncio.gather(
                *(ask("POST", "/v1/log", value) for value in written[-8:]),
                *(ask("GET", "/v1/kv/some", None) for _ in range(4)),
                *(ask("GET", "/v1/log?from=1", None) for _ in range(2)),
            )
            print(f"{how}, attempt {attempt}: " + ", ".join(f"{p.code} {t * 1000:.0f} ms" for t, p in told))
            for took, problem in told:
                assert problem.outcome in (Outcome.UNKNOWN, Outcome.NOT_APPLIED)
                if took >= DEADLINE_S + 0.5:
                    raise TooSlow(f"{problem.code} came {took:.2f} s after a deadline of {DEADLINE_S} s")
            for _, problem in told[8:]:
                assert problem.outcome is Outcome.NOT_APPLIED, f"a read has no unknown outcome: {problem}"
        await load.more(100)
        assert proxied.cluster.leader() != old
        await asyncio.to_thread(proxied.heal)
        await wait_until_async(
            lambda: _applied(proxied.cluster, old) >= load.acknowledged[-1].index, 15, what="the old leader to catch up"
        )
    records = await check_exactly_once(proxied.cluster, load)
    there = Counter(record.value for record in records if is_append(record) and record.session is None)
    assert all(there[value.decode()] <= 1 for value in written), f"a write without a session was doubled: {there}"


async def test_a_client_that_reaches_one_follower_only(proxied: Deployment) -> None:
    """With the API of the leader and of the other follower refusing connections, a client can write and read through
    the one follower: it passes on, and never sends the client away to where it cannot go."""
    leader = proxied.cluster.leader()
    reached, cut = (node for node in proxied.cluster.nodes if node != leader)
    for node in (leader, cut):
        await asyncio.to_thread(refuse_clients, proxied, node)
    for bound in (True, False):
        async with Client(proxied.url(reached), dial=proxied.dial, bound=bound, deadline_s=5) as client:
            written = await client.put(b"only", b"bound" if bound else b"free")
            assert written.outcome is Outcome.APPLIED
            item = await client.get(b"only")
            assert item is not None
            assert (item.value, item.mod) == (b"bound" if bound else b"free", written.revision)
            appended = await client.append(b"record")
            page = await client.log_page(appended.index)
            assert [record.value for record in page.records] == [b"record"]


async def test_answers_lost_are_unknown_and_a_retry_finds_them(proxied: Deployment) -> None:
    """Requests arrive and their answers are swallowed: the client retries the same sequence elsewhere and
    gets the first answer. Alone with that node it says unknown, never applied and never not_applied.
    """
    leader = proxied.cluster.leader()
    other = next(node for node in proxied.cluster.nodes if node != leader)
    async with Client(proxied.url(leader), dial=proxied.dial, bound=True, deadline_s=2) as alone:
        before = await alone.append(b"before")
        await asyncio.to_thread(cut_client, proxied, leader, "downstream")
        with pytest.raises(ClientError) as raised:
            await alone.append(b"answer lost")
        assert raised.value.outcome is Outcome.UNKNOWN
        async with Client([proxied.url(leader), proxied.url(other)], dial=proxied.dial) as both:
            answered = await both.append(b"answered elsewhere")
        await asyncio.to_thread(proxied.heal)
    records = await equal_logs(proxied.cluster, before.index)
    values = [record.value for record in records if is_append(record)]
    assert sorted(value or "" for value in values) == ["answer lost", "answered elsewhere", "before"]
    assert records[answered.index - before.index].value == "answered elsewhere"
