"""Gives a simulated process its connections: hellos that are taken, believed or refused, and what comes from peers.

As in production, a process sends only to nodes that it dials, and believes a hello once the node at the address that
it dials has shown that the hello is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from raftlog.chaos.sim.replica.hello import Hello
from raftlog.chaos.sim.replica.watching import Watching
from raftlog.cluster.peers.refused_hellos import RefusedHello
from raftlog.cluster.protocol.forward_frames import decode_points
from raftlog.cluster.replica.parts import link_events
from raftlog.raft import hello
from raftlog.raft.codec.frame import FRAME_FORWARD, FRAME_POINTS, FRAME_READ, FrameDecoder
from raftlog.raft.configuration import Member
from raftlog.raft.hello import PeerProcess
from raftlog.raft.messages import Message
from raftlog.raft.types import NOBODY, NodeId
from raftlog.statemachine.versions import CLUSTER_VERSION

DIALLED_US: Final = 20_000
CLOSED_US: Final = 5_000
"""Longest times in microseconds until a new connection is up, and until the other side hears that one closed."""


class Connections(Watching):
    """What a node does with its peers."""

    def refusal_of(self, sender: NodeId, said: Hello) -> str | None:
        """Why this process does not take what a process of `sender` says that said so of itself; None: it does."""
        core = self.core
        if core is None:
            return "it is down"
        return hello.refusal(
            sender=sender,
            boot=said.boot,
            knows=CLUSTER_VERSION,
            node=self.node,
            met=self.hellos.met.get((sender, said.incarnation), hello.NEVER_MET),
            version=core.state.configuration.version,
            run=said.run,
            is_removed=core.state.has_removed(NOBODY, said.incarnation),
        )

    def greet(self, sender: NodeId, said: Hello) -> bool:
        """A process of `sender` connected and said so of itself; whether it is taken."""
        if self.core is None:
            return False
        if self.refusal_of(sender, said) is not None:
            self.world.count("hellos refused")
            refused = RefusedHello(sender, said.incarnation, said.start)
            self.hellos.refused.refuse(refused, is_proved=self._proves(sender, said))
            for each in self.hellos.refused.due(self.world.now_us / 1_000_000):
                self._input(link_events.hello_refused, self.state, *each)
            return False
        self.hellos.greeted[sender] = said
        self.hellos.believed.pop(sender, None)
        if self._proves(sender, said):
            self._believe(sender, said)
        named = self.core.state.configuration.member(sender)
        is_named = named is not None and named.incarnation == said.incarnation
        if not is_named and self.hellos.dialled.get(sender, said.incarnation) == said.incarnation:
            self.hellos.strangers[sender] = Member(sender, said.incarnation, f"node-{sender}:7001", "")
        return True

    def _proves(self, sender: NodeId, said: Hello) -> bool:
        """Whether the process at the address that this one dials shows that the hello is its own."""
        if self.hellos.dialled.get(sender) != said.incarnation:
            return False
        listener = self.world.replicas[sender]
        return listener.hello == said and listener.refusal_of(self.node, self.hello) is None  # else it says nothing

    def _believe(self, sender: NodeId, said: Hello) -> None:
        """The node at the address that this one dials has shown that the hello is its own."""
        witness, peer, disk = self.world.witness, (self.node, self.life), (sender, said.incarnation)
        self._check(witness.one_process.believes, peer, disk, said.boot, said.run)
        self.hellos.believed[sender] = said
        self.hellos.refused.believed(sender)
        self.hellos.met[sender, said.incarnation] = PeerProcess(said.boot, said.run)
        self._input(link_events.link_opened, self.state, sender, said.incarnation, CLUSTER_VERSION, said.start)

    def dial(self, nodes: Mapping[NodeId, str]) -> None:
        """Dials exactly these nodes from now on: each with the disk that is expected there."""
        world, before = self.world, self.hellos.dialled
        self.hellos.dialled = dict(nodes)
        self.hellos.refused.keep(nodes)
        for peer, said in list(self.hellos.greeted.items()):
            if self.state.core.state.has_removed(NOBODY, said.incarnation):
                self.link_closed(peer)
        for peer in before:
            if peer not in nodes:
                world.after(self.random.randint(0, CLOSED_US), world.replicas[peer].link_closed, self.node)
        for peer, disk in nodes.items():
            if before.get(peer) != disk:
                world.after(self.random.randint(0, DIALLED_US), self._reached, self.life, peer, disk)

    def _reached(self, life: int, peer: NodeId, disk: str) -> None:
        """The connection to a node that is dialled since a moment is up, unless one of the two ends is down."""
        world, other = self.world, self.world.replicas[peer]
        if self.life != life or self.core is None or other.core is None or self.hellos.dialled.get(peer) != disk:
            return
        if world.replicas[self.node] is self and not world.dials.is_down(self.node, peer):
            if other.hellos.greeted.get(self.node) == self.hello or other.greet(self.node, self.hello):
                self.link_dialled(peer)
                if world.links.is_up(self.node, peer):
                    self.bulk_opened(peer)
        said = self.hellos.greeted.get(peer)
        if said is not None and self.hellos.believed.get(peer) != said and self._proves(peer, said):
            self._believe(peer, said)  # not a hello of an earlier process, whose message came late
        if peer in self.hellos.unproved and other.hello.incarnation == disk:
            self.hellos.unproved.discard(peer)
            other.notice(self.node, link_events.bulk_link_believed)

    def link_closed(self, peer: NodeId) -> None:
        """The connection of that peer closed: the next one begins with its hello."""
        self.hellos.greeted.pop(peer, None)
        self.hellos.strangers.pop(peer, None)
        if self.hellos.believed.pop(peer, None) is not None and self.core is not None:
            self._input(link_events.link_closed, self.state, peer)

    def notice(self, peer: NodeId, event: Callable[..., object], **named: bool) -> None:
        """Something happened to a connection with that peer, if this process dials it: one of `link_events`."""
        if self.core is not None and peer in self.hellos.dialled:
            self._input(partial(event, self.state, peer, **named))

    def link_dialled(self, peer: NodeId) -> None:
        self.notice(peer, link_events.link_dialled, is_bulk=False)

    def bulk_opened(self, peer: NodeId) -> None:
        self.notice(peer, link_events.link_dialled, is_bulk=True)

    def bulk_closed(self, life: int, peer: NodeId) -> None:
        if life == self.life:
            self.notice(peer, link_events.bulk_link_closed)

    def deliver(self, disk: str, message: Message) -> None:
        """A message of a peer with that disk arrives; messages that come before the loop runs are taken together."""
        if message.sender in self.hellos.believed:
            self.hellos.heard_us[message.sender] = self.world.now_us
        if self._inbox is None:
            inbox = [(disk, message)]
            self._input(self._take, inbox)
            self._inbox = inbox
        else:
            self._inbox.append((disk, message))

    def _take(self, inbox: list[tuple[str, Message]]) -> None:
        if self._inbox is inbox:
            self._inbox = None
        link_events.take_messages(self.state, inbox)

    def take_bulk(self, peer: NodeId, data: bytes) -> None:
        if self.core is not None:
            self._input(self._take_bulk, peer, data)

    def _take_bulk(self, peer: NodeId, data: bytes) -> None:
        frames = FrameDecoder().feed(data)
        disk = self.world.replicas[peer].hello.incarnation
        if self.hellos.dialled.get(peer) != disk:  # its hello is not proved
            self.hellos.unproved.add(peer)
            frames = [frame for frame in frames if frame.kind in (FRAME_FORWARD, FRAME_READ)]
        if not self.state.life.is_over:
            for frame in frames:
                if frame.kind == FRAME_POINTS:
                    self.world.witness.diverged.reported(self.node, peer, decode_points(frame)[2])
        link_events.take_frames(self.state, peer, disk, frames)

    def sends(self, message: Message) -> None:
        self._check(self.world.send, message)
        self.may_crash(self.sending)
