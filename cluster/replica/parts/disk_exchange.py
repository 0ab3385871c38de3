"""Reports this node's disk space and disk speed to its peers, and as the leader acts on their reports.

A leader hands over because of its disk, sends no entries to followers with full disks, and refuses writes that no
majority has space for. `raftlog.cluster.protocol.disk_reports` decides when it does so. The housekeeping calls `look`
several times a second (`raftlog.cluster.replica.housekeeping`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.protocol.disk_reports import (
    DiskReport,
    Disks,
    FullLog,
    Handover,
    Rules,
    Why,
    all_lacks,
    decode_report,
    encode_report,
    majority_clock,
)
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import clock_entries, snapshots
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.frame import Frame
from raftlog.raft.refusals import CannotTransfer, ProposalRefused
from raftlog.raft.types import NOBODY, NodeId, Now

_WORDS: Final = {
    Why.FULL: "its disk was full",
    Why.SLOW: "its disk was much slower than those of a majority",
    Why.CLOCK: "its clock differed from that of a majority",
}


def rules(limits: LimitSettings) -> Rules:
    """The settings that bound handing over."""
    return Rules(
        limits.disk_full_pause_ms,
        1_000 * limits.disk_slow_ms,
        limits.disk_slow_factor,
        limits.disk_slow_pause_ms,
        limits.clock_skew_ms,
    )


# -- reports ----------------------------------------------------------------------------------------------------


def own(replica: ReplicaState) -> DiskReport:
    """The report about this node's disk, as it decides by it when it leads. See `_tell` for the peers' one."""
    reserve = replica.disk.reserve
    is_full = not replica.syncer.has_space
    # a full disk takes a snapshot in its reserve, beside the first segment of the log that begins behind it
    free_bytes = max(0, reserve.free_bytes + reserve.bytes - reserve.segment_bytes) if is_full else reserve.free_bytes
    lacks_bytes = reserve.lacks_bytes if is_full else 0
    takes_to = replica.disk_space.takes_to if is_full else 0
    return DiskReport(is_full, free_bytes, lacks_bytes, takes_to, replica.disks.times.median_us)


def reports(replica: ReplicaState) -> dict[NodeId, DiskReport]:
    """The reports of this node, and of each member that is connected and sends such reports."""
    return replica.disks.reports.of(_connected(replica)) | {replica.identity.node: own(replica)}


def _connected(replica: ReplicaState) -> list[NodeId]:
    """Members whose bulk connection is believed."""
    peers = replica.core.state.configuration.peers(replica.identity.node)
    return [peer for peer in peers if replica.links.has_dialled(peer)]


def take(replica: ReplicaState, peer: NodeId, frame: Frame) -> None:
    """Takes a peer's report. A leader acts on an urgent change at once. Raises Corrupt."""
    view = replica.disks
    report, before = decode_report(frame), view.reports.of((peer,)).get(peer)
    view.reports.take(peer, report, clock.monotonic())
    if replica.is_leader and report.is_urgent_after(before):
        _lead(replica, clock.read())


def lost(replica: ReplicaState, peer: NodeId) -> None:
    """Reports that were sent to that peer may not have arrived: the bulk link closed, or was not believed before."""
    replica.disks.reports.lost(peer)


def _tell(replica: ReplicaState, mono: float) -> None:
    view = replica.disks
    report = own(replica)._replace(sync_us=view.times.any_us, wall_ms=clock.wall_ms())
    for peer in _connected(replica):
        if view.reports.is_due(peer, report, mono) and replica.links.send_bulk(peer, encode_report(report)):
            view.reports.sent(peer, report, mono)


# -- clocks -----------------------------------------------------------------------------------------------------


def clocks(replica: ReplicaState, now: Now, mono: float) -> dict[NodeId, int]:
    """The wall clocks of this node and of its peers, as far as they are known now."""
    peers = replica.core.state.configuration.peers(replica.identity.node)
    return {replica.identity.node: now.wall_ms} | replica.disks.reports.clocks(peers, mono)


def majority_ms(replica: ReplicaState, now: Now, mono: float) -> int:
    """The wall clock of a majority, in Unix milliseconds; 0: not known."""
    return majority_clock(replica.core.state.configuration, clocks(replica, now, mono))


