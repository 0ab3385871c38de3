"""Many requests of one session in flight at once, over all nodes, while the leader goes."""

import asyncio

import msgspec

from raftlog.cluster.api.headers import H_DEADLINE, H_SEQUENCE, H_SESSION, H_SETTLED
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client.flow import Response
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.load import Door, open_session, problem_of
from tests.acceptance.logs import equal_logs
from tests.support import hang_s, pace, wait_until_async

OPEN = 64


async def test_64_in_flight_over_all_nodes_with_a_leader_change(cluster: LocalCluster) -> None:
    """64 sequences of one session are sent at once, over three nodes and again until answered, twice. The leader is
    killed among them. Each is applied once, and each is answered with its index in the log.
    """
    session = await open_session(cluster.urls)
    answered: dict[int, Appended] = {}
    words: list[str] = []

    async def send(sequence: int) -> None:
        doors = [Door(url) for url in cluster.urls]
        headers = {
            H_SESSION: str(session),
            H_SEQUENCE: str(sequence),
            H_SETTLED: str(min(set(range(1, 2 * OPEN + 1)) - set(answered))),
            H_DEADLINE: "2000",
            "Content-Type": "application/octet-stream",
        }
        turn = sequence
        try:
            while True:
                door = doors[turn % len(doors)]
                answer = await door.ask("POST", "/v1/log", body=b"value %d" % sequence, headers=headers, timeout_s=2.25)
                if isinstance(answer, Response) and answer.head.status == 200:
                    answered[sequence] = msgspec.json.decode(answer.body, type=Appended)
                    return
                words.append(problem_of(answer).code if isinstance(answer, Response) else answer.failure)
                turn += 1
                await pace(0.01)
        finally:
            for door in doors:
                door.close()

    leader = cluster.leader()
    first = [asyncio.create_task(send(sequence)) for sequence in range(1, OPEN + 1)]
    await wait_until_async(lambda: len(answered) >= 1, what="one answer of the first 64", every_s=0.001)
    second = [asyncio.create_task(send(sequence)) for sequence in range(OPEN + 1, 2 * OPEN + 1)]
    await asyncio.sleep(0)
    cluster.kill(leader)
    await asyncio.wait_for(asyncio.gather(*first, *second), hang_s())
    cluster.start_node(leader)
    cluster.wait_ready()
    print(f"answers on the way: {sorted(set(words))}; leader {leader} -> {cluster.leader()}")

    records = [r for r in await equal_logs(cluster, session) if r.session == session and r.operation == "append"]
    applied = {record.sequence: record for record in records if record.result == "applied"}
    assert len(applied) == len([record for record in records if record.result == "applied"]), "applied twice"
    assert sorted(answered) == list(range(1, 2 * OPEN + 1))
    for sequence, answer in answered.items():
        record = applied[sequence]
        assert (record.index, record.value) == (answer.index, f"value {sequence}")
