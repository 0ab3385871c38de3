"""Judges the answers to a world's clients, against each other and against the applied log.

Three views of one recording: the search for a linear order per key (`raftlog.chaos.judge.linearizable`, the checker of
the chaos harness), the replay of every answer at its index, and every appended record exactly once, at the
index that its client got. Stale reads are in the replay only: they must show the state of their index, and that index
is at least the one that the client asked for.
"""

from __future__ import annotations

from typing import Any, Final

from raftlog.chaos.judge import checks
from raftlog.chaos.judge.history import History, Operation
from raftlog.chaos.judge.linearizable import Limits, check
from raftlog.chaos.judge.models import MODELS
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.sim.clients.workload import APPEND, CAS, CONSUMER, KEYS, PREFIX, READ, STALE, WRITE
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.raft.codec.block import BLOCK_PLAIN, decode_records
from raftlog.raft.types import Entry
from raftlog.statemachine.answers import decode_answer
from raftlog.statemachine.commands import Operation as Number, Result
from raftlog.statemachine.effects import Effects

LIMITS: Final = Limits(steps=2_000_000, states=300_000)
"""A world's history takes some thousands of steps; one in which this is not enough is counted as undecided."""

_MARK: Final = PREFIX.encode()
_KV: Final = (READ, WRITE, CAS)


class Oracle:
    """The recording, and the applied entries: each entry once, when a node applied it for the first time."""

    def __init__(self) -> None:
        self.recording = History()
        self._applied = 0
        self._changes: dict[Any, list[tuple[int, Any]]] = {}
        self._places: dict[str, list[int]] = {}
        self._groups: dict[int, list[int] | None] = {}  # index of a consumer command -> generation and position it left

    def applied(self, entry: Entry, effects: Effects) -> None:
        """A node applied this entry; that all of them do the same is another property."""
        if entry.index <= self._applied:
            return
        self._applied = entry.index
        for index, block, effect in requests_of(entry, effects):
            if effect is not None and effect.result is not Result.APPLIED:
                continue
            if block.flags & BLOCK_PLAIN:
                for place, record in enumerate(decode_records(block), start=index - block.count + 1):
                    if record.operation == Number.APPEND and (record.value or b"").startswith(_MARK):
                        name = (record.value or b"").partition(b" ")[0].decode()
                        self._places.setdefault(name, []).append(place)
            elif effect is not None:
                if effect.answer and (group := decode_answer(effect.answer).consumer) is not None:
                    self._groups[index] = [group.generation, group.next]
                for change in effect.changes:
                    value = change.value.decode() if change.value is not None else None
                    self._changes.setdefault(change.key.decode(), []).append((index, value))

    def history(self, functions: tuple[str, ...] = _KV) -> History:
        return History(event for event in self.recording.events if event.f in functions)

    def check(self, machine: Any) -> Verdict:
        """Judges everything; `machine` is a node's in the end, from which every key is read once more (or None).

        Raises Failure. The verdict is unknown where the search ran into its limits.
        """
        if machine is not None:
            for key in KEYS:
                version = machine.get(key.encode())
                self.recording.invoke("the end", READ, key)
                value = version.value.decode() if version is not None else None
                self.recording.complete("the end", "ok", value, index=machine.applied_index)
        everything = self.recording.operations()
        kv = [each for each in everything if each.f in _KV]
        appends = [each for each in everything if each.f == APPEND]
        self._require("appends are exactly once, at their index", checks.exactly_once(appends, self._places))
        answered = [each for each in everything if each.f in (*_KV, STALE)]
        self._require("answers are those of their index", checks.replay(answered, self._changes))
        groups = [each for each in everything if each.f == CONSUMER and each.outcome == "ok"]
        lies = [f"{each}: {self._groups.get(each.index or 0)}" for each in groups if self._lies(each)]
        self._require("owners of groups get the result of their command", lies)
        order = checks.in_real_time(everything, writes=(WRITE, CAS, APPEND, CONSUMER), reads=(READ,))
        self._require("indexes follow real time", order)
        report = check(kv, MODELS["cas-register"], limits=LIMITS)
        if report.verdict is Verdict.INVALID:
            self._require("client histories are linearizable", list(report.problems))
        return report.verdict

    def _lies(self, operation: Operation) -> bool:
        """Whether the owner of a group got another generation or position than its command left."""
        left = self._groups.get(operation.index or 0)
        return bool(left != operation.output)

    def _require(self, what: str, problems: list[str]) -> None:
        if problems:
            raise Failure(what, "; ".join(problems[:3]))
