"""Log matching: entries of equal index and term are the same, and so is all before them (figure 3, section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import Entry, NodeId

PROPERTY = "log matching"
SECTION = "figure 3"


def appended(known: Knowledge, node: NodeId, entries: Iterable[Entry]) -> None:
    """Entries went into a node's log: take note of new ones. Raises InvariantBroken."""
    chain, ends = known.chain, known.ends
    for entry in entries:
        crc = entry.mark.header_crc
        where = (entry.index, entry.term)
        if chain.setdefault(where, crc) != crc:
            evidence = f"entry {where} has header CRC {crc:08x}, elsewhere {chain[where]:08x}"
            raise InvariantBroken(node, PROPERTY, SECTION, evidence)
        ends[entry.index] = None


def forgotten(known: Knowledge, term: int) -> None:
    """The leader of that term died before its own vote was durable: a voter that is alone, and nothing left it yet."""
    for where in [where for where in known.chain if where[1] == term]:
        del known.chain[where]


def started(known: Knowledge, node: NodeId, log: Log) -> None:
    """A node read its log from its disk: it must end in an entry that was once appended. Raises InvariantBroken."""
    last = log.last
    if known.chain.get((last.index, last.term)) != last.header_crc:
        raise InvariantBroken(node, PROPERTY, SECTION, f"its disk ends in {last}, which no leader appended")
