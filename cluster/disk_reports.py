"""What nodes tell each other about their disks, and what a leader decides from it: pure.

Each node tells its peers whether its disk is full, how much room it lacks, and how long its syncs take. From that a
leader decides whether to hand leadership over and to whom, which followers are sent no entries, and whether writes
are taken at all. `cluster.node_disks` carries the reports and does what is decided; the simulator does the same.
docs/decisions/0018 has the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from raft.codec import FRAME_DISK, INDEX_MAX, Corrupt, Frame, encode_frame
from raft.configuration import Configuration
from raft.progress import Hold
from raft.quorum import Outcome, outcome
from raft.status import FollowerStatus
from raft.types import NodeId

PEER_VERSION: Final = 4
"""The first version of the peer protocol that knows these frames. Of an older peer nothing is known."""

EVERY_S: Final = 1.0
"""A report that differs from the last one is sent this long after it; at once where fullness or `takes_to` differs."""

SLOT_S: Final = 0.5
SLOTS: Final = 10
"""Syncs are averaged over slots of so many seconds, and the median of the newest slots counts: five seconds. A single
stall fills one or two slots, so it takes more than half of the five seconds to move the median."""
SLOTS_MIN: Final = 6
"""Fewer slots in which anything was synced say nothing: the disk is as good as idle."""


class DiskReport(NamedTuple):
    """One node's disk, as that node says."""

    is_full: bool = False  # it takes nothing but what makes room (`cluster.disk_reserve`)
    free_bytes: int = 0  # that files may still take
    lacks_bytes: int = 0  # full: how much more room it needs to take writes; 0: it has that room, and is making sure
    takes_to: int = 0  # full: entries that begin at or before this index help it to make room
    sync_us: int = 0  # of a sync, lately; 0: unknown

    def is_urgent_after(self, told: DiskReport | None) -> bool:
        """Whether a peer that was told `told` has to hear this at once."""
        return told is None or (self.is_full, self.takes_to) != (told.is_full, told.takes_to)


def encode_report(report: DiskReport) -> bytes:
    """The frame for a peer."""
    return encode_frame(FRAME_DISK, [report.is_full, *[min(number, INDEX_MAX) for number in report[1:]]])


def decode_report(frame: Frame) -> DiskReport:
    """The report of such a frame. Raises Corrupt."""
    match frame.header:
        case (bool(is_full), *rest) if len(rest) == len(DiskReport._fields) - 1:
            numbers = [value for value in rest if type(value) is int and 0 <= value <= INDEX_MAX]
            if len(numbers) == len(rest):
                return DiskReport(is_full, *numbers)
    raise Corrupt(f"disk report with the header {frame.header!r:.200}")


class Reports:
    """What one process told its peers of its disk, and heard of theirs. Bulk links are in order and lose nothing while
    they are up, so a report is sent once. Times in seconds."""

    __slots__ = ("_heard", "_told")

    def __init__(self) -> None:
        self._told: dict[NodeId, tuple[float, DiskReport]] = {}  # on the bulk link of now: when, and what
        self._heard: dict[NodeId, DiskReport] = {}

    def is_due(self, peer: NodeId, own: DiskReport, now_s: float) -> bool:
        """Whether that peer is to be told now."""
        when_s, told = self._told.get(peer, (0.0, None))
        return own.is_urgent_after(told) or (own != told and now_s - when_s >= EVERY_S)

    def told(self, peer: NodeId, own: DiskReport, now_s: float) -> None:
        """It was."""
        self._told[peer] = now_s, own

    def lost(self, peer: NodeId) -> None:
        """The bulk link to that peer closed: what was told on it may not have arrived."""
        self._told.pop(peer, None)

    def take(self, peer: NodeId, report: DiskReport) -> None:
        """That peer's newest report."""
        self._heard[peer] = report

    def of(self, peers: Iterable[NodeId]) -> dict[NodeId, DiskReport]:
        """Of those peers that told."""
        return {peer: self._heard[peer] for peer in peers if peer in self._heard}


