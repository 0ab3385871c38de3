"""Stops a leader for 3 s while the cluster goes on: it gives no stale answer after its return."""

import asyncio
import time

import msgspec

from raftlog.cluster.api.errors import Outcome
from raftlog.cluster.api.headers import H_DEADLINE, H_SEQUENCE, H_SESSION, H_SETTLED
from raftlog.cluster.api.kv import KeyAnswer
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.flow import LostAnswer, Response
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.load import Door, Load, open_session, problem_of
from tests.acceptance.logs import check_exactly_once
from tests.support import wait_until_async

PAUSE_S = 3.0


async def test_no_stale_read_and_one_answer_a_sequence(cluster: LocalCluster) -> None:
    """Reads and writes wait in the sockets of a stopped leader while the others go on.

    After kill -CONT every read returns the newer values or is refused. Of every sequence, sent to it and to others, the
    answers name at most one (index, term).
    """
    old = cluster.leader()
    others = [node for node in cluster.nodes if node != old]
    session = await open_session(cluster.urls)
    headers = {H_SESSION: str(session), H_DEADLINE: "10000", H_SETTLED: "1"}

    async def append(node: int, sequence: int) -> Response | LostAnswer:
        door = Door(cluster.url(node))
        own = {**headers, H_SEQUENCE: str(sequence), "Content-Type": "application/octet-stream"}
        answer = await door.ask("POST", "/v1/log", body=b"sequence %d" % sequence, headers=own, timeout_s=15)
        door.close()
        return answer

    async def read(node: int) -> Response | LostAnswer:
        door = Door(cluster.url(node))
        answer = await door.ask("GET", "/v1/kv/k", headers={H_DEADLINE: "10000"}, timeout_s=15)
        door.close()
        return answer

    async with Client([cluster.url(node) for node in others]) as client, Load([cluster.url(n) for n in others]) as load:
        await client.put(b"k", b"old")
        # Some are in the leader's hands when it stops, some only in its sockets.
        early = [asyncio.create_task(append(old, sequence)) for sequence in range(1, 5)]
        cluster.pause(old)
        stopped = time.monotonic()
        waiting_appends = early + [asyncio.create_task(append(old, sequence)) for sequence in range(5, 17)]
        waiting_reads = [asyncio.create_task(read(old)) for _ in range(16)]
        await wait_until_async(lambda: cluster.leader() != old, what="another leader")
        written = await client.put(b"k", b"new")
        elsewhere = await asyncio.gather(*(append(others[s % 2], s) for s in range(1, 17)))
        await wait_until_async(lambda: time.monotonic() - stopped > PAUSE_S, what="the pause to have lasted")
        cluster.resume(old)
        late_reads = await asyncio.gather(*waiting_reads, *(read(old) for _ in range(16)))
        late_appends = await asyncio.gather(*waiting_appends)

    answered = 0
    for answer in late_reads:
        assert isinstance(answer, Response), answer
        if answer.head.status == 200:
            got = _got(answer)
            assert got.kv.value == "new", f"a stale linearizable read: {got}, but revision {written.revision} was there"
            answered += 1
        else:
            assert problem_of(answer).outcome is Outcome.NOT_APPLIED
    told: dict[int, set[tuple[int, int]]] = {sequence: set() for sequence in range(1, 17)}
    for sequence, answer in [*enumerate(elsewhere, start=1), *enumerate(late_appends, start=1)]:
        assert isinstance(answer, Response), answer
        if answer.head.status == 200:
            appended = _appended(answer)
            told[sequence].add((appended.index, appended.term))
        else:
            assert problem_of(answer).outcome in (Outcome.UNKNOWN, Outcome.NOT_APPLIED)
    print(f"{answered} of {len(late_reads)} late reads answered; reported {told}; {dict(load.answers)}")
    assert all(len(answers) <= 1 for answers in told.values()), f"two answers for one sequence: {told}"
    records = await check_exactly_once(cluster, load)
    for sequence, answers in told.items():
        value = f"sequence {sequence}"
        at = {(r.index, r.term) for r in records if r.value == value and r.result == "applied"}
        assert len(at) <= 1, f"{value} was applied at {at}"
        assert answers <= at, f"{value}: answered {answers}, but the log has {at}"


def _got(answer: Response) -> KeyAnswer:
    """The body of a get."""
    return msgspec.json.decode(answer.body, type=KeyAnswer)


def _appended(answer: Response) -> Appended:
    """The body of an append."""
    return msgspec.json.decode(answer.body, type=Appended)
