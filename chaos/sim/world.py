"""A seeded world: a few cores under one virtual clock, a bad network, bad disks and a nemesis, watched at every step.

`run_seed` runs one seed: trouble for some simulated seconds, then everything is healed and the cluster must make
progress and agree. Everything that happens is one line of a trace; its digest is equal for equal seeds, on every run
and Python hash seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import xxhash

from chaos.sim import nemesis
from chaos.sim.disk import SimDisk
from chaos.sim.invariants import Witness
from chaos.sim.network import Network
from chaos.sim.replica import Crashed, Replica
from chaos.sim.swarm import Swarm, draw
from raft.codec import encode_configuration, seal_entry
from raft.configuration import Configuration, Member
from raft.events import BecameLeader, ConflictTruncated, Event, MessageIgnored
from raft.messages import Message
from raft.refusals import Refused
from raft.types import GENESIS, Entry, EntryKind, NodeId

HEALED_US = 60_000_000
"""How long a healed cluster may take to agree: the smallest windows send one entry per round trip."""


class NoProgress(AssertionError):
    """A healed cluster does not agree in time, or too little happened for the run to mean anything."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed. `digest` is that of its trace; `stats` counts what happened, sorted by name."""

    seed: int
    digest: str
    stats: dict[str, int]


class World:
    """Virtual time, the nodes, and what clients saw."""

    def __init__(self, seed: int, swarm: Swarm | None = None, trace: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        drawn = draw(self.random)  # always drawn, so that a given swarm changes nothing else
        self.swarm = swarm or drawn
        self.trace = trace
        self.now_us = 0
        self.is_healed = False
        self.commands = EntryKind.COMMANDS
        self.stats: dict[str, int] = {}
        self._digest = xxhash.xxh64()
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        nodes = tuple(range(1, self.swarm.nodes + 1))
        self.configuration = Configuration(tuple(Member(node, f"{node:032x}", "", "") for node in nodes), nodes)
        data = encode_configuration(self.configuration)
        self.first: Entry = seal_entry(
            GENESIS, term=1, kind=EntryKind.CONFIGURATION, count=1, time_ms=0, clock_ms=0, data=data
        )
        self.drift = {node: self.random.randint(-self.swarm.drift, self.swarm.drift) for node in nodes}
        self.network = Network(self.random, self.swarm)
        self.witness = Witness(self.configuration, self.first)
        self.disks = {node: SimDisk(self.random, self.first) for node in nodes}
        self.replicas = {node: Replica(self, node, self.disks[node]) for node in nodes}
        self.acknowledged = 0  # the highest index that a client knows to be committed
        self.writes = 0
        self.reads = 0

    # -- time --------------------------------------------------------------------------------------------------

    def at(self, time_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Do something at a virtual time."""
        self._sequence += 1
        heapq.heappush(self._events, (time_us, self._sequence, action, arguments))

    def after(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Do something later."""
        self.at(self.now_us + delay_us, action, *arguments)

    def run_until(self, end_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Let things happen until then, or until `done` (asked every 10 ms); whether it ended by `done`."""
        ask_us = self.now_us
        while self._events and self._events[0][0] <= end_us:
            self.now_us, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
            if done is not None and self.now_us >= ask_us:
                if done():
                    return True
                ask_us = self.now_us + 10_000
        self.now_us = end_us
        return False

    # -- what the nodes use ------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """A message leaves its sender."""
        self.witness.sends(message, self.disks[message.sender])
        for delay_us in self.network.delays_us(message.sender, message.to):
            self.after(delay_us, self._deliver, message)

    def _deliver(self, message: Message) -> None:
        if self.network.is_cut(message.sender, message.to):
            self.network.lost += 1
            return
        self.note(message.to, "gets", type(message).__name__, message.sender, message.term)
        self.replicas[message.to].tell(lambda core, now: core.step(message, now))

    def sync_us(self) -> int:
        """How long one write with its sync takes."""
        random, swarm = self.random, self.swarm
        if not self.is_healed and swarm.slow_sync and random.randrange(1_000) < swarm.slow_sync:
            return random.randint(swarm.sync_max_us, 900_000)
        return random.randint(swarm.sync_min_us, swarm.sync_max_us)

    def may_crash(self, step: str, weight: int = 1) -> None:
        """Raises Crashed now and then: a crash can fall on any step of carrying out a Ready. `weight` makes up for
        steps that are rare themselves."""
        chance = self.swarm.crash_at_step * weight
        if chance and not self.is_healed and self.random.randrange(100_000) < chance:
            self.count(f"crash {step}")
            raise Crashed(step)

    def crashed(self, node: NodeId) -> None:
        """A process died: its connections close, which its peers hear, and it comes back later."""
        self.count("crashes")
        nemesis.close_links(self, node)
        self.after(self.random.randint(1_000, self.swarm.down_max_us), self.restart, node)

    def restart(self, node: NodeId) -> None:
        """Start that node, if it is down."""
        replica = self.replicas[node]
        if replica.core is None:
            replica.start()

    def attempt(self, node: NodeId, ask: Callable[[], object]) -> object:
        """Ask a core for something; False if it refuses."""
        try:
            return ask()
        except Refused as refusal:
            self.note(node, "refuses", type(refusal).__name__)
            self.count(f"refused {type(refusal).__name__}")
            return False

    def happened(self, node: NodeId, event: Event) -> None:
        """An event of a core."""
        match event:
            case BecameLeader():
                self.count("leaders")
            case ConflictTruncated():
                self.count("conflicts cut")
            case MessageIgnored(reason=reason) if "header CRC" in reason or "does not follow" in reason:
                raise AssertionError(f"node {node}: {event}")
        self.note(node, type(event).__name__)

    # -- clients -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """A client writes to whom it takes for the leader."""
        self.writes += 1
        count = self.random.choice((1, 1, 1, 2, 5))
        data = b"%d:" % self.writes + bytes(self.random.choice((0, 20, 200)))
        self._client_choice().propose(self.writes, count, data)

    def write_done(self, node: NodeId, write: int, entry: Entry) -> None:
        """A node applied a write that it took: its client hears of it."""
        self.note(node, "acknowledges", write, entry.index)
        self.count("writes acknowledged")
        self.acknowledged = max(self.acknowledged, entry.index)

    def read(self) -> None:
        """A client reads; it must see everything acknowledged by now."""
        self.reads += 1
        self._client_choice().read(self.reads, self.acknowledged)

    def read_done(self, node: NodeId, floor: int, index: int) -> None:
        """A read may be answered as of `index`: whoever reads from now on must see that too."""
        self.count("reads answered")
        if index < floor:
            raise AssertionError(f"node {node}: stale read as of {index}, {floor} was acknowledged before it began")
        self.note(node, "reads", index)
        self.acknowledged = max(self.acknowledged, index)

    def _client_choice(self) -> Replica:
        if self.random.randrange(5) == 0:
            return self.random.choice(list(self.replicas.values()))
        return self.leading() or self.random.choice(list(self.replicas.values()))

    def leading(self) -> Replica | None:
        """Whoever leads the newest term, as far as it believes."""
        newest, leading = 0, None
        for replica in self.replicas.values():
            state = replica.core.state if replica.core is not None else None
            if state is not None and state.leader == replica.node and state.term > newest:
                newest, leading = state.term, replica
        return leading

    # -- the record --------------------------------------------------------------------------------------------

    def note(self, node: NodeId, *words: object) -> None:
        """One line of the trace."""
        line = f"{self.now_us} {node} {words}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace(f"{self.now_us / 1e6:10.6f}  node {node}  " + " ".join(map(str, words)))

    def count(self, what: str) -> None:
        """Something worth counting happened."""
        self.stats[what] = self.stats.get(what, 0) + 1

    def outcome(self, seed: int) -> Outcome:
        """The run as numbers."""
        stats = self.stats | {
            "checks": self.witness.checks,
            "entries committed": len(self.witness.committed),
            "messages sent": self.network.sent,
            "messages lost": self.network.lost,
            "nodes": self.swarm.nodes,
            "simulated ms": self.now_us // 1_000,
        }
        return Outcome(seed, self._digest.hexdigest(), dict(sorted(stats.items())))

    # -- agreement ---------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """The end of all trouble."""
        self.is_healed = True
        self.network.heal_all()
        for node, replica in self.replicas.items():
            replica.is_paused = False
            self.restart(node)
            replica.wake()

    def has_agreed(self, least: int) -> bool:
        """Whether every node runs and has applied one and the same index, at least `least`."""
        applied: list[int] = []
        for replica in self.replicas.values():
            if replica.core is None:
                return False
            log = replica.core.state.log
            if log.applied != log.last.index:
                return False
            applied.append(log.applied)
        return min(applied) == max(applied) >= least


def run_seed(
    seed: int,
    seconds: int = 10,
    *,
    swarm: Swarm | None = None,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """One world: `seconds` of trouble, then agreement. Raises AssertionError (InvariantBroken, NoProgress)."""
    world = World(seed, swarm, trace)
    for replica in world.replicas.values():
        replica.start()
    nemesis.unleash(world)
    world.run_until(seconds * 1_000_000)
    world.heal()
    written = world.stats.get("writes acknowledged", 0)
    before = world.acknowledged
    if not world.run_until(world.now_us + HEALED_US, lambda: world.acknowledged > before and world.has_agreed(before)):
        ends = {node: replica.core and replica.core.status() for node, replica in world.replicas.items()}
        raise NoProgress(f"{HEALED_US // 1_000_000} s after everything was healed: {ends}")
    world.count("healed runs")
    world.stats["writes acknowledged in trouble"] = written
    return world.outcome(seed)


def quiet(nodes: int = 3) -> Swarm:
    """A world without trouble: what a healthy cluster does."""
    swarm = draw(Random(0))
    return replace(
        swarm, nodes=nodes, loss=0, duplicate=0, slow_message=0, slow_sync=0, crash_at_step=0, crash_every_us=0,
        pause_every_us=0, cut_every_us=0, link_reset_every_us=0, transfer_every_us=0, compact_every_us=0,
        clock_jump_every_us=0, drift=0, delay_min_us=100, delay_max_us=200, sync_min_us=200, sync_max_us=400,
    )  # fmt: skip
