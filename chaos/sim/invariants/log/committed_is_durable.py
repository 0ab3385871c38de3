"""Committed entries are immutable and durable on a quorum, at once and for ever (raft paper 5.3, 5.4; thesis 3.6)."""

from __future__ import annotations

from raftlog.chaos.sim.invariants.known import Knowledge, is_quorum
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import NodeId

PROPERTY = "committed entries are durable on a quorum"
IMMUTABLE = "committed entries are immutable"
SECTION = "5.3"


def commit_rose(known: Knowledge, node: NodeId, log: Log, configuration: Configuration) -> None:
    """Commit rose at a node. The first node that commits must have a durable quorum, and keep all committed entries.

    Every other node is compared entry by entry when it applies. Raises InvariantBroken.
    """
    index = log.committed
    newest, newest_term = known.newest
    if index <= newest:
        return
    term = log.term_at(index)
    if term is None or term < newest_term:
        raise InvariantBroken(node, PROPERTY, SECTION, f"{index} of term {term} is committed after {known.newest}")
    holders = promised(known, index, term)
    if not is_quorum(configuration, holders):
        evidence = f"entry {(index, term)} is durable only on {holders} of {configuration.voters}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)
    # Whose log begins behind it got it with a snapshot: another one has the entries.
    logs = (known.disks[holder].view.between(newest, index) for holder in holders)
    fresh = next((entries for entries in logs if entries and entries[0].before == newest), ())
    if not fresh or fresh[-1].index != index:
        raise InvariantBroken(node, IMMUTABLE, SECTION, f"commit {index} does not go on from {known.newest}")
    known.committed += [(entry.index, entry.term) for entry in fresh]
    known.commits.append(known.newest[::-1])


def still_held(known: Knowledge, node: NodeId) -> None:
    """A disk was opened, or a run ends: the newest committed entry is still durable on a quorum of the configuration
    that rules, the newest committed one; or of one made after it, if that was in force when the entry was committed.

    Raises InvariantBroken.
    """
    index, term = known.newest
    ruling = max(where for where in known.configurations if known.is_committed(*where))
    if len(known.disks) < len(known.configurations[ruling].voters):
        return  # the world begins
    holders = promised(known, index, term)
    candidates = [configuration for where, configuration in known.configurations.items() if where >= ruling]
    if not any(is_quorum(configuration, holders) for configuration in candidates):
        voters = known.configurations[ruling].voters
        evidence = f"committed entry {(index, term)} is left only on {holders} of {voters}"
        raise InvariantBroken(node, PROPERTY, SECTION, evidence)


def promised(known: Knowledge, index: int, term: int) -> list[NodeId]:
    """The nodes that hold that entry, intact ones first, and those that held it when their disk was lost or damaged.
    Their acknowledgement counts, and the atlas leaves at least one copy that can be had.
    Without such a copy no node holds the entry."""
    intact = holding(known, index, term)
    gone = {node: disk.view.forgotten for node, disk in known.disks.items() if node not in intact} | known.lost
    return [*intact, *(node for node, held in gone.items() if (index, term) in held)] if intact else []


def holding(known: Knowledge, index: int, term: int) -> list[NodeId]:
    return [node for node, disk in known.disks.items() if node not in known.lost and disk.view.has(index, term)]
