"""Applies each request of a session exactly once: keeps sessions, their windows of sequences, and kept answers.

The state machine calls it. The id of a session is the index of its registration. So an id is never used twice, and a
late request never makes an expired session again. A session keeps a window. Everything below its client's settled mark
is finished. Above it are the sequences that were applied, in any order, each with its answer and a hash of its bytes.
It expires by the cluster clock of the entries alone. Thesis section 6.3; docs/promises.md: sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from raftlog.statemachine.answers import Answer, Reason, decode_answer
from raftlog.statemachine.commands import Limits, RequestBlock, Result, share_of

_HASH: Final = Struct("<Q")
_ROW: Final = Struct("<QQQQQQ")  # of a session in `SessionTable.digest`
VOID: Final = b""
"""The kept entry of a sequence that was made void; every other has its payload hash and its answer."""


class ReceiptKind(StrEnum):
    """What became of a sequence."""

    APPLIED = "applied"  # decided: its answer says how
    NOT_SEEN = "not_seen"  # it may still come, unless it is made void
    VOIDED = "voided"
    SETTLED = "settled"  # the client said that it has the answer, which is no longer kept
    EXPIRED = "expired"  # the session is not known (any more)


class ReceiptState(NamedTuple):
    """The receipt of a sequence; `answer` only where it was applied."""

    state: ReceiptKind
    answer: Answer | None = None


class Verdict(NamedTuple):
    """Why a request is not carried out, and for a repeated one the answer that it got the first time."""

    result: Result
    reason: Reason | None = None
    answer: bytes = b""


class Session:
    """One session. `kept` maps a sequence above `low` to payload hash and answer (`VOID` where it was made void)."""

    __slots__ = ("answer_bytes", "expires_ms", "id", "kept", "low", "owner", "ttl_ms")

    def __init__(
        self, session: int, ttl_ms: int, expires_ms: int, low: int, kept: dict[int, bytes], owner: str = ""
    ) -> None:
        self.id = session
        self.owner = owner  # the principal that opened it; "": there was no access control
        self.ttl_ms = ttl_ms
        self.expires_ms = expires_ms  # of the cluster clock: at this time it is gone
        self.low = low  # everything up to it is settled
        self.kept = kept
        self.answer_bytes = sum(map(len, kept.values()))

    def copy(self) -> Session:
        """As it is now."""
        return Session(self.id, self.ttl_ms, self.expires_ms, self.low, self.kept.copy(), self.owner)


class OwnerShare:
    """The number of one owner's sessions, and the size of their kept answers."""

    __slots__ = ("answer_bytes", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.answer_bytes = 0


_NOTHING: Final = OwnerShare()


class SessionTable:
    """All live sessions. It never evicts one: a full table refuses new ones."""

    __slots__ = ("_held", "_sessions", "_walks", "answer_bytes", "due")

    def __init__(self) -> None:
        self.answer_bytes = 0  # of all sessions
        self._held: dict[str, OwnerShare] = {}  # by owner, of those that have a session; only `_count` changes it
        self._sessions: dict[int, Session] = {}  # in order of their ids, which only grow
        # (a time at or before which it does not expire, session): put right when it comes up
        self.due: list[tuple[int, int]] = []
        self._walks: list[SessionWalk] = []

    def __len__(self) -> int:
        return len(self._sessions)

    # -- time -------------------------------------------------------------------------------------------------

    def next_expiry_ms(self) -> int | None:
        """The clock at which the next session expires if nothing is heard of it; None without sessions."""
        due = self.due
        while due:
            time_ms, number = due[0]
            session = self._sessions.get(number)
            if session is None:
                heappop(due)
            elif session.expires_ms > time_ms:
                heapreplace(due, (session.expires_ms, number))
            else:
                return time_ms
        return None

    def expire(self, clock_ms: int) -> None:
        """Drops every session whose time is up: in time that grows with those, not with the table."""
        due = self.due
        while due and due[0][0] <= clock_ms:
            number = heappop(due)[1]
            session = self._sessions.get(number)
            if session is None:
                continue
            if session.expires_ms > clock_ms:
                heappush(due, (session.expires_ms, number))
            else:
                self._remove(session)

    # -- the life of a session --------------------------------------------------------------------------------

    # An `owner` of None may use every session. To any other, a session of somebody else is one that is not known.
    # One owner may have one of `parts` of each limit: `raftlog.statemachine.commands.SHARE_PARTS`.

    def open(
        self, session: int, ttl_ms: int | None, clock_ms: int, limits: Limits, owner: str = "", parts: int = 1
    ) -> Reason | None:
        """Registers a session under the index of its registration, or says why not."""
        if ttl_ms is None or not limits.session_ttl_min_ms <= ttl_ms <= limits.session_ttl_max_ms:
            return Reason.BAD_TTL
        if len(self._sessions) >= limits.sessions_max:
            return Reason.SESSIONS_FULL
        if self._held.get(owner, _NOTHING).sessions >= share_of(limits.sessions_max, parts):
            return Reason.SESSIONS_SHARE
        self._add(Session(session, ttl_ms, clock_ms + ttl_ms, 0, {}, owner))
        return None

    def keep_alive(self, session: int, clock_ms: int, owner: str | None = None) -> bool:
        """Restarts its time; False if it is unknown."""
        return self._touch(session, clock_ms, owner) is not None

    def close_all(self, owner: str) -> None:
        """Ends all sessions of the owner at once."""
        for session in [session.id for session in self._sessions.values() if session.owner == owner]:
            self.close(session)

    def close(self, session: int, owner: str | None = None) -> bool:
        """Ends it at once; False where it is not known."""
        known = self._known(session, owner)
        if known is None:
            return False
        self._remove(known)
        if len(self.due) > 2 * len(self._sessions) + 16:  # closed ones leave their row behind
            self.due = [(live.expires_ms, live.id) for live in self._sessions.values()]
            heapify(self.due)
        return True

    def load(self, session: Session) -> None:
        """Takes back a session from a snapshot; they come in the order of their ids. Raises ValueError."""
        if self._sessions and session.id <= next(reversed(self._sessions)):
            raise ValueError(f"session {session.id} comes out of order")
        if any(sequence <= session.low for sequence in session.kept):
            raise ValueError(f"session {session.id} keeps sequences that are settled")
        self._add(session)

    def _add(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._count(session.owner, 1, session.answer_bytes)
        heappush(self.due, (session.expires_ms, session.id))

    def _remove(self, session: Session) -> None:
        self._before_change(session)
        del self._sessions[session.id]
        self._count(session.owner, -1, -session.answer_bytes)

    def _count(self, owner: str, sessions: int, answer_bytes: int) -> None:
        """The owner has so many more sessions, and bytes of kept answers."""
        held = self._held.get(owner)
        if held is None:
            held = self._held[owner] = OwnerShare()
        held.sessions += sessions
        held.answer_bytes += answer_bytes
        self.answer_bytes += answer_bytes
        if not held.sessions:
            del self._held[owner]

    def _known(self, session: int, owner: str | None) -> Session | None:
        known = self._sessions.get(session)
        return known if known is None or owner is None or known.owner == owner else None

    def _touch(self, session: int, clock_ms: int, owner: str | None) -> Session | None:
        known = self._known(session, owner)
        if known is not None:
            if self._walks:
                self._before_change(known)
            known.expires_ms = clock_ms + known.ttl_ms
        return known

    # -- sequences --------------------------------------------------------------------------------------------

    def admit(
        self, request: RequestBlock, clock_ms: int, limits: Limits, owner: str | None = None, parts: int = 1
    ) -> Session | Verdict:
        """The request's session if the request must be carried out (then `keep` its answer), else the answer
        instead."""
        session = self._touch(request.session, clock_ms, owner)
        if session is None:
            return Verdict(Result.EXPIRED)
        sequence = request.sequence
        if sequence < 1 or request.settled > sequence:
            return Verdict(Result.REFUSED, Reason.MALFORMED)
        self._settle(session, request.settled)
        if sequence <= session.low:
            return Verdict(Result.REFUSED, Reason.SEQUENCE_SETTLED)
        kept = session.kept.get(sequence)
        if kept is None:
            reason = self._refusal(session, limits, parts)
            return Verdict(Result.REFUSED, reason) if reason else session
        if kept == VOID:
            return Verdict(Result.VOIDED)
        if _HASH.unpack_from(kept)[0] != request.payload_hash:
            return Verdict(Result.REFUSED, Reason.PAYLOAD_DIFFERS)
        return Verdict(Result.REPEATED, None, kept[_HASH.size :])

    def keep(self, session: Session, sequence: int, payload_hash: int, answer: bytes) -> None:
        """Keeps the answer to an admitted request; not if the request removed its own session, with its user."""
        if self._sessions.get(session.id) is session:
            self._keep(session, sequence, _HASH.pack(payload_hash) + answer)

    def void(
        self,
        request: RequestBlock,
        sequence: int | None,
        clock_ms: int,
        limits: Limits,
        owner: str | None = None,
        parts: int = 1,
    ) -> Verdict:
        """Makes a sequence of the request's session void, if it was not applied: it never will be."""
        session = self._touch(request.session, clock_ms, owner)
        if session is None:
            return Verdict(Result.EXPIRED)
        if sequence is None or sequence < 1 or request.sequence:
            return Verdict(Result.REFUSED, Reason.MALFORMED)
        self._settle(session, request.settled)
        if sequence <= session.low:
            return Verdict(Result.REFUSED, Reason.SEQUENCE_SETTLED)
        kept = session.kept.get(sequence)
        if kept is None:
            if reason := self._refusal(session, limits, parts):
                return Verdict(Result.REFUSED, reason)
            self._keep(session, sequence, VOID)
        elif kept != VOID:
            return Verdict(Result.REFUSED, Reason.SEQUENCE_APPLIED)
        return Verdict(Result.APPLIED)

    def receipt(self, session: int, sequence: int, owner: str | None = None) -> ReceiptState:
        """What became of a sequence."""
        known = self._known(session, owner)
        if known is None:
            return ReceiptState(ReceiptKind.EXPIRED)
        if sequence <= known.low:
            return ReceiptState(ReceiptKind.SETTLED)
        kept = known.kept.get(sequence)
        if kept is None:
            return ReceiptState(ReceiptKind.NOT_SEEN)
        if kept == VOID:
            return ReceiptState(ReceiptKind.VOIDED)
        return ReceiptState(ReceiptKind.APPLIED, decode_answer(kept[_HASH.size :]))

    def _refusal(self, session: Session, limits: Limits, parts: int) -> Reason | None:
        """Why the session can keep no more answers."""
        if len(session.kept) >= limits.session_window_max:
            return Reason.WINDOW_FULL
        if session.answer_bytes >= limits.answer_bytes_max or self.answer_bytes >= limits.session_answers_bytes_max:
            return Reason.ANSWERS_FULL
        if self._held[session.owner].answer_bytes >= share_of(limits.session_answers_bytes_max, parts):
            return Reason.ANSWERS_SHARE
        return None

    def _keep(self, session: Session, sequence: int, kept: bytes) -> None:
        session.kept[sequence] = kept
        session.answer_bytes += len(kept)
        self._count(session.owner, 0, len(kept))

    def _settle(self, session: Session, settled: int) -> None:
        """The client has the answers of all sequences below `settled`."""
        low = settled - 1
        if low <= session.low:
            return
        kept = session.kept
        if low - session.low <= len(kept):
            done = [sequence for sequence in range(session.low + 1, low + 1) if sequence in kept]
        else:
            done = [sequence for sequence in kept if sequence <= low]
        size = sum([len(kept.pop(sequence)) for sequence in done])
        session.answer_bytes -= size
        self._count(session.owner, 0, -size)
        session.low = low

    def digest(self) -> int:
        """A hash of the table from a few numbers of each session, for digest points.

        It shows a request that was admitted here and not elsewhere, and a settled mark, an expiry or an owner that
        differs. It covers the kept answers by number and size.
        """
        rows = [
            _ROW.pack(each.id, each.ttl_ms, each.expires_ms, each.low, len(each.kept), each.answer_bytes)
            + each.owner.encode()
            for each in self._sessions.values()
        ]
        return xxh64_intdigest(b"".join(rows))

    # -- snapshots --------------------------------------------------------------------------------------------

    def start_walk(self) -> SessionWalk:
        """A walk of all sessions as they are now; `end_walk` it, whether it was finished or not."""
        walk = SessionWalk(list(self._sessions))
        self._walks.append(walk)
        return walk

    def walked(self, walk: SessionWalk) -> Iterator[Session]:
        """The sessions in order of their ids, each as it was at the start: use it before the table changes again."""
        for number in walk.sessions:
            walk.reached = number
            before = walk.before.pop(number, None)
            yield self._sessions[number] if before is None else before

    def end_walk(self, walk: SessionWalk) -> None:
        """Nothing is copied for it any more."""
        self._walks.remove(walk)

    def _before_change(self, session: Session) -> None:
        for walk in self._walks:
            if walk.reached < session.id <= walk.newest and session.id not in walk.before:
                walk.before[session.id] = session.copy()


class SessionWalk:
    """A walk under way: sessions beyond `reached` that change are copied first."""

    __slots__ = ("before", "newest", "reached", "sessions")

    def __init__(self, sessions: list[int]) -> None:
        self.sessions = sessions
        self.newest = sessions[-1] if sessions else 0
        self.reached = 0
        self.before: dict[int, Session] = {}
