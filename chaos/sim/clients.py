"""Client processes of a world: they drive `cluster.client_core` in virtual time, and what they were told is judged.

Each client has its own link to every node, which delays, breaks and loses; some have a session and pipeline, some send
plain writes, some are bound to one node. What they ask is in `chaos.sim.workload`, what the ends must come to in
`chaos.sim.oracle`.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from chaos.history import History, Process
from chaos.sim.failure import Failure as Broken
from chaos.sim.oracle import Oracle
from chaos.sim.requests import Applied, url_of
from chaos.sim.workload import APPEND, STALE, Task, Tasks, Told, problem, told
from cluster.client_core import (
    RENEWALS_MAX,
    Attempt,
    Call,
    Failure,
    GiveUp,
    Policy,
    Renew,
    Routes,
    Safety,
    SessionBook,
    Step,
    answered,
    begin,
    failed,
    refused,
)
from cluster.client_errors import ClientError, CompareFailed, renewed_in_vain
from cluster.wire import Code, Outcome, Problem
from raft.codec import Record
from raft.types import Entry, NodeId
from statemachine.commands import Operation
from statemachine.effects import Effects

if TYPE_CHECKING:
    from chaos.sim.world import World

POLL_US: Final = 20_000
"""How often a stale read looks whether its node has come far enough."""

_OPEN: Final = "open"
"""What a request for a session is called; it is in no history."""


class Clients:
    """All client processes of a world, their links, and what they were told."""

    def __init__(self, world: World, random: Random, count: int, every_us: int) -> None:
        self.world = world
        self.random = random
        self.every_us = every_us
        self.oracle = Oracle()
        self.recording = self.oracle.recording
        self.is_calm = not world.swarm.faults
        self.cuts: set[tuple[int, NodeId]] = set()  # (client, node): nothing gets through
        self.open: dict[Doing, None] = {}  # with an attempt at some node
        self._processes = 0
        self.clients = [Client(self, number, Random(f"{world.seed} client {number}")) for number in range(count)]
        for client in self.clients:
            world.after(random.randint(1, 2 * every_us), client.act)

    @property
    def history(self) -> History:
        """The key-value part of what was recorded, for model cas-register."""
        return self.oracle.history()

    def next_process(self) -> int:
        """A process number of the history; one whose operation ended unknown is not used again."""
        self._processes += 1
        return self._processes

    # -- what happens to them ----------------------------------------------------------------------------------

    def cut(self, node: NodeId, for_us: int) -> None:
        """For a while half of the clients do not reach that node; they only notice that nothing comes."""
        hit = [(client.number, node) for client in self.clients if self.random.getrandbits(1)]
        self.cuts.update(hit)
        self.world.after(for_us, self.cuts.difference_update, hit)

    def ended(self, node: NodeId) -> None:
        """That node's process died: its connections break."""
        for doing in list(self.open):
            if doing.node == node:
                self.world.after(self.random.randint(100, 3_000), doing.lost, doing.attempt, Failure.BROKEN, "it died")

    def applied(self, entry: Entry, effects: Effects) -> None:
        """Some node applied this entry."""
        self.oracle.applied(entry, effects)

    def check(self) -> None:
        """The end: judges what was recorded. Raises Failure."""
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
        self.tasks = Tasks(number, random)
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
        self.book: SessionBook | None = None
        self.waiting: list[Doing] = []  # for the session that is being opened
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
        Doing(self, task).start()

    def take_process(self) -> Process:
        """A process number that has nothing open."""
        return self.free.pop() if self.free else self.clients.next_process()

    def open_session(self) -> None:
        """Asks for a session; who waits for it goes on then."""
        if not self.is_opening:
            self.is_opening = True
            record = Record(Operation.SESSION_OPEN, argument=self.ttl_ms)
            Doing(self, Task(_OPEN, (), (record,))).start()

    def opened(self, session: int | ClientError) -> None:
        """The session is there, or could not be had."""
        self.is_opening = False
        self.book = None if isinstance(session, ClientError) else SessionBook(session, window_max=64)
        waiting, self.waiting = self.waiting, []
        for doing in waiting:
            if isinstance(session, ClientError):
                doing.end(session)
            else:
                doing.start()

    def follow_up(self, task: Task) -> None:
        """Something was written: now and then another client looks for it at once, at whatever node it likes."""
        if task.is_read or self.random.getrandbits(1):
            return
        f, key, _ = task.parts[0]
        if f != APPEND:
            other = self.clients.clients[self.random.randrange(len(self.clients.clients))]
            if other.outstanding < 2 * other.window:
                other.do(Task("read", (("read", key, None),)))


