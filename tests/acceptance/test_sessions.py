"""Many requests of one session in flight at once, over all nodes, while the leader goes."""

import asyncio

import msgspec

from cluster import wire
from cluster.client_flow import Response
from cluster.local_cluster import LocalCluster
from tests.acceptance.load import Door, open_session, problem_of
from tests.acceptance.logs import equal_logs
from tests.support import pace, wait_until_async

OPEN = 64


async def test_64_in_flight_over_all_nodes_with_a_leader_change(cluster: LocalCluster) -> None:
    """64 sequences of one session at once, spread over three nodes and sent again until answered, twice over: with
    the leader killed among them each is applied once, each is answered, and with the index it has in the log."""
    session = await open_session(cluster.urls)
    answered: dict[int, wire.Appended] = {}
    words: list[str] = []

    async def send(sequence: int) -> None:
        doors = [Door(url) for url in cluster.urls]
        headers = {
            wire.H_SESSION: str(session),
            wire.H_SEQUENCE: str(sequence),
            wire.H_SETTLED: str(min(set(range(1, 2 * OPEN + 1)) - set(answered))),
            wire.H_DEADLINE: "2000",
            "Content-Type": "application/octet-stream",
        }
        turn = sequence
        try:
            while True:
                door = doors[turn % len(doors)]
                answer = await door.ask("POST", "/v1/log", body=b"value %d" % sequence, headers=headers, timeout_s=2.25)
                if isinstance(answer, Response) and answer.head.status == 200:
                    answered[sequence] = msgspec.json.decode(answer.body, type=wire.Appended)
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
    await asyncio.wait_for(asyncio.gather(*first, *second), 30)
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
