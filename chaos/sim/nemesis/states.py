"""A state that goes wrong in memory: one key's value differs on a minority of the replicas, and digest points show it.

The key is written once, when the world begins, and no client reads it. So every answer stays right, and the other
properties about clients hold in these worlds too. The log and the snapshots of before are intact.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from raftlog.chaos.sim.nemesis.targets import anyone
from raftlog.chaos.sim.world.world import World
from raftlog.raft.codec.block import BlockRecord
from raftlog.statemachine.commands import Operation
from raftlog.statemachine.digest import LOW, state_row_hash
from raftlog.statemachine.store import RECORD, RECORD_SIZE

KEPT: Final = b"\0kept"
AGAIN_US: Final = 500_000
PATIENCE_US: Final = 2_000_000


def begin(world: World) -> None:
    """Writes the key, as soon as a leader takes it. A write whose answer is late may be applied after the one that
    follows it, and after the state went wrong: so each writes only where the key is not there."""

    def settled(answer: object) -> None:
        if hasattr(answer, "code"):
            world.after(AGAIN_US, put)

    def put() -> None:
        replica = world.leading()
        if replica is None:
            world.after(AGAIN_US, put)
        else:
            replica.ask([BlockRecord(Operation.PUT, KEPT, b"as it was", argument=0)], settled, for_us=PATIENCE_US)

    world.after(AGAIN_US, put)


def corrupt(world: World, random: Random) -> None:
    """The value differs on one replica from now on. The atlas is asked: a majority stays right."""
    node = anyone(world, random)
    replica = world.replicas[node]
    if replica.core is None or replica.is_retired or replica.corrupted or replica.state.snapshots.is_saving:
        return
    if KEPT not in replica.machine._store.head or not world.atlas.may_hit(node, "state"):
        return
    if world.fault("corrupt state", node):
        # No two replicas have the same wrong value, not even one after the other: the reports of a process outlive it.
        # A majority with one and the same wrong state would be a bug of the machine, which no digest can see.
        flip(replica.machine, KEPT, b"as it was not, on node %d" % node)
        replica.corrupted = replica.mark.index
        world.atlas.unsound[node] = "its state in memory is wrong"


def flip(machine: Any, key: bytes, value: bytes) -> None:
    """Gives the key that value there, behind the back of the log; the digest is that of the state, as ever."""
    store = machine._store
    create, mod, version, index, old = RECORD.unpack_from(store.head[key])
    new = state_row_hash(key, value, create, mod, version)
    store.head[key] = RECORD.pack(create, mod, version, index, new) + value
    assert len(store.head[key]) == RECORD_SIZE + len(value)
    store.xor ^= old ^ new
    store.sum_low += (new & LOW) - (old & LOW)
    store.sum_high += (new >> 32) - (old >> 32)
    getattr(machine, "inner", machine)._digest = store.digest()