class Doing:
    """One request on its way, through all its attempts."""

    __slots__ = ("attempt", "book", "call", "client", "node", "processes", "renewals", "sequence", "task", "world")

    def __init__(self, client: Client, task: Task) -> None:
        self.client = client
        self.task = task
        self.world = client.clients.world
        self.call: Call | None = None
        self.attempt = 0  # what comes from an older attempt is void
        self.node: NodeId = 0  # where the attempt is
        self.book: SessionBook | None = None
        self.sequence = 0
        self.renewals = 0
        self.processes = [client.take_process() for _ in task.parts]
        recording, now_ns = client.clients.recording, self.world.now_us * 1_000
        for process, (f, key, value) in zip(self.processes, task.parts, strict=True):
            recording.invoke(process, f, key, value, time_ns=now_ns)

    # -- steps -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The first step, or the first under a new session."""
        client, task = self.client, self.task
        safety = Safety.FREE
        if task.what != _OPEN and not task.is_read:
            safety = Safety.PLAIN
            if client.has_session:
                book = client.book
                if book is None or book.is_stuck or not book.has_room:
                    client.book = None
                    client.waiting.append(self)
                    client.open_session()
                    return
                safety = Safety.ONCE
                self.book, self.sequence = book, book.take()
        now_ms = self.now_ms
        call, step = begin(
            client.routes, client.policy, safety, now_ms=now_ms, deadline_ms=now_ms + client.deadline_ms,
            random=client.random.randint,
        )  # fmt: skip
        self.take(call, step)

    @property
    def now_ms(self) -> int:
        """The client's clock."""
        return self.world.now_us // 1_000

    def take(self, call: Call, step: Step) -> None:
        """Does what the decision says."""
        self.call = call
        self.attempt += 1
        self.client.clients.open.pop(self, None)
        match step:
            case Attempt():
                self.world.after(step.wait_ms * 1_000, self.send, self.attempt, step)
            case GiveUp(error):
                self.end(error)
            case Renew():
                self.renew()

    def renew(self) -> None:
        """The session is gone and nothing was applied."""
        client, book = self.client, self.book
        assert book is not None
        book.answer(self.sequence)
        if client.book is book:
            client.book = None
        self.book = None
        self.renewals += 1
        self.world.count("sessions renewed")
        if self.renewals >= RENEWALS_MAX:
            self.end(renewed_in_vain(RENEWALS_MAX))
        else:
            self.start()

    def send(self, attempt: int, step: Attempt) -> None:
        """The request leaves for its node."""
        client, random = self.client, self.client.random
        self.node = node = client.nodes.get(step.url, 0)
        self.world.after(step.timeout_ms * 1_000, self.lost, attempt, Failure.TIMED_OUT, "no answer")
        client.clients.open[self] = None
        if (client.number, node) in client.clients.cuts:
            return
        delay_us = random.randint(50, 1_500)
        chance = 1_000 if client.clients.is_calm or self.world.is_healed else random.randrange(1_000)
        if chance < 10:  # broken on the way there: the client cannot tell
            self.world.after(delay_us, self.lost, attempt, Failure.BROKEN, "broken")
            return
        if chance < 30:  # late: perhaps after the client has turned elsewhere
            delay_us = random.randint(50_000, 3_000_000)
        self.world.after(delay_us, self.arrive, attempt, node, step.node_ms, chance)

    def arrive(self, attempt: int, node: NodeId, node_ms: int, chance: int) -> None:
        """The request reaches its node, whether or not anybody still waits."""
        replica = self.world.replicas.get(node)
        if replica is None or replica.core is None:
            self.lost(attempt, Failure.NOT_SENT, "refused")
            return
        life = replica.life
        deadline_us = self.world.now_us + node_ms * 1_000  # the request says how long is left, not until when
        if 30 <= chance < 50:  # broken on the way back, or as soon as it was there
            self.world.after(self.client.random.randint(100, 30_000), self.lost, attempt, Failure.BROKEN, "broken")

        def done(answer: Any) -> None:
            self.world.after(self.client.random.randint(50, 1_500), self.answer, attempt, node, life, answer)

        task = self.task
        if task.what == STALE:
            replica.tell(lambda core, now: self.read_stale(node, life, deadline_us, done))
        elif task.is_read:
            replica.read_barrier(lambda index: done(self.read(node, life, index)), deadline_us)
        else:
            book, sequence = self.book, self.sequence
            session = book.session if book is not None else 0
            block = task.block(session, sequence if book else 0, book.settled if book else 0)
            replica.submit(block, len(task.records), session, sequence, deadline_us, done)

    # -- reads, at the node ------------------------------------------------------------------------------------

    def read(self, node: NodeId, life: int, index: int | Problem) -> Told | Problem | None:
        """What the node's state says, now that it may be asked; None if that process is gone."""
        replica = self.world.replicas[node]
        if isinstance(index, Problem):
            return index
        if replica.core is None or replica.life != life:
            return None
        machine, term = replica.machine, replica.core.state.term
        key = self.task.parts[0][1]
        assert key is not None
        version = machine.get(key.encode())
        if version is None:
            return Told(((None, None),), machine.applied_index, term, 0)
        return Told(((version.value.decode(), None),), machine.applied_index, term, version.mod)

    def read_stale(self, node: NodeId, life: int, deadline_us: int, done: Any) -> None:
        """A stale read waits until the node has applied what the client has seen."""
        replica, world = self.world.replicas[node], self.world
        if replica.life != life or replica.core is None:
            return
        if replica.applied_index >= self.client.index:
            done(self.read(node, life, replica.applied_index))
        elif world.now_us >= deadline_us:
            done(problem(Code.FUTURE_INDEX, node))
        else:
            world.after(POLL_US, self._poll, node, life, deadline_us, done)

    def _poll(self, node: NodeId, life: int, deadline_us: int, done: Any) -> None:
        self.world.replicas[node].tell(lambda core, now: self.read_stale(node, life, deadline_us, done))

    # -- what comes back ---------------------------------------------------------------------------------------

    def lost(self, attempt: int, failure: Failure, reason: str) -> None:
        """The attempt ended without an answer."""
        if attempt != self.attempt:
            return
        client = self.client
        assert self.call is not None
        self.world.count(f"attempts {failure}")
        self.take(
            *failed(
                client.routes, client.policy, self.call, failure, reason, now_ms=self.now_ms,
                random=client.random.randint,
            )
        )  # fmt: skip

    def answer(self, attempt: int, node: NodeId, life: int, answer: Applied | Told | Problem | None) -> None:
        """The node's answer arrives."""
        if attempt != self.attempt:
            return
        client, call = self.client, self.call
        assert call is not None
        if (client.number, node) in client.clients.cuts:
            return
        if answer is None:
            self.lost(attempt, Failure.BROKEN, "it died")
            return
        if isinstance(answer, Applied):
            if self.task.what == _OPEN:
                self.attempt += 1
                client.clients.open.pop(self, None)
                answered(client.routes, call)
                client.opened(answer.index)
                return
            answer = told(self.task, answer, node)
        if isinstance(answer, Problem):
            random = client.random.randint
            self.take(*refused(client.routes, client.policy, call, answer, now_ms=self.now_ms, random=random))
        else:
            self.attempt += 1
            client.clients.open.pop(self, None)
            answered(client.routes, call, term=answer.term)
            self.end(answer, node)

    def end(self, answer: Told | ClientError, node: NodeId | None = None) -> None:
        """The end of the request: for the session, and for the history."""
        client, task = self.client, self.task
        if task.what == _OPEN:
            assert isinstance(answer, ClientError)
            client.opened(answer)
            return
        if isinstance(answer, CompareFailed):
            seen = answer.problem
            assert seen is not None
            assert seen.index is not None
            answer, node = Told(((None, False),), seen.index, None), seen.node
        is_unknown = isinstance(answer, ClientError) and answer.outcome is Outcome.UNKNOWN
        if self.book is not None:
            (self.book.give_up if is_unknown else self.book.answer)(self.sequence)
        client.outstanding -= 1
        self.world.count("client operations")
        recording, now_ns = client.clients.recording, self.world.now_us * 1_000
        if isinstance(answer, Told):
            if len(answer.parts) != len(self.processes):
                raise Broken("answers are those of their requests", f"{task.what} {task.parts} was told {answer}")
            client.index = max(client.index, answer.index)
            self.world.count(f"ok {task.what}")
            if not task.is_read:
                self.world.count("writes acknowledged")
            self._learn(answer)
            for process, (value, result) in zip(self.processes, answer.parts, strict=True):
                recording.complete(
                    process, "ok", value, result=result, time_ns=now_ns, index=answer.index, term=answer.term, node=node
                )
        else:
            self.world.count("client operations unknown" if is_unknown else "client operations failed")
            for process in self.processes:
                recording.complete(process, "info" if is_unknown else "fail", time_ns=now_ns)
        if not is_unknown:
            client.free += self.processes
        client.follow_up(task)

    def _learn(self, answer: Told) -> None:
        """What the client now knows of the keys, to compare with later."""
        if answer.mod is None:
            return
        for (f, key, value), (read, result) in zip(self.task.parts, answer.parts, strict=True):
            if key is None or (f == "cas" and result is not True):
                continue
            if f == "write":
                self.client.tasks.seen[key] = (value, answer.mod if value is not None else 0)
            elif f == "cas":
                self.client.tasks.seen[key] = (value[1], answer.mod)
            elif self.task.is_read:
                self.client.tasks.seen[key] = (read, answer.mod)
