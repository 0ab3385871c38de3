"""Changes of the members while things go wrong: nodes join as learners, are promoted, removed and replaced.

An operator asks the leader, and gives up if the leader refuses. A change that has begun goes on by itself
(raft/consensus/reconfiguration.py) or ends with its leader. A node that the committed configuration no
longer names is stopped for good some time later; until then it may disturb.
"""

from __future__ import annotations

from dataclasses import replace as replace_fields
from random import Random
from typing import Final

from raftlog.chaos.sim.nemesis.operators import attempt
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.raft.changes import AddLearners, ChangeAddresses, MemberChange, Promote, Remove, Replace
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.types import NodeId, Now

NODES_MAX: Final = 9
"""Nodes that a world ever has, those that left included."""

VOTERS_MIN: Final = 2
"""Fewer are not left by a removal: a world of one tries little."""

RETIRE_US: Final = 5_000_000
"""How long a node that left may go on at most."""


def _leading(world: World) -> tuple[Node, Configuration] | None:
    leading = world.leading()
    if leading is None or leading.core is None:
        return None
    return leading, leading.core.state.configuration


def _ask(world: World, random: Random, leading: Node, kind: str, node: NodeId, change: MemberChange) -> bool:
    hasty = random.randint(7_002, 7_999) if random.randrange(2) else 0
    if not world.fault(kind, node, str(change)):
        return False

    def ask(core: RaftCore, now: Now) -> None:
        if attempt(world, leading.node, lambda: core.propose_configuration(change, now)):
            world.count("changes of members")
        if hasty:  # a second operator does not wait until the first change is committed
            member = core.state.configuration.members[0]
            moved = ChangeAddresses((replace_fields(member, peer=f"node-{member.node}:{hasty}"),))
            attempt(world, leading.node, lambda: core.propose_configuration(moved, now))

    leading.tell(ask)
    return True


def add(world: World, random: Random) -> None:
    """A new node joins, to stay a learner or to become a voter."""
    found = _leading(world)
    promote = random.randrange(4) > 0
    if found is None or len(world.replicas) >= NODES_MAX or len(found[1].members) >= NODES_MAX - 2:
        return
    member = world.newcomer()
    if _ask(world, random, found[0], "add", member.node, AddLearners((member,), promote)):
        world.join(member)


def promote(world: World, random: Random) -> None:
    found = _leading(world)
    if found is not None and found[1].learners:
        node = random.choice(found[1].learners)
        _ask(world, random, found[0], "promote", node, Promote((node,)))


def remove(world: World, random: Random) -> None:
    """A member leaves; every third time the leader itself."""
    found = _leading(world)
    if found is None:
        return
    leading, configuration = found
    gone = leading.node if random.randrange(3) == 0 else random.choice(configuration.members).node
    if configuration.is_voter(gone) and len(configuration.voters) <= VOTERS_MIN:
        return
    left = tuple(voter for voter in configuration.voters if voter != gone)
    if not world.atlas.may_configure(replace_fields(configuration, voters=left, outgoing=(), learners=())):
        return  # too many of the voters left would have a damaged disk
    if _ask(world, random, leading, "remove", gone, Remove((gone,))):
        _retire(world, random, gone)


def replace(world: World, random: Random) -> None:
    """A new node takes the place of a voter."""
    found = _leading(world)
    if found is None or len(world.replicas) >= NODES_MAX:
        return
    leading, configuration = found
    old = random.choice(configuration.voters)
    member = world.newcomer()
    if _ask(world, random, leading, "replace", old, Replace(old, member)):
        world.join(member)
        _retire(world, random, old)


def _retire(world: World, random: Random, node: NodeId) -> None:
    """Stop that node for good, some time after the newest leader's committed configuration no longer names it."""
    wait_us = random.randint(1, RETIRE_US)

    def look() -> None:
        found = _leading(world)
        if world.is_healed or found is None or found[0].core is None:
            return
        state = found[0].core.state
        index, configuration = state.configurations[-1]
        if index <= state.log.committed and configuration.member(node) is None and not configuration.outgoing:
            world.retire(node)

    for nth in range(1, 5):
        world.after(nth * wait_us, look)
