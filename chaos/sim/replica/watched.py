"""Watches the server's replica from outside: its core, its applier and itself, as subclasses that report to the node.

It is compiled where they are: an interpreted class cannot inherit from a compiled one.

No rule of the server is changed here: each method calls the server's own, and then shows the world what happened.
A process may die before or after some of them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.chaos.sim.replica.watching import Watching
from raftlog.cluster.protocol.digest_points import POINT_BLOCK
from raftlog.cluster.protocol.request import RequestResult
from raftlog.cluster.replica.log.applier import Applier
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.changes import MemberChange
from raftlog.raft.codec.block import decode_blocks, decode_records
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import Proposal, RaftCore
from raftlog.raft.messages import Message
from raftlog.raft.ready import Fetch, Ready, SnapshotFetch, SnapshotWrite, SyncBatch
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import Entry, EntryKind, Mark, NodeId, Now
from raftlog.statemachine.commands import LogEntry
from raftlog.statemachine.effects import Effects
from raftlog.statemachine.machine import StateMachine

SLICE_S: Final = 1.0
"""A slice of applying ends only with its entries: time stands still in a simulated callback."""


class WatchedCore(RaftCore):
    """The server's core; the witness looks at it after every input and at every Ready."""

    __slots__ = ("node",)
    node: Watching

    def tick(self, now: Now) -> None:
        super().tick(now)
        self.node.stepped(self)

    def step(self, message: Message, now: Now, disk: str = "") -> None:
        super().step(message, now, disk)
        self.node.stepped(self)

    def propose(self, kind: EntryKind, count: int, data: bytes, now: Now) -> Proposal:
        try:
            proposed = super().propose(kind, count, data, now)
        except ProposalRefused as refusal:
            self.node.world.count(f"refused {type(refusal).__name__}")
            raise
        if kind is EntryKind.CLOCK:
            self.node.world.count("clock entries")
        elif data == POINT_BLOCK:
            self.node.world.count("digest points")
        self.node.stepped(self)
        return proposed

    def propose_configuration(self, change: MemberChange, now: Now) -> int:
        index = super().propose_configuration(change, now)
        self.node.stepped(self)
        return index

    def read(self, context: int, now: Now) -> None:
        super().read(context, now)
        self.node.world.witness.reads.began(self.node.node, context)
        self.node.stepped(self)

    def transfer(self, to: NodeId, now: Now) -> NodeId:
        found = super().transfer(to, now)
        self.node.stepped(self)
        return found

    def compact(self, mark: Mark, keep_after: int | None = None) -> None:
        super().compact(mark, keep_after)
        self.node.stepped(self)
        self.node.compacted(mark)

    def snapshot_chunk(self, fetch: SnapshotFetch, total: int, data: bytes, now: Now) -> None:
        super().snapshot_chunk(fetch, total, data, now)
        self.node.stepped(self)

    def snapshot_written(self, write: SnapshotWrite, now: Now) -> None:
        super().snapshot_written(write, now)
        self.node.stepped(self)

    def snapshot_failed(self, now: Now) -> None:
        super().snapshot_failed(now)
        self.node.stepped(self)

    def installed(self, mark: Mark, configuration: Configuration, configuration_index: int, now: Now) -> None:
        log = self.state.log
        before, had = (log.committed, log.last.index), log.term_at(mark.index) == mark.term
        super().installed(mark, configuration, configuration_index, now)
        self.node.installed(mark, before, had, configuration)
        self.node.stepped(self)

    def persisted(self, term: int, index: int, now: Now) -> None:
        self.node.may_crash("before persisted")
        super().persisted(term, index, now)
        self.node.stepped(self)

    def fetched(self, fetch: Fetch, entries: tuple[Entry, ...], now: Now) -> None:
        super().fetched(fetch, entries, now)
        self.node.stepped(self)

    def applied(self, index: int) -> None:
        self.node.may_crash("before applied")
        super().applied(index)
        self.node.stepped(self)

    def ready(self) -> Ready | None:
        ready = super().ready()
        if ready is not None:
            self.node.took(ready)
            self.node.stepped(self)
        return ready


class WatchedApplier(Applier):
    """The server's applier. On a node with a slow state machine it applies one entry at a time."""

    node: Watching

    def run(self) -> bool:
        node = self.node
        if not self.waiting or node.must_apply_later():
            return False
        node.may_crash("before applying")
        self._slice_s = 0.0 if node.applies_slowly else SLICE_S
        return super().run()

    def _apply(self, entry: Entry) -> tuple[LogEntry, Effects]:
        command, effects = super()._apply(entry)
        self.node.applied(entry, command, effects)
        return command, effects

    def installed(self, machine: StateMachine, mark: Mark, last_user: int) -> None:
        super().installed(machine, mark, last_user)
        self.node.restored(mark)


class WatchedReplica(Replica):
    """The server's replica."""

    node: Watching

    def synced(self, batch: SyncBatch) -> None:
        self.node.sending = "sending after a sync"
        try:
            super().synced(batch)
        finally:
            self.node.sending = "sending"

    def submit(
        self, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        if block == POINT_BLOCK:
            self.node.looks_at_others()
        elif asyncio.current_task() is self.state.retention.task is not None:
            [asked] = decode_records(decode_blocks(block)[0])
            self.node.trims(asked.argument or 0)
        return super().submit(block, count, deadline=deadline, session=session, sequence=sequence)
