"""Runs one seed: faults for some simulated seconds, then healing, then the cluster must make progress and agree.

Commands, planted bugs and tests call `run_seed`. Everything that happens goes to the trace of the world; the digest of
the trace is equal for equal seeds, on every run and with every hash seed of Python.
"""

from __future__ import annotations

import gc

from raftlog.chaos.sim import nemesis
from raftlog.chaos.sim.clients.clients import Clients, feed
from raftlog.chaos.sim.ground.failure import failure_of
from raftlog.chaos.sim.ground.outcome import Outcome
from raftlog.chaos.sim.ground.swarm import Swarm
from raftlog.chaos.sim.ground.trace import Trace
from raftlog.chaos.sim.seed.agreement import agree, find_out, reach_back
from raftlog.chaos.sim.seed.bad_disks import with_bad_disks
from raftlog.chaos.sim.seed.every_node import begin_reads, every_node_serves
from raftlog.chaos.sim.seed.full_disks import with_full_disks
from raftlog.chaos.sim.seed.healthy_majority import with_a_bare_majority
from raftlog.chaos.sim.world.world import MACHINE, World


def run_seed(
    seed: int,
    seconds: int = 60,
    *,
    swarm: Swarm | None = None,
    trace: Trace | None = None,
    skip: frozenset[int] = frozenset(),
    machine: str = MACHINE,
) -> Outcome:
    """One world: `seconds` of trouble, then agreement. Raises Failure, which has the seed and the world.

    `skip` are numbers of faults to leave out; `machine` is the state machine as module:Class.
    """
    was_collecting = gc.isenabled()
    gc.disable()  # a world ends soon, and what it leaves is collected then
    try:
        world = World(seed, swarm, trace, skip=skip, machine=machine)
        try:
            return _run(world, seconds)
        except Exception as error:
            failure = failure_of(error)
            failure.seed, failure.world = seed, world
            raise failure from failure.__cause__
        finally:
            world.end()
    finally:
        if was_collecting:
            gc.enable()
            gc.collect()


def _run(world: World, seconds: int) -> Outcome:
    swarm = world.swarm
    world.clients = clients = Clients(world, world.random_of("clients"), swarm.clients, swarm.client_every_us)
    world.start()
    nemesis.unleash(world)
    feed(world)
    world.run_until(seconds * 1_000_000)
    written = world.stats.get("writes acknowledged", 0)
    waiting = begin_reads(world)
    with_a_bare_majority(world)
    nemesis.heal(world)
    agree(world)
    find_out(world)
    reach_back(world)
    clients.sinks.arrive()
    with_bad_disks(world)
    every_node_serves(world, waiting)
    with_full_disks(world)
    agree(world)  # the end of the recording is the leader's state, and it may apply slowly
    clients.check()
    world.witness.finished()
    world.count("healed runs")
    for replica in world.replicas.values():
        if replica.core is not None:
            world.trace.line(world.now_us, replica.node, "state", repr(replica.machine.digest()))
    world.stats["writes acknowledged in trouble"] = written
    return world.outcome()
