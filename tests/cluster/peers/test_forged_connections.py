"""Whatever an accepted connection sends: nothing acts before its sender is known, and nothing ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast
from unittest.mock import patch

from hypothesis import Phase, example, given, settings, strategies as st

from raftlog.cluster.peers import accepted as accepted_module
from raftlog.cluster.peers.accepted import AcceptedConnection
from raftlog.cluster.peers.hello import Hello, Purpose, Word, encode_hello, encode_word
from raftlog.cluster.peers.hello_proof import WAITING_MAX, HelloStanding
from raftlog.raft.codec.frame import (
    FRAME_DISK,
    FRAME_FORWARD,
    FRAME_READ,
    FRAME_READ_REPLY,
    FRAME_SHARD,
    Frame,
    encode_frame,
)
from raftlog.raft.codec.message import encode_message
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message, RequestVote, RequestVoteReply, TimeoutNow, is_promise
from tests.cluster.peers.test_forgers import DISKS, OneLink
from tests.cluster.peers.test_transport import LOG, Ear, a_transport, configuration_of

OTHER_DISK, REMOVED = "f" * 32, "e" * 32
HELD_MAX = 400
"""Bytes that are kept of a connection in this test."""

EXTREMES = (0, 1, 7, 1 << 62, (1 << 64) - 1)


def start_of(run: int) -> Start:
    """What a process found at its start."""
    return Start(run=run, last_index=1, last_term=1, term=1, floor=0)


def place_of(taken: Any) -> int:
    """Which frame of its connection it is."""
    if isinstance(taken, Frame):
        return int(cast(Any, taken.header[1]))
    return int(taken.request_term if isinstance(taken, RequestVoteReply) else taken.last_index)


class Wire:
    """A socket without another end."""

    def __init__(self) -> None:
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        """No TLS, and an address."""
        return ("127.0.0.1", 9) if name == "peername" else None

    def is_closing(self) -> bool:
        """Whether this node closed it."""
        return self.is_closed

    def write(self, _: bytes) -> None:
        """What this node says."""

    def close(self) -> None:
        """This node closes it."""
        self.is_closed = True

    abort = close


class Caller(Ear):
    """The node behind the links. `speaking` is the connection whose bytes, or whose link, are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[tuple[int, str], int, Any]] = []  # node and disk, connection, message or frame

    def peer_messages(self, peer: int, incarnation: str, messages: Sequence[Message]) -> None:
        """Consensus messages: their term names the connection."""
        self.taken += [((peer, incarnation), message.term, message) for message in messages]

    def peer_requests(self, peer: int, incarnation: str, frames: Sequence[Any]) -> None:
        """Bulk frames: their first number names the connection."""
        self.taken += [((peer, incarnation), frame.header[0], frame) for frame in frames]


