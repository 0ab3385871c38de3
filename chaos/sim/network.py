"""The simulator's network: directed links that lose, delay, double and reorder, can be cut, and tell when they close.

Links carry message objects; nothing is encoded. A cut swallows; a closed link is news for whoever notices.
"""

from __future__ import annotations

from random import Random

from chaos.sim.swarm import Swarm
from raft.types import NodeId


class Network:
    """Which directed links are cut, and what becomes of a message."""

    __slots__ = ("_cuts", "is_healed", "lost", "random", "sent", "swarm")

    def __init__(self, random: Random, swarm: Swarm) -> None:
        self.random = random
        self.swarm = swarm
        self.is_healed = False
        self._cuts: dict[tuple[NodeId, NodeId], int] = {}  # how many cuts lie on a link
        self.sent = 0
        self.lost = 0

    def cut(self, sender: NodeId, to: NodeId) -> None:
        """Swallow what `sender` sends to `to` from now on."""
        self._cuts[sender, to] = self._cuts.get((sender, to), 0) + 1

    def heal(self, sender: NodeId, to: NodeId) -> None:
        """Take one cut off again."""
        left = self._cuts.get((sender, to), 0) - 1
        if left > 0:
            self._cuts[sender, to] = left
        else:
            self._cuts.pop((sender, to), None)

    def heal_all(self) -> None:
        """No cuts, no loss, no delays but the least, from now on."""
        self._cuts.clear()
        self.is_healed = True

    def is_cut(self, sender: NodeId, to: NodeId) -> bool:
        """Whether that direction is cut."""
        return (sender, to) in self._cuts

    def delays_us(self, sender: NodeId, to: NodeId) -> tuple[int, ...]:
        """When a message sent now arrives: once, never, or twice."""
        self.sent += 1
        swarm, random = self.swarm, self.random
        if self.is_healed:
            return (swarm.delay_min_us,)
        if (sender, to) in self._cuts or random.randrange(1_000) < swarm.loss:
            self.lost += 1
            return ()
        if random.randrange(1_000) < swarm.duplicate:
            return (self._delay_us(), self._delay_us())
        return (self._delay_us(),)

    def _delay_us(self) -> int:
        swarm, random = self.swarm, self.random
        if swarm.slow_message and random.randrange(1_000) < swarm.slow_message:
            return random.randint(swarm.delay_max_us, 400_000)
        return random.randint(swarm.delay_min_us, swarm.delay_max_us)
