"""Keeps one replica's view of digest points: its own digests, those of the others, and the majority's.

A point is a record of the log. Its value is a pure function of the state there, so replicas with different values have
no longer applied the same log. The value that a majority of the voters reports is right (of both majorities, in a joint
configuration). The leader's value does not count more, because the leader can be the damaged one. Pure: the server
(`raftlog.cluster.replica.parts.digest_exchange`) and the simulator call it and carry the reports.
docs/promises.md: the majority's digest is right; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.configuration import Configuration
from raftlog.raft.quorum import VoteOutcome, outcome
from raftlog.raft.types import NodeId
from raftlog.statemachine.commands import Operation

if TYPE_CHECKING:
    from raftlog.statemachine.machine import StateMachine

POINT_BLOCK: Final = encode_block([BlockRecord(int(Operation.DIGEST_POINT))])
"""The data of the entry of a digest point."""

POINTS_KEPT: Final = 8
"""Newest points of each replica that are kept and reported; bounds memory and frames."""

RETRY_S: Final = 1.0
"""Seconds until the other replicas are asked again, while the newest point is not agreed."""

DIFFER_EVERY_S: Final = 10.0
"""Seconds between two points while no majority has one value, so that a repair by the operator soon shows."""

DigestReports = tuple[tuple[int, bytes], ...]
"""Index and value of a replica's newest points, oldest first."""


class Diverged(Exception):
    """This replica's state at a digest point is not the majority's: it may not serve any more."""

    def __init__(self, *, node: NodeId, index: int, agreed: int, leader: NodeId) -> None:
        who = "this node, the leader," if leader == node else "this node"
        super().__init__(
            f"the state of {who} differs from that of a majority at the digest point {index}; the newest point at "
            f"which it was equal is {agreed}"
        )
        self.index = index
        self.agreed = agreed  # 0: none since this process began


class Judgement(NamedTuple):
    """The result of comparing points.

    `agreed`: newest point at which this replica's value was a majority's (0: none since its start).
    `differ`: newest later point that a majority has reported without a majority value (0: none).
    """

    agreed: int
    differ: int


def right_value(configuration: Configuration, values: Mapping[NodeId, bytes]) -> bytes | None:
    """The value that a majority of the voters reported, of both sides of a joint configuration; None: there is none."""
    for value in {values[node]: None for node in sorted(values)}:
        if outcome(configuration, {node: each == value for node, each in values.items()}) is VoteOutcome.WON:
            return value
    return None


def has_split(configuration: Configuration, values: Mapping[NodeId, bytes]) -> bool:
    """Whether a majority has reported and its values differ."""
    voters = {node: value for node, value in values.items() if configuration.is_voter(node)}
    reported = outcome(configuration, dict.fromkeys(voters, True))
    return reported is VoteOutcome.WON and len(set(voters.values())) > 1


