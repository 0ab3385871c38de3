"""Decides which hellos a node believes: those that the listener at the member's own address confirms.

A hello names a disk, and any process that reaches the port can write one. So each node draws a secret number for each
member, the challenge. It sends it only to the listener at the member's address, in the hello of its own link to there.
The member repeats the challenge on its connections to this node, and this node believes each connection that repeats
it. Until then a member's connection waits, and its frames are delivered after the answer.

Some hellos cannot be compared: the configuration does not name the disk, or the member's address does not answer
(it may have changed while this node was down). Such a connection is only heard: its requests are accepted, its promises
and answers are not, and nothing of it is remembered (`raftlog.raft.messages.is_promise`).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final, Protocol

from raftlog.cluster.peers.hello import Hello, Word
from raftlog.raft.types import NodeId

CHALLENGE_BITS: Final = 62
"""Bits of a challenge: a forger that tries one number per packet needs 2 to the power of this many packets."""
WAITING_MAX: Final = 16
"""Most connections whose hello is not believed. A new one replaces the oldest; a member's waits for milliseconds."""


class HelloStanding(Enum):
    """The part of a connection's frames that is accepted."""

    WAITING = "waiting"  # no frame yet
    HEARD = "heard"  # only its requests
    BELIEVED = "believed"  # all frames


class MemberLink(Protocol):
    """What a proof needs of a link that this node dialled (`raftlog.cluster.peers.dialled.Link`)."""

    node: NodeId
    address: str
    disk: str
    is_welcome: bool  # its listener has answered
    failed_at: float
    trouble: str  # why its newest dial failed

    @property
    def is_up(self) -> bool:
        """Whether it is connected."""

    def say(self, word: Word, number: int) -> None:
        """Says a word to a listener that knows it."""

    def ask(self) -> None:
        """Has the listener say whether a hello is its own."""

    def redial(self) -> None:
        """Closes the connection; the dialling task makes another."""


class PeerConnection(Protocol):
    """What a proof needs of a connection that a peer dialled (`raftlog.cluster.peers.accepted.AcceptedConnection`)."""

    standing: HelloStanding
    came: float  # when its hello came
    challenge: int  # 0: none was said

    @property
    def sender(self) -> NodeId:
        """The node that its hello names."""

    def judge(self) -> None:
        """Decides again what counts of this connection."""

    def is_another(self, hello: Hello) -> bool:
        """Whether this connection names the same disk, and another process of it."""

    def end(self, reason: str) -> None:
        """Closes this connection with one line that names the peer and why."""


class ProofLinks(Protocol):
    """What a proof needs of the links that this node dials (`raftlog.cluster.peers.transport.Transport`)."""

    def link_to(self, node: NodeId) -> MemberLink | None:
        """The consensus link to that node; None: it is not dialled."""

    def links_to(self, node: NodeId) -> Sequence[MemberLink]:
        """All links to that node."""


def draw() -> int:
    """Draws a new challenge."""
    return 1 + secrets.randbits(CHALLENGE_BITS)


class Proofs:
    """The challenges of one node, and the accepted connections whose hello is not believed."""

    def __init__(self, links: ProofLinks, connections: Collection[PeerConnection]) -> None:
        """`connections`: those that peers dialled and that are open."""
        self._links = links
        self._connections = connections
        self._challenges: dict[tuple[NodeId, str, str], int] = {}  # by node, address and disk of the member
        self._told: dict[NodeId, int] = {}  # the challenge of each node, as its newest believed connection said it
        self._waiting: dict[PeerConnection, None] = {}  # oldest first

    # -- challenges

    def challenge(self, link: MemberLink) -> int:
        """For the listener at the other end of that link: another one for each address and disk of a member."""
        there = (link.node, link.address, link.disk)
        if there not in self._challenges:
            self._challenges[there] = draw()
        return self._challenges[there]

    def keep(self, members: Mapping[NodeId, MemberLink]) -> None:
        """Forgets the challenges of those that are dialled no more, or not there."""
        places = {(link.node, link.address, link.disk) for link in members.values()}
        self._challenges = {there: known for there, known in self._challenges.items() if there in places}
        self._told = {node: challenge for node, challenge in self._told.items() if node in members}

    def answer_for(self, node: NodeId) -> int:
        """The challenge that this node got from that node; 0: none.

        A believed connection's challenge comes first, so that a forged hello does not replace it.
        """
        if node in self._told:
            return self._told[node]
        said = [each for each in self._connections if each.sender == node and each.challenge]
        return max(said, key=lambda each: each.came).challenge if said else 0

    def challenged(self, accepted: PeerConnection) -> None:
        """A connection said a challenge: it is repeated on the links to the address of the node that it names, where
        one of somebody else's means nothing."""
        node, challenge = accepted.sender, accepted.challenge
        if accepted.standing is HelloStanding.BELIEVED:
            self._told[node] = challenge
        for link in self._links.links_to(node):
            link.say(Word.ANSWER, challenge)

    # -- hellos

    def standing(self, hello: Hello, answer: int, came: float) -> HelloStanding:
        """The frames that are accepted of a connection with that hello, that arrival time and that answer (0: none)."""
        link = self._links.link_to(hello.sender)
        if link is None or link.disk != hello.incarnation:
            return HelloStanding.HEARD
        if answer and answer == self.challenge(link):
            return HelloStanding.BELIEVED
        return HelloStanding.HEARD if not link.is_up and link.failed_at > came else HelloStanding.WAITING

    def wait(self, accepted: PeerConnection, hello: Hello) -> None:
        """That connection's hello is not believed yet."""
        if len(self._waiting) >= WAITING_MAX:
            next(iter(self._waiting)).end(f"more than {WAITING_MAX} connections wait for a proof of their hello")
        self._waiting[accepted] = None
        self.ask(hello)

    def ask(self, hello: Hello) -> None:
        """Has the listener at the member's address asked at once, even if its link waits to be dialled again."""
        link = self._links.link_to(hello.sender)
        if link is not None and link.disk == hello.incarnation:
            link.ask()

    def forget(self, accepted: PeerConnection) -> None:
        """It is believed or closed."""
        self._waiting.pop(accepted, None)

    def look(self, node: NodeId) -> None:
        """The link to that node came up, was welcomed or failed: judges the connections in its name again."""
        for accepted in [each for each in self._waiting if each.sender == node]:
            accepted.judge()

    def expire(self, hello: Hello) -> str | None:
        """The reason to close a connection that has waited too long; None: it is heard from now on."""
        link = self._links.link_to(hello.sender)
        if link is None or not link.is_up:
            return None
        if not link.is_welcome:
            link.redial()  # that link may lead to a process that is gone
        return f"node {hello.sender}, which this node dials at {link.address}, does not say that this hello is its own"

    def believed(self, believed: PeerConnection, hello: Hello) -> None:
        """Ends what another process said in the name of that one."""
        if believed.challenge:
            self._told[hello.sender] = believed.challenge
        for accepted in list(self._waiting):
            if accepted.is_another(hello):
                accepted.end(f"another process has shown that it is node {hello.sender}")
