"""The simulator's network: directed links that lose, delay, double, reorder, hold back and replay what they carry.

A link carries parcels (whatever the world puts into one); nothing is encoded. A cut swallows, a clog holds back and
then lets everything go at once, and each link keeps a bounded pool of old parcels, some of which come again much
later: in another term, after a restart of either end. The transport itself never repeats a frame; a proxy, or a
network that repeats whole connections, can (a replay models both, and Raft must not care: every promise in a message
is durable at its sender). A closed link is news, which the nemesis brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from raftlog.chaos.sim.ground.swarm import LinkQuality
from raftlog.raft.types import NodeId

POOL: Final = 24
"""Old parcels kept on each link: every eighth takes a place by chance, so most are seconds and some minutes old."""

HELD_MAX: Final = 4_096
"""What a clogged link holds back at most, as a socket's buffers do; more is lost."""

SLOW_MAX_US: Final = 400_000
"""The longest delay: longer than the shortest election timeout."""


class Link:
    """One direction between two nodes. The rates are upper bounds in 2**20ths of one draw, each above the last."""

    def __init__(self, random: Random, quality: LinkQuality) -> None:
        self.cuts = 0  # how many cuts lie on it
        self.clogs = 0
        self.held: list[Any] = []
        self.pool: list[Any] = []
        self.rare: list[Any] = []  # old ones that the pool would forget among so many heartbeats
        # Each link has its own share of the faults: some are perfect in the worst of worlds.
        self.loses = random.randint(0, quality.loss) * 1_048
        self.doubles = self.loses + random.randint(0, quality.duplicate) * 1_048
        self.replays = self.doubles + random.randint(0, quality.replay) * 1_048
        self.slows = self.replays + quality.slow_message * 1_048
        self.delay_min_us = quality.delay_min_us
        self.delay_span_us = quality.delay_max_us - quality.delay_min_us

    def is_perfect_from_now(self) -> None:
        """Nothing bad any more, but for cuts and clogs, which are taken off one by one."""
        self.loses = self.doubles = self.replays = self.slows = self.delay_span_us = 0
        self.pool.clear()
        self.rare.clear()


class Network:
    """Every link of a world. `schedule(delay_us, parcel)` has a parcel arrive later."""

    def __init__(self, random: Random, quality: LinkQuality, schedule: Callable[[int, Any], None]) -> None:
        self.random = random
        self.quality = quality
        self.is_healed = False
        self.sent = 0
        self.lost = 0
        self.doubled = 0
        self.replayed = 0
        self._bits = random.getrandbits
        self._links: dict[tuple[NodeId, NodeId], Link] = {}
        self._schedule = schedule

    def link(self, sender: NodeId, to: NodeId) -> Link:
        """The link from `sender` to `to`, made when first asked for."""
        link = self._links.get((sender, to))
        if link is None:
            link = self._links[sender, to] = Link(self.random, self.quality)
            if self.is_healed:
                link.is_perfect_from_now()
        return link

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, sender: NodeId, to: NodeId, parcel: Any, *, is_rare: bool = False) -> bool:
        """Carry one parcel: it arrives once, never, or more than once; False if it is lost for sure.

        Of a kind that `is_rare` old ones are kept apart, and come again as often as all others together.
        """
        self.sent += 1
        link = self._links.get((sender, to)) or self.link(sender, to)
        if link.cuts:
            self.lost += 1
            return False
        draw = self._bits(20)
        if draw < link.slows:
            return self._badly(link, parcel, draw)
        if link.clogs:
            return self._hold(link, parcel)
        if link.replays > link.doubles and (is_rare or not draw & 7):
            self._keep(link.rare if is_rare else link.pool, parcel)
        self._schedule(link.delay_min_us + (self._bits(16) * link.delay_span_us >> 16), parcel)
        return True

    def _badly(self, link: Link, parcel: Any, draw: int) -> bool:
        if draw < link.loses:
            self.lost += 1
            return False
        if link.clogs:
            return self._hold(link, parcel)
        delay_us = link.delay_min_us + (self._bits(16) * link.delay_span_us >> 16)
        if draw < link.doubles:
            self.doubled += 1
            self._schedule(link.delay_min_us + (self._bits(16) * SLOW_MAX_US >> 16), parcel)
        elif draw < link.replays:
            pool = link.rare if link.rare and self._bits(1) else link.pool
            if pool:
                self.replayed += 1
                self._schedule(delay_us, pool[self._bits(16) * len(pool) >> 16])
            self._keep(link.pool, parcel)
        else:
            delay_us += self._bits(16) * SLOW_MAX_US >> 16
        self._schedule(delay_us, parcel)
        return True

    def _keep(self, pool: list[Any], parcel: Any) -> None:
        if len(pool) < POOL:
            pool.append(parcel)
        else:
            pool[self._bits(16) * POOL >> 16] = parcel

    def _hold(self, link: Link, parcel: Any) -> bool:
        if len(link.held) >= HELD_MAX:
            self.lost += 1
            return False
        link.held.append(parcel)
        return True

    # -- faults of links ---------------------------------------------------------------------------------------

    def is_cut(self, sender: NodeId, to: NodeId) -> bool:
        link = self._links.get((sender, to))
        return link is not None and link.cuts > 0

    def is_hindered(self, sender: NodeId, to: NodeId) -> bool:
        link = self._links.get((sender, to))
        return link is not None and (link.cuts > 0 or link.clogs > 0)

    def loses(self, sender: NodeId, to: NodeId) -> bool:
        """Whether messages are lost by chance on that link."""
        link = self._links.get((sender, to))
        return link is not None and link.loses > 0

    def cut(self, sender: NodeId, to: NodeId) -> None:
        """Swallow what `sender` sends to `to` from now on; cuts add up."""
        self.link(sender, to).cuts += 1

    def heal(self, sender: NodeId, to: NodeId) -> None:
        link = self.link(sender, to)
        link.cuts = max(0, link.cuts - 1)

    def clog(self, sender: NodeId, to: NodeId) -> None:
        """Hold back what `sender` sends to `to` from now on; clogs add up."""
        self.link(sender, to).clogs += 1

    def unclog(self, sender: NodeId, to: NodeId) -> None:
        """Take one clog off again; with the last one everything held back arrives in a burst, in its order."""
        link = self.link(sender, to)
        link.clogs = max(0, link.clogs - 1)
        if not link.clogs:
            held, link.held = link.held, []
            for parcel in held:
                self._schedule(link.delay_min_us, parcel)

    def forget(self, node: NodeId) -> None:
        """What clogged links hold back for or from `node` is gone: its process ended, and its connections with it."""
        for (sender, to), link in self._links.items():
            if node in {sender, to}:
                link.held.clear()

    def heal_among(self, nodes: Iterable[NodeId]) -> None:
        """Make every link between those nodes perfect, and leave the others as they are."""
        among = frozenset(nodes)
        for (sender, to), link in self._links.items():
            if sender in among and to in among:
                link.cuts = 0
                link.is_perfect_from_now()
                if link.clogs:
                    link.clogs = 1
                    self.unclog(sender, to)

    def heal_all(self) -> None:
        """No cuts, no clogs, no loss, no delays but the least, from now on."""
        self.is_healed = True
        self.heal_among([node for pair in self._links for node in pair])
