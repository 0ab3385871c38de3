"""Peer links: hellos, refusals, garbage, limits, silence; on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import structlog

from raftlog.cluster.config.settings import LimitSettings, PeerSettings
from raftlog.cluster.peers.hello import (
    Hello,
    Purpose,
    decode_refusal,
    decode_word,
    encode_hello,
    refusal,
)
from raftlog.cluster.peers.ports import LinkParts, PeerIdentity
from raftlog.cluster.peers.transport import Transport
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.frame import FRAME_READ, Frame, FrameDecoder, encode_frame
from raftlog.raft.codec.message import encode_message
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.hello import PeerProcess, Start
from raftlog.raft.messages import AppendEntries, InstallSnapshot, Message, RequestVote, RequestVoteReply
from raftlog.raft.types import GENESIS, EntryKind
from tests.cluster.conftest import CHALLENGE
from tests.cluster.nodes import START
from tests.support import HANG_S, free_ports, hang_s, wait_until_async

LOG = "ab" * 16
pytestmark = pytest.mark.usefixtures("known_challenge")


class Ear:
    """Records what a transport hands over."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.frames: list[Frame] = []
        self.opened: list[tuple[int, str, int]] = []
        self.closed: list[int] = []
        self.dialled: list[int] = []
        self.refused: list[int] = []
        self.turned_away: list[tuple[int, str]] = []
        self.removed: set[int | str] = set()  # numbers and disks
        self.bulk_closed: list[int] = []
        self.bulk_opened: list[int] = []
        self.bulk_believed: list[int] = []

    def peer_messages(self, peer: int, incarnation: str, messages: Sequence[Message]) -> None:
        """Consensus messages."""
        self.messages += messages

    def peer_requests(self, peer: int, incarnation: str, frames: Sequence[Frame]) -> None:
        """Bulk frames; the word `bad` makes no sense to this ear."""
        if any(frame.payload == b"bad" for frame in frames):
            raise Corrupt("it makes no sense")
        self.frames += frames

    def peer_link_opened(self, peer: int, incarnation: str, knows: int, start: Start | None) -> None:
        """An incoming consensus link was made."""
        self.opened.append((peer, incarnation, knows))

    def peer_refused(self, peer: int, incarnation: str, start: Start | None) -> None:
        """The hello of a process was refused."""
        self.turned_away.append((peer, incarnation))

    def has_removed(self, peer: int, incarnation: str) -> bool:
        """Whether a configuration has removed that number or disk."""
        return bool({peer, incarnation} & self.removed)

    def peer_link_closed(self, peer: int) -> None:
        """An incoming consensus link closed."""
        self.closed.append(peer)

    def consensus_link_opened(self, peer: int) -> None:
        """An outgoing consensus link opened."""
        self.dialled.append(peer)

    def consensus_link_refused(self, peer: int) -> None:
        """A dial was refused."""
        self.refused.append(peer)

    def bulk_link_closed(self, peer: int) -> None:
        """An outgoing bulk link closed."""
        self.bulk_closed.append(peer)

    def bulk_link_opened(self, peer: int) -> None:
        """An outgoing bulk link opened."""
        self.bulk_opened.append(peer)

    def bulk_link_believed(self, peer: int) -> None:
        """A peer believes an outgoing bulk link."""
        self.bulk_believed.append(peer)


def configuration_of(ports: Sequence[int]) -> Configuration:
    """Nodes 1, 2, … listening there."""
    members = tuple(
        Member(node, f"{node:032x}", f"127.0.0.1:{port}", f"http://127.0.0.1:{port}")
        for node, port in enumerate(ports, start=1)
    )
    return Configuration(members, tuple(member.node for member in members))


def a_transport(
    node: int,
    ear: Ear,
    *,
    limits: LimitSettings | None = None,
    silence_ms: int = 2_000,
    dial: dict[int, str] | None = None,
) -> Transport:
    """The peer links of a node that has just started."""
    identity = PeerIdentity(log=LOG, node=node, incarnation=f"{node:032x}", boot=3, start=START)
    logger, silence_s = structlog.get_logger(node=node), silence_ms / 1_000
    parts = LinkParts(identity, ear, PeerSettings(), limits or LimitSettings(), silence_s, Metrics(), logger, None)
    return Transport(parts, dial or {})


