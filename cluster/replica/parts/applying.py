"""Applies committed entries: at once if a client waits for them, else after the current sync; reads those for it.

The replica calls `apply_if_due` in its turns. On a follower, applying a batch takes as long as making the next batch
durable, and both need the interpreter. If the follower applied first, it would acknowledge every batch that much later.
Entries that are not in memory any more are read from the disk for the core, no faster than the replica applies them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import damage
from raftlog.cluster.runtime import clock
from raftlog.raft.ready import Fetch
from raftlog.raft.types import NOBODY, Entry

DELAY_S: Final = 0.005
"""Longest delay of applying, in seconds. If a sync takes longer, the replica applies without waiting for its end."""


def apply_if_due(replica: ReplicaState) -> bool:
    """Applies for a slice of time, unless the end of the current sync will bring another turn for it.

    Returns whether the core has something new to do: it got entries that were read from the disk meanwhile.
    """
    syncer, pending, applier = replica.syncer, replica.writes.pending, replica.applier
    if not (
        not syncer.is_busy
        or replica.core.state.role.is_leader
        or pending.inflight > 0
        or applier.waiters.heap
        or clock.monotonic() - syncer.started >= DELAY_S
    ):
        return False
    known = pending.outcomes
    if not applier.run():
        return False
    replica.core.applied(applier.applied)
    replica.writes.batching.answered(pending.outcomes - known, len(pending.queue))
    if pending.queue or replica.reads.rounds.waiting or applier.waiting:
        replica.driver.look_soon()  # after the answers: the answered clients usually send again
    log = replica.core.state.log
    return (replica.fetches.held is not None and release(replica)) or log.given < min(log.committed, log.persisted)


def release(replica: ReplicaState) -> bool:
    """Hands the held entries to the core once all earlier ones are applied; returns whether the core got any."""
    if replica.fetches.held is None or replica.applier.waiting:
        return False
    fetch, entries = replica.fetches.held
    replica.fetches.held = None
    replica.core.fetched(fetch, entries, clock.read())
    return True


def begin_fetch(replica: ReplicaState, fetch: Fetch) -> None:
    """Reads the entries of that fetch. The core gets them in a turn of their own."""
    read = asyncio.ensure_future(replica.disk.read_entries(fetch.after, fetch.to, fetch.bytes_max))
    read.add_done_callback(partial(_fetched, replica, fetch))


def _fetched(replica: ReplicaState, fetch: Fetch, done: asyncio.Future[tuple[Entry, ...]]) -> None:
    if done.cancelled() or replica.life.is_over:
        return
    if (error := done.exception()) is not None:
        damage.fetch_failed(replica, fetch, error)
    entries = () if error is not None else done.result()
    if fetch.peer == NOBODY and replica.applier.waiting:
        replica.fetches.held = (fetch, entries)  # replay must not read faster than it applies
        return
    try:
        replica.core.fetched(fetch, entries, clock.read())
    except Exception as failure:
        replica.driver.fail(failure)
    replica.driver.carry_out()
