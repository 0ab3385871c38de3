"""Simulates client processes: they drive `cluster.client.decisions` in virtual time, and their answers are judged.

Each client has its own link to every node, which delays, breaks and loses; some have a session and pipeline, some send
plain writes, some are bound to one node. What they ask is in `raftlog.chaos.sim.clients.workload`, what the ends must
come to in `raftlog.chaos.sim.clients.oracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from raftlog.chaos.judge.history import History, Process
from raftlog.chaos.sim.clients.errands import OPEN, Errand
from raftlog.chaos.sim.clients.log_readers import LogReaders
from raftlog.chaos.sim.clients.oracle import Oracle
from raftlog.chaos.sim.clients.users import Users
from raftlog.chaos.sim.clients.workload import APPEND, Task, Tasks, Told
from raftlog.chaos.sim.replica.answers import url_of
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.client.decisions import Failure, Policy, Routes, SessionBook
from raftlog.cluster.client.errors import ClientError
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.types import Entry, NodeId
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import Effects

CUT_EVERY_US: Final = 20_000_000
CUT_MAX_US: Final = 4_000_000
"""How often, on average, some clients do not reach some node, and for how long at most: longer than their patience."""


class Clients:
    """All client processes of a world, their links, and the answers that they got."""

    def __init__(self, world: World, random: Random, count: int, every_us: int) -> None:
        self.world = world
        self.random = random
        self.every_us = every_us
        self.oracle = Oracle()
        self.recording = self.oracle.recording
        self.log_readers = LogReaders(world)
        self.users = Users(world)
        self.is_calm = not world.swarm.faults
        # By chance of their own: what worlds without groups draw stays what it was.
        self.have_groups = Random(f"{world.seed} groups").randrange(3) > 0
        self.cuts: set[tuple[int, NodeId]] = set()  # (client, node): nothing gets through
        self.open: dict[Errand, None] = {}  # with an attempt at some node
        self._processes = 0
        self.clients = [Client(self, number, Random(f"{world.seed} client {number}")) for number in range(count)]
        for client in self.clients:
            world.after(random.randint(1, 2 * every_us), client.act)
        if not self.is_calm:
            world.after(random.randint(1, 2 * CUT_EVERY_US), self._trouble)

    @property
    def history(self) -> History:
        """The recorded operations on keys, for the model cas-register."""
        return self.oracle.history()

    def next_process(self) -> int:
        """A process number of the history; one whose operation ended unknown is not used again."""
        self._processes += 1
        return self._processes

    # -- what happens to them ----------------------------------------------------------------------------------

    def _trouble(self) -> None:
        world, random = self.world, self.random
        if not world.is_healed:
            node, for_us = random.choice(list(world.replicas)), random.randint(100_000, CUT_MAX_US)
            if world.fault("cut clients", node, "", for_us):
                self.cut(node, for_us)
            world.after(random.randint(1, 2 * CUT_EVERY_US), self._trouble)

    def cut(self, node: NodeId, for_us: int) -> None:
        """For a while half of the clients do not reach that node; they only notice that nothing comes."""
        hit = [(client.number, node) for client in self.clients if self.random.getrandbits(1)]
        self.cuts.update(hit)
        self.world.after(for_us, self.cuts.difference_update, hit)

    def is_cut(self, number: int, node: NodeId) -> bool:
        """Whether no message gets through between that client and that node."""
        return (number, node) in self.cuts and not self.world.is_healed

    def ended(self, node: NodeId) -> None:
        """That node's process died: its connections break."""
        for errand in list(self.open):
            if errand.node == node:
                self.world.after(
                    self.random.randint(100, 3_000), errand.lost, errand.attempt, Failure.BROKEN, "it died"
                )

    def applied(self, entry: Entry, effects: Effects, oldest: int) -> None:
        """Some node applied this entry, and takes `oldest` for the oldest index of the log."""
        self.oracle.applied(entry, effects)
        self.log_readers.applied(entry, effects, oldest)
        self.users.applied(entry, effects)

    def check(self) -> None:
        """Judges the whole recording at the end of the world. Raises Failure."""
        final = self.world.leading()  # a node that was removed may be far behind
        verdict = self.oracle.check(final.machine if final is not None else None)
        self.world.count(f"histories {verdict}")


