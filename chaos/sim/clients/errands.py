"""Carries one request of a simulated client through all its attempts, until its outcome is known or given up.

What comes next is `raftlog.cluster.client.decisions`'s decision; here it is done in virtual time, over a link that
delays, breaks and loses. If the outcome of a request of a session stays unknown, the client usually makes its sequence
void, and learns the outcome from the receipt.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final, Literal, Protocol

from raftlog.chaos.judge.history import History, Process
from raftlog.chaos.sim.clients.workload import CONSUMER, STALE, Task, Tasks, Told, told, told_later
from raftlog.chaos.sim.ground.failure import Failure as Broken
from raftlog.chaos.sim.replica.answers import Answer, Applied
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
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.types import NodeId
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.sessions import ReceiptKind, ReceiptState

OPEN: Final = "open"
VOID: Final = "void"
"""What requests for a session, and for the end of an uncertainty, are called; they are in no history."""
PAYMENTS_MAX: Final = 3
"""New sessions under which a client sends one task that it believes was not applied."""


class Company(Protocol):
    """All clients of a world (`raftlog.chaos.sim.clients.clients.Clients`), as one request needs them."""

    world: World
    recording: History
    is_calm: bool
    open: dict[Errand, None]

    def is_cut(self, number: int, node: NodeId) -> bool: ...


class Sender(Protocol):
    """The client that sends a request (`raftlog.chaos.sim.clients.clients.Client`)."""

    number: int
    random: Random
    tasks: Tasks
    nodes: dict[str, NodeId]
    routes: Routes
    policy: Policy
    deadline_ms: int
    has_session: bool
    is_forgetful: bool
    book: SessionBook | None
    used_ms: int
    waiting: list[Errand]
    outstanding: int
    index: int
    free: list[Process]

    @property
    def clients(self) -> Company:
        """All clients of the world."""

    @property
    def has_fresh_session(self) -> bool: ...
    def take_process(self) -> Process: ...
    def open_session(self) -> None: ...
    def opened(self, session: int | ClientError) -> None: ...
    def copy_later(self, errand: Errand, answer: Told) -> None: ...
    def follow_up(self, task: Task) -> None: ...


class Errand:
    """One request on its way, through all its attempts."""

    __slots__ = (
        "attempt",
        "book",
        "call",
        "client",
        "first_answer",
        "node",
        "payments",
        "processes",
        "sequence",
        "task",
        "voids",
        "world",
    )

    def __init__(self, client: Sender, task: Task, *, copy_of: Errand | None = None, told: Told | None = None) -> None:
        """`copy_of`: a write that has its answer, `told`, and is sent once more; a copy is in no history."""
        self.client = client
        self.task = task
        self.world = client.clients.world
        self.call: ClientCall | None = None
        self.attempt = 0  # what comes from an older attempt is void
        self.node: NodeId = 0  # where the attempt is
        self.book: SessionBook | None = copy_of.book if copy_of is not None else None
        self.sequence: int = copy_of.sequence if copy_of is not None else 0
        self.payments = 0
        self.first_answer = told  # of the write that this one is a later copy of
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
        """The client's clock."""
        return self.world.now_us // 1_000

    def take(self, call: ClientCall, step: Step) -> None:
        """Does what the decision says."""
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
        """The request leaves for its node."""
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
            self.world.after(self.client.random.randint(50, 1_500), self.answer, attempt, node, life, answer)

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
        """The attempt ended without an answer."""
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
        self, attempt: int, node: NodeId, life: int, answer: Applied | Told | ReceiptState | Problem | None
    ) -> None:
        """The node's answer arrives."""
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
            self.attempt += 1
            client.clients.open.pop(self, None)
            answered(client.routes, call)
            assert self.voids is not None
            self.voids.settle(answer)
            return
        if isinstance(answer, Applied):
            if self.task.what == OPEN:
                self.attempt += 1
                client.clients.open.pop(self, None)
                answered(client.routes, call)
                client.opened(answer.index)
                return
            answer = told(self.task, answer, node, has_session=self.book is not None)
        if isinstance(answer, Problem):
            is_word = answer.outcome is Outcome.NOT_APPLIED and answer.code not in DECIDED
            if client.is_forgetful and self.book is not None and is_word:
                self.pay_again()
                return
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
            answer, node = Told(((None, False),), seen.index, None), seen.node
        if isinstance(answer, ClientError) and answer.code is Code.CONSUMER_FENCED:
            self.world.sometimes("fenced owner refused")
        is_unknown = isinstance(answer, ClientError) and answer.outcome is Outcome.UNKNOWN
        if is_unknown and self.book is not None and client.random.getrandbits(2):
            doubt = Errand(client, Task(VOID, (), (BlockRecord(Operation.VOID, argument=self.sequence),)))
            doubt.voids = self
            doubt.start()
        else:
            self.conclude(answer if isinstance(answer, Told) else "info" if is_unknown else "fail", node)

    def compare(self, first: Told, again: Told | ClientError) -> None:
        """A copy has its answer: that of the first request, or the report that the answer is not kept any more."""
        was_applied = all(result is not False for _, result in first.parts)
        if isinstance(again, Told):
            is_alike = (again.parts, again.index) == (first.parts, first.index)
        else:
            is_alike = again.outcome is Outcome.UNKNOWN or not was_applied
        if not is_alike:
            raise Broken("copies of a request get its first answer", f"{self.task.what}: {first}, then {again}")
        self.world.count(f"copies answered {'repeated' if isinstance(again, Told) else again.code}")

    def settle(self, receipt: ReceiptState | None) -> None:
        """The receipt of a request with unknown outcome came (None: no node gave one)."""
        match receipt:
            case ReceiptState(state=ReceiptKind.APPLIED, answer=answer) if answer is not None:
                self.world.count("outcomes learned: applied")
                self.conclude(told_later(self.task, answer) or "fail")
            case ReceiptState(state=ReceiptKind.VOIDED):
                self.world.count("outcomes learned: void")
                self.conclude("fail")
            case _:
                self.conclude("info")

    def conclude(self, answer: Told | Literal["fail", "info"], node: NodeId | None = None) -> None:
        """For the session, and for the history."""
        client, task = self.client, self.task
        if self.book is not None:
            (self.book.give_up if answer == "info" else self.book.answer)(self.sequence)
        client.outstanding -= 1
        self.world.count("client operations")
        recording, now_ns = client.clients.recording, self.world.now_us * 1_000
        if isinstance(answer, Told):
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

    def _learn(self, answer: Told) -> None:
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
