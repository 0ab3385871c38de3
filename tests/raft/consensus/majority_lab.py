"""A random world of cores whose disks hang, tear and cut, and whose links break, in which then a majority is healthy.

No disk loses anything that it confirmed. After a random phase every voter of some majority runs with a working disk and
is connected to the others of it. The other nodes stay as they are: down, cut off, or connected with a disk that hangs.
Then a leader must commit a new entry within a bounded time, whatever the other nodes remember or send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import combinations
from random import Random
from typing import Final

from raftlog.raft.changes import Remove
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import check_state, check_step, observe
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, SyncBatch, SyncQueue
from raftlog.raft.refusals import Refused
from raftlog.raft.types import NEVER_REPLACED, Entry, EntryKind, HardState, NodeId, Replaced
from tests.raft.lab import at, configuration, log_of, log_start, next_ready

STALL_MS: Final = 2_000  # a disk operation that takes longer is called hanging: limits.disk_stall_ms
BOUND_MS: Final = 15_000
"""So long a healthy majority may take: a hanging leader is noticed and hands over in up to 4 s, a started node waits
up to 1.2 s for peers, and a few elections of 0.6 s may fail by chance."""


@dataclass(slots=True)
class Disk:
    """The durable part of a node, and the batches that wait."""

    hard_state: HardState
    entries: list[Entry]
    replaced: Replaced = NEVER_REPLACED
    queue: SyncQueue = field(default_factory=SyncQueue)
    under_way: SyncBatch | None = None
    since_ms: int = 0  # when it began
    hangs: bool = False
    applied: int = 1  # committed and applied, as the ledger shows

    def steps(self, batch: SyncBatch) -> list[Callable[[], None]]:
        """What a batch does to the files, in order; a crash leaves some first part of it."""
        done: list[Callable[[], None]] = []
        if batch.hard_state is not None:
            done.append(lambda state=batch.hard_state: setattr(self, "hard_state", state))  # type: ignore[misc]
        if batch.cut_after is not None and batch.cut_after < self.entries[-1].index:
            done.append(lambda after=batch.cut_after: self._cut(after))  # type: ignore[misc]
        return [*done, *(lambda entry=entry: self.entries.append(entry) for entry in batch.entries)]

    def _cut(self, after: int) -> None:
        self.replaced = Replaced(*self.replaced.kept(self.entries[-1].mark), after)
        self.entries = [entry for entry in self.entries if entry.index <= after]

    def configurations(self, entries: list[Entry]) -> list[tuple[int, Configuration]]:
        """Those of a log."""
        kind = EntryKind.CONFIGURATION
        return [(entry.index, decode_configuration(entry.data)) for entry in entries if entry.kind is kind]


class World:
    """Nodes 1 to n, a clock, and what happens when."""

    def __init__(self, seed: int, nodes: int, *, told: list[str] | None = None) -> None:
        self.random, self.now_ms, self.told = Random(seed), 0, told
        self.is_healed = False
        self.write_ms = self.random.choice((2, 30, 200))  # longest
        members = self._members(nodes)
        self.disks = {each.node: Disk(HardState(1), log_of(members)) for each in members.members}
        self.cores: dict[NodeId, RaftCore] = {}
        self.starts: dict[NodeId, Start] = {}
        self.links: dict[tuple[NodeId, NodeId], int] = {}  # (dials, listens): when the newest message arrives
        self.committed: dict[int, int] = {}  # header CRC by index
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        for node in self.disks:
            self.start(node)
        for pair in self._pairs():
            self.link(*pair)

    def _members(self, nodes: int) -> Configuration:
        """All voters, or a joint configuration of two sides."""
        random = self.random
        members = configuration(nodes)
        if nodes > 3 and random.randrange(3) == 0:
            side = sorted(random.sample(range(1, nodes + 1), 3))
            return replace(members, voters=tuple(side), outgoing=members.voters)
        return members

    def _pairs(self) -> list[tuple[NodeId, NodeId]]:
        return [(one, other) for one in self.disks for other in self.disks if one != other]

    def say(self, what: str) -> None:
        """One line of the story."""
        if self.told is not None:
            self.told.append(f"{self.now_ms:6} {what}")

    def after(self, ms: int, action: Callable[[], None]) -> None:
        """Do that then."""
        self._count += 1
        heappush(self._due, (self.now_ms + ms, self._count, action))

    # -- nodes and links

    def start(self, node: NodeId) -> None:
        """A process begins on that disk."""
        disk, random = self.disks[node], self.random
        disk.hard_state = replace(disk.hard_state, boot=disk.hard_state.boot + 1)
        disk.queue, disk.under_way = SyncQueue(), None
        *earlier, (index, newest) = disk.configurations(disk.entries)
        run, last = random.randrange(1, 1 << 60), disk.entries[-1].mark
        kept = disk.replaced.kept(last)
        commit = random.choice((1, disk.applied))
        core = RaftCore(
            node,
            Options(),
            hard_state=disk.hard_state,
            log=log_start(disk.entries, random.choice((None, 2))),
            configuration=newest,
            configuration_index=index,
            earlier=tuple(earlier),
            commit=commit,
            applied=commit,
            random=random.randint,
            now=at(self.now_ms),
            incarnation=f"{node:032x}",
            floor=disk.hard_state.floor,
            kept=kept,
            run=run,
        )
        self.cores[node] = core
        self.starts[node] = Start(
            run=run, last_index=kept[1], last_term=kept[0], term=disk.hard_state.term, floor=disk.hard_state.floor
        )
        self.say(f"{node} starts: term {disk.hard_state.term}, last {last.index}@{last.term}, kept {kept}")
        self._pump(node)

    def crash(self, node: NodeId) -> None:
        """The process ends; of the write under way the disk has a first part."""
        disk = self.disks[node]
        if node not in self.cores:
            return
        if disk.under_way is not None:
            steps = disk.steps(disk.under_way)
            done = self.random.randint(0, len(steps))
            for step in steps[:done]:
                step()
            self.say(f"{node} crashes after {done} of {len(steps)} steps of a write")
        else:
            self.say(f"{node} crashes")
        del self.cores[node]
        for pair in [pair for pair in self.links if node in pair]:
            self.unlink(*pair)
        for other in self.cores:
            self._feed(other, lambda core: core.link_refused(node, at(self.now_ms)))

    def link(self, one: NodeId, other: NodeId) -> None:
        """`one` dials `other`."""
        if (one, other) not in self.links and one in self.cores and other in self.cores:
            self.links[one, other] = self.now_ms
            start = self.starts[one]
            self._feed(other, lambda core: core.link_opened(one, f"{one:032x}", 1, at(self.now_ms), start))
            self._feed(one, lambda core: core.link_dialled(other, at(self.now_ms)))

    def unlink(self, one: NodeId, other: NodeId) -> None:
        """Messages under way are lost."""
        if self.links.pop((one, other), None) is not None and other in self.cores:
            self._feed(other, lambda core: core.link_closed(one, at(self.now_ms)))

    # -- carrying out

    def _feed(self, node: NodeId, action: Callable[[RaftCore], None]) -> None:
        core = self.cores.get(node)
        if core is None:
            return
        before = observe(core.state)
        action(core)
        self._pump(node)
        check_step(node, before, observe(core.state))

    def _pump(self, node: NodeId) -> None:
        core, disk = self.cores[node], self.disks[node]
        while (ready := next_ready(core)) is not None:
            for event in ready.events:
                self.say(f"{node} {event}")
            self._send(node, ready.messages)
            disk.queue.add(ready)
            for entry in ready.committed:
                crc = entry.mark.header_crc
                assert self.committed.setdefault(entry.index, crc) == crc, f"two entries committed at {entry.index}"
            if ready.committed:
                core.applied(ready.committed[-1].index)
                disk.applied = ready.committed[-1].index
            for fetch in ready.fetches:
                core.fetched(fetch, self._read(disk, fetch), at(self.now_ms))
            check_state(core.state)
        if disk.under_way is None and not disk.queue.is_empty:
            disk.under_way, disk.since_ms = disk.queue.take(), self.now_ms
            self._write(node, core, disk.under_way)

    @staticmethod
    def _read(disk: Disk, fetch: Fetch) -> tuple[Entry, ...]:
        return tuple([entry for entry in disk.entries if fetch.after < entry.index <= fetch.to][:8])

    def _write(self, node: NodeId, core: RaftCore, batch: SyncBatch) -> None:
        def done() -> None:
            disk = self.disks[node]
            if self.cores.get(node) is not core or disk.under_way is not batch or disk.hangs:
                return
            for step in disk.steps(batch):
                step()
            disk.under_way = None
            self._send(node, batch.messages)

            def persisted(core: RaftCore) -> None:
                if batch.last is not None:
                    core.persisted(batch.last.term, batch.last.index, at(self.now_ms))

            self._feed(node, persisted)

        self.after(self.random.randrange(self.write_ms), done)
        if batch.cut_after is not None and not self.is_healed and self.random.randrange(2):
            self.after(0, lambda: self.crash(node) if self.disks[node].under_way is batch else None)

    def hang(self, node: NodeId, *, hangs: bool) -> None:
        """From now on no write of that disk ends; or all do."""
        disk = self.disks[node]
        disk.hangs = hangs
        self.say(f"the disk of {node} {'hangs' if hangs else 'moves'}")
        if not hangs and disk.under_way is not None and node in self.cores:
            self._write(node, self.cores[node], disk.under_way)

    def _is_stalled(self, node: NodeId) -> bool:
        disk = self.disks[node]
        return disk.hangs and disk.under_way is not None and self.now_ms - disk.since_ms > STALL_MS

    def _send(self, node: NodeId, messages: tuple[Message, ...]) -> None:
        if self._is_stalled(node) and isinstance(self.cores[node].state.role, Leader):
            return  # the driver mutes a leader whose disk hangs
        for message in messages:
            pair = (node, message.to)
            if pair not in self.links or self.random.randrange(100) == 0:
                continue
            arrives_ms = self.links[pair] = max(self.links[pair], self.now_ms + self.random.randrange(4))
            self.after(arrives_ms - self.now_ms, lambda message=message: self._arrive(message))  # type: ignore[misc]

    def _arrive(self, message: Message) -> None:
        if (message.sender, message.to) in self.links:
            self._feed(message.to, lambda core: core.step(message, at(self.now_ms)))

    # -- time

    def run(self, ms: int, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Time goes on; whether `until` came true."""
        end_ms = self.now_ms + ms
        while not until():
            due_ms = min([core.next_deadline_ms() for core in self.cores.values()], default=end_ms)
            due_ms = max(self.now_ms, min(due_ms, self._due[0][0] if self._due else end_ms))
            if due_ms >= end_ms:
                self.now_ms = end_ms
                return until()
            self.now_ms = due_ms
            while self._due and self._due[0][0] <= self.now_ms:
                heappop(self._due)[2]()
            for node in list(self.cores):
                if self.cores[node].next_deadline_ms() <= self.now_ms:
                    self.cores[node].state.is_stalled = self._is_stalled(node)
                    self._feed(node, lambda core: core.tick(at(self.now_ms)))
        return True

    def propose(self, node: NodeId, *, changes: bool = True) -> None:
        """An entry, or sometimes a change of members, at whichever node that is."""

        def propose(core: RaftCore) -> None:
            try:
                if changes and self.random.randrange(12) == 0:
                    core.propose_configuration(Remove((self.random.choice(list(self.disks)),)), at(self.now_ms))
                else:
                    core.propose(EntryKind.COMMANDS, 1, b"x", at(self.now_ms))
            except Refused:
                pass

        self._feed(node, propose)

    def disturb(self) -> None:
        """One random fault or its end, and some time."""
        random = self.random
        leaders = [node for node, core in self.cores.items() if isinstance(core.state.role, Leader)]
        node = random.choice(leaders if leaders and random.randrange(2) else list(self.disks))
        match random.randrange(10):
            case 0 | 1 if node in self.cores:
                self.crash(node)
            case 0 | 1 | 2 if node not in self.cores:
                self.start(node)
            case 2 | 3:
                self.hang(node, hangs=not self.disks[node].hangs)
            case 4:
                for pair in [pair for pair in self.links if node in pair and random.randrange(2)]:
                    self.unlink(*pair)
            case 5:
                side = [node, *random.sample(list(self.disks), random.randint(1, len(self.disks) // 2))]
                for pair in [pair for pair in self.links if (pair[0] in side) != (pair[1] in side)]:
                    self.unlink(*pair)
            case 6 | 7:
                for pair in self._pairs():
                    self.link(*pair)
            case _:
                for each in self.cores:
                    self.propose(each)
        self.run(random.choice((0, 1, 2, 3, 20, 100, 400, 1_500)))

    def healthy(self) -> tuple[NodeId, ...]:
        """Some nodes that are a majority of every configuration in any log, as few as possible."""
        disks = self.disks.values()
        known = [each for disk in disks for _, each in disk.configurations(disk.entries)]
        known += [each for core in self.cores.values() for _, each in core.state.configurations]
        sides = {side for each in known for side in (each.voters, each.outgoing) if side}
        for size in range(1, len(self.disks) + 1):
            chosen = list(combinations(self.disks, size))
            self.random.shuffle(chosen)
            for nodes in chosen:
                if all(2 * len([node for node in side if node in nodes]) > len(side) for side in sorted(sides)):
                    return nodes
        raise AssertionError("no majority")

    def heal(self) -> tuple[NodeId, ...]:
        """A majority becomes healthy, and each other node is down, cut off, or connected with a disk that hangs."""
        nodes, self.is_healed = self.healthy(), True
        self.say(f"healthy from now on: {nodes}")
        for node in self.disks:
            if node in nodes:
                self.hang(node, hangs=False)
                if node not in self.cores:
                    self.start(node)
            elif node in self.cores:
                match self.random.randrange(4):
                    case 0:
                        self.crash(node)
                    case 1:
                        for pair in [pair for pair in self.links if node in pair]:
                            self.unlink(*pair)
                    case _:
                        self.hang(node, hangs=True)
        is_cut = {node for node in self.disks if node not in nodes and not any(node in pair for pair in self.links)}
        for pair in self._pairs():
            if not is_cut.intersection(pair):
                self.link(*pair)
        return nodes

    def commits(self) -> bool:
        """Whether an entry that is proposed now and then is committed in time."""
        since = max(self.committed, default=1)
        for _ in range(BOUND_MS // 100):
            for node in self.cores:
                self.propose(node, changes=False)
            if self.run(100, until=lambda: max(self.committed, default=1) > since):
                return True
        return False


def live(seed: int, nodes: int, faults: int = 40, told: list[str] | None = None) -> bool:
    """Whether a leader comes in that world, in time."""
    world = World(seed, nodes, told=told)
    for _ in range(world.random.randint(5, faults)):
        world.disturb()
    world.heal()
    return world.commits()