class Client:
    """One process: its routes, its session, its window of open operations."""

    def __init__(self, clients: Clients, number: int, random: Random) -> None:
        world = clients.world
        self.clients = clients
        self.number = number
        self.random = random
        self.tasks = Tasks(number, random, has_groups=clients.have_groups)
        urls = [url_of(node) for node in world.replicas]
        self.nodes = {url_of(node): node for node in world.replicas}
        is_bound = random.randrange(4) == 0
        random.shuffle(urls)
        self.routes = Routes(tuple(urls[:1]) if is_bound else tuple(urls), bound=is_bound)
        self.policy = Policy(attempt_ms=random.choice((100, 300, 1_000)), grace_ms=random.choice((20, 250)))
        self.deadline_ms = random.choice((600, 2_000, 5_000))
        self.window = random.choice((1, 1, 3, 8))
        self.has_session = random.randrange(3) > 0
        self.ttl_ms = random.choice((1_000, 5_000, 20_000, 600_000))
        # By chance of its own: it remembers nothing of earlier copies, and takes each answer's outcome at its word.
        self.habits = Random(f"{world.seed} habits of client {number}")
        self.is_forgetful = self.habits.getrandbits(1) == 1
        self.book: SessionBook | None = None
        self.used_ms = 0  # when a write with that session was sent last
        self.waiting: list[Errand] = []  # for the session that is being opened
        self.is_opening = False
        self.outstanding = 0
        self.index = 0  # the highest that it saw in any answer
        self.free: list[Process] = []  # process numbers

    def act(self) -> None:
        """Begins something, a burst if it pipelines, and comes again later."""
        world = self.clients.world
        mean_us = max(self.clients.every_us, 500_000) if world.is_healed else self.clients.every_us
        burst = self.random.randint(1, self.window)
        world.after(burst * self.random.randint(1, 2 * mean_us), self.act)
        for _ in range(min(burst, self.window - self.outstanding)):
            self.do(self.tasks.draw())

    def do(self, task: Task) -> None:
        """Begins that."""
        self.outstanding += 1
        Errand(self, task).start()

    def take_process(self) -> Process:
        """A process number that has nothing open."""
        return self.free.pop() if self.free else self.clients.next_process()

    def open_session(self) -> None:
        """Asks for a session. The requests that wait for it go on once it is there."""
        if not self.is_opening:
            self.is_opening = True
            record = BlockRecord(Operation.SESSION_OPEN, argument=self.ttl_ms)
            Errand(self, Task(OPEN, (), (record,))).start()

    def opened(self, session: int | ClientError) -> None:
        """The session is there, or could not be had."""
        self.is_opening = False
        self.book = None if isinstance(session, ClientError) else SessionBook(session, window_max=64)
        self.used_ms = self.clients.world.now_us // 1_000
        waiting, self.waiting = self.waiting, []
        for errand in waiting:
            if isinstance(session, ClientError):
                errand.end(session)
            else:
                errand.start()

    @property
    def has_fresh_session(self) -> bool:
        """Whether its session takes another write, and has not been idle so long that it may have expired."""
        book, idle_ms = self.book, self.clients.world.now_us // 1_000 - self.used_ms
        return (
            book is not None
            and not book.is_stuck
            and book.has_room
            and not (book.is_idle and 2 * idle_ms > self.ttl_ms)
        )

    def copy_later(self, errand: Errand, answer: Told) -> None:
        """Now and then a forgetful client sends a write again that it has the answer of, as one does that was restored
        from an old note: soon, or when the session may have expired."""
        if self.is_forgetful and errand.book is not None and self.habits.getrandbits(1):
            most_ms = self.habits.choice((50, 1_000, 2 * self.ttl_ms, 2 * self.ttl_ms))
            copy = Errand(self, errand.task, copy_of=errand, told=answer)
            self.clients.world.after(self.habits.randint(0, most_ms * 1_000), copy.start)

    def follow_up(self, task: Task) -> None:
        """Something was written: now and then another client looks for it at once, at whatever node it likes."""
        if task.is_read or self.random.getrandbits(1):
            return
        f, key, _ = task.parts[0]
        if f != APPEND:
            other = self.clients.clients[self.random.randrange(len(self.clients.clients))]
            if other.outstanding < 2 * other.window:
                other.do(Task("read", (("read", key, None),)))


RECORD_EVERY_US: Final = 250_000
"""Mean time between two of these records, in microseconds."""

PATIENCE_US: Final = 3_000_000
"""How long the client waits for an answer, in microseconds."""


def feed(world: World) -> None:
    """Have a client append records that your machine makes, if it makes any, until the end of the run."""
    if world.yours is None:
        return
    make: Callable[[Random], bytes] | None = getattr(world.yours.yours, "record", None)
    if make is None:
        return
    random = world.random_of("records")

    def append() -> None:
        block = encode_block([BlockRecord(Operation.APPEND, None, make(random))], plain=True)
        node = random.choice(list(world.replicas))
        world.replicas[node].submit(block, 1, 0, 0, world.now_us + PATIENCE_US, lambda _: world.count("records made"))
        world.after(random.randint(1, 2 * RECORD_EVERY_US), append)

    world.after(0, append)
