"""Keeps the knowledge that properties share: every appended entry, the committed ones in order, configurations.

The CRC of an entry's header identifies it. It covers the CRC of the entry before, so equal CRCs mean equal logs up to
there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.raft.codec.configuration import decode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.log import Log
from raftlog.raft.types import Entry, EntryKind, NodeId


class Knowledge:
    """Fed by `Witness` before the properties look at it."""

    def __init__(self, configuration: Configuration, first: Entry) -> None:
        self.chain: dict[tuple[int, int], int] = {(first.index, first.term): first.mark.header_crc}
        self.ends: dict[int, None] = {0: None, first.index: None}  # where any entry ever ended
        self.committed: list[tuple[int, int]] = [(first.index, first.term)]  # in order, as first seen
        self.commits: list[tuple[int, int]] = [(first.term, first.index)]  # what each term's leaders committed, last
        # (index, term) -> the configuration of that entry, in the order in which they were made
        self.configurations: dict[tuple[int, int], Configuration] = {(first.index, first.term): configuration}
        self.disks: dict[NodeId, SimDisk] = {}
        # whose disk is no longer the one that made the node's promises, and the entries that it held then
        self.lost: dict[NodeId, frozenset[tuple[int, int]]] = {}
        # whose disk forgot promises without damage, and up to which term its peers remember some
        self.rolled_back: dict[NodeId, int] = {}

    @property
    def newest(self) -> tuple[int, int]:
        return self.committed[-1]

    def newest_before(self, term: int) -> tuple[int, int]:
        """The newest entry that was committed by the leader of an older term: leaders commit by an entry of their own,
        and take all before it along."""
        position = bisect_left(self.commits, (term, 0)) - 1
        index = self.commits[position][1] if position >= 0 else self.committed[0][0]
        return self.committed[self.position(index)]

    def position(self, index: int) -> int:
        """The place in `committed` of the entry that ends at `index`; where it would be, if none does."""
        return bisect_left(self.committed, (index, 0))

    def is_committed(self, index: int, term: int) -> bool:
        position = self.position(index)
        return position < len(self.committed) and self.committed[position] == (index, term)

    def add_configuration(self, entry: Entry) -> Configuration:
        assert entry.kind is EntryKind.CONFIGURATION, entry.kind
        configuration = decode_configuration(entry.data)
        self.configurations[entry.index, entry.term] = configuration
        return configuration

    def possible(self) -> list[Configuration]:
        """The configurations that may be in force: the newest committed one, and all that were made after it."""
        ruling = max(where for where in self.configurations if self.is_committed(*where))
        return [configuration for where, configuration in self.configurations.items() if where >= ruling]

    def configuration_in(self, log: Log) -> tuple[int, Configuration] | None:
        """The newest configuration of that log, and its index, found without the core's help.

        None where the log no longer holds any known configuration entry: then it came with a snapshot.
        """
        newest = 0
        found: Configuration | None = None
        for (index, term), configuration in self.configurations.items():
            if newest < index <= log.last.index and log.term_at(index) == term:
                newest, found = index, configuration
        return None if found is None else (newest, found)


def is_quorum(configuration: Configuration, nodes: Collection[NodeId]) -> bool:
    """Whether the nodes are a majority; of both sides in a joint configuration (thesis 4.3)."""
    sides = (configuration.voters, configuration.outgoing) if configuration.outgoing else (configuration.voters,)
    return all(2 * sum(voter in nodes for voter in side) > len(side) for side in sides)
