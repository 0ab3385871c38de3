"""Exchanges reports about the disks of nodes, and decides for the leader how to react: pure.

Each node reports to its peers whether its disk is full, how much space it lacks, and how long its syncs take. From
these reports a leader decides three things: whether and to which voter to hand over, which followers get no entries,
and whether it accepts writes. `raftlog.cluster.replica.parts.disk_exchange` carries the reports and acts on the
decisions; the simulator does the same. docs/decisions/0018 has the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.codec.frame import FRAME_DISK, Frame, encode_frame
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.progress import Hold
from raftlog.raft.consensus.status import FollowerView
from raftlog.raft.quorum import VoteOutcome, agreed, outcome
from raftlog.raft.types import NodeId

CLOCK_AGE_S: Final = 10.0
"""A clock that was heard longer ago counts no more: ten reports, in seconds."""

EVERY_S: Final = 1.0
"""Seconds between two reports to a peer. A change of `is_full` or `takes_to` is reported at once."""

SLOT_S: Final = 0.5
SLOTS: Final = 10
"""Seconds of one slot of sync times. The median of the newest slots counts: five seconds. A single
stall fills one or two slots, so it takes more than half of the five seconds to move the median."""
SLOTS_MIN: Final = 6
"""With fewer slots in which a sync ended the disk is almost idle: a leader does not hand over for its sync time."""


class DiskReport(NamedTuple):
    """The disk of one node, as that node reports it."""

    is_full: bool = False  # accepts only requests that free space (`raftlog.cluster.files.reserve`)
    free_bytes: int = 0  # that new files may use; if full, a snapshot that a leader sends
    lacks_bytes: int = 0  # if full: space it needs to accept writes; 0: it has it, and is making sure
    takes_to: int = 0  # if full: entries that begin at or before this index help it to free space
    sync_us: int = 0  # recent time of one sync (`SyncTimes`); 0: unknown
    wall_ms: int = 0  # its wall clock when it sent this; 0: unknown, its program does not say it

    def is_urgent_after(self, before: DiskReport | None) -> bool:
        """Whether a peer that last got the report `before` must get this one at once."""
        return before is None or (self.is_full, self.takes_to) != (before.is_full, before.takes_to)


def encode_report(report: DiskReport) -> bytes:
    """The frame for a peer."""
    numbers = [min(number, INDEX_MAX) for number in report[1:]]
    return encode_frame(FRAME_DISK, [report.is_full, *(numbers if report.wall_ms > 0 else numbers[:-1])])


def decode_report(frame: Frame) -> DiskReport:
    """The report of such a frame. Raises Corrupt."""
    match frame.header:
        case (bool(is_full), *rest) if len(DiskReport._fields) - 2 <= len(rest) < len(DiskReport._fields):
            numbers = [value for value in rest if type(value) is int and 0 <= value <= INDEX_MAX]
            if len(numbers) == len(rest):
                return DiskReport(is_full, *numbers)
    raise Corrupt(f"disk report with the header {frame.header!r:.200}")


class Reports:
    """The reports that one process sent and received. Times are in seconds.

    A bulk link keeps the order and loses nothing while it is up, so each report is sent once. A peer drops the reports
    of a link whose hello it does not believe yet, so the newest one is sent again once it does.
    """

    __slots__ = ("_clocks", "_heard", "_sent")

    def __init__(self) -> None:
        self._clocks: dict[NodeId, tuple[float, int]] = {}  # when a peer's clock was heard, and what it showed
        self._sent: dict[NodeId, tuple[float, DiskReport]] = {}  # on the present bulk link: time and report
        self._heard: dict[NodeId, tuple[float, DiskReport]] = {}  # when it came, and the report

    def is_due(self, peer: NodeId, own: DiskReport, now_s: float) -> bool:
        """Whether that peer must get a report now."""
        when_s, before = self._sent.get(peer, (0.0, None))
        return own.is_urgent_after(before) or (own != before and now_s - when_s >= EVERY_S)

    def sent(self, peer: NodeId, own: DiskReport, now_s: float) -> None:
        """Notes that the peer got that report now."""
        self._sent[peer] = now_s, own

    def lost(self, peer: NodeId) -> None:
        """The last report to that peer may not have arrived: the bulk link closed, or was not believed before."""
        self._sent.pop(peer, None)

    def take(self, peer: NodeId, report: DiskReport, now_s: float = 0.0) -> None:
        """That peer's newest report. Its clock counts apart: a report with another time is no other report."""
        self._heard[peer] = now_s, report._replace(wall_ms=0)
        if report.wall_ms:
            self._clocks[peer] = now_s, report.wall_ms

    def clocks(self, peers: Iterable[NodeId], now_s: float) -> dict[NodeId, int]:
        """What the wall clocks of those peers show now, of those that were heard lately: in Unix milliseconds, late by
        the way of the report."""
        heard = {peer: self._clocks[peer] for peer in peers if peer in self._clocks}
        return {
            peer: wall_ms + int(1_000 * (now_s - at_s))
            for peer, (at_s, wall_ms) in heard.items()
            if now_s - at_s <= CLOCK_AGE_S
        }

    def of(self, peers: Iterable[NodeId]) -> dict[NodeId, DiskReport]:
        """The reports of those peers that sent one."""
        return {peer: self._heard[peer][1] for peer in peers if peer in self._heard}

    def newest(self, peer: NodeId) -> tuple[float, DiskReport] | None:
        """When that peer's newest report came, and the report; also of one that is not connected any more."""
        return self._heard.get(peer)


