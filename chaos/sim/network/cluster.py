"""Defines what the connections of a world need of it: time, chance, the network, and the nodes with their disks.

`raftlog.chaos.sim.world.world.World` is this protocol.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.ground.loop import Timeline
from raftlog.chaos.sim.ground.swarm import Swarm
from raftlog.chaos.sim.ground.trace import Trace
from raftlog.chaos.sim.invariants import Witness
from raftlog.chaos.sim.network.network import Network
from raftlog.chaos.sim.replica.node import Node
from raftlog.raft.types import NodeId


class Cluster(Timeline, Protocol):
    """The nodes of a world, and the network between them."""

    swarm: Swarm
    trace: Trace
    witness: Witness
    random: Random
    network_random: Random
    network: Network
    replicas: dict[NodeId, Node]
    disks: dict[NodeId, SimDisk]
    is_healed: bool

    def count(self, what: str) -> None: ...
