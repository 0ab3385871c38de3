"""Simulates client processes: they drive `cluster.client.decisions` in virtual time, and their answers are judged.

Each client has its own link to every node, which delays, breaks and loses; some have a session and pipeline, some send
plain writes, some are bound to one node. What they ask is in `raftlog.chaos.sim.clients.workload`, what the ends must
come to in `raftlog.chaos.sim.clients.oracle`. An `Errand` carries one request through all its attempts, until its
outcome is known or given up. If the outcome of a request of a session stays unknown, the client usually makes its
sequence void, and learns the outcome from the receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Literal

from raftlog.chaos.judge.history import History, Process
from raftlog.chaos.sim.clients.log_readers import LogReaders
from raftlog.chaos.sim.clients.oracle import Oracle
from raftlog.chaos.sim.clients.sinks import Sinks
from raftlog.chaos.sim.clients.users import Users
from raftlog.chaos.sim.clients.workload import (
    APPEND,
    CONSUMER,
    STALE,
    ClientAnswer,
    Task,
    Tasks,
    answer_in_receipt,
    answer_to_client,
)
from raftlog.chaos.sim.ground.failure import Failure as Broken
from raftlog.chaos.sim.replica.answers import Answer, url_of
from raftlog.chaos.sim.replica.serving import ADMIN
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.api.errors import DECIDED, Code, Outcome, Problem
from raftlog.cluster.client.decisions import (
    Attempt,
    ClientCall,
    Failure,
    GiveUp,
    Policy,
    Routes,
    Safety,
    SessionBook,
    Step,
    answered,
    begin,
    failed,
    refused,
)
from raftlog.cluster.client.errors import ClientError, CompareFailed
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import Entry, NodeId
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.sessions import ReceiptKind, ReceiptState

CUT_EVERY_US: Final = 20_000_000
CUT_MAX_US: Final = 4_000_000
"""How often, on average, some clients do not reach some node, and for how long at most: longer than their patience."""

OPEN: Final = "open"
VOID: Final = "void"
"""What requests for a session, and for the end of an uncertainty, are called; they are in no history."""
PAYMENTS_MAX: Final = 3
"""New sessions under which a client sends one task that it believes was not applied."""


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
        self.sinks = Sinks(world)
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
        self.sinks.applied(entry, effects, oldest)

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
        self.outstanding += 1
        Errand(self, task).start()

    def take_process(self) -> Process:
        return self.free.pop() if self.free else self.clients.next_process()

    def open_session(self) -> None:
        """Asks for a session. The requests that wait for it go on once it is there."""
        if not self.is_opening:
            self.is_opening = True
            record = BlockRecord(Operation.SESSION_OPEN, argument=self.ttl_ms)
            Errand(self, Task(OPEN, (), (record,))).start()

    def opened(self, session: int | ClientError) -> None:
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

    def copy_later(self, errand: Errand, answer: ClientAnswer) -> None:
        """Now and then a forgetful client sends a write again that it has the answer of, as one does that was restored
        from an old note: soon, or when the session may have expired."""
        if self.is_forgetful and errand.book is not None and self.habits.getrandbits(1):
            most_ms = self.habits.choice((50, 1_000, 2 * self.ttl_ms, 2 * self.ttl_ms))
            copy = Errand(self, errand.task, copy_of=errand, first_answer=answer)
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


class Errand:
    """One request on its way, through all its attempts."""

    def __init__(
        self, client: Client, task: Task, *, copy_of: Errand | None = None, first_answer: ClientAnswer | None = None
    ) -> None:
        """`copy_of`: a write that has its answer, `first_answer`, and is sent once more; a copy is in no history."""
        self.client = client
        self.task = task
        self.world = client.clients.world
        self.call: ClientCall | None = None
        self.attempt = 0  # what comes from an older attempt is void
        self.node: NodeId = 0  # where the attempt is
        self.book: SessionBook | None = copy_of.book if copy_of is not None else None
        self.sequence: int = copy_of.sequence if copy_of is not None else 0
        self.payments = 0
        self.first_answer = first_answer  # of the write that this one is a later copy of
        self.voids: Errand | None = None  # the request whose outcome this one finds out
        self.processes: list[Process] = []
        if copy_of is not None:
            return
        self.processes = [client.take_process() for _ in task.parts]
        recording, now_ns = client.clients.recording, self.world.now_us * 1_000
        for process, (f, key, value) in zip(self.processes, task.parts, strict=True):
            recording.invoke(process, f, key, value, time_ns=now_ns)

    # -- steps -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The first step, or the first under a new session."""
        client, task = self.client, self.task
        safety = Safety.FREE
        if task.what not in (OPEN, VOID) and not task.is_read:
            safety = Safety.PLAIN
            if self.first_answer is not None:
                safety = Safety.ONCE
            elif client.has_session:
                if not client.has_fresh_session:
                    client.book = None
                    client.waiting.append(self)
                    client.open_session()
                    return
                assert client.book is not None
                safety, client.used_ms = Safety.ONCE, self.now_ms
                self.book, self.sequence = client.book, client.book.take()
        now_ms = self.now_ms
        call, step = begin(
            client.routes,
            client.policy,
            safety,
            now_ms=now_ms,
            deadline_ms=now_ms + client.deadline_ms,
            random=client.random.randint,
            maybe=self.first_answer is not None,
        )
        self.take(call, step)

    @property
    def now_ms(self) -> int:
        return self.world.now_us // 1_000

    def take(self, call: ClientCall, step: Step) -> None:
        self.call = call
        self.attempt += 1
        self.client.clients.open.pop(self, None)
        match step:
            case Attempt():
                self.world.after(step.wait_ms * 1_000, self.send, self.attempt, step)
            case GiveUp(error):
                self.end(error)

    def pay_again(self) -> None:
        """The client believes that no copy was or will be applied: it sends the task under a new session."""
        client, book = self.client, self.book
        assert book is not None
        self.world.count("tasks paid again")
        self.attempt += 1
        client.clients.open.pop(self, None)
        if self.first_answer is None:
            book.answer(self.sequence)
        else:
            self.first_answer = None
            client.outstanding += 1
        if client.book is book:
            client.book = None
        self.book = None
        self.payments += 1
        if self.payments > PAYMENTS_MAX:
            self.conclude("info")
        else:
            self.start()

    def send(self, attempt: int, step: Attempt) -> None:
        client, random = self.client, self.client.random
        self.node = node = client.nodes.get(step.url, 0)
        self.world.after(step.timeout_ms * 1_000, self.lost, attempt, Failure.TIMED_OUT, "no answer")
        client.clients.open[self] = None
        if client.clients.is_cut(client.number, node):
            return
        delay_us = random.randint(50, 1_500)
        chance = 1_000 if client.clients.is_calm or self.world.is_healed else random.randrange(1_000)
        if chance < 10:  # broken on the way there: the client cannot know that
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
            self.world.after(self.client.random.randint(50, 1_500), self.answer, attempt, node, answer)

        task = self.task
        if task.what == STALE:
            least, until = self.client.index, replica.seconds(deadline_us)
            replica.serve(
                lambda server: server.wait_applied(least, until),
                lambda problem: done(problem or self.read(node, life, replica.applied_index)),
                deadline_us,
            )
        elif task.is_read:
            replica.read_barrier(lambda index: done(self.read(node, life, index)), deadline_us)
        elif self.voids is not None:
            assert self.voids.book is not None
            session, sequence = self.voids.book.session, self.voids.sequence
            block = task.block(session, 0, 0)
            replica.submit(
                block,
                1,
                session,
                0,
                deadline_us,
                lambda answer: done(self.receipt(node, life, session, sequence, answer)),
            )
        else:
            book, sequence = self.book, self.sequence
            session = book.session if book is not None else 0
            block = task.block(session, sequence if book else 0, min(book.settled, sequence) if book else 0)
            replica.submit(block, len(task.records), session, sequence, deadline_us, done)

    # -- reads, at the node ------------------------------------------------------------------------------------

    def read(self, node: NodeId, life: int, index: int | Problem) -> ClientAnswer | Problem | None:
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
            return ClientAnswer(((None, None),), machine.applied_index, term, 0)
        return ClientAnswer(((version.value.decode(), None),), machine.applied_index, term, version.mod)

    def receipt(
        self, node: NodeId, life: int, session: int, sequence: int, answer: Answer
    ) -> ReceiptState | Problem | None:
        """What the node knows of a sequence, now that its being void, if it was not seen, is applied there."""
        replica = self.world.replicas[node]
        if isinstance(answer, Problem):
            return answer
        if replica.core is None or replica.life != life:
            return None
        owner = ADMIN if replica.machine.access.is_on else None
        known: ReceiptState = replica.machine.receipt(session, sequence, owner)
        return known

    # -- what comes back ---------------------------------------------------------------------------------------

    def lost(self, attempt: int, failure: Failure, reason: str) -> None:
        if attempt != self.attempt:
            return
        client = self.client
        assert self.call is not None
        self.world.count(f"attempts {failure}")
        self.take(
            *failed(
                client.routes,
                client.policy,
                self.call,
                failure,
                reason,
                now_ms=self.now_ms,
                random=client.random.randint,
            )
        )

    def answer(
        self, attempt: int, node: NodeId, answer: RequestResult | ClientAnswer | ReceiptState | Problem | None
    ) -> None:
        if attempt != self.attempt:
            return
        client, call = self.client, self.call
        assert call is not None
        if client.clients.is_cut(client.number, node):
            return
        if answer is None:
            self.lost(attempt, Failure.BROKEN, "it died")
            return
        if isinstance(answer, ReceiptState):
            self.over(call)
            assert self.voids is not None
            self.voids.settle(answer)
            return
        if isinstance(answer, RequestResult):
            if self.task.what == OPEN:
                self.over(call)
                client.opened(answer.last)
                return
            answer = answer_to_client(self.task, answer, node, has_session=self.book is not None)
        if isinstance(answer, Problem):
            is_word = answer.outcome is Outcome.NOT_APPLIED and answer.code not in DECIDED
            if client.is_forgetful and self.book is not None and is_word:
                self.pay_again()
                return
            random = client.random.randint
            self.take(*refused(client.routes, client.policy, call, answer, now_ms=self.now_ms, random=random))
        else:
            self.over(call, answer.term)
            self.end(answer, node)

    def over(self, call: ClientCall, term: int | None = None) -> None:
        """A node has answered; what comes of the attempt besides is void."""
        self.attempt += 1
        self.client.clients.open.pop(self, None)
        answered(self.client.routes, call, term=term)

    def end(self, answer: ClientAnswer | ClientError, node: NodeId | None = None) -> None:
        """The end of the request: for the session, and for the history."""
        client, task = self.client, self.task
        if self.first_answer is not None:
            self.compare(self.first_answer, answer)
            return
        if task.what == OPEN:
            assert isinstance(answer, ClientError)
            client.opened(answer)
            return
        if self.voids is not None:
            self.voids.settle(None)
            return
        if isinstance(answer, CompareFailed):
            seen = answer.problem
            assert seen is not None
            assert seen.index is not None
            answer, node = ClientAnswer(((None, False),), seen.index, None), seen.node
        if isinstance(answer, ClientError) and answer.code is Code.CONSUMER_FENCED:
            self.world.sometimes("fenced owner refused")
        is_unknown = isinstance(answer, ClientError) and answer.outcome is Outcome.UNKNOWN
        if is_unknown and self.book is not None and client.random.getrandbits(2):
            doubt = Errand(client, Task(VOID, (), (BlockRecord(Operation.VOID, argument=self.sequence),)))
            doubt.voids = self
            doubt.start()
        else:
            self.conclude(answer if isinstance(answer, ClientAnswer) else "info" if is_unknown else "fail", node)

    def compare(self, first: ClientAnswer, again: ClientAnswer | ClientError) -> None:
        """A copy has its answer: that of the first request, or the report that the answer is not kept any more."""
        was_applied = all(result is not False for _, result in first.parts)
        if isinstance(again, ClientAnswer):
            is_alike = (again.parts, again.index) == (first.parts, first.index)
        else:
            is_alike = again.outcome is Outcome.UNKNOWN or not was_applied
        if not is_alike:
            raise Broken("copies of a request get its first answer", f"{self.task.what}: {first}, then {again}")
        self.world.count(f"copies answered {'repeated' if isinstance(again, ClientAnswer) else again.code}")

    def settle(self, receipt: ReceiptState | None) -> None:
        """The receipt of a request with unknown outcome came (None: no node gave one)."""
        match receipt:
            case ReceiptState(state=ReceiptKind.APPLIED, answer=answer) if answer is not None:
                self.world.count("outcomes learned: applied")
                self.conclude(answer_in_receipt(self.task, answer) or "fail")
            case ReceiptState(state=ReceiptKind.VOIDED):
                self.world.count("outcomes learned: void")
                self.conclude("fail")
            case _:
                self.conclude("info")

    def conclude(self, answer: ClientAnswer | Literal["fail", "info"], node: NodeId | None = None) -> None:
        client, task = self.client, self.task
        if self.book is not None:
            (self.book.give_up if answer == "info" else self.book.answer)(self.sequence)
        client.outstanding -= 1
        self.world.count("client operations")
        recording, now_ns = client.clients.recording, self.world.now_us * 1_000
        if isinstance(answer, ClientAnswer):
            if len(answer.parts) != len(task.parts):
                raise Broken("answers are those of their requests", f"{task.what} {task.parts} got {answer}")
            client.index = max(client.index, answer.index)
            client.copy_later(self, answer)
            self.world.count(f"ok {task.what}")
            if not task.is_read:
                self.world.count("writes acknowledged")
            self._learn(answer)
            for process, (value, result) in zip(self.processes, answer.parts, strict=bool(self.processes)):
                recording.complete(
                    process, "ok", value, result=result, time_ns=now_ns, index=answer.index, term=answer.term, node=node
                )
        else:
            self.world.count("client operations unknown" if answer == "info" else "client operations failed")
            for process in self.processes:
                recording.complete(process, answer, time_ns=now_ns)
            if task.what == CONSUMER and client.random.getrandbits(1):  # fenced, or so it seems; else it tries again
                client.tasks.owned.pop(str(task.parts[0][1]), None)
        if answer != "info":
            client.free += self.processes
        client.follow_up(task)

    def _learn(self, answer: ClientAnswer) -> None:
        """What the client now knows of the keys, to compare with later, and of the groups that it claimed."""
        tasks = self.client.tasks
        tasks.index = max(tasks.index, answer.index)
        if answer.mod is None:
            return
        for (f, key, value), (read, result) in zip(self.task.parts, answer.parts, strict=True):
            if key is None or (f == "cas" and result is not True):
                continue
            if f == CONSUMER:
                if read is None:
                    tasks.owned.pop(key, None)
                else:
                    tasks.owned[key] = (read[0], read[1])
            elif f == "write":
                self.client.tasks.seen[key] = (value, answer.mod if value is not None else 0)
            elif f == "cas":
                self.client.tasks.seen[key] = (value[1], answer.mod)
            elif self.task.is_read:
                self.client.tasks.seen[key] = (read, answer.mod)


RECORD_EVERY_US: Final = 250_000
"""Mean time between two of these records, in microseconds."""


def feed(world: World) -> None:
    """Have a client append records that your machine makes, if it makes any, until the end of the run."""
    if world.yours is None:
        return
    make: Callable[[Random], bytes] | None = getattr(world.yours.yours, "record", None)
    if make is None:
        return
    random = world.random_of("records")

    def append() -> None:
        record = BlockRecord(Operation.APPEND, None, make(random))
        node = random.choice(list(world.replicas))
        world.replicas[node].ask([record], lambda _: world.count("records made"), plain=True)
        world.after(random.randint(1, 2 * RECORD_EVERY_US), append)

    world.after(0, append)
