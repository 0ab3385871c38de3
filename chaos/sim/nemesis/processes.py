"""Faults of processes: killed or without power, one, several or all of them, in storms; and stopped for a while."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while, several
from raftlog.chaos.sim.world.world import World
from raftlog.raft.types import NodeId


def end(world: World, kind: str, nodes: Iterable[NodeId], *, power: bool) -> None:
    """End the processes of those nodes at one moment; each comes back by itself, later."""
    running = [node for node in nodes if world.replicas[node].core is not None]
    if running and world.fault(kind, running, "power cut" if power else "killed"):
        for node in running:
            world.replicas[node].crash("power cut" if power else "killed", power=power)


def end_one(world: World, random: Random, kind: str, *, power: bool) -> None:
    """One node, killed or without power."""
    end(world, kind, [anyone(world, random)], power=power)


def kill_several(world: World, random: Random) -> None:
    """A minority or a majority, killed or without power."""
    end(world, "kill several", several(world, random), power=random.randrange(2) == 0)


def restart_storm(world: World, random: Random) -> None:
    """One node is killed again and again, as by a supervisor with a broken health check."""
    node, times, power = anyone(world, random), random.randint(3, 8), random.randrange(2) == 0
    every_us = random.choice((100_000, 400_000, 900_000))
    if not world.fault("restart storm", node, f"{times} times, every {every_us} us", times * every_us):
        return

    def again(left: int) -> None:
        world.restart(node)
        world.replicas[node].crash("restart storm", power=power)
        if left > 1:
            for_a_while(world, every_us, lambda: again(left - 1))

    again(times)


def stop(world: World, random: Random, kind: str, nodes: list[NodeId]) -> None:
    """Stop processes for a while, as a hypervisor does that moves its guests: shorter than an election timeout or
    longer, up to the world's bound. Messages to a stopped process wait."""
    us = random.choice(
        (random.randint(1_000, 250_000), random.randint(250_000, max(250_001, world.swarm.pause_max_us)))
    )
    stopped = [world.replicas[node] for node in nodes]
    stopped = [replica for replica in stopped if replica.core is not None and not replica.is_paused]
    if not stopped or not world.fault(kind, [replica.node for replica in stopped], "", us):
        return
    for replica in stopped:
        replica.is_paused = True
        world.count("pauses")
    lives = [replica.life for replica in stopped]

    def go_on() -> None:
        for replica, life in zip(stopped, lives, strict=True):
            if replica.life == life:
                replica.is_paused = False
                world.note(replica.node, "goes on")
                replica.wake()

    for_a_while(world, us, go_on)
