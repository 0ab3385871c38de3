"""Serves simulated clients with the server's replica: requests, linearizable reads, and reads of the log.

Clients get the server's own answers (`raftlog.cluster.api.errors`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.stage import Stage
from raftlog.chaos.sim.replica.answers import Answer, url_of
from raftlog.chaos.sim.replica.connections import Connections
from raftlog.chaos.sim.replica.life import Surroundings
from raftlog.cluster.api.errors import ApiError, Code, Problem, make_problem
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.replica.log.peer_log import PATIENCE_S
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.codec.block import BLOCK_PLAIN, BlockRecord, decode_blocks, decode_records, encode_block
from raftlog.raft.types import NOBODY, NodeId
from raftlog.statemachine.access.admission import encode_admission

T = TypeVar("T")

ADMIN: Final = "root"
"""The principal of all clients but those whose permissions change (`raftlog.chaos.sim.clients.users`)."""


def admitted(block: bytes, admission: bytes) -> bytes:
    """The request block with that admission."""
    (one,) = decode_blocks(block)
    return encode_block(
        tuple(decode_records(one)),
        admission=admission,
        session=one.session,
        sequence=one.sequence,
        settled=one.settled,
        plain=bool(one.flags & BLOCK_PLAIN),
    )


ANSWERED: Final = "a process that lives answers every request"
LATE_US: Final = 3_000_000
"""From the deadline of a request to its answer, at most, in microseconds, without pauses and while its disk works."""


class Serving(Connections):
    """What clients may ask a node."""

    def __init__(self, world: Surroundings, node: NodeId, disk: SimDisk, copy: str = "") -> None:
        super().__init__(world, node, disk, copy)
        self._requests = 0  # of all its processes

    def _forget(self) -> None:
        super()._forget()
        self._asked: dict[int, str] = {}  # what clients asked this process and it has not answered, by number

    def _noted(self, what: str, deadline_us: int, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Notes a request until it is answered."""
        asked = self._asked
        self._requests += 1
        number = self._requests
        asked[number] = f"{what} of {self.world.now_us / 1e6:g} s with the deadline {deadline_us / 1e6:g} s"

        def answered(answer: Any) -> None:
            del asked[number]
            done(answer)

        self.world.after(deadline_us - self.world.now_us + LATE_US, self._overdue, asked, number)
        return answered

    def _overdue(self, asked: dict[int, str], number: int) -> None:
        if self._asked is not asked or number not in asked:
            return  # that process ended, or it has answered
        is_held = self.is_paused or self.is_behind or self.disk.slow_us > LATE_US
        runs_us = 0 if is_held else self.world.now_us - self.clockwork.went_on_us
        if runs_us >= LATE_US:
            raise Failure(ANSWERED, f"node {self.node} has not answered {asked[number]}")
        self.world.after(LATE_US - runs_us, self._overdue, asked, number)

    def submit(
        self,
        block: bytes,
        count: int,
        session: int,
        sequence: int,
        deadline_us: int,
        done: Callable[[Answer], None],
        *,
        is_admitted: bool = False,
    ) -> None:
        """A client's request block of `count` records arrives here. `deadline_us` is world time.

        While access control is on here, it is a request of ADMIN, unless it `is_admitted` already. `done` is called
        once, in an event of its own; never, if this process ends before.
        """
        if self.core is None:
            return
        done = self._noted(f"the write with sequence {sequence}", deadline_us, done)
        access = getattr(self.machine, "access", None)
        if not is_admitted and access is not None and access.is_on:
            block = admitted(block, encode_admission(access.admission(ADMIN)))

        def ask(replica: Replica) -> asyncio.Future[RequestResult]:
            until = self.seconds(deadline_us)
            return replica.submit(block, count, deadline=until, session=session, sequence=sequence)

        def settled(settled: RequestResult) -> None:
            self._check(self.world.answered, self.node, settled.last, done, settled)

        self._input(self._carry, ask, settled, partial(self._refuse, done, bool(sequence)))

    def ask(
        self,
        records: Sequence[BlockRecord],
        done: Callable[[Answer], None] = lambda _: None,
        *,
        for_us: int = Stage.patience_us,
        plain: bool = False,
    ) -> None:
        """The same outside sessions, for a client that waits so long."""
        block = encode_block(records, plain=plain)
        self.submit(block, len(records), 0, 0, self.world.now_us + for_us, done)

    def _carry(
        self,
        ask: Callable[[Replica], asyncio.Future[T]],
        succeed: Callable[[T], None],
        refuse: Callable[[ApiError], None],
    ) -> None:
        """Asks the replica, and passes on what comes of it, unless the process is over by then: the client hears that
        its connection closed."""

        def ended(future: asyncio.Future[T]) -> None:
            error = future.exception()
            if isinstance(error, ApiError):
                refuse(error)
            elif error is not None:
                raise error
            elif not self.state.life.is_over:
                succeed(future.result())

        assert self.replica is not None
        try:
            future = ask(self.replica)
        except ApiError as error:
            refuse(error)
        else:
            future.add_done_callback(ended)

    def _refuse(self, done: Callable[[Any], None], has_session: bool, error: ApiError) -> None:
        self.world.answered(self.node, 0, done, self.problem(error, has_session=has_session))

    def read_barrier(self, done: Callable[[int | Problem], None], deadline_us: int) -> None:
        """A client's linearizable read arrives here: `done` gets the index as of which `machine` may be read, in the
        event in which it is called. Otherwise as `submit`."""
        if self.core is None:
            return
        done, floor = self._noted("the linearizable read", deadline_us, done), self.world.acknowledged

        def ask(replica: Replica) -> asyncio.Future[int]:
            return replica.read_barrier(self.seconds(deadline_us))

        def may_read(index: int) -> None:
            self._check(self.world.read_done, self.node, floor, index)
            self._check(self.world.answered, self.node, index, done, index)

        self._input(self._carry, ask, may_read, partial(self._refuse, done, False))

    def serve(self, work: Callable[[Replica], Any], done: Callable[[Any], None], deadline_us: int) -> None:
        """A client's request that a coroutine of the server answers: `done` gets its result, or the Problem. It may
        wait for older entries of peers as long as any read."""
        deadline_us = max(deadline_us, self.world.now_us + int(1e6 * PATIENCE_S))
        if self.core is not None:
            self._input(self._serve, work, self._noted("the request for a coroutine", deadline_us, done))

    def _serve(self, work: Callable[[Replica], Any], done: Callable[[Any], None]) -> None:
        assert self.loop is not None
        assert self.replica is not None
        task = self.loop.create_task(work(self.replica))
        task.add_done_callback(partial(self._served, done))

    def _served(self, done: Callable[[Any], None], task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ApiError):
            self.world.after(0, done, self.problem(error))
        elif error is not None:
            raise error
        else:
            self.world.after(0, done, task.result())

    def problem(self, error: ApiError, *, has_session: bool = False) -> Problem:
        """The error as its client sees it; `has_session`: of a write that names a session."""
        if error.code is Code.DISK_FULL and self.replica is not None:
            state = self.replica.state
            if state.syncer.has_space and not state.disks.takes_writes:
                self.world.sometimes("no majority has room")
        leader = self.leader
        hint = LeaderHint(leader, url_of(leader)) if leader != NOBODY else None
        term = self.core.state.term if self.core is not None else 0
        return make_problem(
            error,
            node=self.node,
            request_id="",
            leader=hint,
            index=self.applied_index,
            term=term,
            has_session=has_session,
        )

    def seconds(self, deadline_us: int) -> float:
        """A deadline in world time by this node's clock: a request says how long is left, not until when."""
        now_us = self.world.now_us
        return (self.clock.monotonic_us(now_us) + deadline_us - now_us) / 1e6
