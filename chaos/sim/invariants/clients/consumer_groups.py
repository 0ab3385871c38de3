"""Consumer groups: a fenced owner moves nothing, and no position goes back, or beyond the log, unasked.

A naive twin of the table looks at each entry when it is applied for the first time, and knows what the table was after
any of them: a state machine that comes from a snapshot must have just that.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.raft.codec.block import BLOCK_PLAIN, decode_records
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import Entry, NodeId
from raftlog.statemachine.answers import decode_answer
from raftlog.statemachine.commands import ConsumerGroup, Operation, Result
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, decode_consumer
from raftlog.statemachine.effects import Effects, RequestEffect

PROPERTY = "consumer groups"
SECTION = "promises.md: consumer groups are fenced"

Rows = dict[bytes, ConsumerGroup]


class ConsumerGroups:
    """Every group, now and at the end of every entry that changed one."""

    def __init__(self) -> None:
        self._groups: Rows = {}
        self._ends: list[int] = [0]
        self._rows: list[Rows] = [{}]

    def applied(self, node: NodeId, entry: Entry, effects: Effects, machine: Any) -> None:
        """An entry was applied for the first time. Raises InvariantBroken."""
        is_touched = False
        for index, block, effect in requests_of(entry, effects):
            if effect is None or block.flags & BLOCK_PLAIN or block.count != 1:
                continue
            (record,) = decode_records(block)
            if record.operation == Operation.CONSUMER and effect.result in (Result.APPLIED, Result.COMPARE_FAILED):
                is_touched = True
                self._check(node, index, record.key or b"", decode_consumer(record.value or b""), effect)
        if is_touched:
            self._ends.append(entry.index)
            self._rows.append(dict(self._groups))
            self._same(node, entry.index, self._groups, machine)

    def restored(self, node: NodeId, index: int, machine: Any) -> None:
        """A node's state comes from a snapshot of that index. Raises InvariantBroken."""
        self._same(node, index, self._rows[bisect_right(self._ends, index) - 1], machine)

    def _check(self, node: NodeId, index: int, name: bytes, command: ConsumerCommand, effect: RequestEffect) -> None:
        before, after = self._groups.get(name), decode_answer(effect.answer).consumer
        what = f"{ConsumerAction(command.action).name} of {name!r} at index {index} ({command}): {before} to {after}"
        is_fenced = before is not None and command.generation not in (0, before.generation)
        if is_fenced != (effect.result is Result.COMPARE_FAILED):
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what}, but it was {effect.result.name}")
        if is_fenced:
            return
        if command.action == ConsumerAction.DELETE:
            self._groups.pop(name, None)
            return
        lowest = {
            ConsumerAction.CLAIM: before.next if before else command.next or 1,
            ConsumerAction.COMMIT: before.next if before else index,
            ConsumerAction.RESET: command.next,
        }[ConsumerAction(command.action)]
        if after is None or not lowest <= after.next <= index:
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what}: it must be from {lowest} to {index}")
        wanted = command.generation if before and command.generation else index
        if after.generation != wanted:
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what}: its generation must be {wanted}")
        if command.action != ConsumerAction.CLAIM and after.next != command.next:
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what}: it must be {command.next}")
        self._groups[name] = after

    def _same(self, node: NodeId, index: int, rows: Rows, machine: Any) -> None:
        found = dict(machine.consumers.rows())
        if found != rows:
            raise InvariantBroken(node, PROPERTY, SECTION, f"the groups after {index} are {found}, not {rows}")
