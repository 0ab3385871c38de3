"""Applies committed entries and returns their effects; answers queries, and makes digests and snapshots.

The applier of a replica and the simulator call it. `apply` is a pure function of the state and the entry. It knows no
clock but the entry's. It raises if it cannot be sure: at an entry out of order, or at an operation, a transaction or a
parameter that this code does not know. The node then stops and never skips. An entry is checked for unknown operations
before any of it is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from xxhash import xxh64_intdigest

from raftlog.statemachine.access.commands import AccessAction, decode_access
from raftlog.statemachine.access.needs import is_permitted
from raftlog.statemachine.access.table import AccessTable, KnownPrincipal
from raftlog.statemachine.answers import Answer, Reason, decode_answer, encode_answer, encode_brief
from raftlog.statemachine.commands import (
    KEY_BYTES_MAX,
    SHARE_PARTS,
    Command,
    Limits,
    LogEntry,
    MalformedCommand,
    Operation,
    RequestBlock,
    Result,
    Version,
)
from raftlog.statemachine.consumers import ConsumerTable, decode_consumer
from raftlog.statemachine.digest import DigestHistory, SetDigest, pack_long, point_value
from raftlog.statemachine.effects import Effects, KeyChange, RequestEffect
from raftlog.statemachine.entries import check_entry
from raftlog.statemachine.sessions import ReceiptState, SessionTable, Verdict
from raftlog.statemachine.snapshot import Restorer, SnapshotState, SnapshotWalk
from raftlog.statemachine.store import Store
from raftlog.statemachine.txn import decode_txn, is_key, run_txn

_OF_SESSIONS: Final = (Operation.SESSION_OPEN, Operation.SESSION_KEEPALIVE, Operation.SESSION_CLOSE)
_APPEND: Final = int(Operation.APPEND)
_PUT: Final = int(Operation.PUT)
_new: Final = tuple.__new__  # a NamedTuple without the cost of its constructor


class HalfApplied(Exception):
    """An apply was broken off by an error: the state is that of no entry, and must be rebuilt."""


class StateMachine:
    """The state after the entries up to `applied_index`."""

    __slots__ = (
        "_digest",
        "_digests",
        "_principal",
        "_sessions",
        "_store",
        "_under_way",
        "access",
        "applied_index",
        "applied_term",
        "clock_ms",
        "consumers",
        "limits",
        "oldest",
        "point",
        "time_ms",
        "version",
    )

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.applied_index = 0
        self.applied_term = 0
        self.time_ms = 0  # of the entry applied last
        self.clock_ms = 0
        self.consumers = ConsumerTable()  # others only read it, and the next
        self.access = AccessTable()
        self._principal: KnownPrincipal | None = None  # of the request under way; None: anybody may do everything
        self.version = 1  # the cluster's, as of the entry applied last
        self.oldest = 1  # the first record that may be read: one fact of the cluster, moved by TRIM alone
        self._store = Store()
        self._sessions = SessionTable()
        self._digests = DigestHistory()
        self._digest = self._store.digest()
        self._under_way = 0  # the entry that is being applied
        self.point: tuple[int, bytes] | None = None  # newest digest point applied by this object: index and value
        self._digests.remember(0, self._digest, 1)

    # -- apply ------------------------------------------------------------------------------------------------

    def apply(self, entry: LogEntry) -> Effects:
        """Carries out the entry's requests and returns their effects.

        Raises HalfApplied, BadParameter, or what `check_entry` raises: the node must stop.
        """
        index, term, count, time_ms, clock_ms, requests, parameters, version = entry
        if self._under_way:
            raise HalfApplied(f"the apply of entry {self._under_way} was broken off: restart from snapshot and log")
        is_plain = check_entry(entry, self.applied_index, self.applied_term, self.clock_ms) and not self.access.is_on
        limits = self.limits
        if parameters is not None:
            limits = limits.with_parameters(parameters)
            self.version = version or self.version
        store = self._store
        self._under_way = index
        self.time_ms, self.clock_ms = time_ms, clock_ms
        sessions = self._sessions
        if sessions.due and sessions.due[0][0] <= clock_ms:
            sessions.expire(clock_ms)
        if limits is not self.limits:
            self.limits = limits
            store.trim(limits)
        effects: tuple[RequestEffect, ...] = ()
        if not is_plain:
            effects = self._requests(requests, index - count)
            is_plain = not effects
            self._digest = store.digest()
        if store.freed != store.compacted:
            store.sweep()
        self._digests.remember(index, self._digest, limits.digests_kept)
        self.applied_index, self.applied_term = index, term
        self._under_way = 0
        return _new(Effects, (index, store.revision, effects, is_plain))

    def _requests(self, requests: tuple[RequestBlock, ...], last: int) -> tuple[RequestEffect, ...]:
        """What each did; () where all are appends applied for the first time. `last`: the index before the first."""
        effects: list[RequestEffect] = []
        is_plain, access = True, self.access
        for request in requests:
            commands = request[1]
            last += request[0]
            self._principal = principal = access.principal(request.admission) if access.is_on else None
            if request[2]:
                effect = self._session_request(request, last)
            elif principal is not None and not is_permitted(principal, commands):
                effect = self._refused(Reason.NOT_PERMITTED, last, request[0])
            else:
                effect = self._execute(commands, last) if commands else None
            if effect is None:
                effect = _new(RequestEffect, (Result.APPLIED, self._store.revision, False, 0, (), b""))
            else:
                is_plain = False
            effects.append(effect)
        return () if is_plain else tuple(effects)

    def _session_request(self, request: RequestBlock, last: int) -> RequestEffect | None:
        """What a request under a session did; None for appends applied for the first time."""
        commands = request[1]
        first = last - request[0] + 1
        principal, owner = self._principal, self._owner
        if len(commands) == 1 and commands[0].operation == Operation.VOID:
            voided = self._sessions.void(request, commands[0].argument, self.clock_ms, self.limits, owner, self._parts)
            return self._verdict(voided, first, last)
        # First what became of an earlier copy: if that was applied, then this one is not refused for what came since.
        admitted = self._sessions.admit(request, self.clock_ms, self.limits, owner, self._parts)
        if isinstance(admitted, Verdict):
            return self._verdict(admitted, first, last)
        if principal is not None and not is_permitted(principal, commands):  # kept: every copy gets the same answer
            effect: RequestEffect | None = self._refused(Reason.NOT_PERMITTED, last, request[0])
        elif len(commands) == 1 and commands[0].operation in _OF_SESSIONS:
            effect = self._refused(Reason.MALFORMED, last)
        else:
            effect = self._execute(commands, last) if commands else None
        if effect is None or not effect.answer:
            answer = encode_brief(Result.APPLIED, self._store.revision, first, last)
        else:
            answer = effect.answer
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

    @property
    def _owner(self) -> str | None:
        """Whose sessions the request under way may use; None: any."""
        return None if self._principal is None else self._principal.name

    @property
    def _parts(self) -> int:
        """In how many parts the limits of what stays are cut, of which the principal of the request may have one."""
        principal = self._principal
        if principal is None:
            return 1
        return 1 if principal.permissions is not None and principal.permissions.is_admin else SHARE_PARTS

    # -- the operations ---------------------------------------------------------------------------------------

    def _execute(self, commands: tuple[Command, ...], last: int) -> RequestEffect | None:
        """Carries out a request; None for appends, which change nothing."""
        if len(commands) != 1:
            if all(command.operation == _APPEND for command in commands):
                return None
            return self._refused(Reason.MALFORMED, last, len(commands))
        operation, key, value, _, argument = commands[0]
        if operation == _PUT:
            if key is None or not 1 <= len(key) <= KEY_BYTES_MAX or value is None:
                return self._refused(Reason.MALFORMED, last)
            store = self._store
            if argument is not None and store.mod(key) != argument:
                return self._mod_differs(key, argument, last)
            change = store.put(key, value, last)
            store.commit(last, self.limits)
            return _new(RequestEffect, (Result.APPLIED, store.revision, False, 0, (change,), b""))
        if operation == _APPEND:
            return None
        try:
            return _OPERATIONS[operation](self, commands[0], last)
        except MalformedCommand:  # its bytes are decoded before anything is changed
            return self._refused(Reason.MALFORMED, last)

    def _refused(self, reason: Reason, last: int, count: int = 1) -> RequestEffect:
        return self._verdict(Verdict(Result.REFUSED, reason), last - count + 1, last)

    def _mod_differs(self, key: bytes, argument: int, last: int) -> RequestEffect:
        """The key has not the revision that the request wants it to have."""
        if argument < 0:
            return self._refused(Reason.MALFORMED, last)
        revision = self._store.revision
        answer = encode_brief(Result.COMPARE_FAILED, revision, last, last, 0, self._store.mod(key))
        return RequestEffect(Result.COMPARE_FAILED, revision, answer=answer)

    def _delete(self, command: Command, last: int) -> RequestEffect:
        store, key, argument = self._store, command.key, command.argument
        if key is None or not is_key(key) or command.value is not None:
            return self._refused(Reason.MALFORMED, last)
        if argument is not None and store.mod(key) != argument:
            return self._mod_differs(key, argument, last)
        change = store.delete(key, last)
        return self._changed((change,) if change else (), last)

    def _delete_range(self, command: Command, last: int) -> RequestEffect:
        store, start, end = self._store, command.key, command.value
        if start is None or end is None:
            return self._refused(Reason.MALFORMED, last)
        if store.count(start, end) > self.limits.request_keys_max:
            return self._refused(Reason.TOO_MANY_KEYS, last)
        changes = [store.delete(key, last, True) for key in list(store.keys(start, end))]
        return self._changed(tuple(change for change in changes if change), last)

    def _changed(self, deletes: tuple[KeyChange, ...], last: int) -> RequestEffect:
        self._store.commit(last, self.limits)
        revision = self._store.revision
        answer = encode_brief(Result.APPLIED, revision, last, last, len(deletes))
        return RequestEffect(Result.APPLIED, revision, False, 0, deletes, answer)

    def _txn(self, command: Command, last: int) -> RequestEffect:
        done = run_txn(self._store, decode_txn(command.value or b""), last, self.limits)
        if isinstance(done, Reason):
            return self._refused(done, last)
        revision = self._store.revision
        answer = encode_answer(
            Answer(Result.APPLIED, revision, last, last, succeeded=done.succeeded, responses=done.responses)
        )
        return RequestEffect(Result.APPLIED, revision, done.succeeded, 0, done.changes, answer)

    def _compact(self, command: Command, last: int) -> RequestEffect:
        """History below may go; if it is gone already, that is no error, so a repetition is none either."""
        store, revision = self._store, command.argument
        if revision is None or revision < 1:
            return self._refused(Reason.MALFORMED, last)
        if revision > store.revision:
            return self._refused(Reason.FUTURE_REVISION, last)
        store.compact(revision)
        return self._verdict(Verdict(Result.APPLIED), last, last)

    def _trim(self, command: Command, last: int) -> RequestEffect:
        """Records below the index may go. It never goes back, so a repetition is no error, nor above the applied index:
        the trim itself can be read. Which files that lets go of is each node's own affair."""
        before = command.argument
        if before is None or before < 1:
            return self._refused(Reason.MALFORMED, last)
        if before > last:
            return self._refused(Reason.FUTURE_INDEX, last)
        self.oldest = max(self.oldest, before)
        return self._verdict(Verdict(Result.APPLIED), last, last)

    def _open_session(self, command: Command, last: int) -> RequestEffect:
        reason = self._sessions.open(last, command.argument, self.clock_ms, self.limits, self._owner or "", self._parts)
        return self._verdict(Verdict(Result.REFUSED if reason else Result.APPLIED, reason), last, last)

    def _keep_session(self, command: Command, last: int) -> RequestEffect:
        if command.argument is None:
            return self._refused(Reason.MALFORMED, last)
        if command.operation == Operation.SESSION_KEEPALIVE:
            is_known = self._sessions.keep_alive(command.argument, self.clock_ms, self._owner)
        else:
            is_known = self._sessions.close(command.argument, self._owner)
        return self._verdict(Verdict(Result.APPLIED if is_known else Result.EXPIRED), last, last)

    def _digest_point(self, command: Command, last: int) -> RequestEffect:
        """Takes down the state's value as of this record; it is no part of the state itself."""
        if command.key is not None or command.value is not None:
            return self._refused(Reason.MALFORMED, last)
        beside = xxh64_intdigest(pack_long(self.oldest), self.consumers.digest(self._sessions.digest()))
        rules = (self.version, *[number for _, number in self.limits.named()])  # what apply does depends on them
        beside = xxh64_intdigest(b"".join(map(pack_long, rules)), beside)
        beside = self.access.digest(beside)
        self.point = (last, point_value(self._store.digest(), beside))
        return self._verdict(Verdict(Result.APPLIED), last, last)

    def _void_nothing(self, command: Command, last: int) -> RequestEffect:
        """A void without a session."""
        return self._refused(Reason.MALFORMED, last)

    def _consumer(self, command: Command, last: int) -> RequestEffect:
        done = self.consumers.execute(
            command.key or b"",
            decode_consumer(command.value or b""),
            last,
            self.time_ms,
            self.clock_ms,
            self.limits,
            self.oldest,
            self._owner or "",
            self._parts,
        )
        revision = self._store.revision
        answer = Answer(done.result, revision, last, last, done.deleted, reason=done.reason, consumer=done.consumer)
        return RequestEffect(done.result, revision, answer=encode_answer(answer))

    def _access(self, command: Command, last: int) -> RequestEffect:
        asked = decode_access(command.value or b"")
        if reason := self.access.execute(asked, self.time_ms):
            return self._refused(reason, last)
        if asked.action == AccessAction.DELETE_USER:
            self._sessions.close_all(asked.name)
        return self._verdict(Verdict(Result.APPLIED), last, last)

    # -- queries ----------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The store's revision: 1 when empty, one more per request that changed something."""
        return self._store.revision

    @property
    def compacted_revision(self) -> int:
        """The oldest revision that can be read."""
        return self._store.compacted

    def get(self, key: bytes, at: int | None = None) -> Version | None:
        """The key's version, as of revision `at` where given. Raises Compacted or FutureRevision."""
        return self._store.get(key, at)

    def range(
        self,
        start: bytes,
        end: bytes | None,
        limit: int,
        at: int | None = None,
        *,
        keys_only: bool = False,
        after: bytes | None = None,
        bytes_max: int | None = None,
    ) -> tuple[list[tuple[bytes, Version]], int, bool]:
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

    def receipt(self, session: int, sequence: int, owner: str | None = None) -> ReceiptState:
        """What became of a sequence of a session. `owner`: the principal that asks; None: access control is off."""
        return self._sessions.receipt(session, sequence, owner)

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

    def entries_since_point(self) -> int:
        """Entries applied after the newest digest point; all that are remembered (`limits.digests_kept` at most) where
        this object has applied none."""
        return self._digests.count_after(self.point[0] if self.point is not None else 0)

    def snapshot(self) -> SnapshotWalk:
        """The whole state as it is now, as chunks of canonical bytes; apply may go on between two of them."""
        return SnapshotWalk(self.state())

    def state(self) -> SnapshotState:
        """All that it is: the very tables, not copies."""
        if self._under_way:
            raise HalfApplied(f"the apply of entry {self._under_way} was broken off: restart from snapshot and log")
        return SnapshotState(
            self.limits,
            self.applied_index,
            self.applied_term,
            self.time_ms,
            self.clock_ms,
            self._store,
            self._sessions,
            self._digests,
            self.consumers,
            self.oldest,
            self.version,
            self.access,
        )

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> StateMachine:
        """The state machine of a snapshot's bytes, cut in any way. Raises CorruptSnapshot or UnknownSnapshot."""
        restorer = Restorer()
        for chunk in chunks:
            restorer.feed(chunk)
        return cls.of(restorer.finish())

    @classmethod
    def of(cls, state: SnapshotState) -> StateMachine:
        """The state machine of a restored state."""
        machine = cls(state.limits)
        machine.applied_index, machine.applied_term = state.applied_index, state.applied_term
        machine.time_ms, machine.clock_ms = state.time_ms, state.clock_ms
        machine._store, machine._sessions, machine._digests = state.store, state.sessions, state.digests
        machine.consumers, machine.access = state.consumers, state.access
        machine._digest = state.store.digest()
        machine.oldest, machine.version = state.oldest, state.version
        return machine


_OPERATIONS: Final[dict[int, Callable[[StateMachine, Command, int], RequestEffect]]] = {
    Operation.DELETE: StateMachine._delete,
    Operation.DELETE_RANGE: StateMachine._delete_range,
    Operation.TXN: StateMachine._txn,
    Operation.COMPACT: StateMachine._compact,
    Operation.TRIM: StateMachine._trim,
    Operation.SESSION_OPEN: StateMachine._open_session,
    Operation.SESSION_KEEPALIVE: StateMachine._keep_session,
    Operation.SESSION_CLOSE: StateMachine._keep_session,
    Operation.VOID: StateMachine._void_nothing,
    Operation.CONSUMER: StateMachine._consumer,
    Operation.ACCESS: StateMachine._access,
    Operation.DIGEST_POINT: StateMachine._digest_point,
}
