"""What the HTTP layer needs of a node, as a protocol: the real node and the tests' in-memory one both have it.

Deadlines are seconds of `cluster.clock.monotonic`. Failures come as `wire.ApiError` with their code.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from cluster.metrics import Metrics
from cluster.requests import Settled
from cluster.wire import LeaderHint, Members, Status
from cluster.wire_explain import NodeView
from raft.changes import Change
from raft.configuration import Configuration
from raft.types import Entry, Mark
from statemachine.effects import Effects
from statemachine.machine import StateMachine


class RawSlice(Protocol):
    """Whole entries of one segment as they are on disk; `rows` are of the records `first` to `next - 1`."""

    @property
    def rows(self) -> bytes: ...
    @property
    def segment(self) -> bytes: ...
    @property
    def ledger(self) -> bytes: ...
    @property
    def base(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


class NodeFace(Protocol):
    """One node. `machine` may be read between two awaits only: it changes under whoever waits."""

    @property
    def machine(self) -> StateMachine: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def log_id(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def oldest(self) -> int:
        """The oldest index that can be read: that of the cluster (`machine.oldest`), the same on every node."""

    @property
    def committed(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def last_user_index(self) -> int: ...
    @property
    def is_ready(self) -> bool:
        """Whether it knows a leader and has caught up."""

    @property
    def is_fenced(self) -> bool:
        """Whether it met a disk error and serves no more."""

    @property
    def configuration(self) -> Configuration:
        """Of the cluster, in force here: with the incarnations, which no answer shows."""

    def leader_hint(self) -> LeaderHint | None:
        """Where the leader was last seen."""

    def status(self) -> Status: ...
    def members(self) -> Members: ...
    def view(self) -> NodeView:
        """What it knows of itself and the others, for those who explain."""

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[Settled]:
        """Takes a request; the future is settled after this node applied it."""

    def read_barrier(self, deadline: float) -> asyncio.Future[int]:
        """The index that a linearizable read may be answered from; this node has applied it."""

    async def wait_applied(self, index: int, deadline: float) -> None:
        """Returns once `index` is applied here. Raises ApiError deadline."""

    async def wait_beyond(self, index: int, deadline: float) -> None:
        """Returns once something after `index` is applied, or at the deadline."""

    async def read_log(self, from_index: int, limit: int, bytes_max: int) -> list[tuple[Entry, Effects]]:
        """Whole applied entries that contain or follow `from_index`; at least one if there is any."""

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """The same as on disk."""

    def state_mark(self) -> tuple[Mark, int, Configuration]:
        """The end of the entry that was applied last, and the configuration in force there with its index."""

    async def find_time(self, time_ms: int) -> int:
        """The first index of the first entry at or after that time; last + 1 if there is none."""

    async def change_members(self, change: Change, deadline: float) -> int:
        """Begins a change; the index of the configuration that begins it, once that is committed."""

    async def first_entry(self) -> Entry:
        """The entry at index 1, also where a snapshot took its place."""

    async def transfer(self, to: int, deadline: float) -> float:
        """Hands leadership to that node (0: whoever has most); seconds until the new leader was heard."""
