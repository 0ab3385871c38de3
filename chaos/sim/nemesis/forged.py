"""Forges: what the holder of a removed node's key sends, and hellos that name a member and cannot be proved.

A node that knows of the removal takes nothing of that disk, at the handshake or behind it (docs/decisions/0027). A node
that slept through the removal may, so nothing is sent to it. An unproved hello of an older start changes nothing about
the member that it names.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any, Final

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.nemesis import members
from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.protocol.forward_frames import encode_forward
from raftlog.cluster.protocol.request import Inflight
from raftlog.cluster.replica.parts import link_events
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.state import State
from raftlog.raft.hello import Start
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.raft.types import EntryKind, NodeId, Now
from raftlog.statemachine.commands import Operation

FORGED: Final = b"\0forged"
BLOCK: Final = encode_block([BlockRecord(Operation.PUT, FORGED, b"by a removed node")])
NOTHING_OF_REMOVED: Final = "a removed disk changes nothing"
UNPROVED: Final = "an unproved hello changes nothing about the node that it names"

HELLO_EVERY_US: Final = 30_000
"""More than 30 a second: with links slower than this one always comes while an acknowledgement is under way."""


def removed_key(world: World, random: Random) -> None:
    """The holder of a removed node's key dials nodes, and sends them what does most harm. A world without a removed
    node gets one first."""
    leading = world.leading()
    if leading is None or leading.core is None:
        return
    gone = leading.core.state.configuration.removed
    count, every_us = random.randint(5, 30), random.choice((HELLO_EVERY_US, 200_000))
    if not gone:
        members.replace(world, random)
        return
    node, disk = random.choice(gone)
    if world.fault("removed key", node, f"{count} times, every {every_us} us"):
        for nth in range(count):
            for_a_while(world, nth * every_us, partial(strike, world, random, node, disk))


def strike(world: World, random: Random, node: NodeId, disk: str) -> None:
    """One message and one request for a node that knows of the removal. Raises Failure where the node takes any."""
    aims = [each for each in world.replicas.values() if each.core is not None and _knows(each.core.state, node, disk)]
    if not aims:
        return
    aim = random.choice(aims)
    if aim.greet(node, _hello(random, disk, boot=1_000)):
        raise Failure(NOTHING_OF_REMOVED, f"node {aim.node} takes the hello of node {node}")
    world.count("strikes of a removed node")
    aim.tell(partial(_strike, aim, random, node, disk))


def _knows(state: State, node: NodeId, disk: str) -> bool:
    """Whether a committed configuration there names that disk as removed, and it does not follow that node to the end
    of its term."""
    committed = [each for index, each in state.configurations if index <= state.log.committed]
    return bool(committed) and (node, disk) in committed[-1].removed and node not in (state.node, state.leader)


def _strike(aim: Node, random: Random, node: NodeId, disk: str, core: RaftCore, now: Now) -> None:
    state = core.state
    if not _knows(state, node, disk):
        return  # it led in a newer term meanwhile, and removed itself
    if FORGED in aim.machine._store.head:
        raise Failure(NOTHING_OF_REMOVED, f"node {aim.node} applied a write of node {node}")
    before, message = _seen(state), forged(state, node, random)
    disk = random.choice((disk, "f" * 32))  # a number that has no member is barred with any disk
    core.step(message, now, disk)
    if _seen(state) != before:
        raise Failure(NOTHING_OF_REMOVED, f"node {aim.node} was at {before}, and after {message} is at {_seen(state)}")
    request = Inflight(BLOCK, 1, 1.0, 0, 0, None, node, 0)
    frames = FrameDecoder().feed(encode_forward(random.getrandbits(40), [request], 0.0))
    link_events.take_frames(aim.state, node, disk, frames)


def _seen(state: State) -> tuple[Any, ...]:
    log = state.log
    return (
        state.term,
        state.vote,
        state.leader,
        type(state.role),
        state.recall.floor,
        log.last,
        log.committed,
        state.receiving is None,
    )


def forged(state: State, node: NodeId, random: Random) -> Message:
    """What takes over a node in that state, or loses an acknowledged entry, if it counts."""
    log, last = state.log, state.log.last
    committed = random.choice([each for each in log.tail.entries if each.index <= log.committed] or [None])
    before = last if committed is None else log.mark_at(committed.before) or last
    term = state.term + random.choice((0, 1, 1))
    new, cutting = [
        seal_entry(
            each, term=term, kind=EntryKind.COMMANDS, count=1, time_ms=each.time_ms, clock_ms=each.clock_ms, data=BLOCK
        )
        for each in (last, before)
    ]
    head: dict[str, Any] = {"sender": node, "to": state.node, "term": term}
    end = head | {"prev_index": last.index, "prev_term": last.term, "round": 1}
    at = head | {"prev_index": before.index, "prev_term": before.term, "round": 1}
    made: list[Message] = [
        AppendEntries(commit=log.committed, **end),
        AppendEntries(commit=new.index, entries=(new,), **end),
        AppendEntries(commit=log.committed, entries=(cutting,), **at),
        AppendEntriesReply(success=True, match=last.index, prev_index=last.index, round=1 << 30, **head),
        RequestVote(last_index=last.index + 99, last_term=term, transfer=True, **head),
        RequestVoteReply(request_term=term, granted=True, **head),
        TimeoutNow(last_index=last.index, **head),
        InstallSnapshot(
            snapshot_index=last.index + 1,
            snapshot_term=term,
            offset=0,
            total=4,
            crc=crc32c(b"fake"),
            done=True,
            data=b"fake",
            **head,
        ),
    ]
    return random.choice(made)


def forged_hello(world: World, random: Random) -> None:
    """Hellos of older starts of a member, at a node that knows its newest one. The forger has no member's address."""
    node, us = anyone(world, random), random.randint(300_000, 3_000_000)
    others = [each for each in world.replicas if each != node]
    named = random.choice(others) if others else node
    if others and world.fault("forged hello", (node, named), f"{named} at {node}", us):
        runs: list[int] = []
        for at_us in range(0, us, HELLO_EVERY_US):
            for_a_while(world, at_us, partial(say, world, random, node, named, runs))


def say(world: World, random: Random, node: NodeId, named: NodeId, runs: list[int]) -> None:
    """One hello, if that node refuses it. Raises Failure where it heard an earlier one, whose run is in `runs`."""
    aim, disk = world.replicas[node], world.disks[named].incarnation
    said = _hello(random, disk)
    if aim.core is None or aim.refusal_of(named, said) is None:
        return
    refused_disk, refused_run = aim.core.state.recall.refused.get(named, ("", 0))
    if refused_disk == disk and refused_run in runs:
        raise Failure(UNPROVED, f"node {node} heard a hello of node {named} that no process of it can prove")
    runs.append(said.run)
    aim.greet(named, said)
    world.count("forged hellos")


def _hello(random: Random, disk: str, boot: int = 0) -> Hello:
    run = random.randrange(1, 1 << 53)
    return Hello(disk, boot, Start(run=run, last_index=0, last_term=0, term=0, floor=0))
