"""Writes requests to the log exactly once, through kills of the writer and the end of its session.

Imports and other sources (`raftlog.cluster.importer.sources`) and the tasks of Spark (`raftlog.spark_export.sink`)
write so. The caller gives each request a sequence, and after a crash gives the same request under the same sequence
again: the state machine applies it once. `Notes` keep the session durably, in a file or in the store.

An expired session answers no repetition any more, but no request can be applied under it either. So the log shows
which of its sequences were applied, and a new session continues behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import msgspec

from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import SessionBook
from raftlog.cluster.client.errors import ClientError, CompareFailed, OutcomeUnknown, SessionExpired
from raftlog.cluster.client.flow import ApiRequest, Ticket

T = TypeVar("T")

TRIES_MAX: Final = 10
"""Puts of a session of which the outcome may be unknown, one after the other; each has the client's deadline."""


class WriterSession(msgspec.Struct, frozen=True):
    """The session of a writer. Every sequence up to `after` was applied under earlier ones, the newest of them as the
    records `first` to `last`."""

    session: int
    after: int = 0
    first: int | None = None
    last: int | None = None


_decode: Final = msgspec.json.Decoder(WriterSession).decode


class Notes(Protocol):
    """Where the session of a writer is kept, durably."""

    def read(self) -> WriterSession | None:
        """The session; None before the first."""

    def replace(self, old: WriterSession | None, new: WriterSession) -> WriterSession:
        """Keeps `new` in the place of `old`. Returns the session that is kept: that of another writer with the same
        notes, if it was quicker."""


class NotesGone(Exception):
    """The notes of a writer were deleted. The message names them."""


class SessionEnded(Exception):
    """The session of a writer that must not open another one has expired. `applied`: the newest requests that the log
    has of it."""

    def __init__(self, applied: WriterSession) -> None:
        super().__init__(f"the session {applied.session} has expired")
        self.applied = applied


class OnceWriter:
    """Writes requests under the session of its notes. `prepare` is called with the session before each of them.

    `since` is an index: no request that may be repeated was applied before it. Without `renews`, SessionEnded is raised
    where another writer would open a new session.
    """

    def __init__(
        self,
        client: SyncClient,
        notes: Notes,
        *,
        ttl_ms: int,
        prepare: Callable[[int], None] = lambda _: None,
        renews: bool = True,
    ) -> None:
        self._client = client
        self._notes = notes
        self._ttl_ms = ttl_ms
        self._prepare = prepare
        self._renews = renews
        self.since = 0
        self.noted = notes.read()

    @property
    def session(self) -> int:
        """The session that was written with last; 0 before the first."""
        return 0 if self.noted is None else self.noted.session

    def open(self) -> None:
        """Opens a session, in the place of one that is noted."""
        old = self.noted
        self.noted = self._notes.replace(old, WriterSession(self._client.open_session(self._ttl_ms).session))
        if old is not None:
            end_session(self._client, old.session)
        self._attempt(lambda _: None)

    def write(
        self, request: ApiRequest[T], sequence: int, *, settled: int | None = None, deadline_s: float | None = None
    ) -> T | None:
        """Writes the request; None if it was applied under an earlier session. Raises ClientError, NotesGone,
        SessionEnded; Compacted if the log does not go back to `since`."""

        def attempt(noted: WriterSession) -> T | None:
            if sequence <= noted.after:
                return None
            book = SessionBook(noted.session, next=sequence + 1, settled=settled or sequence)
            return self._client.call(request, deadline_s=deadline_s, ticket=Ticket(book, sequence))

        return self._attempt(attempt)

    def _attempt(self, attempt: Callable[[WriterSession], T]) -> T:
        if self.noted is None:
            self.open()
        while True:
            assert self.noted is not None
            try:
                self._prepare(self.noted.session)
                return attempt(self.noted)
            except SessionExpired:
                self._renew(self.noted)

    def _renew(self, expired: WriterSession) -> None:
        """A new session in the place of the expired one, behind all that was applied under that."""
        noted = self._notes.read()
        if noted is None or noted.session == expired.session:
            applied = self._applied(expired)
            if not self._renews:
                raise SessionEnded(applied)
            session = self._client.open_session(self._ttl_ms).session
            noted = self._notes.replace(noted, msgspec.structs.replace(applied, session=session))
        self.noted = noted

    def _applied(self, expired: WriterSession) -> WriterSession:
        """With the newest request that the log has of the session."""
        found = expired
        for record in self._client.log(max(self.since, expired.session)):
            if (record.session, record.result) == (expired.session, "applied"):
                is_next = record.sequence != found.after
                first = record.index if is_next else found.first
                found = WriterSession(expired.session, record.sequence or 0, first, record.index)
        return found


class StoreNotes:
    """Keeps a writer's session under a key of the store, where every attempt at the same work finds it."""

    def __init__(self, client: SyncClient, key: bytes) -> None:
        self._client = client
        self._key = key
        self._revision = 0

    def read(self) -> WriterSession | None:
        """The session under the key. Raises NotesGone if the key is there no more."""
        found = self._client.get(self._key)
        if found is None and self._revision:
            raise NotesGone(f"{self._key!r} is gone: some client deleted the key")
        if found is None:
            return None
        self._revision = found.mod
        return _decode(found.value)

    def replace(self, old: WriterSession | None, new: WriterSession) -> WriterSession:
        """Puts the session, unless another attempt has put one since the last `read`."""
        for left in reversed(range(TRIES_MAX)):
            try:
                put = self._client.put(self._key, msgspec.json.encode(new), if_revision=self._revision)
            except CompareFailed:
                break
            except OutcomeUnknown:  # the next try shows the outcome: after a success the key has another revision
                if not left:
                    raise
            else:
                self._revision = put.revision
                return new
        theirs = self.read()
        if theirs is None:
            raise NotesGone(f"{self._key!r} is gone: some client deleted the key")
        if theirs.session != new.session:
            end_session(self._client, new.session)
        return theirs


def end_session(client: SyncClient, session: int) -> None:
    """Closes a session that no writer needs any more."""
    with suppress(ClientError):  # it expires by itself
        client.call(requests.close_session(session))