def skews_ms(replica: ReplicaState) -> dict[NodeId, int]:
    """How far each clock that is known here is ahead of a majority's (below 0: behind); {}: that is not known."""
    known = clocks(replica, clock.read(), clock.monotonic())
    majority = majority_clock(replica.core.state.configuration, known)
    return {node: known[node] - majority for node in sorted(known)} if majority else {}


def skew_ms(replica: ReplicaState) -> int | None:
    """The same of this node's own clock; None: that is not known."""
    return skews_ms(replica).get(replica.identity.node)


def unknown_ms(replica: ReplicaState) -> int:
    """How long a majority's clock has been missing here; 0: it is known."""
    since_s = replica.disks.unknown_s
    return int(1_000 * (clock.monotonic() - since_s)) if since_s else 0


def _bound_times(replica: ReplicaState, now: Now, mono: float) -> None:
    """No entry that this node makes as the leader gets a time far from a majority's clock, from the first millisecond
    of a jump on: later entries would keep one that is ahead, and retention by age would trim one that is behind.

    Until a majority's clock was heard since the start, the entries that a leader makes by itself keep the log's newest
    time, and those of clients wait (`writes.look`)."""
    view, log = replica.disks, replica.core.state.log
    majority = view.majority_ms = majority_ms(replica, now, mono)
    if majority:
        view.knows_time, view.unknown_s = True, 0.0
        log.times = now.monotonic_ms, majority - view.rules.clock_skew_ms, majority + view.rules.clock_skew_ms
        return
    view.unknown_s = view.unknown_s or mono
    if not view.knows_time:
        log.times = now.monotonic_ms, log.last.time_ms, log.last.time_ms


# -- acting on the reports ----------------------------------------------------------------------------------------


def look(replica: ReplicaState, now: Now, mono: float) -> None:
    """Reports changes of this disk to the peers. As the leader, acts on the reports of all disks."""
    view = replica.disks
    statistics = replica.disk.statistics()
    view.times.look(mono, statistics.syncs, statistics.sync_seconds, replica.disk.stalled_ms() / 1_000)
    _tell(replica, mono)
    _bound_times(replica, now, mono)
    if not replica.is_leader:
        view.holds, view.takes_writes = {}, True
        return
    _lead(replica, now)


def all_disks(replica: ReplicaState) -> Disks:
    """The disks of all voters, as this leader knows them now."""
    facts = replica.core.status()
    since_ms = replica.core.state.now.monotonic_ms - replica.options.election_timeout_max_ms
    is_there = replica.links.has_dialled  # a closed link is none that answers, and nothing is known of its disk
    answering = [each.node for each in facts.followers if each.last_contact_ms >= since_ms and is_there(each.node)]
    return Disks(
        node=replica.identity.node,
        configuration=facts.configuration,
        reports=reports(replica),
        followers=facts.followers,
        answering=answering,
        cannot_apply=replica.syncer.is_waiting and facts.persisted < facts.commit,
    )


def _lead(replica: ReplicaState, now: Now) -> None:
    view = replica.disks
    disks = replace(all_disks(replica), clocks=clocks(replica, now, clock.monotonic()))
    view.takes_writes = disks.takes_writes
    disk, log = replica.disk, replica.core.state.log
    full_log = FullLog(
        replica.disk_space.trim_index,
        log.applied if replica.syncer.has_space else replica.snapshots.index,
        disk.snapshot_bytes,
        disk.reserve.segment_bytes,
        disk.begun_after,
    )
    holds = disks.holds(full_log)
    if holds != view.holds:
        if holds.keys() - view.holds.keys():
            meaning = "their disks are full: they are sent no entries while a majority can do without them"
            replica.logger.warning("followers_held", nodes=sorted(holds), meaning=meaning)
        elif not holds:
            replica.logger.info("followers_released", nodes=sorted(view.holds))
        view.holds = holds
        replica.driver.wake()
    replica.core.hold(holds)  # in every call: a change of the members makes new Progress objects
    wanted = max([hold.entries_to for hold in holds.values() if hold.is_far], default=0)
    if replica.snapshots.index < wanted and replica.syncer.has_space:
        snapshots.save(replica)
    if max(report.takes_to for report in disks.reports.values()) > log.last.index:
        clock_entries.propose(replica, now)
    handover = disks.handover(view.rules, view.last_ms, now.monotonic_ms)
    if handover is not None and not replica.life.is_stopping:
        _hand_over(replica, handover, disks, now)