class SyncTimes:
    """How long the syncs of one disk take, by its counters: the median over the newest slots. Times in seconds."""

    __slots__ = ("_began_s", "_seconds", "_slots", "_syncs", "median_us")

    def __init__(self) -> None:
        self._slots: deque[int] = deque(maxlen=SLOTS)  # of each, in microseconds; 0: nothing was synced
        self._began_s: float | None = None
        self._syncs, self._seconds = 0, 0.0
        self.median_us = 0  # 0: unknown

    def look(self, now_s: float, syncs: int, seconds: float, under_way_s: float) -> None:
        """The counters as they are now: syncs so far, the time spent in them, and for how long one is under way. To be
        called several times per slot. Of a slot in which no sync ended, the one that is under way counts."""
        if self._began_s is None:
            self._began_s, self._syncs, self._seconds = now_s, syncs, seconds
        if now_s - self._began_s < SLOT_S:
            return
        made = syncs - self._syncs
        took_s = (seconds - self._seconds) / made if made else under_way_s
        self._slots.append(max(made > 0, int(took_s * 1_000_000)))
        self._began_s, self._syncs, self._seconds = now_s, syncs, seconds
        busy = sorted(slot for slot in self._slots if slot)
        median_us = busy[len(busy) // 2] if len(busy) >= SLOTS_MIN else 0
        low_bits = max(0, median_us.bit_length() - 3)  # rounded, so that noise is no news
        self.median_us = median_us >> low_bits << low_bits


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings `limits.disk_slow_…` and `limits.disk_full_pause_ms`."""

    full_pause_ms: int
    slow_us: int
    slow_factor: int
    slow_pause_ms: int


class Why(StrEnum):
    """Why a leader hands over."""

    FULL = "disk_full"
    SLOW = "disk_slow"


class Handover(NamedTuple):
    """A leader is to hand over to that voter."""

    why: Why
    to: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """What a leader knows of all disks at one moment."""

    node: NodeId
    configuration: Configuration
    reports: Mapping[NodeId, DiskReport]  # by node, its own too; of a node without one nothing is known
    followers: Sequence[FollowerStatus]
    answering: Collection[NodeId]  # followers that answered lately

    @property
    def own(self) -> DiskReport:
        """The leader's."""
        return self.reports[self.node]

    def is_full(self, node: NodeId) -> bool:
        """Whether that node says so."""
        report = self.reports.get(node)
        return report is not None and report.is_full

    @property
    def has_room(self) -> bool:
        """Whether a majority of the voters, of both sides of a joint configuration, answers and does not say that its
        disk is full."""
        voters = dict.fromkeys([*self.configuration.voters, *self.configuration.outgoing])
        reached = {node: node == self.node or node in self.answering for node in voters}
        has_room = {node: reached[node] and not self.is_full(node) for node in voters}
        return outcome(self.configuration, has_room) is Outcome.WON

    @property
    def takes_writes(self) -> bool:
        """Whether a write that needs room may be proposed: not on a full disk, and not where a majority could only be
        had with the reserve of a full follower."""
        if self.own.is_full:
            return False
        is_any_full = any(self.is_full(node) for node in (*self.configuration.voters, *self.configuration.outgoing))
        return not is_any_full or self.has_room

    def holds(self, trim_index: int, snapshot_bytes: int) -> dict[NodeId, Hold]:
        """What full followers take. No more than they need to make room, while a majority can do without them; else
        what is in the log has to be committed with them, and `takes_writes` keeps that little.

        `trim_index`: newest index whose entry lets go of something. `snapshot_bytes`: of the leader's snapshot.
        """
        full = {each.node: self.reports[each.node] for each in self.followers if self.is_full(each.node)}
        if not full or not self.has_room:
            return {}
        return {
            node: Hold(max(trim_index, report.takes_to), takes_snapshot=report.free_bytes >= snapshot_bytes)
            for node, report in full.items()
        }

    def best(self, among: Collection[NodeId] | None = None) -> NodeId | None:
        """The voter that is the most caught up of those that answer and say that they have room; None: no voter."""
        able = [
            each
            for each in self.followers
            if each.node in self.configuration.voters
            and each.node in self.answering
            and each.node in self.reports
            and not self.is_full(each.node)
            and (among is None or each.node in among)
        ]
        most = max(able, key=lambda each: (each.match, self.reports[each.node].free_bytes, -each.node), default=None)
        return None if most is None else most.node

    def fast(self, rules: Rules) -> list[NodeId]:
        """Voters whose syncs take a small part of the leader's, where those are slow."""
        if self.own.sync_us < rules.slow_us:
            return []
        return [
            node
            for node in dict.fromkeys([*self.configuration.voters, *self.configuration.outgoing])
            if node in self.answering
            and (report := self.reports.get(node)) is not None
            and 0 < report.sync_us * rules.slow_factor <= self.own.sync_us
        ]

    def handover(self, rules: Rules, last_ms: Mapping[Why, int], now_ms: int) -> Handover | None:
        """Whether to hand over now, why and to whom. `last_ms`: when this process last did so, for each reason.

        On a full disk, where a majority has room. For a slow disk only where a majority of the voters has much faster
        ones: else the new leader would have to wait for as slow a disk.
        """
        if self.own.is_full:
            to = self.best() if self.has_room else None
            return _allowed(Why.FULL, to, rules.full_pause_ms, last_ms, now_ms)
        fast = self.fast(rules)
        if outcome(self.configuration, dict.fromkeys(fast, True)) is not Outcome.WON:
            return None
        return _allowed(Why.SLOW, self.best(fast), rules.slow_pause_ms, last_ms, now_ms)


def _allowed(why: Why, to: NodeId | None, pause_ms: int, last_ms: Mapping[Why, int], now_ms: int) -> Handover | None:
    """Never sooner than `pause_ms` after the last one: two nodes must not pass leadership to and fro."""
    if to is None or (why in last_ms and now_ms - last_ms[why] < pause_ms):
        return None
    return Handover(why, to)


def lacks(node: NodeId, report: DiskReport) -> str:
    """What that node's full disk lacks, in words."""
    if not report.lacks_bytes:
        return f"node {node} has found no room, and looks for it again"
    size = report.lacks_bytes
    return f"node {node} lacks {size / 1e6:.1f} MB" if size >= 1_000_000 else f"node {node} lacks {size / 1e3:.1f} kB"


def all_lacks(reports: Mapping[NodeId, DiskReport]) -> str:
    """What all full disks lack, in words; "" where none is full."""
    return ", ".join(lacks(node, report) for node, report in sorted(reports.items()) if report.is_full)
