"""What a node does now and then, and how it ends: deadlines, snapshots, a hanging disk; a clean stop, a fence.

Plain functions on `Node`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cluster import clock, node_points
from cluster.apply import UNKNOWN
from cluster.disk_errors import DiskError, DiskFenced, ReadDamaged
from cluster.disk_findings import FilesDamaged, Finding, State
from cluster.node_requests import unavailable
from cluster.points import Diverged
from cluster.settings import NodeExit
from cluster.wire import ApiError, Code
from raft.divergence import Note
from raft.refusals import CannotTransfer, Refused
from raft.types import NOBODY, EntryKind, Now

if TYPE_CHECKING:
    from cluster.node import Node

POLL_S: Final = 0.005  # how often a stopping node looks whether everyone was answered
SWEEP_AT: Final = 1_024  # waiters beyond which those who went away are looked for


# ---------------------------------------------------------------------------------------------------------------
# Now and then.


def housekeeping(node: Node, now: Now, mono: float) -> None:
    """What needs no exact time: called every `node.HOUSEKEEPING_S`."""
    leader = node.core.state.leader
    node.pending.expire(mono, leader=leader)
    if not node.reads.is_empty:
        message = f"node {node.node_id}: {'the leader did not confirm the read' if leader else 'no leader was found'}"
        node.reads.expire(mono, f"{message} within its deadline", has_leader=leader != NOBODY)
    if len(node.applier.waiters) > SWEEP_AT:
        node.applier.waiters.sweep()
    node.transport.check_silence()
    node_points.housekeeping(node, now, mono)
    _watch_disk(node, now)
    if node.is_leader:
        _commit_clock(node, now)
    node.snapshots.save_if_due()
    node.room.look_if_due(mono)
    node.disks.look(now, mono)
    node.retention.look_if_due(mono)
    node.backfill.look_if_due(mono)


def _commit_clock(node: Node, now: Now) -> None:
    """If something falls due on an idle log, the leader commits one clock entry (DESIGN section 3)."""
    due_ms = node.machine.next_expiry_ms
    if due_ms is None or node.applier.clock_ms < due_ms or node.clock_proposed > node.applier.applied:
        return
    try:
        node.clock_proposed = node.core.propose(EntryKind.CLOCK, 1, b"", now).last
    except Refused:
        pass  # busy or handing over: something else moves the log


def _watch_disk(node: Node, now: Now) -> None:
    """A leader whose disk hangs hands over, and falls silent if nobody takes it (pitfall 72)."""
    stalled_ms = node.disk.stalled_ms()
    is_stalled = stalled_ms > node.settings.limits.disk_stall_ms
    if node.is_muted and not (is_stalled and node.is_leader):
        node.is_muted = False
        node.logger.info("disk_moves_again" if not is_stalled else "leadership_left")
    if not is_stalled or not node.is_leader or node.is_muted:
        return
    if node.core.status().transfer_to != NOBODY:
        return  # on its way
    if stalled_ms > node.settings.limits.disk_stall_ms + 2 * node.options.transfer_timeout_ms:
        node.is_muted = True
        node.logger.error("disk_hangs", stalled_ms=stalled_ms, then="no more heartbeats: others will elect a leader")
        return
    try:
        to = node.core.transfer(node.disks.best(), now)
        node.logger.error("disk_hangs", stalled_ms=stalled_ms, then=f"leadership goes to node {to}")
    except CannotTransfer:
        node.is_muted = True
        node.logger.error("disk_hangs", stalled_ms=stalled_ms, then="nobody can take over: no more heartbeats")


# ---------------------------------------------------------------------------------------------------------------
# The end.


def begin_stop(node: Node) -> None:
    """Refuses new work and starts to hand leadership over; what waits for a newer index is told to go."""
    if node.is_stopping or node.ended.done():
        return
    node.is_stopping = True
    node.logger.info("stopping", applied=node.applier.applied, is_leader=node.is_leader)
    node.applier.waiters.fail_all(unavailable(node))
    if node.is_leader:
        try:
            to = node.core.transfer(node.disks.best(), clock.read())
            node.logger.info("handing_over", to=to)
        except Refused as error:
            node.logger.info("not_handing_over", reason=str(error))
    node.wake()


async def stop(node: Node) -> None:
    """Hands over, waits until everyone is answered (limits.stop_timeout_ms), and closes everything."""
    begin_stop(node)
    until = clock.monotonic() + node.settings.limits.stop_timeout_ms / 1_000
    while not node.ended.done() and clock.monotonic() < until:
        is_handing_over = node.is_leader and node.core.status().transfer_to != NOBODY
        if node.pending.is_empty and node.reads.is_empty and node.syncer.is_idle and not is_handing_over:
            break
        await asyncio.sleep(POLL_S)
    _answer_everyone(node, Code.SHUTTING_DOWN, f"node {node.node_id} is shutting down")
    was_failed = node.ended.done()
    if not was_failed:
        node.ended.set_result(NodeExit.REMOVED if node.membership.is_removed else NodeExit.OK)
    await _close(node, is_clean=not was_failed)
    node.logger.info("stopped", applied=node.applier.applied)


async def _close(node: Node, *, is_clean: bool) -> None:
    node.close_inputs()
    if node.watch.noting is not None:
        await asyncio.wait([node.watch.noting], timeout=node.settings.limits.stop_timeout_ms / 1_000)
    await node.damage.close(node.settings.limits.stop_timeout_ms / 1_000)
    await node.snapshots.close(node.settings.limits.stop_timeout_ms / 1_000)
    await node.retention.close(node.settings.limits.stop_timeout_ms / 1_000)
    await node.backfill.close(node.settings.limits.stop_timeout_ms / 1_000)
    node.peer_log.close()
    await node.transport.close()
    if is_clean:
        try:
            while not node.applier.is_written and not node.is_fenced:
                await asyncio.sleep(POLL_S)
            await node.disk.write_mark()
        except (DiskError, OSError) as error:
            node.logger.error("mark_not_written", reason=str(error))
    await node.disk.close()


def fail(node: Node, error: BaseException) -> None:
    """The node cannot go on: it answers everyone, says why, and `ended` has the exit code."""
    if node.ended.done():
        return
    if isinstance(error, DiskFenced):
        code, node.is_fenced = NodeExit.FENCED, True
        node.logger.error(
            "fenced", reason=str(error), mend="look at the disk; then start the node again: it checks what it has"
        )
    elif isinstance(error, Diverged):
        code, node.is_fenced = NodeExit.DIVERGED, True
        node.logger.error(
            "state_diverged", point=error.index, agreed=error.agreed, reason=str(error),
            mend="start the node again: it builds its state anew from its log",
        )  # fmt: skip
        node.watch.noting = asyncio.ensure_future(_leave_note(node, Note(error.agreed, error.index)))
    elif isinstance(error, FilesDamaged | ReadDamaged):
        code, node.is_fenced = NodeExit.DAMAGED, True
        if isinstance(error, ReadDamaged):
            met = error.damage
            error = FilesDamaged([Finding(met.file, State.DAMAGED, met.reason, None, met.index)])
        node.logger.error(
            "files_damaged", reason=str(error), mend="start the node again: it mends its files; then look at the disk"
        )
        node.damage.leave(error)
    elif isinstance(error, UNKNOWN):
        code = NodeExit.UNKNOWN_VERSION
        node.logger.error("unknown_version", reason=str(error), mend="start a newer version of raftlog on this folder")
    else:
        code = NodeExit.FAILURE
        node.logger.error("failed", exc_info=error)
    node.is_stopping = True
    node.ended.set_result(code)
    node.close_inputs()
    _answer_everyone(node, unavailable(node).code, f"node {node.node_id} stopped serving: {error}")


async def _leave_note(node: Node, note: Note) -> None:
    """For the next start. Without it that one may begin with the wrong state once more, and is found out again."""
    try:
        await node.disk.write_divergence(note)
    except (DiskError, OSError) as error:
        node.logger.error("note_not_written", reason=str(error))


def _answer_everyone(node: Node, code: Code, message: str) -> None:
    """Nobody is left waiting: what was in a log already has an unknown fate."""
    error = ApiError(code, message)
    node.pending.fail_all(code, Code.LEADER_LOST, message)
    node.reads.fail_all(error)
    node.applier.waiters.fail_all(error)
