"""Declares the methods of a node that the HTTP layer calls, as a protocol.

Deadlines are seconds of `raftlog.cluster.runtime.clock.monotonic`. Failures come as `ApiError` with their code.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from raftlog.cluster.api.explain import NodeView
from raftlog.cluster.api.members import ClusterView, Members
from raftlog.cluster.api.status import Status
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.protocol.step_times import WriteSteps
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.changes import MemberChange
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Entry, Mark
from raftlog.raft.wal.reading import RawSlice
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.machine import StateMachine


class NodeInterface(Protocol):
    """One node. A caller may read `machine` only between two awaits: it changes while the caller waits."""

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
        """The oldest index that can be read. It is one fact of the cluster (`machine.oldest`), equal on every node."""

    @property
    def committed(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def last_user_index(self) -> int: ...
    @property
    def is_ready(self) -> bool:
        """Whether the node knows a leader, has caught up, and is not cut off."""

    @property
    def is_fenced(self) -> bool:
        """Whether the node met a disk error, or its state is wrong. It then serves no requests any more."""

    @property
    def configuration(self) -> Configuration:
        """The configuration in force here. Its members carry their incarnations, which no HTTP answer shows."""

    def leader_hint(self) -> LeaderHint | None:
        """Where the leader was last seen."""

    def write_steps(self, index: int) -> WriteSteps | None:
        """When the write with that index was proposed, durable and committed here. None: traces are off."""

    def status(self) -> Status: ...
    def members(self) -> Members: ...
    def cluster(self) -> ClusterView: ...
    def view(self) -> NodeView:
        """The facts about itself and its peers that `raftlog explain` needs."""

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        """Takes a request block of `count` records. The future is settled after this node applied it. The future, or
        this call itself, fails with ApiError."""

    def read_barrier(self, deadline: float) -> asyncio.Future[int]:
        """The index that a linearizable read may be answered from; this node has applied it. The future, or this call
        itself, fails with ApiError."""

    async def wait_applied(self, index: int, deadline: float) -> None:
        """Returns once `index` is applied here. Raises ApiError future_index when it is not by then."""

    async def wait_beyond(self, index: int, deadline: float) -> None:
        """Returns once something after `index` is applied, or at the deadline."""

    async def read_log(self, from_index: int, limit: int, bytes_max: int) -> list[tuple[Entry, Effects]]:
        """Whole applied entries that contain or follow `from_index`: at least one if one exists.

        Raises ApiError compacted for an index below the oldest.
        """

    async def read_raw(self, from_index: int, to_index: int, bytes_max: int) -> RawSlice:
        """The same entries, as the bytes on disk."""

    def state_mark(self) -> tuple[Mark, int, Configuration]:
        """The end of the newest applied entry, and the configuration in force there with its index."""

    async def find_time(self, time_ms: int) -> int:
        """The first index of the first entry with that time or a later one. Last index + 1 if no entry has it."""

    async def change_members(self, change: MemberChange, deadline: float) -> int:
        """Begins a change. Returns the index of the configuration that begins it, once that is committed."""

    async def first_entry(self) -> Entry:
        """The entry at index 1, even if a snapshot has replaced it in the log."""

    async def save_snapshot(self, deadline: float) -> int:
        """Saves this node's present state. Returns the index at which its newest snapshot ends. Raises ApiError."""

    async def transfer(self, to: int, deadline: float) -> float:
        """Hands leadership to node `to` (0: the voter with the longest log).

        Returns the seconds until this node heard from the new leader.
        """
