"""The bulk connections between nodes: forwards, read indexes and their answers, in order and exactly once, or closed.

Follows cluster/peers/dialled.py and transport.py, which use TCP for it: a cut holds the bytes back until they get
through or the connection is given up; a dead peer closes it. The outcome of requests without an answer is then unknown.
The consensus messages travel by `raftlog.chaos.sim.network.network`, which is worse than TCP ever is.
"""

from __future__ import annotations

from collections import deque

from raftlog.chaos.sim.network.cluster import Cluster
from raftlog.raft.types import NodeId

RETRY_US = 100_000
"""A cut connection tries to get its bytes through again after this long."""

REDIAL_US = 250_000
"""A connection that could not be made is tried again after this long."""


class Connection:
    """One direction between two nodes. `number` names the connection; events of an older one are void."""

    def __init__(self) -> None:
        self.number = 0
        self.is_up = False
        self.is_dialling = False
        self.last_us = 0  # when the newest frame arrives: the next one not before it
        self.queue: deque[bytes] = deque()  # held back by a cut
        self.stuck_since_us = 0
        self.lives = (0, 0)  # of the two processes


class Links:
    """All bulk connections of a world."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.silence_us = 2_000 * world.swarm.options.election_timeout_max_ms
        self._links: dict[tuple[NodeId, NodeId], Connection] = {}

    def started(self, node: NodeId) -> None:
        """That process began: it dials everyone, and they dial it."""
        for peer in self.world.replicas:
            if peer != node:
                self._dial(node, peer)
                self._dial(peer, node)

    def is_up(self, sender: NodeId, to: NodeId) -> bool:
        link = self._links.get((sender, to))
        return link is not None and link.is_up

    def _dial(self, sender: NodeId, to: NodeId) -> None:
        link = self._links.get((sender, to))
        if link is None:
            link = self._links[sender, to] = Connection()
        replica = self.world.replicas[sender]
        if not link.is_up and not link.is_dialling and replica.core is not None:
            link.is_dialling = True
            self.world.after(2 * self._delay_us(sender, to), self._dialled, sender, to, replica.life)

    def send(self, sender: NodeId, to: NodeId, frame: bytes) -> bool:
        if not self.is_up(sender, to):
            return False
        link = self._links[sender, to]
        link.queue.append(frame)
        if len(link.queue) == 1:
            link.stuck_since_us = self.world.now_us
            self._push(sender, to, link.number)
        return True

    def close(self, sender: NodeId, to: NodeId) -> None:
        """That connection breaks; its writer hears of it soon."""
        link = self._links.get((sender, to))
        if link is not None and link.is_up:
            link.is_up = False
            link.number += 1
            link.queue.clear()
            replica = self.world.replicas[sender]
            if replica.life == link.lives[0]:
                self.world.after(REDIAL_US, self._dial, sender, to)
                self.world.after(self.world.random.randint(0, 5_000), replica.bulk_closed, replica.life, to)

    def ended(self, node: NodeId) -> None:
        """That process ended: the nodes that write to it learn so, unless a cut hides it until they write again."""
        for (sender, to), link in self._links.items():
            if sender == node:
                link.is_up = link.is_dialling = False
                link.number += 1
                link.queue.clear()
            elif to == node and not self.world.network.is_cut(node, sender):
                self.close(sender, to)

    def _delay_us(self, sender: NodeId, to: NodeId) -> int:
        link = self.world.network.link(sender, to)
        return link.delay_min_us + (self.world.network_random.getrandbits(16) * link.delay_span_us >> 16)

    def _dialled(self, sender: NodeId, to: NodeId, life: int) -> None:
        world = self.world
        link, dialler, other = self._links[sender, to], world.replicas[sender], world.replicas[to]
        if dialler.life != life:
            return
        link.is_dialling = False
        network = world.network
        if other.core is None:
            return  # it dials, and is dialled, when it begins
        if other.is_paused or network.is_cut(sender, to) or network.is_cut(to, sender):
            world.after(REDIAL_US, self._dial, sender, to)
            return
        if to in dialler.hellos.dialled and not other.greet(sender, dialler.hello):
            return
        link.is_up = True
        link.number += 1
        link.lives = (dialler.life, other.life)
        dialler.bulk_opened(to)

    def _push(self, sender: NodeId, to: NodeId, number: int) -> None:
        world = self.world
        link = self._links[sender, to]
        if link.number != number or not link.queue:
            return
        if world.replicas[to].life != link.lives[1]:
            self.close(sender, to)  # the dead process's machine says so
        elif world.network.is_cut(sender, to):
            if world.now_us - link.stuck_since_us > self.silence_us:
                self.close(sender, to)
            else:
                world.after(RETRY_US, self._push, sender, to, number)
        else:
            while link.queue:
                link.last_us = max(link.last_us, world.now_us + self._delay_us(sender, to))
                world.at(link.last_us, self._arrive, sender, to, number, link.queue.popleft())

    def _arrive(self, sender: NodeId, to: NodeId, number: int, frame: bytes) -> None:
        link = self._links[sender, to]
        receiver = self.world.replicas[to]
        if link.number == number and receiver.life == link.lives[1]:
            receiver.take_bulk(sender, frame)
