"""Digest points as one replica sees them: what it reports, what the others reported, and whom a majority makes right.

A point is a record of the log; its value is a pure function of the state there, so replicas that differ are not of one
log any more. The value of a majority of the voters (of both majorities of a joint configuration) is right, whoever
leads: a leader can be the damaged one. Pure: the server (`cluster.node_points`) and the simulator drive it, and
carry the reports. DESIGN section 7; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from raft.codec import Record, encode_block
from raft.configuration import Configuration
from raft.quorum import Outcome, outcome
from raft.types import NodeId
from statemachine.commands import Operation

if TYPE_CHECKING:
    from statemachine.machine import StateMachine

POINT_BLOCK: Final = encode_block([Record(int(Operation.DIGEST_POINT))])
"""The data of the entry that is a point."""

POINTS_KEPT: Final = 8
"""Newest points of each replica that are remembered and reported: bounds memory and frames."""

RETRY_S: Final = 1.0
"""The other replicas are asked again after this long, as long as the newest point is not agreed."""

DIFFER_EVERY_S: Final = 10.0
"""While no majority is equal the leader commits a point this often: what an operator does about it shows."""

Reports = tuple[tuple[int, bytes], ...]
"""Index and value of a replica's newest points, oldest first."""


class Diverged(Exception):
    """This replica's state at a digest point is not that of the majority: it may not serve any more."""

    def __init__(self, *, node: NodeId, index: int, agreed: int, leader: NodeId) -> None:
        who = "this node, the leader," if leader == node else "this node"
        super().__init__(
            f"the state of {who} differs from that of a majority at the digest point {index}; the newest point at "
            f"which it was equal is {agreed}"
        )
        self.index = index
        self.agreed = agreed  # 0: none since this process began


class Judgement(NamedTuple):
    """What the points say. `agreed`: newest point at which this replica's value was a majority's (0: none since its
    start). `differ`: newest point after it at which a majority has reported, and no value is a majority's (0: none).
    """

    agreed: int
    differ: int


def right_value(configuration: Configuration, values: Mapping[NodeId, bytes]) -> bytes | None:
    """The value that a majority of the voters reported, of both sides of a joint configuration; None: there is none."""
    for value in {values[node]: None for node in sorted(values)}:
        if outcome(configuration, {node: each == value for node, each in values.items()}) is Outcome.WON:
            return value
    return None


def has_split(configuration: Configuration, values: Mapping[NodeId, bytes]) -> bool:
    """Whether a majority has reported and its values differ."""
    voters = {node: value for node, value in values.items() if configuration.is_voter(node)}
    reported = outcome(configuration, dict.fromkeys(voters, True))
    return reported is Outcome.WON and len(set(voters.values())) > 1


class Points:
    """One process's view; gone with it: what counts is found anew from the next point on."""

    __slots__ = (
        "_asked_s", "_heard", "_newest", "_node", "_own", "_proposed", "_proposed_s", "_seen", "agreed", "count",
        "differ", "is_healing",
    )  # fmt: skip

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._own: dict[int, bytes] = {}
        self._heard: dict[NodeId, tuple[str, dict[int, bytes]]] = {}  # by replica: its disk's incarnation, its values
        self._newest = 0
        self._seen: tuple[int, bytes] | None = None  # the newest point of the state that was looked at
        self._asked_s = 0.0
        self._proposed = 0  # index of the newest point that this process proposed, and when
        self._proposed_s = -DIFFER_EVERY_S
        self.count = 0  # points applied by this process
        self.agreed = 0  # see Judgement
        self.differ = 0
        self.is_healing = False  # this node has no vote until it heals: it reports nothing, so that others stay (0011)

    @property
    def newest(self) -> int:
        """Index of the newest point applied by this process; 0: none."""
        return self._newest

    @property
    def is_open(self) -> bool:
        """Whether the newest point is not agreed yet: the others are to be asked."""
        return self._newest > self.agreed

    def must_ask(self, now_s: float) -> bool:
        """Whether the others are to be asked again: the newest point is not agreed, and it is a while since."""
        return self.is_open and now_s - self._asked_s >= RETRY_S

    def asked(self, now_s: float) -> Reports:
        """The others are asked now; what they are told with it."""
        self._asked_s = now_s
        return self.reports()

    def is_due(self, machine: StateMachine, every: int, now_s: float) -> bool:
        """Whether a leader with that state has to commit a point now: `every` so many entries, or as many as the state
        remembers digests of."""
        if self._proposed > machine.applied_index:
            return False  # one is on its way
        if self.differ:
            return now_s - self._proposed_s >= DIFFER_EVERY_S
        return machine.entries_since_point() >= min(every, machine.limits.digests_kept)

    def proposed(self, index: int, now_s: float) -> None:
        """One was proposed at that index."""
        self._proposed, self._proposed_s = index, now_s

    def follow(self, point: tuple[int, bytes] | None) -> bool:
        """Looks at the newest point of the state machine; None: of a state that came with a snapshot, and has none.
        Whether it is another one, to be told to all."""
        if point is self._seen:
            return False
        self._seen = point
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
        """The state was replaced by a leader's snapshot: what was reported of the one before is not this one's."""
        self._own.clear()
        self._newest = self.agreed = self.differ = 0

    def reports(self) -> Reports:
        """What this replica reports; nothing while it heals: it is not well, and no other node may end meanwhile."""
        return () if self.is_healing else tuple(self._own.items())

    def take(self, peer: NodeId, incarnation: str, reports: Reports) -> None:
        """A replica reported. Only what the configuration names by that incarnation will count."""
        disk, values = self._heard.get(peer, ("", {}))
        if disk != incarnation:
            values = {}
        values.update(reports)
        _trim(values)
        self._heard[peer] = (incarnation, values)

    def is_reported(self, configuration: Configuration, index: int) -> bool:
        """Whether every voter has reported that point: all of them run, and have applied it."""
        voters = (member for member in configuration.members if configuration.is_voter(member.node))
        for member in voters:
            if member.node != self._node:
                incarnation, values = self._heard.get(member.node, ("", {}))
                if incarnation != member.incarnation or index not in values:
                    return False
        return index in self._own

    def judge(self, configuration: Configuration, leader: NodeId) -> Judgement:
        """Compares what was reported. Raises Diverged where this replica differs from a majority.

        `leader` is whom it follows, for the words of that error only.
        """
        differ, right_before = 0, 0  # the newest point before the one looked at at which the state was right
        for index, own in self._own.items():
            values = {self._node: own}
            for node, (incarnation, heard) in self._heard.items():
                member = configuration.member(node)
                if member is not None and member.incarnation == incarnation and index in heard:
                    values[node] = heard[index]
            right = right_value(configuration, values)
            if right is None:
                if index > self.agreed and has_split(configuration, values):
                    differ = index
            elif right == own:
                right_before = index
                if index > self.agreed:
                    self.agreed, differ = index, 0
            else:  # behind a point that is agreed, too: what was wrong is overwritten since, what it led to is not
                agreed = right_before or (self.agreed if self.agreed < index else 0)
                raise Diverged(node=self._node, index=index, agreed=agreed, leader=leader)
        self.differ = differ
        return Judgement(self.agreed, differ)


def _trim(values: dict[int, bytes]) -> None:
    for index in sorted(values)[:-POINTS_KEPT]:
        del values[index]
