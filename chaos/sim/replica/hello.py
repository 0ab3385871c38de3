"""Defines what a simulated process says of itself when it connects to another one, and what it keeps of its peers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.cluster.peers.refused_hellos import RefusedHellos
from raftlog.raft.configuration import Member
from raftlog.raft.hello import PeerProcess, Start
from raftlog.raft.types import NodeId


class Hello(NamedTuple):
    """What a process says of itself when it connects."""

    incarnation: str  # of its disk
    boot: int  # its counter
    start: Start  # what it found on its disk

    @property
    def run(self) -> int:
        return self.start.run


NOBODY_YET: Final = Hello("", 0, Start(run=0, last_index=0, last_term=0, term=0, floor=0))


@dataclass(slots=True)
class Hellos:
    """What one process knows of its peers' processes; `raftlog.chaos.sim.replica.connections` keeps it."""

    greeted: dict[NodeId, Hello] = field(default_factory=dict)  # the newest of each connected peer that was taken
    met: dict[tuple[NodeId, str], PeerProcess] = field(default_factory=dict)  # the newest process of each disk
    dialled: dict[NodeId, str] = field(default_factory=dict)  # the nodes that it dials, and the disk expected there
    believed: dict[NodeId, Hello] = field(default_factory=dict)  # of `greeted`, those whose promises count
    strangers: dict[NodeId, Member] = field(default_factory=dict)  # of `greeted`, those that no configuration names
    unproved: set[NodeId] = field(default_factory=set)  # peers whose reports were not taken for want of a proof
    refused: RefusedHellos = field(default_factory=RefusedHellos)
    heard_us: dict[NodeId, int] = field(default_factory=dict)