def _hand_over(replica: ReplicaState, handover: Handover, disks: Disks, now: Now) -> None:
    view = replica.disks
    own = disks.own
    try:
        replica.core.transfer(handover.to, now)
    except ProposalRefused:
        return  # one is under way
    view.last_ms[handover] = now.monotonic_ms
    view.handed_over = handover, now.monotonic_ms
    replica.metrics.count("raftlog_disk_handovers_total", handover.why)
    replica.logger.warning(
        "handing_over",
        to=handover.to,
        why=str(handover.why),
        lacks_bytes=own.lacks_bytes,
        sync_ms=own.sync_us / 1_000,
        sync_ms_there=disks.reports[handover.to].sync_us / 1_000,
    )
    replica.driver.wake()


def best(replica: ReplicaState) -> NodeId:
    """The voter to hand over to for any other reason: one with disk space, or NOBODY for the most caught up."""
    return all_disks(replica).best() or NOBODY


def watch_stall(replica: ReplicaState, now: Now) -> None:
    """A leader whose disk hangs hands over. If no other node takes over, it stops sending heartbeats (pitfall 72:
    a hung disk behind a live network). A node whose disk hangs does not campaign."""
    view = replica.disks
    stalled_ms = replica.disk.stalled_ms()
    is_stalled = stalled_ms > replica.settings.limits.disk_stall_ms
    replica.core.state.is_stalled = is_stalled
    if view.is_muted and not (is_stalled and replica.is_leader):
        view.is_muted = False
        replica.logger.info("disk_moves_again" if not is_stalled else "leadership_left")
    if not is_stalled or not replica.is_leader or view.is_muted:
        return
    if replica.core.status().transfer_to != NOBODY:
        return  # a hand-over is under way
    if stalled_ms > replica.settings.limits.disk_stall_ms + 2 * replica.options.transfer_timeout_ms:
        view.is_muted = True
        replica.logger.error(
            "disk_hangs",
            stalled_ms=stalled_ms,
            then="this node sends no more heartbeats, and the others elect a leader",
        )
        return
    try:
        to = replica.core.transfer(best(replica), now)
        replica.logger.error("disk_hangs", stalled_ms=stalled_ms, then=f"leadership goes to node {to}")
    except CannotTransfer:
        view.is_muted = True
        replica.logger.error(
            "disk_hangs", stalled_ms=stalled_ms, then="no voter can take over: this node sends no more heartbeats"
        )


def told_handover(replica: ReplicaState) -> tuple[str, int]:
    """Reason of the newest hand-over that this process began, and its age in milliseconds; ("", 0) if none."""
    view = replica.disks
    if view.handed_over is None:
        return "", 0
    handover, when_ms = view.handed_over
    return f"to node {handover.to}, because {_WORDS[handover.why]}", replica.core.state.now.monotonic_ms - when_ms


# -- errors for clients -------------------------------------------------------------------------------------------


def refusal(replica: ReplicaState) -> ApiError:
    """The reason why this node takes no write now, for a client."""
    name, lacking = replica.name, all_lacks(reports(replica))
    voters = replica.core.state.configuration.voters
    if voters == (replica.identity.node,):
        why = f"{name}, the only voter, has no room on its disk: {lacking}"
    elif replica.is_leader and not all_disks(replica).has_room:
        numbers = ", ".join(map(str, voters))
        why = f"no majority of the voters {numbers} answers and has room on its disk: {lacking}"
    elif replica.is_leader:
        why = f"{name}, which leads, has no room on its disk, and hands over to a voter that has: {lacking}"
    else:
        why = f"{name} has no room on its disk, other nodes may: {lacking}"
    return ApiError(
        Code.DISK_FULL, f"{why}; free disk space there (it still accepts a trim and a compaction), or ask again"
    )


def refusal_of(replica: ReplicaState, leader: NodeId) -> str:
    """The error for a client whose write this node forwarded, if the leader did not take it."""
    return f"no majority has room, says node {leader}, the leader: {all_lacks(reports(replica)) or 'ask again'}"


def unread(replica: ReplicaState, index: int) -> ApiError:
    """The reason why a read as of `index` is not answered: the leader sends no entries to a full disk."""
    last = replica.core.state.log.last.index
    lacking = all_lacks({replica.identity.node: own(replica)})
    text = f"{replica.name} has no room on its disk ({lacking}), and its log ends at {last}, before {index}"
    return ApiError(Code.DISK_FULL, f"{text}: ask another node")
