"""Saves a node's own snapshots, sends them to followers, receives a leader's snapshot and puts it in force.

The housekeeping and the replica's turns call it. `raftlog.raft.consensus.snapshots` decides the order. The disk's part
is in `raftlog.cluster.disk.incoming_snapshot` and `raftlog.cluster.disk.writer`. A node that receives a snapshot builds
the new state beside the old one. Meanwhile it answers heartbeats, and readers that accept a stale state. It builds for
a few milliseconds at a time on the event loop; only the last part runs in a thread.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.files.errors import NoSpace, StoredSnapshotDamaged
from raftlog.cluster.records.snapshot_stream import chunks_of, decode_preamble, paced
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft import versions
from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.configuration import Configuration
from raftlog.raft.ready import Ready, SnapshotFetch, SnapshotInstall, SnapshotWrite
from raftlog.raft.types import Mark
from raftlog.raft.wal.snapshot_files import StoredSnapshot
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.snapshot import CorruptSnapshot, Restorer, SnapshotState

POLL_S: Final = 0.005  # seconds between two checks whether disk and applying are done
RETRY_BYTES: Final = 16 << 20  # bytes of new log before a snapshot that found no disk space is tried again
DUE_SHARE: Final = 4  # 1/4 of the kept log comes between two snapshots: both must cover deleted entries
TRAILING_PERCENT: Final = 40  # of the kept log is for slow followers; the rest is for newly appended entries
SAVED_TIMES_MAX: Final = 4  # most bytes of snapshots per byte of new log, even if the state outgrew the policy
HOLD: Final = 4  # a new snapshot waits for one being sent, at most until this many times the usual log came


def state_mark(replica: ReplicaState) -> tuple[Mark, int, Configuration]:
    """The end of the entry that was applied last, and the configuration in force there with its index."""
    mark = replica.applier.mark
    index, configuration = next(pair for pair in reversed(replica.core.state.configurations) if pair[0] <= mark.index)
    return mark, index, configuration


def is_under_way(replica: ReplicaState) -> bool:
    """Whether a snapshot is being written: this replica's own, or a leader's."""
    snapshots = replica.snapshots
    return snapshots.is_saving or snapshots.is_receiving or replica.core.state.receiving is not None


# -- its own ------------------------------------------------------------------------------------------------


async def begin(replica: ReplicaState) -> None:
    """At the start: reports the newest snapshot on disk to the core, which then knows the log that it must keep."""
    if replica.snapshots.index:
        await saved(replica, replica.applier.mark)


def save_if_due(replica: ReplicaState) -> None:
    """Begins to save the state if enough log has come since the last snapshot, or if that one is damaged."""
    if replica.snapshots.is_damaged or _is_due(replica):
        save(replica)


def save(replica: ReplicaState) -> bool:
    """Begins to save the state, if that is possible now. Returns whether it began."""
    snapshots = replica.snapshots
    if snapshots.saving is not None or not _may_save(replica):
        return False
    replica.applier.begin_counting()
    snapshots.saving = replica.driver.spawn(_save(replica))
    return True


async def save_now(replica: ReplicaState, deadline: float) -> int:
    """Saves the present state, unless the newest snapshot has it, and waits for the end. Returns where it ends.

    Raises ApiError busy while a snapshot is received, or sent to a follower that needs it; timeout; disk_full."""
    snapshots, wanted = replica.snapshots, replica.applier.mark.index
    while snapshots.index < wanted:
        own = snapshots.saving is None
        if own and not save(replica):
            raise ApiError(
                Code.BUSY, "this node receives a snapshot, or sends one to a follower: ask again when that is done"
            )
        assert snapshots.saving is not None
        _, running = await asyncio.wait([snapshots.saving], timeout=max(0.0, deadline - clock.monotonic()))
        if running:
            raise ApiError(Code.TIMEOUT, "the snapshot is still being saved; the event snapshot_saved is its end")
        if own and snapshots.index < wanted:
            raise ApiError(Code.DISK_FULL, "the disk of this node has no room for a snapshot: free space, ask again")
    return snapshots.index


def _is_due(replica: ReplicaState) -> bool:
    """Whether enough log has come: enough bytes on the disk, or enough records to make a restart slow."""
    applier, limits = replica.applier, replica.settings.limits
    due = _due_bytes(replica)
    if applier.log_records >= limits.snapshot_log_records:
        due = min(due, _like_state(replica))
    return applier.log_bytes >= due


def _is_late(replica: ReplicaState) -> bool:
    """Whether so many bytes of log have come since this snapshot began that the next one is due already."""
    return replica.applier.log_bytes >= _due_bytes(replica)


def _due_bytes(replica: ReplicaState) -> int:
    due = max(replica.settings.limits.snapshot_log_bytes, _like_state(replica))
    due = min(due, _kept_bytes(replica) // DUE_SHARE)
    return max(due, replica.disk.snapshot_bytes // SAVED_TIMES_MAX)


def _like_state(replica: ReplicaState) -> int:
    """Bytes of log that are worth writing the whole state."""
    return replica.disk.snapshot_bytes * replica.settings.limits.snapshot_log_percent // 100


def _kept_bytes(replica: ReplicaState) -> int:
    """Bytes of log that the policy keeps; they bound the distance of snapshots and the trailing log."""
    return replica.settings.retention.bytes or sys.maxsize


def _may_save(replica: ReplicaState) -> bool:
    """Whether a snapshot may be saved: not while one is received, nor while an older one is still being sent.

    If sending takes very long, the replica saves a new snapshot all the same. A full disk waits for no follower,
    whose disk may be full for good.
    """
    snapshots = replica.snapshots
    if replica.core.state.receiving is not None or snapshots.receiving is not None:
        return False
    is_sending_older = any(0 < each.snapshot_index < snapshots.index for each in replica.core.status().followers)
    is_waiting = is_sending_older and replica.syncer.has_space
    return not is_waiting or replica.applier.log_bytes >= HOLD * _due_bytes(replica)


async def _save(replica: ReplicaState) -> None:
    """Saves the present state slice by slice, while applying goes on."""
    applier = replica.applier
    last_user, grown = applier.last_user_index, applier.grown_bytes
    mark, index, configuration = state_mark(replica)
    started = clock.monotonic()
    walk = replica.machine.snapshot()
    try:
        while applier.ledger.written < mark.index:  # the ledger must reach the snapshot before the snapshot counts
            await asyncio.sleep(POLL_S)
        chunks = paced(chunks_of(last_user, walk), lambda: replica.applier.applied, partial(_is_late, replica))
        await replica.disk.save_snapshot(mark, configuration, chunks, index)
        applier.grown_bytes -= grown
        await saved(replica, mark)
        replica.logger.info("snapshot_saved", index=mark.index, seconds=round(clock.monotonic() - started, 3))
    except NoSpace as error:
        replica.snapshots.is_damaged = False  # the next reader sets it again: not at once, on a full disk
        applier.count_at_least(_due_bytes(replica) - RETRY_BYTES)
        replica.logger.warning("snapshot_not_saved", index=mark.index, reason=str(error))
    finally:
        walk.close()
        replica.snapshots.saving = None


async def saved(replica: ReplicaState, mark: Mark) -> None:
    """A snapshot up to `mark` is durable: compacts the log of the core.

    Followers that lack more entries than the trailing log holds get the snapshot instead. The entries after a snapshot
    that is being sent are kept until it has arrived. While the members change, a log that begins with the first entry
    goes on to do so. The log stays on disk until it is trimmed: compaction is not retention.
    """
    snapshots = replica.snapshots
    if mark.index > snapshots.index:
        snapshots.index, snapshots.older = mark.index, snapshots.index
    snapshots.is_damaged = False
    replica.damage.snapshot_saved()
    keep_after = await _trailing_end(replica, mark)
    under_way = [each.snapshot_index for each in replica.core.status().followers if each.snapshot_index]
    if not replica.syncer.has_space:  # trimmed entries must free space, even if a follower needs them
        keep_after = max(keep_after, await _trimmed_end(replica, mark))
        under_way.clear()
    replica.core.compact(mark, min([keep_after, *under_way]))


async def make_room(replica: ReplicaState) -> None:
    """Lets the core of a full disk forget the trimmed entries that its newest snapshot covers, so that their files can
    be deleted. It writes nothing: a full disk may have no room for another snapshot."""
    if (mark := replica.core.state.log.snapshot).index:
        replica.core.compact(mark, await _trimmed_end(replica, mark))


async def _trimmed_end(replica: ReplicaState, mark: Mark) -> int:
    """The end of the trimmed entries that a snapshot covers."""
    return await _end_before(replica, min(mark.index, replica.machine.oldest - 1), 0)


async def _trailing_end(replica: ReplicaState, mark: Mark) -> int:
    """The end behind which entries are kept for followers that are slow."""
    limits = replica.settings.limits
    trailing = max(limits.trailing_log_bytes, replica.disk.snapshot_bytes * limits.trailing_log_percent // 100)
    trailing = min(trailing, _kept_bytes(replica) * TRAILING_PERCENT // 100)
    facts = replica.core.status()
    if facts.first == 1 and facts.is_changing:
        return 0  # a node that joins gets the whole log, and no snapshot: `history_guard` counts on it
    return await _end_before(replica, mark.index, trailing)


async def _end_before(replica: ReplicaState, index: int, bytes_kept: int) -> int:
    """An end of an entry on disk, at most `index`, or 0: a log that begins behind `index` is one that a leader's
    snapshot has just begun. The core does not know of it before the install ends."""
    end = await replica.disk.end_before(index, bytes_kept)
    return end if end <= index else 0


# -- a follower's, or a leader's ------------------------------------------------------------------------------


def carry_out(replica: ReplicaState, ready: Ready) -> None:
    """Carries out a Ready's wishes about snapshots that travel."""
    snapshots = replica.snapshots
    for fetch in ready.snapshot_fetches:
        asyncio.ensure_future(_read(replica, fetch)).add_done_callback(partial(_fetched, replica, fetch))
    snapshots.jobs.extend(ready.snapshot_writes)
    if ready.snapshot_install is not None:
        snapshots.jobs.append(ready.snapshot_install)
    if snapshots.jobs and snapshots.receiving is None:
        snapshots.receiving = replica.driver.spawn(_receive(replica))


