"""A hello is believed once the listener at the member's address says that it is its own; a forged one does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from raftlog.cluster.api.status import FINGERPRINT_CHARS, fingerprint
from raftlog.cluster.peers import accepted as peer_accept, dialled, hello_proof
from raftlog.cluster.peers.hello import (
    Hello,
    Purpose,
    Word,
    decode_hello,
    decode_word,
    encode_hello,
    encode_word,
)
from raftlog.cluster.peers.transport import Transport
from raftlog.cluster.replica import readiness
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.codec.frame import FRAME_READ, FRAME_READ_REPLY, FrameDecoder, encode_frame
from raftlog.raft.codec.message import encode_message
from raftlog.raft.hello import PeerProcess, Start
from raftlog.raft.messages import RequestVote
from tests.cluster.conftest import CHALLENGE
from tests.cluster.nodes import Nodes, cluster_of, host_of
from tests.cluster.peers.test_transport import configuration_of, hello_of, transports, vote
from tests.support import TooSlow, free_ports, streams_served, wait_until_async

FOREIGN = "f" * 32
LATER = Start(run=1, last_index=0, last_term=0, term=0, floor=0)
"""What a forger says of its process: it was never there, and has nothing."""


def forged(nodes: Nodes, sender: int, to: int, **changes: Any) -> Hello:
    """A hello in the name of `sender`, by a forger that knows the log id and the incarnation."""
    disk = nodes.running[to].state.core.state.configuration.member(sender)
    assert disk is not None
    said: dict[str, Any] = {
        "log": nodes.cluster.cluster.log,
        "sender": sender,
        "to": to,
        "incarnation": disk.incarnation,
        "boot": 10**12,
        "purpose": Purpose.CONSENSUS,
        "start": LATER,
    }
    return Hello(**said | changes)


@asynccontextmanager
async def told(nodes: Nodes, hello: Hello, *more: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which that hello was said, and what follows it; its reading side."""
    host, _, port = nodes.running[hello.to].state.settings.peer.listen.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(encode_hello(hello) + b"".join(more))
        await writer.drain()
        yield reader
    finally:
        writer.close()


def links_from(node: Replica, nodes: Nodes) -> dict[int, bool]:
    """Whether each other node has a believed consensus connection of that node."""
    others = [each for each in nodes.running.values() if each is not node]
    return {
        each.node_id: any(
            (sender, purpose) == (node.node_id, Purpose.CONSENSUS)
            for sender, _, purpose in host_of(each).transport.incoming.current
        )
        for each in others
    }


async def test_a_forged_hello_while_the_member_is_down_does_not_keep_it_out(tmp_path: Path) -> None:
    """No process answers at the member's address, so the forger is heard; when the member starts, it is believed."""
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.append(await nodes.leader(), b"before")
        victim, _ = await nodes.followers()
        await nodes.stop(victim.node_id)
        async with AsyncExitStack() as forgers:
            for other in list(nodes.running):
                await forgers.enter_async_context(told(nodes, forged(nodes, victim.node_id, other, boot=50)))
            again = await nodes.start(victim.node_id)
            await wait_until_async(lambda: all(links_from(again, nodes).values()), what="links of the real node")
            last = (await nodes.append(await nodes.leader(), b"after")).last
            await nodes.all_at(last)
        assert not [link.refusal for link in host_of(again).transport.links_seen().values() if link.refusal]


async def test_a_challenge_in_a_forged_hello_delays_no_link(tmp_path: Path) -> None:
    """A forger that claims to be node A gives node B a challenge. B repeats it to the real A, where it means nothing:
    the link stays, and a new one is believed with the real challenge.
    """
    async with cluster_of(3, tmp_path) as nodes:
        await nodes.append(await nodes.leader(), b"before")
        one, two = await nodes.followers()
        await wait_until_async(lambda: all(links_from(two, nodes).values()), what="links")
        before = dict(host_of(one).transport.incoming.current)
        async with told(nodes, forged(nodes, one.node_id, two.node_id, boot=50, challenge=12345)):
            await wait_until_async(
                lambda: any(each.challenge == 12345 for each in host_of(two).transport.incoming.open)
            )
            last = (await nodes.append(await nodes.leader(), b"meanwhile")).last
            await nodes.all_at(last)
            assert dict(host_of(one).transport.incoming.current) == before
            for link in list(host_of(two).transport._consensus.values()):
                link.redial()
            key = (two.node_id, two.state.identity.incarnation, Purpose.CONSENSUS)
            await wait_until_async(
                lambda: host_of(one).transport.incoming.current.get(key) not in (None, before[key]), what="a new link"
            )


