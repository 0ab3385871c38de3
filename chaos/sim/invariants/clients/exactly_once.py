"""Exactly-once sessions: a sequence is carried out at most once, and a live session is never forgotten (thesis 6.3).

A naive twin of the session table, which never forgets an answer, looks at each entry when it is applied for the first
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raftlog.chaos.sim.ground.requests import requests_of
from raftlog.chaos.sim.invariants.clients.permitted import deleted_user, reason_of
from raftlog.raft.codec.block import BLOCK_PLAIN, BLOCK_SESSION, Block, decode_records
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import Entry, NodeId
from raftlog.statemachine.answers import Reason
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.effects import Effects, RequestEffect

PROPERTY = "exactly-once sessions"
SECTION = "thesis 6.3"


@dataclass(slots=True)
class _Session:
    ttl_ms: int
    expires_ms: int
    done: dict[int, int] = field(default_factory=dict)  # sequence -> index at which it was carried out
    refused: dict[int, int] = field(default_factory=dict)  # sequence -> index at which it was refused
    voided: dict[int, int] = field(default_factory=dict)
    denied: dict[int, int] = field(default_factory=dict)  # sequence -> index at which its principal lacked a grant
    owner: str = ""  # the principal that opened it


class ExactlyOnce:
    """Every session, and the requests that were applied in it."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}

    def applied(self, node: NodeId, entry: Entry, effects: Effects, principals: Sequence[str | None] = ()) -> None:
        """An entry was applied for the first time. `principals`: whose sessions each of its requests may use; None or
        none given: everybody's. Raises InvariantBroken."""
        for number, (last, block, effect) in enumerate(requests_of(entry, effects)):
            result = Result.APPLIED if effect is None else effect.result
            principal = principals[number] if principals else None
            if block.flags & BLOCK_SESSION:
                self._in_session(node, entry, block, last, result, effect, principal)
            elif result is Result.APPLIED and not block.flags & BLOCK_PLAIN:
                self._of_sessions(entry, block, last, principal)

    def _live(self, session: int, clock_ms: int, principal: str | None) -> _Session | None:
        known = self._sessions.get(session)
        if known is None or known.expires_ms <= clock_ms or principal not in (None, known.owner):
            return None
        return known

    def _in_session(
        self,
        node: NodeId,
        entry: Entry,
        block: Block,
        last: int,
        result: Result,
        effect: RequestEffect | None,
        principal: str | None,
    ) -> None:
        what = f"session {block.session}, sequence {block.sequence} at index {last}: {result.name}"
        session = self._live(block.session, entry.clock_ms, principal)
        if (session is None) != (result is Result.EXPIRED):
            state = "is not live" if session is None else f"lives until {session.expires_ms}"
            raise InvariantBroken(node, PROPERTY, SECTION, f"{what}, but it {state} at clock {entry.clock_ms}")
        if session is None:
            return
        session.expires_ms = entry.clock_ms + session.ttl_ms
        sequence = block.sequence
        if sequence == 0:
            self._void(node, block, last, result, session)
        elif result in (Result.APPLIED, Result.COMPARE_FAILED):
            earlier = (session.done, session.voided, session.denied)
            before = next((each[sequence] for each in earlier if sequence in each), None)
            if before is not None:
                raise InvariantBroken(node, PROPERTY, SECTION, f"{what}, and was decided at {before} before")
            session.done[sequence] = last
        elif result is Result.REFUSED:
            if (reason := reason_of(effect)) is Reason.PAYLOAD_DIFFERS:
                return  # another request under that sequence: the answer to the first one stays
            if reason is Reason.NOT_PERMITTED:
                if sequence in session.done:
                    evidence = f"{what}, not permitted, although it was applied at {session.done[sequence]}"
                    raise InvariantBroken(node, PROPERTY, SECTION, evidence)
                session.denied[sequence] = last
            session.refused[sequence] = last
        elif result is Result.REPEATED:
            first = session.done.get(sequence) or session.refused.get(sequence)
            if first is None or (effect is not None and effect.first_answer_index not in (first, 0)):
                raise InvariantBroken(node, PROPERTY, SECTION, f"{what}, but it was first decided at {first}: {effect}")

    def _void(self, node: NodeId, block: Block, last: int, result: Result, session: _Session) -> None:
        for record in decode_records(block):
            if record.operation == Operation.VOID and record.argument is not None and result is Result.APPLIED:
                if record.argument in session.done:
                    evidence = f"sequence {record.argument} of session {block.session} was applied, and void at {last}"
                    raise InvariantBroken(node, PROPERTY, SECTION, evidence)
                session.voided[record.argument] = last

    def _of_sessions(self, entry: Entry, block: Block, last: int, principal: str | None) -> None:
        if block.count != 1:
            return
        (record,) = decode_records(block)
        if record.operation == Operation.SESSION_OPEN and record.argument is not None:
            self._sessions[last] = _Session(record.argument, entry.clock_ms + record.argument, owner=principal or "")
        elif record.operation == Operation.SESSION_KEEPALIVE and record.argument in self._sessions:
            session = self._sessions[record.argument]
            session.expires_ms = entry.clock_ms + session.ttl_ms
        elif record.operation == Operation.SESSION_CLOSE and record.argument is not None:
            self._sessions.pop(record.argument, None)
        elif record.operation == Operation.ACCESS and (user := deleted_user(record)) is not None:
            for number in [number for number, each in self._sessions.items() if each.owner == user]:
                del self._sessions[number]
