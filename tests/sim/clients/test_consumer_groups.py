"""The property of consumer groups sees its smallest breaches, and nothing less."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.chaos.sim.invariants.clients.consumer_groups import ConsumerGroups
from raftlog.cluster.records.entries import log_entry
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.types import GENESIS, Entry, EntryKind, Mark
from raftlog.statemachine.answers import Answer, encode_answer
from raftlog.statemachine.commands import ConsumerGroup, Operation, Result
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.effects import Effects, RequestEffect
from raftlog.statemachine.machine import StateMachine
from tests.sim.world.property_lab import sealed, sees


def group_entry(before: Mark, command: ConsumerCommand) -> Entry:
    """An entry with one command of group g."""
    data = encode_block([BlockRecord(Operation.CONSUMER, b"g", encode_consumer(command))])
    return sealed(before, 1, kind=EntryKind.COMMANDS, data=data)


def group_of() -> tuple[ConsumerGroups, StateMachine, Mark]:
    """A twin and a machine that know a group claimed at index 1, moved to 2 at index 2, and claimed again at 3."""
    property, machine, mark = ConsumerGroups(), StateMachine(), GENESIS
    for command in (
        ConsumerCommand(ConsumerAction.CLAIM),
        ConsumerCommand(ConsumerAction.COMMIT, 1, 2),
        ConsumerCommand(ConsumerAction.CLAIM),
    ):
        entry = group_entry(mark, command)
        property.applied(1, entry, machine.apply(log_entry(entry)), machine)
        mark = entry.mark
    return property, machine, mark


def moved(index: int, consumer: ConsumerGroup) -> Effects:
    """Effects of a command that left the group so."""
    answer = encode_answer(Answer(Result.APPLIED, 1, index, index, consumer=consumer))
    return Effects(index, 1, (RequestEffect(Result.APPLIED, 1, answer=answer),))


def fenced_owner() -> tuple[Callable[[], object], Callable[[], object]]:
    property, machine, mark = group_of()
    late = group_entry(mark, ConsumerCommand(ConsumerAction.COMMIT, 1, 3))
    return (
        lambda: property.applied(1, late, machine.apply(log_entry(late)), machine),
        lambda: property.applied(1, late, moved(4, ConsumerGroup(3, 1, b"", 0, 0)), machine),
    )


def position_back() -> tuple[Callable[[], object], Callable[[], object]]:
    property, machine, mark = group_of()
    back = group_entry(mark, ConsumerCommand(ConsumerAction.COMMIT, 3, 1))
    return (
        lambda: property.applied(1, back, machine.apply(log_entry(back)), machine),
        lambda: property.applied(1, back, moved(4, ConsumerGroup(1, 3, b"", 0, 0)), machine),
    )


def groups_lost() -> tuple[Callable[[], object], Callable[[], object]]:
    property, machine, _ = group_of()
    return lambda: property.restored(1, 3, machine), lambda: property.restored(1, 3, StateMachine())


CASES = {case.__name__: case for case in (fenced_owner, position_back, groups_lost)}


@pytest.mark.parametrize("name", CASES)
def test_a_breach_is_seen_and_nothing_less(name: str) -> None:
    """What the rule allows passes; the smallest breach of it raises InvariantBroken with its section."""
    sees(*CASES[name]())
