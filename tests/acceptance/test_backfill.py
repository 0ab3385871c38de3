"""All nodes are replaced one after the other, and nothing of the log is lost that may be read: real processes."""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from raftlog.cluster.api.headers import H_DEADLINE, H_SEQUENCE, H_SESSION
from raftlog.cluster.api.members import ChangeIn
from raftlog.cluster.api.records import Appended
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.flow import Response
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import Measure, own_cluster
from tests.acceptance.load import Door, open_session
from tests.acceptance.logs import records_of, settle
from tests.acceptance.test_members import _ask, _make_voter, settled, voters
from tests.acceptance.test_snapshots import CATCH_UP_S, EARLY, fill, has_all, installs
from tests.support import wait_until

WRITES = 200
VALUE = random.Random(7).randbytes(700)


@pytest.fixture
def nodes(tmp_path: Path, secure: bool) -> Iterator[LocalCluster]:
    """Three nodes that make snapshots after few megabytes, and keep the whole log beside them."""
    with own_cluster(tmp_path, EARLY, CATCH_UP_S, secure=secure) as cluster:
        yield cluster


async def once(url: str, session: int, sequence: int) -> Appended:
    """What that node answers to one request of a session, which may be a repetition."""
    headers = {H_SESSION: str(session), H_SEQUENCE: str(sequence), H_DEADLINE: "20000"}
    headers["Content-Type"] = "application/octet-stream"
    door = Door(url)
    answer = await door.ask("POST", "/v1/log", body=b"once %d" % sequence, headers=headers, timeout_s=30)
    door.close()
    assert isinstance(answer, Response), answer
    assert answer.head.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=Appended)


def replace_disk(cluster: LocalCluster, node: int) -> None:
    """That node loses its disk and gets another, as in docs/operations.md; it is back once it votes. While another one
    still fetches older log the change is refused, and asked again: that is how the three wait for each other."""
    cluster.kill(node)
    shutil.rmtree(cluster.data(node))
    answer = _ask(cluster, ChangeIn("replace", node, incarnation=secrets.token_hex(16)))
    assert answer.join is not None
    assert cluster.adopt(answer.join) == node
    cluster.start_node(node)
    _make_voter(cluster, node)
    cluster.wait_ready([node], CATCH_UP_S)


@pytest.mark.timeout(600)
async def test_all_nodes_replaced_lose_no_history(nodes: LocalCluster, record_property: Measure) -> None:
    """Nodes 1, 2 and 3 get new disks one after the other; each was built from a snapshot. Then every record from 1 on
    is on the disk of each, as it was; a repeated request gets its first answer; the group stands where it stood."""
    session = await open_session(nodes.urls)
    first_answers = {sequence: await once(nodes.urls[0], session, sequence) for sequence in range(1, 9)}
    with SyncClient(nodes.urls, deadline_s=30) as client:
        for number in range(WRITES):
            client.put(b"key-%03d" % (number % 40), b"%d " % number + VALUE)
        group = client.consumer("readers")
        group.claim(owner="test", start=1)
        group.commit(50)
        generation = group.status().generation
    await fill(nodes, 120)
    last = await asyncio.to_thread(settle, nodes, CATCH_UP_S)
    before = await records_of(nodes.urls[0], 1, last)

    built = 0
    for node in (1, 2, 3):
        await asyncio.to_thread(replace_disk, nodes, node)
        built += installs(nodes, node) > 0
        assert has_all(nodes, node) or (await records_of(nodes.url(node), 1, 20)) == before[:20], "passed on"
    for node in (1, 2, 3):
        await asyncio.to_thread(
            wait_until, partial(has_all, nodes, node), CATCH_UP_S, what=f"the older log on node {node}"
        )
    assert built == 3, "each was to be built from a snapshot: write more"
    assert voters(await asyncio.to_thread(settled, nodes)) == [1, 2, 3]
    logs = await asyncio.gather(*(records_of(url, 1, last) for url in nodes.urls))
    assert logs[0] == logs[1] == logs[2] == before
    for url in nodes.urls:
        for sequence, answer in first_answers.items():
            again = await once(url, session, sequence)
            assert (again.result, again.first, again.last) == ("repeated", answer.first, answer.last)
        with SyncClient(url, bound=True, deadline_s=30) as client:
            told = client.consumer("readers").status()
            assert (told.position.next, told.generation, told.owner) == ({"0": 50}, generation, "test")
    record_property("measured", f"{last} records on three new disks")