async def _read(replica: ReplicaState, fetch: SnapshotFetch) -> tuple[int, bytes]:
    """Reads a piece. Before the first piece it checks the whole file: a damaged one would be sent again and again."""
    snapshots = replica.snapshots
    disk = replica.disk
    if fetch.offset == 0:
        try:
            await disk.check_snapshot(fetch.index)
        except StoredSnapshotDamaged:
            if fetch.index == snapshots.index:  # a failed older snapshot is not sent again
                snapshots.is_damaged = True
            raise
    return await disk.read_snapshot(fetch.index, fetch.term, fetch.offset, fetch.bytes_max)


def _fetched(replica: ReplicaState, fetch: SnapshotFetch, done: asyncio.Future[tuple[int, bytes]]) -> None:
    if done.cancelled() or replica.life.is_over:
        return
    total, data = 0, b""
    if (error := done.exception()) is not None:
        replica.logger.error("snapshot_not_read", index=fetch.index, peer=fetch.peer, reason=str(error))
    else:
        total, data = done.result()
    try:
        replica.core.snapshot_chunk(fetch, total, data, clock.read())
    except Exception as failure:
        replica.driver.fail(failure)
    replica.driver.carry_out()


async def _receive(replica: ReplicaState) -> None:
    """Writes received pieces aside and installs the snapshot, one step after the other."""
    snapshots = replica.snapshots
    try:
        while snapshots.jobs and not replica.life.is_over:
            job = snapshots.jobs.popleft()
            try:
                if isinstance(job, SnapshotInstall):
                    await _install(replica, job)
                else:
                    await _write(replica, job)
            except (NoSpace, StoredSnapshotDamaged, Corrupt, CorruptSnapshot) as error:
                replica.logger.error("snapshot_not_taken", index=job.index, reason=str(error))
                snapshots.jobs.clear()  # the core begins again too
                replica.core.snapshot_failed(clock.read())
            replica.driver.carry_out()
    finally:
        snapshots.receiving = None


