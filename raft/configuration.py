"""Defines the configuration: voters, learners and their disks, joint configurations, and the pure transitions.

A configuration is the data of an entry of kind CONFIGURATION. The first one is the entry at index 1, written by
`raftlog format`. Raft paper section 6; thesis chapter 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from raftlog.raft.types import NodeId

REMOVED_MAX: Final = 256
"""Most former members that a configuration names: 10 KB in each configuration entry. The oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its number, its disk, its addresses."""

    node: NodeId
    incarnation: str  # 32 hex digits, made once by `raftlog format`; a wiped disk has none, a clone is refused
    peer: str  # host:port of the peer listener; an address, never an identity
    url: str  # base URL of its HTTP API, as clients should see it


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members and their roles. `outgoing` is not empty only while a joint change is under way."""

    members: tuple[Member, ...] = ()  # everyone named, sorted by node
    voters: tuple[NodeId, ...] = ()  # sorted; the (new) majority
    outgoing: tuple[NodeId, ...] = ()  # sorted; the old majority of a joint configuration
    learners: tuple[NodeId, ...] = ()  # sorted; receive entries, never counted
    version: int = 1  # cluster version: raised only when every member knows it; apply branches on it
    # Numbers every replica must agree on (limits of the state machine), sorted by name. Raft only carries them.
    parameters: tuple[tuple[str, int], ...] = ()
    # Node and incarnation of every member that was removed, the newest last.
    removed: tuple[tuple[NodeId, str], ...] = ()

    def __post_init__(self) -> None:
        known = [member.node for member in self.members]
        if known != sorted(set(known)):
            raise ValueError(f"members must be sorted and distinct: {known}")
        for name in ("voters", "outgoing", "learners"):
            ids = list(getattr(self, name))
            if ids != sorted(set(ids)):
                raise ValueError(f"{name} must be sorted and distinct: {ids}")
            if missing := [node for node in ids if node not in known]:
                raise ValueError(f"{name} names nodes that are no members: {missing}")
        if both := [node for node in self.learners if node in self.voters]:
            raise ValueError(f"nodes cannot be voter and learner at once: {both}")

    def is_voter(self, node: NodeId) -> bool:
        """Whether the node counts in either majority."""
        return node in self.voters or node in self.outgoing

    def needs(self, node: NodeId) -> tuple[NodeId, ...]:
        """The voters of which no majority can go on without that node, to heal it; () where one can."""
        return next((side for side in (self.voters, self.outgoing) if node in side and len(side) < 3), ())

    def member(self, node: NodeId) -> Member | None:
        """The member of that number, or None."""
        for member in self.members:
            if member.node == node:
                return member
        return None

    def names(self, node: NodeId, incarnation: str) -> bool:
        """Whether that disk is a member's. An empty incarnation stands for any disk of that number."""
        member = self.member(node)
        return member is not None and incarnation in {"", member.incarnation}

    def has_removed(self, node: NodeId, incarnation: str) -> bool:
        """Whether that disk of that node was a member, and is none any more.

        A removed number without a member is refused with any disk, since the key of a removed node proves its number
        alone. A number that was given to a new disk is that disk's.
        `raftlog.raft.consensus.state.State.has_removed` asks all configurations that may count.
        """
        named = self.member(node)
        if named is not None and named.incarnation == incarnation:
            return False
        return any(disk == incarnation or (named is None and former == node) for former, disk in self.removed)

    def with_removed(self, removed: Iterable[tuple[NodeId, str]]) -> Configuration:
        """As it is, but with these former members, the newest last: it names the newest REMOVED_MAX of them."""
        return replace(self, removed=tuple(dict.fromkeys(removed))[-REMOVED_MAX:])

    def peers(self, node: NodeId) -> tuple[NodeId, ...]:
        """All other nodes that receive entries, sorted."""
        return tuple(member.node for member in self.members if member.node != node)
