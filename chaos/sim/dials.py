"""The consensus connections between nodes, as far as a node notices them: dialled, refused, broken and dialled again.

Follows cluster/peer_links.py. The messages themselves travel by `chaos.sim.network`; what is sent while a connection is
down is lost here. A cut link does not answer a dial at all; a node that is down refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raft.types import NodeId

if TYPE_CHECKING:
    from chaos.sim.world import World

PAUSE_MIN_US: Final = 2_000
PAUSE_MAX_US: Final = 100_000
UNANSWERED_US: Final = 250_000
"""A dial that is not answered is tried again after this long."""


class Dials:
    """All consensus connections of a world, by who dials whom. A pair that is not down is up, or was never dialled."""

    __slots__ = ("_down", "_number", "refused_until_us", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self._number = 0
        self._down: dict[tuple[NodeId, NodeId], int] = {}  # the number of the newest break of each that is down
        self.refused_until_us = 0  # a firewall refuses every dial until then

    def is_down(self, sender: NodeId, to: NodeId) -> bool:
        """Whether what `sender` sends there is lost for want of a connection."""
        return (sender, to) in self._down

    def started(self, node: NodeId) -> None:
        """That process began: it dials everyone; who was connected to it dials again already."""
        for peer in self.world.replicas:
            if peer != node:
                self.broke(node, peer)

    def ended(self, node: NodeId) -> None:
        """That process ended: those who dialled it dial again, unless a cut hides its end from them."""
        for peer in self.world.replicas:
            if peer != node and not self.world.network.is_cut(node, peer):
                self.broke(peer, node)

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
            dialler.tell(lambda core, now: core.link_refused(to, now))
            self._dial(sender, to, number, min(max(2 * pause_us, PAUSE_MIN_US), PAUSE_MAX_US))
        else:
            del self._down[sender, to]
            if other.greet(sender, dialler.hello):
                dialler.tell(lambda core, now: core.link_dialled(to, now))