async def _write(replica: ReplicaState, first: SnapshotWrite) -> None:
    """Writes that piece and the pieces that wait behind it, in one call of the disk."""
    snapshots = replica.snapshots
    pieces = [first]
    while snapshots.jobs and isinstance(following := snapshots.jobs[0], SnapshotWrite):
        pieces.append(following)
        snapshots.jobs.popleft()
    for piece in pieces:
        if piece.offset == 0:
            replica.logger.info("snapshot_coming", index=piece.index, bytes=piece.total)
    await replica.disk.write_pieces(pieces)
    for piece in pieces:
        snapshots.received_bytes += len(piece.data)
        replica.core.snapshot_written(piece, clock.read())


async def _install(replica: ReplicaState, install: SnapshotInstall) -> None:
    """Checks the received file, builds its state beside the old one, and only then replaces the log by it.

    Raises NoSpace, StoredSnapshotDamaged, Corrupt, CorruptSnapshot, or an error that ends the node.
    """
    snapshots = replica.snapshots
    applier = replica.applier
    started = clock.monotonic()
    while not (replica.syncer.is_idle and not applier.waiting and applier.is_written):
        await asyncio.sleep(POLL_S)
    if snapshots.saving is not None:  # the snapshot being saved is older than the received one
        snapshots.saving.cancel()
        await asyncio.wait([snapshots.saving])
    received, stored = await replica.disk.check_received(install.index)
    try:
        versions.check(stored.configuration, replica.core.state.knows)
        machine, last_user = await _restore(replica, stored)
    except _UNREADABLE as error:  # the leader may lie, or run a newer program: this node goes on without
        raise StoredSnapshotDamaged(f"{stored.folder}: {error!r}") from error
    here = (stored.mark.index, stored.mark.term, machine.applied_index, machine.applied_term)
    last = max(stored.mark.time_ms, stored.mark.clock_ms)
    if here != 2 * (install.index, install.term) or stored.configuration_index > install.index or last > INDEX_MAX:
        raise StoredSnapshotDamaged(f"{stored.folder}: it is of {here} and {last}, not of {install}")
    await replica.disk.install(received, stored)
    mark, older = stored.mark, replica.machine
    snapshots.index, snapshots.older = mark.index, snapshots.index
    replica.core.installed(mark, stored.configuration, stored.configuration_index, clock.read())
    applier.installed(machine, mark, last_user)
    replica.writes.pending.skipped(mark.index, mark.term)
    replica.logger.info("snapshot_in_force", index=mark.index, seconds=round(clock.monotonic() - started, 3))
    replica.driver.spawn(_give_back(older))


