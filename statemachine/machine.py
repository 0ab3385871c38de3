"""The state machine: committed entries in, effects out; queries, digests and snapshots beside.

`apply` is a pure function of the state and the entry. It knows no clock but the entry's and refuses to go on where it
cannot be sure: an entry out of order, an operation, a transaction or a parameter that this code does not know. The
node stops then; it never skips. An entry is checked for what is not known before anything of it is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from statemachine.answers import Answer, Reason, decode_answer, encode_answer, encode_brief
from statemachine.commands import KEY_BYTES_MAX, Command, Limits, LogEntry, Operation, Request, Result, Version
from statemachine.digest import DigestHistory, SetDigest
from statemachine.effects import Change, Effects, RequestEffect
from statemachine.sessions import ReceiptState, SessionTable, Verdict
from statemachine.snapshot import Restorer, SnapshotWalk, State
from statemachine.store import Store
from statemachine.txn import MalformedTxn, check_known, decode_txn, run_txn

_KNOWN: Final = frozenset(int(operation) for operation in Operation)
_OF_SESSIONS: Final = frozenset(
    (Operation.SESSION_OPEN, Operation.SESSION_KEEPALIVE, Operation.SESSION_CLOSE, Operation.VOID)
)
_PUT: Final = int(Operation.PUT)
_TXN: Final = int(Operation.TXN)
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor


class OutOfOrder(ValueError):
    """An entry that does not follow the one applied last: neither a gap nor a repetition is ever passed over."""


class BadEntry(ValueError):
    """An entry whose requests are not what its header says."""


class UnknownOperation(ValueError):
    """An operation that this code does not know: upgrade before going on."""


class HalfApplied(RuntimeError):
    """An apply was broken off by an error: the state is that of no entry, and must be built anew."""


class StateMachine:
    """The state after the entries up to `applied_index`."""

    __slots__ = (
        "_digest", "_digests", "_sessions", "_store", "_under_way", "applied_index", "applied_term", "clock_ms",
        "limits", "time_ms",
    )  # fmt: skip

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.applied_index = 0
        self.applied_term = 0
        self.time_ms = 0  # of the entry applied last
        self.clock_ms = 0
        self._store = Store()
        self._sessions = SessionTable()
        self._digests = DigestHistory()
        self._digest = self._store.digest()
        self._under_way = 0  # the entry that is being applied
        self._digests.remember(0, self._digest, 1)

    # -- apply ------------------------------------------------------------------------------------------------

    def apply(self, entry: LogEntry) -> Effects:
        """Carries out the entry's requests and says what they did.

        Raises OutOfOrder, BadEntry, UnknownOperation, UnknownTxn, BadParameter or HalfApplied: the node must stop.
        """
        index, requests = entry.index, entry.requests
        is_plain = self._check(entry)
        limits = self.limits
        if entry.parameters is not None:
            limits = limits.with_parameters(entry.parameters)
        store = self._store
        self._under_way = index
        self.clock_ms = entry.clock_ms
        self._sessions.expire(entry.clock_ms)
        if limits is not self.limits:
            self.limits = limits
            store.trim(limits)
        effects: tuple[RequestEffect, ...] = ()
        if not is_plain:
            effects = self._requests(requests, index - entry.count)
            is_plain = not effects
            self._digest = store.digest()
        if not store.is_swept:
            store.sweep()
        self._digests.remember(index, self._digest, limits.digests_kept)
        self.applied_index, self.applied_term, self.time_ms = index, entry.term, entry.time_ms
        self._under_way = 0
        return Effects(index, store.revision, effects, is_plain)

    def _check(self, entry: LogEntry) -> bool:
        """Raises what `apply` says before anything is changed; whether every request is plain and without session."""
        index, count = entry.index, entry.count
        if index - count != self.applied_index or count < 1:
            raise OutOfOrder(f"entry {index} of {count} records cannot be applied after index {self.applied_index}")
        if entry.clock_ms < self.clock_ms or entry.term < self.applied_term:
            raise OutOfOrder(
                f"entry {index} has clock {entry.clock_ms} and term {entry.term}, "
                f"the one before {self.clock_ms} and {self.applied_term}"
            )
        if self._under_way:
            raise HalfApplied(f"the apply of entry {self._under_way} was broken off: restart from snapshot and log")
        total, is_plain = 0, True
        for request in entry.requests:
            records, commands = request[0], request[1]
            total += records
            if commands:
                is_plain = False
                if len(commands) != records:
                    raise BadEntry(f"entry {index}: a request of {records} records has {len(commands)} commands")
                _check_known(commands, index)
            elif request.session:
                is_plain = False
        if total != count and entry.requests:
            raise BadEntry(f"entry {index} names {count} records, its requests hold {total}")
        return is_plain

    def _requests(self, requests: tuple[Request, ...], last: int) -> tuple[RequestEffect, ...]:
        """What each did; () where all are appends applied for the first time. `last`: the index before the first."""
        effects: list[RequestEffect] = []
        is_plain = True
        for request in requests:
            last += request[0]
            effect = self._request(request, last) if request.session or request[1] else None
            if effect is None:
                effect = _new(RequestEffect, (Result.APPLIED, self._store.revision, False, 0, (), b""))
            else:
                is_plain = False
            effects.append(effect)
        return () if is_plain else tuple(effects)

    def _request(self, request: Request, last: int) -> RequestEffect | None:
        """What it did; None for appends applied for the first time."""
        first = last - request[0] + 1
        commands = request[1]
        if len(commands) == 1 and commands[0].operation in _OF_SESSIONS:
            return self._verdict(self._session_request(request, commands[0], last), first, last)
        if not request.session:
            return self._execute(commands, first, last)
        admitted = self._sessions.admit(request, self.clock_ms, self.limits)
        if isinstance(admitted, Verdict):
            return self._verdict(admitted, first, last)
        effect = self._execute(commands, first, last)
        answer = encode_brief(Result.APPLIED, self._store.revision, first, last) if effect is None else effect.answer
        self._sessions.keep(admitted, request.sequence, request.payload_hash, answer)
        return effect

    def _verdict(self, verdict: Verdict, first: int, last: int) -> RequestEffect:
        """The effect of a request that the session table alone decided."""
        result, reason, answer = verdict
        if result is Result.REPEATED:
            original = decode_answer(answer)
            return RequestEffect(result, original.revision, original.succeeded, original.last, (), answer)
        revision = self._store.revision
        answer = encode_answer(Answer(result, revision, first, last, reason=reason))
        return RequestEffect(result, revision, answer=answer)

    def _session_request(self, request: Request, command: Command, index: int) -> Verdict:
        sessions, argument = self._sessions, command.argument
        if command.operation == Operation.VOID:
            return sessions.void(request, argument, self.clock_ms, self.limits)
        if request.session or (argument is None and command.operation != Operation.SESSION_OPEN):
            return Verdict(Result.REFUSED, Reason.MALFORMED)
        if command.operation == Operation.SESSION_OPEN:
            reason = sessions.open(index, argument, self.clock_ms, self.limits)
            return Verdict(Result.REFUSED if reason else Result.APPLIED, reason)
        assert argument is not None, "checked above"
        if command.operation == Operation.SESSION_KEEPALIVE:
            is_known = sessions.keep_alive(argument, self.clock_ms)
        else:
            is_known = sessions.close(argument)
        return Verdict(Result.APPLIED if is_known else Result.EXPIRED)

    # -- the operations ---------------------------------------------------------------------------------------

    def _execute(self, commands: tuple[Command, ...], first: int, last: int) -> RequestEffect | None:
        """Carries out a request; None for appends, which change nothing."""
        if len(commands) != 1:
            if all(command.operation == Operation.APPEND for command in commands):
                return None
            return self._refused(Reason.MALFORMED, first, last)
        command = commands[0]
        operation, key, value, _, argument = command
        if operation == Operation.APPEND:
            return None
        store = self._store
        if operation == _PUT or operation == Operation.DELETE:
            if (
                key is None or not 1 <= len(key) <= KEY_BYTES_MAX or (argument is not None and argument < 0)
                or (value is None) == (operation == _PUT)
            ):  # fmt: skip
                return self._refused(Reason.MALFORMED, first, last)
            if argument is not None:
                mod = store.mod(key)
                if mod != argument:
                    revision = store.revision
                    answer = encode_brief(Result.COMPARE_FAILED, revision, first, last, 0, mod)
                    return RequestEffect(Result.COMPARE_FAILED, revision, answer=answer)
            if value is not None:
                change: Change | None = store.put(key, value, last)
            else:
                change = store.delete(key, last)
            store.commit(self.limits)
            revision = store.revision
            deleted = 1 if value is None and change is not None else 0
            answer = encode_brief(Result.APPLIED, revision, first, last, deleted)
            changes = () if change is None else (change,)
            return _new(RequestEffect, (Result.APPLIED, revision, False, 0, changes, answer))
        if operation == Operation.DELETE_RANGE:
            return self._delete_range(key, value, first, last)
        if operation == _TXN:
            return self._txn(value, first, last)
        assert operation == Operation.COMPACT, f"operation {operation} is known and not carried out"
        return self._compact(argument, first, last)

    def _refused(self, reason: Reason, first: int, last: int) -> RequestEffect:
        return self._verdict(Verdict(Result.REFUSED, reason), first, last)

    def _delete_range(self, start: bytes | None, end: bytes | None, first: int, last: int) -> RequestEffect:
        store = self._store
        if start is None or end is None:
            return self._refused(Reason.MALFORMED, first, last)
        if store.count(start, end) > self.limits.request_keys_max:
            return self._refused(Reason.TOO_MANY_KEYS, first, last)
        changes = [store.delete(key, last, True) for key in list(store.keys(start, end))]
        store.commit(self.limits)
        revision = store.revision
        answer = encode_brief(Result.APPLIED, revision, first, last, len(changes))
        return RequestEffect(
            Result.APPLIED, revision, changes=tuple(change for change in changes if change), answer=answer
        )

    def _txn(self, value: bytes | None, first: int, last: int) -> RequestEffect:
        try:
            txn = decode_txn(value or b"")
        except MalformedTxn:
            return self._refused(Reason.MALFORMED, first, last)
        done = run_txn(self._store, txn, last, self.limits)
        if isinstance(done, Reason):
            return self._refused(done, first, last)
        revision = self._store.revision
        answer = encode_answer(
            Answer(Result.APPLIED, revision, first, last, succeeded=done.succeeded, responses=done.responses)
        )
        return RequestEffect(Result.APPLIED, revision, done.succeeded, 0, done.changes, answer)

    def _compact(self, revision: int | None, first: int, last: int) -> RequestEffect:
        """What is below may go; that it is gone already is no error, so that a repetition is none either."""
        store = self._store
        if revision is None or revision < 1:
            return self._refused(Reason.MALFORMED, first, last)
        if revision > store.revision:
            return self._refused(Reason.FUTURE_REVISION, first, last)
        store.compact(revision)
        answer = encode_brief(Result.APPLIED, store.revision, first, last)
        return RequestEffect(Result.APPLIED, store.revision, answer=answer)

    # -- queries ----------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The store's revision: 1 when empty, one more per request that changed something."""
        return self._store.revision

    @property
    def compacted_revision(self) -> int:
        """The oldest revision that can be read."""
        return self._store.compacted

    @property
    def key_count(self) -> int:
        """Live keys."""
        return len(self._store)

    def get(self, key: bytes, at: int | None = None) -> Version | None:
        """The key's version, as of revision `at` where given. Raises Compacted or FutureRevision."""
        return self._store.get(key, at)

    def range(
        self, start: bytes, end: bytes | None, limit: int, at: int | None = None, *,
        keys_only: bool = False, after: bytes | None = None, bytes_max: int | None = None,
    ) -> tuple[list[tuple[bytes, Version]], int, bool]:  # fmt: skip
        """Keys of [start, end) with their versions, the count of all, and whether more follow: see `Store.range`."""
        return self._store.range(start, end, limit, at, keys_only=keys_only, after=after, bytes_max=bytes_max)

    def index_of(self, revision: int) -> int:
        """Log index of the request that made that revision; of the one after the newest: the next index to come.

        Where a watch from a revision begins. Raises Compacted (also for `compacted_revision` itself: read the state
        there and watch from the next) or FutureRevision.
        """
        if revision == self._store.revision + 1:
            return self.applied_index + 1
        return self._store.index_of(revision)

    def receipt(self, session: int, sequence: int) -> ReceiptState:
        """What became of a sequence of a session."""
        return self._sessions.receipt(session, sequence)

    @property
    def session_count(self) -> int:
        """Live sessions."""
        return len(self._sessions)

    @property
    def next_expiry_ms(self) -> int | None:
        """The cluster clock at which something falls due (an entry is needed then); None: nothing will."""
        return self._sessions.next_expiry_ms()

    # -- digests and snapshots --------------------------------------------------------------------------------

    def digest(self) -> SetDigest:
        """Digest of the live keys after `applied_index`."""
        return SetDigest._make(self._digest)

    def digest_at(self, index: int) -> SetDigest:
        """The same at the end of an earlier entry. Raises Inside, TooOld or NotYet."""
        return self._digests.at(index)

    def snapshot(self) -> SnapshotWalk:
        """The whole state as it is now, as chunks of canonical bytes; apply may go on between two of them."""
        if self._under_way:
            raise HalfApplied(f"the apply of entry {self._under_way} was broken off: restart from snapshot and log")
        return SnapshotWalk(
            State(
                self.limits, self.applied_index, self.applied_term, self.time_ms, self.clock_ms,
                self._store, self._sessions, self._digests,
            )
        )  # fmt: skip

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> StateMachine:
        """The state machine of a snapshot's bytes, cut in any way. Raises CorruptSnapshot or UnknownSnapshot."""
        restorer = Restorer()
        for chunk in chunks:
            restorer.feed(chunk)
        return cls.of(restorer.finish())

    @classmethod
    def of(cls, state: State) -> StateMachine:
        """The state machine of a restored state."""
        machine = cls(state.limits)
        machine.applied_index, machine.applied_term = state.applied_index, state.applied_term
        machine.time_ms, machine.clock_ms = state.time_ms, state.clock_ms
        machine._store, machine._sessions, machine._digests = state.store, state.sessions, state.digests
        machine._digest = state.store.digest()
        return machine


def _check_known(commands: tuple[Command, ...], index: int) -> None:
    for command in commands:
        operation = command[0]
        if operation not in _KNOWN:
            raise UnknownOperation(f"entry {index} has operation {operation}, unknown to this version: upgrade it")
        if operation == _TXN and command[2]:
            check_known(command[2])