@asynccontextmanager
async def transports(
    count: int, *, limits: LimitSettings | None = None, silence_ms: int = 2_000, listening: Sequence[int] = (1, 2)
) -> AsyncIterator[tuple[list[Transport], list[Ear], list[int]]]:
    """So many transports that dial each other."""
    ports = free_ports(max(count, 2))  # node 2 is a member even where the test plays it
    configuration = configuration_of(ports)
    ports = ports[:count]
    ears = [Ear() for _ in ports]
    made = [a_transport(node, ear, limits=limits, silence_ms=silence_ms) for node, ear in enumerate(ears, start=1)]
    try:
        for transport, port in zip(made, ports, strict=True):
            if transport.parts.identity.node in listening:
                await transport.start("127.0.0.1", port)
            transport.set_members(configuration)
        yield made, ears, ports
    finally:
        for transport in made:
            await transport.close()


def hello_of(**changes: object) -> Hello:
    """What node 2 says to node 1, with changes."""
    hello = Hello(
        log=LOG,
        sender=2,
        to=1,
        incarnation=f"{2:032x}",
        boot=3,
        purpose=Purpose.CONSENSUS,
        answer=CHALLENGE,
        start=START,
    )
    return replace(hello, **changes)  # type: ignore[arg-type]  # test data


def vote(number: int = 1) -> RequestVoteReply:
    """A small message of node 2 to node 1."""
    return RequestVoteReply(sender=2, to=1, term=number, request_term=number, granted=True)


def no_reason(said: bytes) -> bool:
    """Whether a node closed a connection without a reason."""
    return all(decode_word(frame) is not None for frame in FrameDecoder().feed(said))


async def answer_to(port: int, *parts: bytes) -> bytes:
    """Everything that comes back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), hang_s())
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_messages_arrive_in_order_on_the_link_of_their_sender() -> None:
    """Both directions, consensus and bulk, each on the connection that its sender dialled."""
    async with transports(2) as ((one, two), (ear, other), _):
        await wait_until_async(lambda: all(one.connections().values()) and all(two.connections().values()))
        entry = seal_entry(
            GENESIS, term=1, kind=EntryKind.COMMANDS, count=1, time_ms=1, clock_ms=1, data=b"x" * 300_000
        )
        append = AppendEntries(sender=1, to=2, term=1, prev_index=0, prev_term=0, commit=0, round=0, entries=(entry,))
        one.send(append)
        for number in range(1, 50):
            two.send(vote(number))
        assert two.send_bulk(1, encode_frame(FRAME_READ, [9]))
        one.flush()
        two.flush()
        await wait_until_async(lambda: len(ear.messages) == 49 and ear.frames and other.messages)
        assert ear.messages == [vote(number) for number in range(1, 50)]
        assert other.messages == [append]
        assert ear.frames[0].header == (9,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"log": "cd" * 16}, "two clusters share an address"),
        ({"to": 2}, "it wants node 2, this is node 1"),
        ({"sender": 1}, "no other member"),
        ({"boot": 2}, "its data folder is an old copy"),
        ({"shard": 1}, "here is only 0"),
        ({"version_min": 7, "version_max": 8}, "upgrade the older one"),
        ({"knows": 1}, "knows cluster versions up to 1, the cluster is at version 2: start a newer"),
    ],
)
def test_a_hello_that_cannot_be_taken_is_refused_by_name(changes: dict[str, object], said: str) -> None:
    """Identity is not address (docs/promises.md): log, addressee, boot and version are compared, each named."""
    told = refusal(hello_of(**{"knows": 2, **changes}), log=LOG, node=1, met=PeerProcess(3), version=2)
    assert told is not None
    assert said in told
    assert refusal(hello_of(knows=2), log=LOG, node=1, met=PeerProcess(3), version=2) is None


async def test_a_refused_dialler_hears_why() -> None:
    """Both sides can log the reason; nothing of what followed the hello is delivered."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
        hello = encode_hello(hello_of(log="cd" * 16))
        (frame,) = FrameDecoder().feed(await answer_to(port, hello + encode_message(vote())))
        assert "two clusters share an address" in (decode_refusal(frame) or "")
        assert not ear.messages
        assert not one.incoming.open


