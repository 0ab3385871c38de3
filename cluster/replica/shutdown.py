"""Ends a replica: it stops cleanly and hands leadership over, or it fails and logs the reason.

The replica and its host call these functions. Afterwards no request waits. The host then closes links and disk
(`raftlog.cluster.node.host`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.files.errors import DiskError, DiskFenced, ReadDamaged
from raftlog.cluster.files.findings import FileHealth, FilesDamaged, Finding
from raftlog.cluster.protocol.digest_points import Diverged
from raftlog.cluster.records.entries import UNKNOWN
from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.parts.writes import unavailable
from raftlog.cluster.replica.state import ReplicaEnd, ReplicaState
from raftlog.cluster.replica.upkeep import damage
from raftlog.cluster.runtime import clock
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import NOBODY
from raftlog.raft.wal.divergence import DivergenceNote

POLL_S: Final = 0.005  # seconds between two checks whether all requests are answered


def begin_stop(replica: ReplicaState) -> None:
    """Refuses new requests and starts to hand leadership over. Reads that wait for a newer index are refused."""
    life = replica.life
    if life.is_stopping or life.is_over:
        return
    life.is_stopping = True
    replica.peer_log.stop()
    replica.logger.info("stopping", applied=replica.applier.applied, is_leader=replica.is_leader)
    replica.applier.waiters.fail_all(unavailable(replica))
    if replica.is_leader:
        try:
            to = replica.core.transfer(disk_exchange.best(replica), clock.read())
            replica.logger.info("handing_over", to=to)
        except ProposalRefused as error:
            replica.logger.info("not_handing_over", reason=str(error))
    replica.driver.wake()


async def drain(replica: ReplicaState, until: float) -> None:
    """Hands leadership over and waits until all requests are answered, at most `until`; then fails those that wait."""
    begin_stop(replica)
    pending, rounds, life = replica.writes.pending, replica.reads.rounds, replica.life
    while not life.is_over and clock.monotonic() < until:
        is_handing_over = replica.is_leader and replica.core.status().transfer_to != NOBODY
        if pending.is_empty and rounds.is_empty and replica.syncer.is_idle and not is_handing_over:
            break
        await asyncio.sleep(POLL_S)
    _fail_all(replica, Code.SHUTTING_DOWN, f"{replica.name} is shutting down")
    life.end(ReplicaEnd.REMOVED if replica.members.is_removed else ReplicaEnd.STOPPED)


async def write_mark(replica: ReplicaState) -> None:
    """Writes the last durable mark of a replica that ends cleanly, once its effects are written."""
    try:
        while not replica.applier.is_written and not replica.life.is_fenced:
            await asyncio.sleep(POLL_S)
        await replica.disk.write_mark()
    except (DiskError, OSError) as error:
        replica.logger.error("mark_not_written", reason=str(error))


def fail(replica: ReplicaState, error: BaseException) -> None:
    """Ends the replica after this error, which it cannot survive: logs the reason, and answers every request."""
    life, logger = replica.life, replica.logger
    if life.is_over:
        return
    if isinstance(error, DiskFenced):
        ending, life.is_fenced = ReplicaEnd.FENCED, True
        logger.error(
            "fenced", reason=str(error), mend="look at the disk; then start the node again: it checks its files"
        )
    elif isinstance(error, Diverged):
        ending, life.is_fenced = ReplicaEnd.DIVERGED, True
        logger.error(
            "state_diverged",
            point=error.index,
            agreed=error.agreed,
            reason=str(error),
            mend="start the node again: it rebuilds its state from its log",
        )
        replica.driver.spawn(_note_divergence(replica, DivergenceNote(error.agreed, error.index)), must_finish=True)
    elif isinstance(error, FilesDamaged | ReadDamaged):
        ending, life.is_fenced = ReplicaEnd.DAMAGED, True
        if isinstance(error, ReadDamaged):
            met = error.damage
            error = FilesDamaged([Finding(met.file, FileHealth.DAMAGED, met.reason, None, met.index)])
        logger.error(
            "files_damaged", reason=str(error), mend="start the node again: it repairs its files; then look at the disk"
        )
        replica.driver.spawn(damage.leave_note(replica, error), must_finish=True)
    elif isinstance(error, UNKNOWN):
        ending = ReplicaEnd.UNKNOWN_VERSION
        logger.error("unknown_version", reason=str(error), mend="start a newer version of raftlog on this folder")
    else:
        ending = ReplicaEnd.FAILED
        logger.error("failed", exc_info=error)
    life.end(ending)
    life.is_stopping = True
    replica.peer_log.stop()
    replica.syncer.close()
    _fail_all(replica, unavailable(replica).code, f"{replica.name} stopped serving: {error}")


async def _note_divergence(replica: ReplicaState, note: DivergenceNote) -> None:
    """Leaves a note for the next start. Without it, that start may load the wrong state again, and find it again."""
    try:
        await replica.disk.write_divergence(note)
    except (DiskError, OSError) as error:
        replica.logger.error("note_not_written", reason=str(error))


def _fail_all(replica: ReplicaState, code: Code, message: str) -> None:
    """Answers every request that waits. Requests that are in a log have an unknown outcome."""
    error = ApiError(code, message)
    replica.writes.pending.fail_all(code, Code.LEADER_LOST, message)
    replica.reads.rounds.fail_all(error)
    replica.applier.waiters.fail_all(error)