class World:
    """One node with the true members 2 and 3, and forgers without their challenges."""

    def __init__(self, random: Random, *, is_reached: bool) -> None:
        self.random, self.is_reached = random, is_reached
        self.ear = Caller()
        self.transport = a_transport(1, self.ear)
        self.transport._configurations[0] = configuration_of([1, 2, 3])
        self.links = {node: OneLink(node, f"{node}:0", disk, is_welcome=True) for node, disk in DISKS.items()}
        self.transport._consensus = cast(Any, self.links)
        self.ear.removed.add(REMOVED)
        self.open: list[
            tuple[int, AcceptedConnection, Hello, bool]
        ] = []  # number, connection, hello, whether it is true
        self.is_true: dict[int, bool] = {}
        self.sent: dict[int, int] = {}  # how many frames each connection sent
        self.is_odd: set[int] = set()  # the connections that sent garbage, or whose promises did not count for a time

    def dial(self) -> None:
        """A member or a forger dials, and says hello in pieces."""
        random, number = self.random, 1 + len(self.is_true)
        node, is_true = random.choice([2, 3]), random.random() < 0.4
        hello = Hello(
            log=LOG,
            sender=node,
            to=1,
            incarnation=DISKS[node],
            boot=7,
            purpose=random.choice([*Purpose]),
            challenge=10 * node,
            answer=random.choice([0, self.answer(node)]),
            start=start_of(node),
        )
        if not is_true:
            hello = Hello(
                log=random.choice([LOG, LOG, "cd" * 16]),
                sender=random.choice([node, node, 0, 9, 1 << 62]),
                to=random.choice([1, 1, 2]),
                purpose=hello.purpose,
                boot=random.choice([6, 7, 8, 1 << 62]),
                incarnation=random.choice([DISKS[node], DISKS[node], OTHER_DISK, REMOVED, ""]),
                version_max=random.choice([1, 1, 1, 1, 0, 99]),
                challenge=random.choice(EXTREMES[:-1]),
                answer=random.choice([0, 5, self.answer(5 - node)]),
                start=start_of(number + 100),
                at=random.choice(["", "127.0.0.1:9", ":", "x"]),
            )
        accepted = AcceptedConnection(self.transport.incoming)
        accepted.connection_made(cast(Any, Wire()))
        self.is_true[number] = is_true
        self.sent[number] = 0
        self.open.append((number, accepted, hello, is_true))
        self.pieces(accepted, encode_hello(hello))

    def answer(self, node: int) -> int:
        """What only the member hears, and the forgers of the other one."""
        return self.transport.proofs.challenge(cast(Any, self.links[node]))

    def pieces(self, accepted: AcceptedConnection, data: bytes) -> None:
        """Bytes come in any pieces, and perhaps with a flipped bit in a forger's."""
        cut = self.random.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            accepted.data_received(piece)

    def frame(self, number: int, hello: Hello) -> bytes:
        """A frame that belongs on such a link. Its term or first number is that of the connection."""
        random, sender = self.random, hello.sender
        self.sent[number] += 1
        if hello.purpose is Purpose.CONSENSUS:
            head: dict[str, Any] = {"sender": sender, "to": 1, "term": number}
            at = self.sent[number]
            messages: list[Message] = [
                RequestVote(**head, last_index=at, last_term=1),
                TimeoutNow(**head, last_index=at),
                RequestVoteReply(**head, request_term=at, granted=True),
            ]
            return encode_message(random.choice(messages))
        return encode_frame(random.choice([FRAME_READ, FRAME_READ_REPLY, FRAME_DISK]), [number, self.sent[number]])

    def garbage(self, number: int, hello: Hello) -> bytes:
        """Anything that a forger may write."""
        random = self.random
        good = self.frame(number, hello)
        at = random.randrange(len(good))
        return random.choice(
            [
                random.randbytes(random.randrange(1, 60)),
                good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :],
                encode_frame(random.randrange(1, 10), [number, *random.choices(EXTREMES, k=random.randrange(4))]),
                encode_frame(FRAME_FORWARD, [number, random.choice(EXTREMES), random.choice([7, None, [], [1.0]])]),
                encode_frame(FRAME_SHARD, [random.choice(EXTREMES)], good),
                encode_hello(hello),
                encode_frame(FRAME_DISK, [number], b"x" * (HELD_MAX // 2)),
                encode_word(random.choice([*Word]), random.choice(EXTREMES)),
                encode_message(RequestVote(sender=random.choice([2, 3]), to=1, term=number, last_index=1, last_term=1)),
            ]
        )

    def step(self) -> None:
        """Something happens."""
        random = self.random
        self.open = [each for each in self.open if not cast(Any, each[1]._transport).is_closed]
        kind = random.randrange(10)
        if kind < 2 or not self.open:
            self.dial()
        elif kind < 8:
            number, accepted, hello, is_true = random.choice(self.open)
            if is_true and random.random() < 0.2:
                data = encode_word(Word.ANSWER, self.answer(hello.sender))
            elif random.random() < (0.05 if is_true else 0.5):
                data = self.garbage(number, hello)
                self.is_odd.add(number)
            else:
                data = self.frame(number, hello)
            self.pieces(accepted, data)
        elif kind == 8 and not self.is_reached:
            link = random.choice([*self.links.values()])
            link.is_up = random.random() < 0.5
            link.failed_at = link.failed_at if link.is_up else 1e18
            self.transport.proofs.look(link.node)
        else:
            number, accepted, _, is_true = random.choice(self.open)
            if not is_true:
                if random.random() < 0.5:
                    accepted._time_is_up()
                else:
                    cast(Any, accepted._transport).close()
                    accepted.connection_lost(None)

    def check(self) -> None:
        """The property."""
        assert len(self.transport.proofs._waiting) <= WAITING_MAX
        for number, accepted, _, is_true in self.open:
            if cast(Any, accepted._transport).is_closed:
                continue
            assert is_true or accepted.standing is not HelloStanding.BELIEVED
            assert accepted._held_bytes <= HELD_MAX
            if accepted.standing is HelloStanding.HEARD:
                self.is_odd.add(number)
            if number not in self.is_odd:
                sent = self.sent[number] if accepted.standing is HelloStanding.BELIEVED else 0
                places = [place_of(taken) for _, owner, taken in self.ear.taken if owner == number]
                assert places == [*range(1, sent + 1)], "a member's frames count, once each, in their order"
        for disk, number, taken in self.ear.taken:
            is_true = self.is_true.get(number, False)
            if not isinstance(taken, Frame):
                assert taken.sender == disk[0], "a message comes on the link of its sender"
            assert is_true or disk[1] != REMOVED, "a removed disk acted"
            if self.is_reached and not is_true:
                assert disk not in DISKS.items(), f"{taken} of a forger acted in the name of a member"
            if not is_true:
                answers = isinstance(taken, tuple) and getattr(taken, "kind", 0) in (FRAME_READ_REPLY, FRAME_DISK)
                assert not answers, f"{taken} counts, though its sender is not proved"
                assert not is_promise(taken), f"{taken} counts, though its sender is not proved"
        assert not self.ear.turned_away, "no true peer was refused"
        assert {disk for _, disk, _ in self.ear.opened} <= {*DISKS.values()}


async def played(seed: int) -> None:
    """One world."""
    world = World(Random(seed), is_reached=seed % 2 == 0)
    with patch.object(accepted_module, "HELD_BYTES_MAX", HELD_MAX):
        for _ in range(60):
            world.step()
            world.check()
    for _, accepted, _, _ in world.open:
        accepted.connection_lost(None)


@given(st.integers(0, 2**32 - 1))
@example(290)  # an answer that comes late, which one of 150 others has
@example(556)
@settings(max_examples=300, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_nothing_of_a_forger_acts_and_nothing_ends_the_process(seed: int) -> None:
    """Hellos, words, requests, promises, answers, garbage: of members and forgers, in pieces, before and after belief.
    While the member's own listener answers, nothing acts in its name; else only requests do. A member's frames all
    count, once each."""
    asyncio.run(played(seed))