OTHER_SIDE = (2, f"{2:032x}", Purpose.CONSENSUS)
HELLO = encode_hello(hello_of())
BULK = encode_hello(hello_of(purpose=Purpose.BULK))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 64,
        b"\xff" * 64,
        HELLO[:-1] + b"\xff",
        encode_frame(FRAME_READ, [1]),
        encode_frame(1, ["raftlog-peer"]),
        encode_frame(1, ["raftlog-peer", *["x"] * 10]),
        HELLO + b"\xff" * 64,
        HELLO + HELLO,
        HELLO + encode_frame(FRAME_READ, [1]),
        HELLO + encode_message(replace(vote(), sender=1)),
        HELLO + (33 << 20).to_bytes(4, "little") + bytes(20),
        BULK + encode_message(vote()),
        BULK + encode_frame(FRAME_READ, [1], b"bad"),
    ],
    ids=str,
)
async def test_garbage_closes_only_its_own_connection(data: bytes) -> None:
    """Bytes that are no frame, no hello, too large, of the wrong kind or sender: that connection ends, others live."""
    async with transports(2) as ((one, two), (ear, _), (port, _)):
        await wait_until_async(lambda: all(two.connections().values()))
        two.incoming.met.clear()
        await answer_to(port, data)
        two.send(vote(7))
        two.flush()
        # The garbage may have come under node 2's name and taken its place: then node 2 dials again.
        if not one.incoming.open:
            await wait_until_async(lambda: bool(one.incoming.open))

        def arrived() -> bool:
            two.send(vote(7))
            two.flush()
            return vote(7) in ear.messages

        await wait_until_async(arrived)


async def test_silent_connections_are_closed_and_connections_are_bounded() -> None:
    """limits.hello_timeout_ms and limits.peer_connections_max: silence and numbers cost nothing for long."""
    limits = LimitSettings(hello_timeout_ms=50, peer_connections_max=2)
    async with transports(1, limits=limits, listening=[1]) as ((one,), _, (port,)):
        assert await answer_to(port) == b""
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        await wait_until_async(lambda: len(one.incoming.open) <= 2)
        for reader, writer in opened:
            assert await asyncio.wait_for(reader.read(), hang_s()) == b""
            writer.close()


@pytest.mark.parametrize("turns", range(8))
async def test_a_dial_during_the_shutdown_is_closed(turns: int) -> None:
    """A peer that connected so many turns of the loop before the end hears the end, and nothing of it stays open.

    Guard: `stop_serving`. Without it asyncio left those whom it had accepted in the last turns.
    """
    async with transports(1, listening=[1]) as (_, _, (port,)):
        peer = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        for _ in range(turns):
            await asyncio.sleep(0)
    with peer, suppress(ConnectionResetError):
        assert await asyncio.to_thread(peer.recv, 1) == b""


async def test_a_newer_connection_takes_the_place_of_an_older_one_without_news() -> None:
    """A re-dial is no closed link: the leader's followers must not start an election over it."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
        first = await asyncio.open_connection("127.0.0.1", port)
        first[1].write(HELLO)
        await wait_until_async(lambda: len(one.incoming.current) == 1)
        older = one.incoming.current[OTHER_SIDE]
        second = await asyncio.open_connection("127.0.0.1", port)
        second[1].write(HELLO)
        await wait_until_async(lambda: one.incoming.current[OTHER_SIDE] is not older)
        await wait_until_async(lambda: len(one.incoming.open) == 1)
        assert ear.closed == []
        second[1].close()
        await wait_until_async(lambda: ear.closed == [2])
        first[1].close()


async def test_the_promises_of_another_disk_are_dropped_and_its_requests_taken() -> None:
    """Pitfall 46: the number of node 2 with a disk that the configuration does not name cannot vote; and it does not
    take the place of the right disk's connection."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
        one._configurations[0] = configuration_of([1, 2])
        right = await asyncio.open_connection("127.0.0.1", port)
        right[1].write(HELLO)
        await wait_until_async(lambda: OTHER_SIDE in one.incoming.current)
        foreign = await asyncio.open_connection("127.0.0.1", port)
        asks = RequestVote(sender=2, to=1, term=4, last_index=3, last_term=2)
        foreign[1].write(encode_hello(hello_of(incarnation="f" * 32)) + encode_message(vote(8)) + encode_message(asks))
        await wait_until_async(lambda: ear.messages == [asks])
        right[1].write(encode_message(vote(8)))
        await wait_until_async(lambda: ear.messages == [asks, vote(8)])
        for _, writer in (right, foreign):
            writer.close()
            await writer.wait_closed()


