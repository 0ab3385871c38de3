"""Fetches the older log from peers, in the background, on a node that was built from a snapshot.

The housekeeping calls `look_if_due`. The newest missing segment comes first, so that the log on disk never has a gap
and a restart continues. `raftlog.cluster.disk.older_segments` checks and writes the segments;
`raftlog.cluster.replica.log.peer_log` asks the peers. What the node itself had before the snapshot is not fetched: it
moves back as soon as the log reaches it (`raftlog.cluster.disk.kept_segments`). The job takes a small share of the
event loop and of the disk. It pauses for trims, snapshots, damage and a full disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from raftlog.cluster.api.status import BackfillStatus
from raftlog.cluster.disk.kept_segments import KeptSegment, Search
from raftlog.cluster.disk.older_segments import LogMoved, PieceWrong, SegmentFill, last_mark
from raftlog.cluster.files.errors import NoSpace
from raftlog.cluster.protocol.log_frames import PeerLogReply, QuestionKind
from raftlog.cluster.replica import readiness
from raftlog.cluster.replica.log.peer_log import NoAnswer
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft.types import GENESIS, Mark, NodeId

RETRY_S: Final = 2.0
"""Pause in seconds after no peer gave a segment, or the disk was full."""
AVOID_S: Final = 60.0
"""Pause in seconds before a peer whose entries failed their check is asked again: it may have another disk by then."""
SHARE: Final = 4
"""After each slice the job pauses this many times as long, so that it takes at most a fifth of the interpreter."""
BYTES_PER_SECOND: Final = 16 << 20
"""Most bytes written per second: an eighth of the rate of an ordinary disk, which other work shares."""


def missing(replica: ReplicaState) -> int:
    """Number of readable records that this disk does not have."""
    return max(0, replica.disk.oldest - replica.machine.oldest)


def status(replica: ReplicaState) -> BackfillStatus:
    """The backfill part of `/v1/status`."""
    backfill = replica.backfill
    return BackfillStatus(missing(replica), backfill.segments, backfill.bytes, backfill.waits)


def look_if_due(replica: ReplicaState, mono: float) -> None:
    """Begins to fetch if records are missing; one segment at a time."""
    backfill = replica.backfill
    if replica.disk.oldest <= replica.machine.oldest:
        _end(replica)
        work = _delete_kept if replica.disk.backfill.kept.may_exist else None
    else:
        work = _fetch_segment
    if work is not None and backfill.task is None and mono >= backfill.not_before and _may_go_on(replica):
        backfill.task = replica.driver.spawn(_fill(replica, work))


def _may_go_on(replica: ReplicaState) -> bool:
    return readiness.is_ready(replica) and not replica.is_damage_known and not replica.snapshots.is_receiving


def _end(replica: ReplicaState) -> None:
    backfill = replica.backfill
    if backfill.began is not None:
        oldest, since = backfill.began
        backfill.began, backfill.waits = None, ""
        replica.logger.info(
            "backfill_done",
            oldest=replica.disk.oldest,
            was=oldest,
            segments=backfill.segments,
            bytes=backfill.bytes,
            seconds=round(clock.monotonic() - since, 1),
        )


async def _fill(replica: ReplicaState, work: Callable[[ReplicaState], Awaitable[None]]) -> None:
    """Does one job. The next look begins another one."""
    try:
        await work(replica)
    finally:
        replica.backfill.task = None


async def _delete_kept(replica: ReplicaState) -> None:
    """Deletes the rest of the log that a snapshot replaced: all readable records are in the log again."""
    fill = replica.disk.backfill
    await fill.run(fill.kept.delete_all)


async def _fetch_segment(replica: ReplicaState) -> None:
    """Takes one segment from the log that the snapshot replaced here, or from the first peer that has it."""
    backfill = replica.backfill
    if backfill.began is None:
        backfill.began = (replica.disk.oldest, clock.monotonic())
        replica.logger.info("backfill_begins", first=replica.machine.oldest, last=replica.disk.oldest - 1)
    reasons: dict[NodeId, str] = {}
    try:
        kept = await _find_kept(replica)
        if kept is not None and kept.last == replica.disk.backfill.top:
            await _take_kept(replica, kept)
            backfill.waits = ""
            return
        for peer in replica.peer_log.peers():
            if backfill.avoided.get(peer, 0.0) > clock.monotonic():
                reasons[peer] = "what it gave was wrong"
                continue
            try:
                await _piece(replica, peer, kept)
            except NoAnswer as error:
                reasons[peer] = str(error)
            except PieceWrong as error:
                backfill.wrong += 1
                backfill.avoided[peer] = clock.monotonic() + AVOID_S
                reasons[peer] = str(error)
                replica.logger.error("backfill_wrong", peer=peer, reason=str(error), mend="`raftlog disk check` there")
            else:
                backfill.waits = ""
                return
        _wait(replica, "; ".join(f"node {peer}: {why}" for peer, why in sorted(reasons.items())) or "there is no peer")
    except PieceWrong as error:  # the kept segment cannot be read as it could a moment ago
        _wait(replica, str(error))
    except LogMoved:
        pass  # the log begins elsewhere now; the next look reads its new beginning
    except NoSpace as error:
        _wait(replica, str(error))
    try:
        await replica.disk.backfill.abandon()
    except NoSpace:
        pass


def _wait(replica: ReplicaState, why: str) -> None:
    backfill = replica.backfill
    backfill.not_before = clock.monotonic() + RETRY_S
    if why != backfill.waits:
        backfill.waits = why
        replica.logger.warning("backfill_waits", missing=missing(replica), reason=why)


async def _find_kept(replica: ReplicaState) -> KeptSegment | None:
    """The newest segment of the log that a snapshot replaced here. Raises NoSpace or DiskFenced."""
    fill = replica.disk.backfill
    if not fill.kept.may_exist:
        return None
    search = Search(fill.kept.find(fill.top, replica.machine.oldest))
    await _in_small_steps(replica, search.step)
    return search.found


async def _take_kept(replica: ReplicaState, kept: KeptSegment) -> None:
    """Puts a kept segment in front of the log. Raises PieceWrong, LogMoved, NoSpace or DiskFenced."""
    fill = replica.disk.backfill
    if kept.segment is not None:
        await fill.give_back(kept)
    else:  # it was the newest one of its log: it has no footers, and perhaps entries that were not applied
        filling, pieces = fill.filling(), fill.kept.pieces(kept)
        await fill.begin(filling, kept.before)
        while (raw := await fill.run(partial(next, pieces, None))) is not None:
            await _write(replica, filling, partial(filling.take, raw))
            _check_goes_on(replica, filling)
        await fill.adopt(await fill.run(filling.finish))
        await fill.run(partial(fill.kept.delete, kept))
    replica.logger.info("backfill_kept_segment", first=kept.first, last=kept.last.index)


def _check_goes_on(replica: ReplicaState, filling: SegmentFill) -> None:
    """Raises LogMoved if the segment is not wanted any more, or the job must pause."""
    is_wanted = replica.disk.backfill.top == filling.top and replica.machine.oldest <= filling.top.index
    if not is_wanted or not replica.syncer.has_space or not _may_go_on(replica):
        raise LogMoved


async def _piece(replica: ReplicaState, peer: NodeId, kept: KeptSegment | None) -> None:
    """Fetches that peer's segment that holds the entries before this log's beginning, up to there.

    It begins after the kept segment, if that ends later. Raises NoAnswer, PieceWrong, LogMoved, NoSpace or DiskFenced.
    """
    backfill = replica.backfill
    fill = replica.disk.backfill
    filling = fill.filling()
    top = filling.top
    had = await replica.peer_log.ask(peer, QuestionKind.PIECE, top.index)
    start = min(max(had.first, replica.machine.oldest), top.index)
    if kept is not None and kept.last.index >= start:
        start, before = kept.last.index + 1, kept.last
        raw = await replica.peer_log.slice(peer, start, top.index)
    else:
        raw = await replica.peer_log.slice(peer, start, top.index)
        before = await _before(replica, peer, raw.first, had)
    await fill.begin(filling, before)
    while True:
        await _write(replica, filling, partial(filling.take, raw))
        if filling.next > top.index:
            break
        _check_goes_on(replica, filling)
        raw = await replica.peer_log.slice(peer, filling.next, top.index)
    segment = await fill.run(filling.finish)
    await fill.adopt(segment)
    backfill.segments += 1
    backfill.bytes += filling.bytes
    replica.logger.info("backfill_segment", first=segment.first, last=top.index, peer=peer, bytes=filling.bytes)


async def _before(replica: ReplicaState, peer: NodeId, first: int, had: PeerLogReply) -> Mark:
    """The mark before the entry that begins with `first`.

    It comes from the entry before. If that is gone on all nodes, it comes from the head of the peer's segment, and
    the CRC of the entry that follows proves it.
    """
    if first == 1:
        return GENESIS
    try:
        mark = last_mark(await replica.peer_log.slice(peer, first - 1, first - 1))
    except NoAnswer as error:
        if not error.is_certain or (first, had.before.index) != (had.first, first - 1):
            raise
        return had.before
    if mark.index != first - 1:
        raise PieceWrong(f"no entry ends before index {first}")
    return mark


async def _write(replica: ReplicaState, filling: SegmentFill, take: partial[None]) -> None:
    """Checks and writes the fetched slice in small steps."""
    began, size = clock.monotonic(), filling.bytes
    take()
    await _in_small_steps(replica, filling.step)
    await asyncio.sleep((filling.bytes - size) / BYTES_PER_SECOND - (clock.monotonic() - began))


async def _in_small_steps(replica: ReplicaState, step: Callable[[], bool]) -> None:
    """Runs `step` in the filling thread until it returns true, with pauses."""
    is_done = False
    while not is_done:
        started = clock.monotonic()
        is_done = await replica.disk.backfill.run(step)
        await asyncio.sleep(SHARE * (clock.monotonic() - started))
