"""Reads entries from the disk for the core, no faster than the replica applies them."""

from __future__ import annotations

import asyncio
from functools import partial

from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import damage
from raftlog.cluster.runtime import clock
from raftlog.raft.ready import Fetch
from raftlog.raft.types import NOBODY, Entry


def begin(replica: ReplicaState, fetch: Fetch) -> None:
    """Reads the entries of that fetch. The core gets them in a turn of their own."""
    read = asyncio.ensure_future(replica.disk.read_entries(fetch.after, fetch.to, fetch.bytes_max))
    read.add_done_callback(partial(_done, replica, fetch))


def release(replica: ReplicaState) -> bool:
    """Hands the held entries to the core. Called after applying; returns whether the core got any."""
    if replica.fetches.held is None or replica.applier.waiting:
        return False
    fetch, entries = replica.fetches.held
    replica.fetches.held = None
    replica.core.fetched(fetch, entries, clock.read())
    return True


def _done(replica: ReplicaState, fetch: Fetch, done: asyncio.Future[tuple[Entry, ...]]) -> None:
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