async def test_pieces_of_a_snapshot_go_by_the_bulk_link_and_nothing_else_does() -> None:
    """A heartbeat never waits behind a snapshot: pieces have the other connection, and a vote there closes it."""
    piece = InstallSnapshot(
        sender=1, to=2, term=1, snapshot_index=5, snapshot_term=1, offset=0, total=3, crc=0, done=True, data=b"abc"
    )
    async with transports(2, limits=LimitSettings(link_bytes_max=1)) as (made, ears, ports):
        await wait_until_async(lambda: made[0].is_bulk_up(2) and ears[1].bulk_opened)
        made[0].send(piece)
        made[0].flush()
        await wait_until_async(lambda: ears[1].messages == [piece])
        assert not ears[1].frames
        refused = await answer_to(ports[0], encode_hello(hello_of(purpose=Purpose.BULK)), encode_message(vote()))
        assert no_reason(refused)
        assert ears[0].messages == []


async def test_a_full_or_missing_link_drops_and_says_so() -> None:
    """Never blocks, never grows: consensus messages are dropped and counted, a bulk frame is refused at once."""
    limits = LimitSettings(link_bytes_max=1_000, bulk_bytes_max=1_000)
    async with transports(2, limits=limits) as ((one, two), _, _):
        assert not two.send_bulk(9, b"x")
        await wait_until_async(lambda: all(two.connections().values()))
        sent = [two.send_bulk(1, bytes(400)) for _ in range(4)]
        assert sent == [True, True, False, False]
        for _ in range(100):
            two.send(vote())
        dropped = two.parts.metrics.registry.get_sample_value("raftlog_link_dropped_total", {"peer": "1"})
        assert dropped
        assert dropped > 50
        assert one.parts.metrics.registry.get_sample_value("raftlog_link_dropped_total", {"peer": "2"}) is None


async def test_a_silent_peer_is_dialled_again() -> None:
    """A connection may be dead without saying so: after two election timeouts without an answer there is another."""
    async with transports(2, silence_ms=30) as ((one, two), (ear, _), _):
        await wait_until_async(lambda: all(two.connections().values()))
        older = await wait_until_async(lambda: one.incoming.current.get(OTHER_SIDE))
        question = RequestVote(sender=2, to=1, term=1, last_index=0, last_term=0)
        two.send(question)
        two.flush()

        def is_new() -> bool:
            two.check_silence()
            return one.incoming.current.get(OTHER_SIDE, older) is not older

        await wait_until_async(is_new, what="another connection")
        assert question in ear.messages


async def test_an_answer_waits_for_no_answer() -> None:
    """A voter hears nothing more of a candidate that lost: that is no silence, and no reason for a new connection."""
    async with transports(2, silence_ms=1) as ((one, two), (ear, _), _):
        await wait_until_async(lambda: all(two.connections().values()))
        before = await wait_until_async(lambda: one.incoming.current.get(OTHER_SIDE))
        two.send(vote())
        two.flush()
        await wait_until_async(lambda: ear.messages == [vote()])
        two.check_silence()
        assert one.incoming.current[OTHER_SIDE] is before
        assert two.connections()["1/consensus"] == 1


async def test_a_dead_peer_is_dialled_until_it_is_back() -> None:
    """Back-off stays short on loopback, and both links come back by themselves. Each refused dial is reported, until
    one gets through.
    """
    async with transports(2, listening=[1]) as ((one, two), (ear, _), ports):
        await wait_until_async(lambda: all(two.connections().values()) and len(ear.refused) >= 3)
        assert not any(one.connections().values())
        assert ear.dialled == []
        await two.start("127.0.0.1", ports[1])
        await wait_until_async(lambda: all(one.connections().values()))
        assert (ear.bulk_opened, ear.dialled, set(ear.refused)) == ([2], [2], {2})
