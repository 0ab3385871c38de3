"""Decides which hellos a node believes: those that the listener at the member's own address says are its own.

A hello names a disk, and anybody who reaches the port can write one. So each node draws a secret number for each
member, the challenge, and says it only to the listener at the member's address, in the hello of its own link to there.
The member repeats it on its connections to this node, and each connection that repeats it is believed. A connection of
a member waits until then; what came on it is delivered behind the answer.

A hello that cannot be compared is only heard: one of a disk that the configuration does not name, or of a member whose
address does not answer (its address may have changed while this node was down). Its requests are taken, its promises
and answers are not, and nothing of it is remembered (`raft.hello.is_believed`). A peer that speaks a version before
PROOF_VERSION cannot answer: it is believed while the listener at its address does not speak that version either.
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import TYPE_CHECKING, Final

from cluster import clock
from cluster.peer_protocol import PROOF_VERSION, Hello, Word
from raft.types import NodeId

if TYPE_CHECKING:
    from cluster.peer_accept import Accepted
    from cluster.peer_links import Link
    from cluster.transport import Transport

CHALLENGE_BITS: Final = 62
"""A forger that tries a number with each packet needs so many doublings."""
WELCOME_S: Final = 0.25
"""A listener of PROOF_VERSION says so within a round trip; one that has not for so long is taken for an older one."""
WAITING_MAX: Final = 16
"""Connections whose hello is not believed. The oldest goes for a new one: a member's waits for a few milliseconds."""


class Standing(Enum):
    """What counts of a connection."""

    WAITING = "waiting"  # nothing yet
    HEARD = "heard"  # its requests
    BELIEVED = "believed"  # everything


def draw() -> int:
    """A new challenge."""
    return 1 + secrets.randbits(CHALLENGE_BITS)


class Proofs:
    """The challenges of one node, and the accepted connections whose hello is not believed."""

    def __init__(self, owner: Transport) -> None:
        self._owner = owner
        self._challenges: dict[NodeId, tuple[str, str, int]] = {}  # address and disk of the member, and its number
        self._told: dict[NodeId, int] = {}  # the challenge of each node, as its newest believed connection said it
        self._waiting: dict[Accepted, None] = {}  # oldest first

    @property
    def is_on(self) -> bool:
        """Whether this node speaks a version that has proofs."""
        return self._owner.identity.speaks >= PROOF_VERSION

    # -- challenges

    def challenge(self, link: Link) -> int:
        """For the listener at the other end of that link; a new one once the member's address or disk is another."""
        there = (link.address, link.disk)
        known = self._challenges.get(link.node)
        if known is None or known[:2] != there:
            known = self._challenges[link.node] = (*there, draw())
        return known[2]

    def keep(self, members: dict[NodeId, Link]) -> None:
        """Forgets the challenges of those that are dialled no more."""
        self._challenges = {node: known for node, known in self._challenges.items() if node in members}
        self._told = {node: challenge for node, challenge in self._told.items() if node in members}

    def answer_for(self, node: NodeId) -> int:
        """The challenge of that node as it was said here; 0: it was not. A believed connection's goes first, so that a
        forged hello does not take its place."""
        if node in self._told:
            return self._told[node]
        said = [each for each in self._owner.accepted if each.sender == node and each.challenge]
        return max(said, key=lambda each: each.came).challenge if said else 0

    def challenged(self, accepted: Accepted) -> None:
        """A connection said a challenge: it is repeated on the links to the address of the node that it names, where
        one of somebody else's means nothing."""
        node, challenge = accepted.sender, accepted.challenge
        if accepted.standing is Standing.BELIEVED:
            self._told[node] = challenge
        for link in self._owner.links_to(node):
            link.say(Word.ANSWER, challenge)

    # -- hellos

    def standing(self, hello: Hello, answer: int, came: float) -> Standing | str:
        """What counts of a connection with that hello, which came then and gave that answer (0: none); a text: nothing
        ever will, and why."""
        if not self.is_on:
            return Standing.BELIEVED
        link = self._owner.link_to(hello.sender)
        if link is None or link.disk != hello.incarnation:
            return Standing.HEARD
        if answer and answer == self.challenge(link):
            return Standing.BELIEVED
        if not link.is_up:
            return Standing.HEARD if link.failed_at > came else Standing.WAITING
        if hello.version_max >= PROOF_VERSION:
            return Standing.WAITING
        if link.is_welcome:
            return (
                f"it says that it speaks peer protocol {hello.version_max}, but node {hello.sender} at {link.address} "
                f"speaks {PROOF_VERSION} or later"
            )
        return Standing.BELIEVED if clock.monotonic() - link.up_since >= WELCOME_S else Standing.WAITING

    def wait(self, accepted: Accepted, hello: Hello) -> None:
        """That connection's hello is not believed yet. Has the listener at the member's address asked."""
        if len(self._waiting) >= WAITING_MAX:
            next(iter(self._waiting)).end(f"more than {WAITING_MAX} connections wait for a proof of their hello")
        self._waiting[accepted] = None
        link = self._owner.link_to(hello.sender)
        if link is not None and link.disk == hello.incarnation:
            link.ask()

    def forget(self, accepted: Accepted) -> None:
        """It is believed or closed."""
        self._waiting.pop(accepted, None)

    def look(self, node: NodeId) -> None:
        """The link to that node came up, was welcomed or failed: what counts of the connections in its name?"""
        for accepted in [each for each in self._waiting if each.sender == node]:
            accepted.judge()

    def expire(self, hello: Hello) -> str | None:
        """That connection has waited for long: why it is closed; None: it is heard from now on."""
        link = self._owner.link_to(hello.sender)
        if link is None or not link.is_up:
            return None
        if not link.is_welcome and hello.version_max >= PROOF_VERSION:
            link.redial()  # that connection may be one to a process that is gone
        return f"node {hello.sender}, which this node dials at {link.address}, does not say that this hello is its own"

    def believed(self, believed: Accepted, hello: Hello) -> None:
        """Ends what another process said in the name of that one."""
        if believed.challenge:
            self._told[hello.sender] = believed.challenge
        for accepted in list(self._waiting):
            if accepted.is_another(hello):
                accepted.end(f"another process has shown that it is node {hello.sender}")
