"""Counts majorities: the commit index and the outcome of a vote, for one majority and for a joint pair.

Pure arithmetic on a `Configuration`; learners and strangers are never counted. Thesis sections 3.6 and 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from raftlog.raft.configuration import Configuration
from raftlog.raft.types import NodeId


class VoteOutcome(Enum):
    """What the votes counted so far decide."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voters: int) -> int:
    """How many of `voters` are a majority (pitfall 34: of 4 it is 3, never 2)."""
    return voters // 2 + 1


def agreed(configuration: Configuration, values: Mapping[NodeId, int]) -> int:
    """The highest value that a majority has reached; in a joint configuration, a majority of each side.

    A voter without a value counts as 0. Used for match indexes (commit), read rounds and times of contact.
    """
    highest: list[int] = []
    sides = (configuration.voters, configuration.outgoing) if configuration.outgoing else (configuration.voters,)
    for voters in sides:
        reached = sorted([values.get(voter, 0) for voter in voters])
        highest.append(reached[len(reached) - majority(len(reached))] if reached else 0)  # no voter, no agreement
    return min(highest)


def outcome(configuration: Configuration, votes: Mapping[NodeId, bool]) -> VoteOutcome:
    """Whether the votes win: one per voter, however many replies came (pitfall 4: duplicate vote replies counted
    twice)."""
    sides = [_outcome(configuration.voters, votes)]
    if configuration.outgoing:
        sides.append(_outcome(configuration.outgoing, votes))
    if VoteOutcome.LOST in sides:
        return VoteOutcome.LOST
    return VoteOutcome.OPEN if VoteOutcome.OPEN in sides else VoteOutcome.WON


def _outcome(voters: tuple[NodeId, ...], votes: Mapping[NodeId, bool]) -> VoteOutcome:
    needed = majority(len(voters))
    granted = sum(votes.get(voter, False) for voter in voters)
    refused = sum(not votes.get(voter, True) for voter in voters)
    if granted >= needed:
        return VoteOutcome.WON
    return VoteOutcome.LOST if len(voters) - refused < needed else VoteOutcome.OPEN
