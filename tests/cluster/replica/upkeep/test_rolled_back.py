"""A node's folder is put back as it was earlier: real nodes, files and sockets in one process; and a clone."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.peers import dialled
from raftlog.cluster.peers.hello import encode_hello, encode_refusal
from raftlog.raft.consensus import recall
from raftlog.raft.hello import PeerProcess
from tests.cluster.nodes import Nodes, cluster_of, deadline, host_of, put_block
from tests.cluster.peers.test_transport import answer_to, configuration_of, hello_of, transports
from tests.support import free_ports, streams_served, wait_until_async


async def put(nodes: Nodes, key: bytes) -> int:
    """Puts a key through the leader; its index."""
    leader = await nodes.leader()
    return (await leader.submit(put_block(key, b"v"), 1, deadline=deadline())).last


@pytest.mark.parametrize("is_leader", [False, True], ids=["follower", "leader"])
async def test_a_folder_restored_as_it_was_while_the_node_ran_loses_nothing_that_was_acknowledged(
    tmp_path: Path, is_leader: bool
) -> None:
    """Node X is down. One of the other two is copied while it runs, as a virtual machine's snapshot is made; these two
    write and acknowledge more. The copy is restored. X comes back, and the untouched node stays: it remembers. So the
    copy and X do not elect a leader without the acknowledged writes.

    Before, the leader asked the copy without end, or the copy and X elected one of them, and the key was gone.
    """
    async with cluster_of(3, tmp_path) as nodes:
        leader = (await nodes.leader()).node_id
        other, down = [node for node in (1, 2, 3) if node != leader]
        await nodes.stop(down)
        await put(nodes, b"before the copy")
        copied = leader if is_leader else other
        folder, copy = nodes.data(copied), tmp_path / "copy"
        shutil.copytree(folder, copy)
        for number in range(20):
            last = await put(nodes, b"after the copy %d" % number)
        term = (await nodes.leader()).term
        await nodes.kill(copied)
        shutil.rmtree(folder)
        copy.rename(folder)
        await nodes.start(copied)
        await nodes.start(down)
        await nodes.all_at(last)
        for node in nodes.running.values():
            assert all(node.machine.get(b"after the copy %d" % number) is not None for number in range(20))
        await wait_until_async(
            lambda: not nodes.running[copied].state.core.state.recall.floor, what="the copy has healed"
        )
        if not is_leader:
            assert (await nodes.leader()).term == term, "a healthy leader goes on"


@pytest.mark.usefixtures("known_challenge")
async def test_the_link_to_a_refused_copy_is_dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of what the copy lost goes over that link, and the copy waits one election timeout for it.

    Before, the peer finished its pause between two dials first: in 4 of 72 runs the copy voted before the report came.
    """
    monkeypatch.setattr(dialled, "REFUSED_REDIAL_S", 3_600.0)
    dials = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dials.append(writer)
        if len(dials) == 1:
            writer.write(encode_refusal("the link pauses from now on"))
        await reader.read()

    async with transports(1, listening=[1]) as ((one,), _, (port,)), streams_served(listen) as other:
        one.set_members(configuration_of([port, other]))
        link = one.link_to(2)
        assert link is not None
        await wait_until_async(lambda: link.refusal and not link.is_up, what="the link pauses")
        hello = hello_of()
        one.incoming.met[hello.sender, hello.incarnation] = PeerProcess(hello.boot + 1, 0)
        await answer_to(port, encode_hello(hello))
        await wait_until_async(lambda: link.is_up, what="the link is dialled again")


async def test_a_refused_copy_hears_from_the_peer_that_refuses_it_what_it_lost(tmp_path: Path) -> None:
    """Node C is copied, started again and acknowledges a write to leader A; node B lacks it. C comes back as the copy.
    A refuses it, because it met a later start. B was started since and takes it. A cannot reach B.

    Before, C and B elected one of them without the acknowledged write, because A only closed C's connections.
    """
    async with cluster_of(3, tmp_path) as nodes:
        a = (await nodes.leader()).node_id
        b, c = [node for node in (1, 2, 3) if node != a]
        nowhere, there = free_ports(1)[0], nodes.running[a].state
        folder, copy = nodes.data(c), tmp_path / "copy"
        shutil.copytree(folder, copy)
        await nodes.stop(b)
        await nodes.kill(c)
        await nodes.start(c)
        await put(nodes, b"acknowledged by A and C")
        transport = host_of(nodes.running[a]).transport
        transport._dial[b] = f"127.0.0.1:{nowhere}"
        transport.set_members(transport.configuration)
        await nodes.kill(c)
        shutil.rmtree(folder)
        copy.rename(folder)
        no_dial: dict[str, Any] = {f"dial__{a}": f"127.0.0.1:{nowhere}"}
        await nodes.start(b, **no_dial)
        copied = (await nodes.start(c)).state.core.state
        await wait_until_async(lambda: bool(copied.recall.floor), what="the copy is under a floor")
        last = nodes.running[b].state.core.state.log.last
        assert not recall.may_grant(copied, last.term, last.index)
        assert recall.may_grant(copied, there.core.state.log.last.term, there.core.state.log.last.index)
        assert not any(node.is_leader for number, node in nodes.running.items() if number != a)