class SyncTimes:
    """Measures the sync times of one disk from its counters: the median over the newest slots. Times in seconds.

    A leader must be slow for most of five seconds (`median_us`). Its followers need not be busy: a slow leader lets
    them sync seldom. So they report the median of the slots in which they synced at all (`any_us`).
    """

    __slots__ = ("_began_s", "_seconds", "_slots", "_syncs", "any_us", "median_us")

    def __init__(self) -> None:
        self._slots: deque[int] = deque(maxlen=SLOTS)  # median of each slot in microseconds; 0: no sync
        self._began_s: float | None = None
        self._syncs, self._seconds = 0, 0.0
        self.median_us = 0  # over SLOTS_MIN slots or more; 0: unknown
        self.any_us = 0  # over one slot or more; 0: unknown

    def look(self, now_s: float, syncs: int, seconds: float, under_way_s: float) -> None:
        """Takes the counters as they are now: syncs so far, seconds in them, and the age of the sync under way.

        The caller calls it several times per slot. In a slot in which no sync ended, the one under way counts.
        """
        if self._began_s is None:
            self._began_s, self._syncs, self._seconds = now_s, syncs, seconds
        if now_s - self._began_s < SLOT_S:
            return
        made = syncs - self._syncs
        took_s = (seconds - self._seconds) / made if made else under_way_s
        self._slots.append(max(made > 0, int(took_s * 1_000_000)))
        self._began_s, self._syncs, self._seconds = now_s, syncs, seconds
        busy = sorted(slot for slot in self._slots if slot)
        any_us = busy[len(busy) // 2] if busy else 0
        low_bits = max(0, any_us.bit_length() - 3)  # rounded, so that noise changes no report
        self.any_us = any_us >> low_bits << low_bits
        self.median_us = self.any_us if len(busy) >= SLOTS_MIN else 0


def majority_clock(configuration: Configuration, clocks: Mapping[NodeId, int]) -> int:
    """The wall clock of a majority: the highest time that the clocks of a majority of the voters have reached.

    0: too few clocks are known. Of three right clocks and one that is wrong it is a right one; of two voters it is the
    lower one, because neither can know which is right."""
    return agreed(configuration, clocks)


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings `limits.disk_slow_…`, `limits.disk_full_pause_ms` and `limits.clock_skew_ms`."""

    full_pause_ms: int
    slow_us: int
    slow_factor: int
    slow_pause_ms: int
    clock_skew_ms: int = 5_000


class Why(StrEnum):
    """The reason why a leader hands over."""

    FULL = "disk_full"
    SLOW = "disk_slow"
    CLOCK = "clock"


class Handover(NamedTuple):
    """The decision to hand leadership to that voter."""

    why: Why
    to: NodeId


class FullLog(NamedTuple):
    """What a leader knows of its own log, for the followers with full disks."""

    trim_index: int  # newest index of an entry that allows files to be deleted
    reach: int  # where the newest snapshot ends, or one that is saved now would
    snapshot_bytes: int  # size of the newest snapshot
    segment_bytes: int
    begun_after: Callable[[int], int]  # how many segments begin after an index

    def hold(self, follower: FollowerView, report: DiskReport) -> Hold:
        """What that follower is sent while it is held. The reserve on its disk has two segments: one for entries that
        were under way when the disk got full. Entries of several segments would fill it before a trim behind them."""
        size = follower.snapshot_total or self.snapshot_bytes
        takes_snapshot = report.free_bytes + follower.snapshot_bytes >= size
        begun = self.begun_after(follower.match)
        is_far = begun > 0 and begun * self.segment_bytes + report.lacks_bytes > self.segment_bytes
        return Hold(max(self.trim_index, report.takes_to), takes_snapshot, takes_snapshot and is_far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """The leader's knowledge of all disks at one moment."""

    node: NodeId
    configuration: Configuration
    reports: Mapping[NodeId, DiskReport]  # by node, with its own; a node may have none
    followers: Sequence[FollowerView]
    answering: Collection[NodeId]  # followers that answered lately
    clocks: Mapping[NodeId, int] = field(default_factory=dict)  # by node, with its own; a node may have none
    cannot_apply: bool = False  # committed entries find no room on the leader's own disk

    @property
    def own(self) -> DiskReport:
        """The leader's own report."""
        return self.reports[self.node]

    def is_full(self, node: NodeId) -> bool:
        """Whether that node reports a full disk."""
        report = self.reports.get(node)
        return report is not None and report.is_full

    @property
    def has_room(self) -> bool:
        """Whether a majority of the voters answers and reports no full disk; of both sides, if joint."""
        voters = dict.fromkeys([*self.configuration.voters, *self.configuration.outgoing])
        reached = {node: node == self.node or node in self.answering for node in voters}
        has_room = {node: reached[node] and not self.is_full(node) for node in voters}
        return outcome(self.configuration, has_room) is VoteOutcome.WON

    @property
    def takes_writes(self) -> bool:
        """Whether a write that needs space may be proposed.

        Not if the leader's own disk is full, and not if a majority would need the reserve of a full follower.
        """
        if self.own.is_full:
            return False
        is_any_full = any(self.is_full(node) for node in (*self.configuration.voters, *self.configuration.outgoing))
        return not is_any_full or self.has_room

    def holds(self, log: FullLog) -> dict[NodeId, Hold]:
        """The limits of what full followers are sent: the entries that help them to free space, or a snapshot.

        If there is no majority without them, they must get the log too, so that it can be committed; `takes_writes`
        then keeps it short. One that was held before may be far behind: it gets a snapshot first, if there is one.
        """
        full = [each for each in self.followers if self.is_full(each.node)]
        holds = {each.node: log.hold(each, self.reports[each.node]) for each in full}
        if self.has_room:
            return holds
        far = [each.node for each in full if holds[each.node].is_far and each.match < log.reach]
        return {node: holds[node]._replace(entries_to=log.reach) for node in far}

    def best(self, among: Collection[NodeId] | None = None, *, with_full: bool = False) -> NodeId | None:
        """The most caught up of the voters that answer and report free disk space, or any; None if there is none."""
        able = [
            each
            for each in self.followers
            if each.node in self.configuration.voters
            and each.node in self.answering
            and each.node in self.reports
            and (with_full or not self.is_full(each.node))
            and (among is None or each.node in among)
        ]
        most = max(able, key=lambda each: (each.match, self.reports[each.node].free_bytes, -each.node), default=None)
        return None if most is None else most.node

    def fast(self, rules: Rules) -> list[NodeId]:
        """The voters whose syncs take a small part of the leader's time, if the leader's syncs are slow."""
        if self.own.sync_us < rules.slow_us:
            return []
        return [
            node
            for node in dict.fromkeys([*self.configuration.voters, *self.configuration.outgoing])
            if node in self.answering
            and (report := self.reports.get(node)) is not None
            and 0 < report.sync_us * rules.slow_factor <= self.own.sync_us
        ]

    def right_clocks(self, rules: Rules) -> list[NodeId] | None:
        """The nodes whose clocks agree with a majority's; None if that is not known, or the leader's own one does."""
        majority_ms = majority_clock(self.configuration, self.clocks)
        right = [node for node, ms in self.clocks.items() if abs(ms - majority_ms) <= rules.clock_skew_ms]
        return None if not majority_ms or self.node in right else right

    def handover(self, rules: Rules, last_ms: Mapping[Handover, int], now_ms: int) -> Handover | None:
        """Whether to hand over now, with reason and voter. `last_ms`: times of the hand-overs of this process.

        A leader with a full disk hands over if a majority has space, within a pause to each voter once: one that turns
        out to be full does not keep it from trying the next. If it cannot write what a majority has written, it answers
        no read, and a trim does not reach its disk: it hands over to one that has written it, full or not. A leader
        with a slow disk hands over only if a majority of the voters has much faster disks (otherwise the new leader
        would wait for equally slow disks), once per pause: two nodes must not pass leadership to and fro. A leader
        whose clock differs from a majority's hands over to one whose clock does not: it stamps the entries, and
        retention goes by their times.
        """
        if self.own.is_full:
            tried = _since(Why.FULL, last_ms, now_ms - rules.full_pause_ms)
            if not (self.has_room or self.cannot_apply):
                return None
            others = [each.node for each in self.followers if each.node not in tried]
            to = self.best(others, with_full=not self.has_room)
            return None if to is None else Handover(Why.FULL, to)
        right = self.right_clocks(rules)
        if right is not None:
            tried = _since(Why.CLOCK, last_ms, now_ms - rules.full_pause_ms)
            to = self.best([node for node in right if node not in tried])
            return None if to is None else Handover(Why.CLOCK, to)
        fast = self.fast(rules)
        if outcome(self.configuration, dict.fromkeys(fast, True)) is not VoteOutcome.WON:
            return None
        if _since(Why.SLOW, last_ms, now_ms - rules.slow_pause_ms) or (to := self.best(fast)) is None:
            return None
        return Handover(Why.SLOW, to)


def _since(why: Why, last_ms: Mapping[Handover, int], since_ms: int) -> set[NodeId]:
    """The voters to which this process handed over for that reason after `since_ms`."""
    return {handover.to for handover, at_ms in last_ms.items() if handover.why is why and at_ms > since_ms}


def lacks(node: NodeId, report: DiskReport) -> str:
    """The space that this node's full disk lacks, in words."""
    if not report.lacks_bytes:
        return f"node {node} has found no room, and looks for it again"
    size = report.lacks_bytes
    return f"node {node} lacks {size / 1e6:.1f} MB" if size >= 1_000_000 else f"node {node} lacks {size / 1e3:.1f} kB"


def all_lacks(reports: Mapping[NodeId, DiskReport]) -> str:
    """The space that all full disks lack, in words; "" if none is full."""
    return ", ".join(lacks(node, report) for node, report in sorted(reports.items()) if report.is_full)