@pytest.mark.usefixtures("known_challenge")
async def test_a_connection_waits_for_its_proof_and_loses_nothing() -> None:
    """What comes before the answer is delivered behind it, in order; a wrong answer changes nothing."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(silent) as other:
        one.set_members(configuration_of([port, other]))
        hello = encode_hello(hello_of(answer=0))
        async with spoken(
            port, hello, encode_message(vote(1)), encode_word(Word.ANSWER, 99), encode_message(vote(2))
        ) as writer:
            await wait_until_async(
                lambda: [len(each._held) for each in one.incoming.open] == [2], what="two that are held"
            )
            assert (ear.messages, ear.opened, one.incoming.current) == ([], [], {})
            writer.write(encode_message(vote(3)) + encode_word(Word.ANSWER, CHALLENGE) + encode_message(vote(4)))
            await wait_until_async(lambda: len(ear.messages) == 4)
            assert ear.messages == [vote(number) for number in range(1, 5)]
            assert [peer for peer, _, _ in ear.opened] == [2]


@pytest.mark.usefixtures("known_challenge")
async def test_of_a_member_whose_address_does_not_answer_requests_are_taken_and_promises_are_not() -> None:
    """Its address may have changed while this node was down: then it may lead, and must be able to say so."""
    asks = RequestVote(sender=2, to=1, term=4, last_index=3, last_term=2)
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
        hello = encode_hello(hello_of(answer=0))
        bulk = encode_hello(hello_of(answer=0, purpose=Purpose.BULK))
        async with (
            spoken(port, hello, encode_message(vote(1)), encode_message(asks)),
            spoken(port, bulk, encode_frame(FRAME_READ_REPLY, [1]), encode_frame(FRAME_READ, [2])),
        ):
            await wait_until_async(lambda: ear.messages == [asks])
            await wait_until_async(lambda: [frame.header for frame in ear.frames] == [(2,)])
            assert (ear.opened, one.incoming.current, one.incoming.met) == ([], {}, {})
        await wait_until_async(lambda: not one.incoming.open)
        assert ear.closed == []


@pytest.mark.usefixtures("known_challenge")
async def test_the_listener_at_the_members_address_is_asked_about_a_hello_in_its_name() -> None:
    """A restarted member may have missed the challenge. It is sent once more on the link to its address, which closes
    if the process at its end is gone.
    """
    heard: list[tuple[Word, int] | None] = []

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        (frame,) = decoder.feed(await reader.read(1 << 16))
        if decode_hello(frame).purpose is Purpose.CONSENSUS:
            writer.write(encode_word(Word.WELCOME, 4))
        while data := await reader.read(1 << 16):
            heard.extend(decode_word(each) for each in decoder.feed(data))

    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(listens) as other:
        one.set_members(configuration_of([port, other]))
        link = one.link_to(2)
        assert link is not None
        await wait_until_async(lambda: link.is_welcome, what="a welcome")
        async with spoken(port, encode_hello(hello_of(answer=0, challenge=99)), encode_message(vote())):
            await wait_until_async(lambda: set(heard) == {(Word.ANSWER, 99), (Word.ASK, CHALLENGE)}, what="both words")
        assert (ear.messages, one.incoming.met) == ([], {})


async def test_an_unreachable_node_learns_that_its_promises_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own links to them are up, and none is believed: it is cut off, and says why and what to look at."""
    monkeypatch.setattr(dialled, "UNBELIEVED_S", 0.3)
    nodes = Nodes(tmp_path, 3, {})
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    try:
        for node in (1, 3):
            await nodes.start(node, dial__2=nowhere)
        cut = await nodes.start(2)
        await wait_until_async(lambda: cut.status().is_cut_off, what="a node that is cut off")
        told = cut.status().refused_by
        assert [each.node for each in told] == [1, 3]
        assert "see that it can connect to there" in told[0].reason
        assert not cut.is_ready
    finally:
        for number in list(nodes.running):
            await nodes.stop(number)