class DigestPoints:
    """One process's view of the points. A restart begins with an empty view; the next points fill it."""

    __slots__ = (
        "_asked_s",
        "_heard",
        "_newest",
        "_node",
        "_own",
        "_proposed",
        "_proposed_s",
        "agreed",
        "count",
        "differ",
        "is_ending",
        "is_healing",
        "seen",
    )

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._own: dict[int, bytes] = {}
        self._heard: dict[NodeId, tuple[str, dict[int, bytes]]] = {}  # by replica: its disk's incarnation, its values
        self._newest = 0
        self.seen: tuple[int, bytes] | None = None  # the newest point of the state at the last look
        self._asked_s = 0.0
        self._proposed = 0  # index of the newest point that this process proposed
        self._proposed_s = -DIFFER_EVERY_S
        self.count = 0  # points applied by this process
        self.agreed = 0  # see Judgement
        self.differ = 0
        self.is_ending = False  # true: it asks whether the others are well; it reports nothing, so that they stay
        self.is_healing = False  # true: no vote until repaired; it reports nothing, so that others stay (0011)

    @property
    def newest(self) -> int:
        """Index of the newest point applied by this process; 0: none."""
        return self._newest

    @property
    def is_open(self) -> bool:
        """Whether the newest point is not agreed yet, so that the others must be asked."""
        return self._newest > self.agreed

    def must_ask(self, now_s: float) -> bool:
        """Whether to ask the others again: the newest point is not agreed, and the last question is old enough."""
        return self.is_open and now_s - self._asked_s >= RETRY_S

    def asked(self, now_s: float) -> DigestReports:
        """Notes that the others are asked now. Returns the reports to send with the question."""
        self._asked_s = now_s
        return self.reports()

    def is_due(self, machine: StateMachine, every: int, now_s: float) -> bool:
        """Whether a leader with that state must commit a point now: after `every` entries.

        Fewer than `every` if the state remembers the digests of fewer entries.
        """
        if self._proposed > machine.applied_index:
            return False  # a proposed point is not applied yet
        if self.differ:
            return now_s - self._proposed_s >= DIFFER_EVERY_S
        return machine.entries_since_point() >= min(every, machine.limits.digests_kept)

    def leadership_changed(self) -> None:
        """A point that this process proposed may have been cut."""
        self._proposed = 0

    def proposed(self, index: int, now_s: float) -> None:
        """This process proposed a point at that index."""
        self._proposed, self._proposed_s = index, now_s

    def follow(self, point: tuple[int, bytes] | None) -> bool:
        """Looks at the newest point of the state machine; None if a restored state has none.

        Returns whether it is a new point, which must be reported to all.
        """
        if point is self.seen:
            return False
        self.seen = point
        if point is None:
            self.restored()
            return False
        self.applied(*point)
        return True

    def applied(self, index: int, value: bytes) -> None:
        """This replica applied that point."""
        self.count += 1
        self._newest = index
        self._own[index] = value
        _trim(self._own)

    def restored(self) -> None:
        """A leader's snapshot replaced the state: the values of the state before do not describe it."""
        self._own.clear()
        self._newest = self.agreed = self.differ = 0

    def reports(self) -> DigestReports:
        """The values that this replica reports. None while it repairs its log or may end for damage, so that no other
        node ends meanwhile."""
        return () if self.is_healing or self.is_ending else tuple(self._own.items())

    def take(self, peer: NodeId, incarnation: str, reports: DigestReports) -> None:
        """Takes a replica's report. It counts only if the configuration names that node with that incarnation."""
        disk, values = self._heard.get(peer, ("", {}))
        if disk != incarnation:
            values = {}
        values.update(reports)
        _trim(values)
        self._heard[peer] = (incarnation, values)

    def newest_reports(self, configuration: Configuration) -> list[tuple[NodeId, int, bytes, bool | None]]:
        """Each member that has reported: its newest point, its value there, and whether this replica's is the same."""
        known = {node: values for node, (disk, values) in self._heard.items() if _has(configuration, node, disk)}
        newest = {node: max(values) for node, values in {**known, self._node: self._own}.items() if values}
        rows = []
        for node, index in sorted(newest.items()):
            value, own = (self._own if node == self._node else known[node])[index], self._own.get(index)
            rows.append((node, index, value, None if own is None else own == value))
        return rows

    def is_reported(self, configuration: Configuration, index: int) -> bool:
        """Whether every voter has reported that point, and hence runs and has applied it."""
        voters = (member for member in configuration.members if configuration.is_voter(member.node))
        for member in voters:
            if member.node != self._node:
                incarnation, values = self._heard.get(member.node, ("", {}))
                if incarnation != member.incarnation or index not in values:
                    return False
        return index in self._own

    def judge(self, configuration: Configuration, leader: NodeId) -> Judgement:
        """Compares the reports. Raises Diverged if this replica differs from a majority.

        `leader` is the leader that this node follows; only the text of that error names it.
        """
        differ, right_before = 0, 0  # the newest earlier point at which the state was right
        for index, own in self._own.items():
            values = {self._node: own}
            for node, (incarnation, heard) in self._heard.items():
                if _has(configuration, node, incarnation) and index in heard:
                    values[node] = heard[index]
            right = right_value(configuration, values)
            if right is None:
                if index > self.agreed and has_split(configuration, values):
                    differ = index
            elif right == own:
                right_before = index
                if index > self.agreed:
                    self.agreed, differ = index, 0
            else:  # also before an agreed point: later writes hide the wrong state, not its consequences
                agreed = right_before or (self.agreed if self.agreed < index else 0)
                raise Diverged(node=self._node, index=index, agreed=agreed, leader=leader)
        self.differ = differ
        return Judgement(self.agreed, differ)


def _has(configuration: Configuration, node: NodeId, incarnation: str) -> bool:
    member = configuration.member(node)
    return member is not None and member.incarnation == incarnation


def _trim(values: dict[int, bytes]) -> None:
    for index in sorted(values)[:-POINTS_KEPT]:
        del values[index]
