"""The consensus connections between nodes, as far as a node notices them: dialled, refused, broken and dialled again.

Follows cluster/peers/dialled.py. The messages themselves travel by `raftlog.chaos.sim.network.network`; messages sent
while a connection is down are lost here. A cut link does not answer a dial at all; a node that is down refuses it.

Two processes of one node may run side by side, on a disk and a copy of it. The network leads to one of them at a time:
peers believe hellos of the process alone that their own dials reach (cluster/peers/hello_proof.py).
"""

from __future__ import annotations

from random import Random
from typing import Final

from raftlog.chaos.sim.network.cluster import Cluster
from raftlog.chaos.sim.network.links import Links
from raftlog.chaos.sim.replica.node import Node
from raftlog.cluster.replica.parts import link_events
from raftlog.raft.types import NodeId

PAUSE_MIN_US: Final = 2_000
PAUSE_MAX_US: Final = 100_000
UNANSWERED_US: Final = 250_000
"""A dial that is not answered is tried again after this long."""

NOTICED_US: Final = 5_000
"""How long it takes at most until a node hears that a connection closed."""


class Dials:
    """All consensus connections of a world, by dialler and peer. Pairs that are not down are up, or never dialled."""

    def __init__(self, world: Cluster, links: Links) -> None:
        self.world, self._links = world, links
        self._number = 0
        self._down: dict[tuple[NodeId, NodeId], int] = {}  # the number of the newest break of each that is down
        self.refused_until_us = 0  # a firewall refuses every dial until then
        self.behind: dict[NodeId, Node] = {}  # of nodes with two processes the one that is not reached
        self._faces: dict[NodeId, int] = {}  # how often another process of a node was reached

    def is_down(self, sender: NodeId, to: NodeId) -> bool:
        """Whether what `sender` sends there is lost for want of a connection."""
        return (sender, to) in self._down

    def face(self, node: NodeId) -> int:
        """A number for the process of that node that is reached: a connection ends with it."""
        return self._faces.get(node, 0)

    def is_refused(self, sender: NodeId, to: NodeId) -> bool:
        """Whether the process of `sender` that is reached is refused there for another one on its disk or a copy of it:
        its promises there do not count. One that is believed is no member any more: its connection serves it yet."""
        if sender not in self._faces:
            return False
        receiver, hello = self.world.replicas[to], self.world.replicas[sender].hello
        is_believed = receiver.hellos.believed.get(sender) == hello
        return receiver.core is not None and not is_believed and receiver.refusal_of(sender, hello) is not None

    def lead_to(self, other: Node) -> None:
        """From now on that process of its node is reached; the one so far stands still, and all connections break.
        `other` has a core, or is to be started next."""
        world, node = self.world, other.node
        before = world.replicas[node]
        self._faces[node] = self.face(node) + 1
        self._links.ended(node)
        self.ended(node)
        before.is_behind, other.is_behind = True, False
        for peer in world.replicas:
            if peer != node:
                before.link_closed(peer)
                before.bulk_closed(before.life, peer)
        other.disk.files.is_full, other.disk.slow_us = before.disk.files.is_full, before.disk.slow_us
        before.disk.files.is_full, before.disk.slow_us = False, 0
        world.replicas[node], world.disks[node], self.behind[node] = other, other.disk, before
        if other.core is not None:
            self._links.started(node)
            self.started(node)
            other.wake()

    def started(self, node: NodeId) -> None:
        """That process began: it dials all peers. The peers that were connected to it dial again already."""
        for peer in self.world.replicas:
            if peer != node:
                self.broke(node, peer)

    def ended(self, node: NodeId) -> None:
        """That process ended: the nodes that dialled it dial again, unless a cut hides its end from them."""
        for peer in self.world.replicas:
            if peer != node and not self.world.network.is_cut(node, peer):
                self.broke(peer, node)

    def closed(self, node: NodeId) -> None:
        """That process ended: each peer hears its connections close, sooner or later, unless a cut hides it."""
        world = self.world
        world.network.forget(node)
        for peer in world.replicas:
            if peer != node and not world.network.is_cut(node, peer):
                self.tell_closed(world.random, peer, node)

    def tell_closed(self, random: Random, node: NodeId, peer: NodeId) -> None:
        """`node` hears soon that the connection of `peer` closed."""
        self.world.after(random.randint(0, NOTICED_US), self.world.replicas[node].link_closed, peer)

    def broke(self, sender: NodeId, to: NodeId) -> None:
        """The connection that `sender` dialled ended; it dials again at once."""
        self._number += 1
        self._down[sender, to] = self._number
        self._dial(sender, to, self._number, 0)

    def _dial(self, sender: NodeId, to: NodeId, number: int, pause_us: int) -> None:
        world = self.world
        delay_us = world.network.link(sender, to).delay_min_us
        wait_us = pause_us - (world.network_random.getrandbits(16) * (pause_us // 2) >> 16)
        world.after(wait_us + 2 * delay_us, self._dialled, sender, to, number, pause_us)

    def _dialled(self, sender: NodeId, to: NodeId, number: int, pause_us: int) -> None:
        world = self.world
        dialler, other, network = world.replicas[sender], world.replicas[to], world.network
        if self._down.get((sender, to)) != number or dialler.core is None:
            return
        if network.is_cut(sender, to) or network.is_cut(to, sender):
            self._dial(sender, to, number, UNANSWERED_US)
        elif other.core is None or world.now_us < self.refused_until_us:
            dialler.notice(to, link_events.link_refused)
            self._dial(sender, to, number, min(max(2 * pause_us, PAUSE_MIN_US), PAUSE_MAX_US))
        else:
            del self._down[sender, to]
            if to in dialler.hellos.dialled and other.greet(sender, dialler.hello):
                dialler.link_dialled(to)
