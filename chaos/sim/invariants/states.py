"""Hands what the nodes' state machines do to the properties of states: equal on all nodes, and right for clients."""

from __future__ import annotations

from typing import Any

from raftlog.chaos.sim.invariants.clients.consumer_groups import ConsumerGroups
from raftlog.chaos.sim.invariants.clients.exactly_once import ExactlyOnce
from raftlog.chaos.sim.invariants.clients.permitted import PermissionTwin
from raftlog.chaos.sim.invariants.known import Knowledge
from raftlog.chaos.sim.invariants.log.equal_effects import EqualEffects
from raftlog.chaos.sim.invariants.log.one_oldest import OneOldest
from raftlog.chaos.sim.invariants.log.state_machine_safety import StateMachineSafety
from raftlog.raft.types import Entry, Mark, NodeId
from raftlog.statemachine.effects import Effects


class StateWitness:
    """The properties of states of one world; raises InvariantBroken."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self._machines = StateMachineSafety()
        self.effects = EqualEffects()
        self._once = ExactlyOnce()
        self.permitted = PermissionTwin()
        self._oldest = OneOldest()
        self._groups = ConsumerGroups()

    def restored(self, node: NodeId, mark: Mark, machine: Any) -> None:
        """A node's state machine stands at `mark`: that of a snapshot, or GENESIS."""
        if mark.index == 0:
            self._machines.positions[node] = 0
            return
        self._machines.restored(self._known, node, mark.index, mark.term)
        if machine is not None:
            self.effects.restored(node, mark.index, machine.digest())
            self._oldest.stands(node, mark.index, machine.oldest)
            self._groups.restored(node, mark.index, machine)

    def applied(self, node: NodeId, entry: Entry, effects: Any, machine: Any, *, is_sound: bool = True) -> None:
        """A node applies the next entry; `effects` are what it did, `machine` the state after it.

        Of a state that a fault has damaged nothing is expected but that it is found out (`fenced`)."""
        self._machines.applied(self._known, node, entry)
        if machine is None or not is_sound:
            return
        self._oldest.stands(node, entry.index, machine.oldest)
        if self.effects.applied(node, entry.index, effects, machine.digest()) and isinstance(effects, Effects):
            self._once.applied(node, entry, effects, self.permitted.applied(node, entry, effects))
            self._groups.applied(node, entry, effects, machine)