@pytest.mark.usefixtures("known_challenge")
async def test_messages_waiting_for_a_proof_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAITING_MAX connections, of which the oldest goes first, and HELD_BYTES_MAX bytes of each: of whole frames, or
    of one that never ends."""
    monkeypatch.setattr(hello_proof, "WAITING_MAX", 3)
    monkeypatch.setattr(peer_accept, "HELD_BYTES_MAX", 1_000)
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(silent) as other:
        one.set_members(configuration_of([port, other]))
        async with AsyncExitStack() as forgers:
            for boot in range(10, 16):
                await forgers.enter_async_context(spoken(port, encode_hello(hello_of(answer=0, boot=boot))))
                await wait_until_async(lambda: boot in boots(one), what="it came")  # noqa: B023 - awaited here
            await wait_until_async(lambda: len(one.incoming.open) == 3)
            assert boots(one) == {13, 14, 15}
            much = encode_hello(hello_of(answer=0, boot=16)), *[encode_message(vote())] * 200
            await forgers.enter_async_context(spoken(port, *much))
            await wait_until_async(lambda: any("bytes came before a proof" in why for _, _, why in one.refused_lately))
            one.refusals.lately.clear()
            endless = encode_frame(FRAME_READ, [1], b"x" * (1 << 20))[:2_000]
            await forgers.enter_async_context(spoken(port, encode_hello(hello_of(answer=0, boot=17)), endless))
            await wait_until_async(lambda: any("bytes came before a proof" in why for _, _, why in one.refused_lately))
        assert ear.messages == []


def boots(transport: Transport) -> set[int]:
    """What the accepted connections say of their process."""
    return {each.hello.boot for each in transport.incoming.open if each.hello is not None}


def test_a_fingerprint_distinguishes_disks_and_hides_incarnations() -> None:
    """What people are shown of a disk: a hello cannot be made of it."""
    shown = {fingerprint(f"{disk:032x}") for disk in range(100)}
    assert len(shown) == 100
    assert all(len(each) == FINGERPRINT_CHARS for each in shown)


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """A listener that takes connections and says nothing."""
    while await reader.read(1 << 16):
        pass


async def welcoming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A listener that answers a hello."""
    writer.write(encode_word(Word.WELCOME, 1))
    await silent(reader, writer)


@asynccontextmanager
async def spoken(port: int, *parts: bytes) -> AsyncIterator[asyncio.StreamWriter]:
    """A connection to there on which those bytes were sent; its writing side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"".join(parts))
        await writer.drain()
        yield writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await reader.read()
            await writer.wait_closed()


# ---------------------------------------------------------------------------------------------------------------
# Stories for planted bugs (chaos/sim/mutants/service.toml): each passes without its mutant and fails with it.


def test_a_forged_hello_is_neither_believed_nor_remembered() -> None:
    """A vote behind it does not arrive, and the real process, which was started less often, is believed later."""

    async def story() -> None:
        async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(silent) as other:
            one.set_members(configuration_of([port, other]))
            link = one.link_to(2)
            assert link is not None
            await wait_until_async(lambda: link.is_up, what="the link to the member's address")
            hello = hello_of(answer=one.proofs.challenge(link) ^ 1, boot=50)
            async with spoken(port, encode_hello(hello), encode_message(vote(1))):
                await wait_until_async(lambda: any(each.sender == 2 for each in one.incoming.open), what="it came")
                real = encode_hello(hello_of(answer=one.proofs.challenge(link)))
                async with spoken(port, real, encode_message(vote(2))):
                    with suppress(TooSlow):
                        await wait_until_async(lambda: vote(2) in ear.messages, 2)
                    assert ear.messages == [vote(2)]
                    assert [met.boot for met in one.incoming.met.values()] == [3]

    asyncio.run(story())


def test_the_end_of_a_connection_that_was_never_believed_is_no_news() -> None:
    """A follower that heard of it would ask for votes, while its leader lives."""

    async def story() -> None:
        async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
            for changes in ({"answer": 0}, {"incarnation": FOREIGN}):
                async with spoken(port, encode_hello(hello_of(**changes))):
                    await wait_until_async(lambda: any(each.sender == 2 for each in one.incoming.open), what="it came")
                await wait_until_async(lambda: not one.incoming.open, what="it went")
            assert ear.closed == []

    asyncio.run(story())


def test_a_node_that_the_leader_refuses_is_not_ready() -> None:
    """It follows still, for the leader's own link to it works."""

    async def story(folder: Path) -> None:
        async with cluster_of(3, folder) as nodes:
            leader, cut = await nodes.leader(), (await nodes.followers())[0]
            await wait_until_async(lambda: cut.is_ready, what="a node that is ready")
            host_of(leader).transport.incoming.met[cut.node_id, cut.state.identity.incarnation] = PeerProcess(9)
            for link in host_of(cut).transport.links_to(leader.node_id):
                link.redial()
            await wait_until_async(lambda: bool(readiness.refusals(cut.state)), what="a refusal")
            assert cut.state.core.state.leader == leader.node_id
            assert not cut.is_ready

    with TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))