_UNREADABLE: Final = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


async def _restore(replica: ReplicaState, stored: StoredSnapshot) -> tuple[StateMachine, int]:
    """Restores the state in the snapshot and compares it with the digest in the file. Returns it with the last user
    index."""
    chunks = replica.disk.received_chunks(stored)
    first = await anext(chunks, b"")
    last_user = decode_preamble(first)
    restorer = Restorer()
    async for chunk in chunks:
        restorer.feed(chunk)
    state = await asyncio.to_thread(_finish, restorer)
    if gc.get_freeze_count():  # this process freezes long-lived objects, so that collections do not walk them
        gc.freeze()
    return type(replica.machine).of(state), last_user


async def _give_back(machine: StateMachine) -> None:
    for _ in _release_state(machine):
        await asyncio.sleep(0)


_SLICE: Final = 5_000
"""Objects freed without a pause: less than a millisecond of work. Freeing a million keys at once would stop the event
loop. No other code outside `statemachine` knows the inside of a state machine; `statemachine` itself knows nothing of
pauses. A dismantled state is never used again."""


def _release_state(machine: StateMachine) -> Iterator[None]:
    """Frees the keys, the history and the sessions slice by slice; the caller yields between two slices."""
    store = machine._store
    tables: tuple[dict[Any, Any], ...] = (*store.head.dicts, *store.tombs.dicts, machine._sessions._sessions)
    for table in tables:
        while table:
            for _ in range(min(_SLICE, len(table))):
                table.popitem()
            yield
    for keys in (store.live, store.gone):
        while keys._lists:  # each list holds a few thousand keys
            keys._lists.pop()
            yield
    while store.steps:
        del store.steps[-_SLICE:]
        yield


def _finish(restorer: Restorer) -> SnapshotState:
    """Calls `restorer.finish()`, then frees its working data in slices. For a thread. Raises CorruptSnapshot."""
    state = restorer.finish()
    loader = restorer._loader
    assert loader is not None, "it has finished"
    while loader._replaced:
        del loader._replaced[-_SLICE:]
    return state
