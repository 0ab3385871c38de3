"""Configuration safety: no two disjoint quorums decide, and one change is under way at a time (thesis 4.1 to 4.3).

Looked at where a configuration entry is made, and where a node's configuration in force changes.
"""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.consensus.state import State
from raftlog.raft.types import Entry, NodeId

PROPERTY = "configuration safety"
SECTION = "thesis 4.1"


def appended(known: Knowledge, node: NodeId, entry: Entry, log: Log) -> None:
    """A configuration entry went into a log. Its leader must have been allowed to append it. Raises InvariantBroken."""
    if (entry.index, entry.term) in known.configurations:
        return
    before = known.configuration_in(log)
    fresh = known.add_configuration(entry)
    if before is None or before[0] >= entry.index:
        return  # the configuration before came with a snapshot, or a newer one came in the same message
    index, old = before
    if index > known.newest[0]:
        evidence = f"the change at {entry.index} was made while that at {index} was not committed"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
    if known.newest[1] < entry.term:  # the mistake of 2015
        evidence = f"a change in term {entry.term}, in which nothing is committed yet"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
    if not must_meet(old, fresh):
        evidence = f"a quorum of {_short(old)} need not meet one of {_short(fresh)}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)


def in_force(known: Knowledge, state: State) -> None:
    """The end of a node's log moved: the newest configuration in it is in force, committed or not.

    Raises InvariantBroken.
    """
    index, configuration = state.configurations[-1]
    newest = known.configuration_in(state.log)
    if newest is not None and newest != (index, configuration):
        evidence = f"in force is that of {index}, {_short(configuration)}; its log has {newest[0]}"
        raise InvariantBroken(state.node, PROPERTY, SECTION, evidence)


def must_meet(one: Configuration, other: Configuration) -> bool:
    """Whether every quorum of one has a node in every quorum of the other.

    A quorum of a joint configuration is a majority of each side, so one pair of sides that must meet is enough.
    """
    return any(_majorities_meet(a, b) for a in _sides(one) for b in _sides(other))


def _sides(configuration: Configuration) -> tuple[tuple[NodeId, ...], ...]:
    sides = (configuration.voters, configuration.outgoing)
    return tuple(side for side in sides if side)


def _majorities_meet(a: tuple[NodeId, ...], b: tuple[NodeId, ...]) -> bool:
    shared = sum(node in b for node in a)
    # The least that each majority must take of the shared nodes, when it takes all others first.
    least_a = max(0, len(a) // 2 + 1 - (len(a) - shared))
    least_b = max(0, len(b) // 2 + 1 - (len(b) - shared))
    return least_a + least_b > shared


def _short(configuration: Configuration) -> str:
    joint = f" leaving {configuration.outgoing}" if configuration.outgoing else ""
    learners = f" learning {configuration.learners}" if configuration.learners else ""
    return f"{configuration.voters}{joint}{learners}"
