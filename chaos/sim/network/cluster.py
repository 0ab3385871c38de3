"""Adds to the surroundings of a node what the connections between nodes need: the network, and the nodes with disks."""

from __future__ import annotations

from random import Random

from raftlog.chaos.sim.disk.disk import SimDisk
from raftlog.chaos.sim.network.network import Network
from raftlog.chaos.sim.replica.life import Surroundings
from raftlog.chaos.sim.replica.node import Node
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import NodeId


class Cluster(Surroundings):
    """The nodes of a world, and the network between them (`raftlog.chaos.sim.world.world.World` sets all of it)."""

    configuration: Configuration
    network_random: Random
    network: Network
    replicas: dict[NodeId, Node]
    disks: dict[NodeId, SimDisk]
