"""Writes the rows of one partition to the log exactly once, however often the partition is written: no Spark here.

Every chunk of rows is a request of a session. Its sequence is made of batch and chunk, so the state machine recognises
a repeated chunk and repeats its answer. The store holds the facts that a task must find again after a crash:

    raftlog.sink/NAME/done         the last batch that is written as a whole
    raftlog.sink/NAME/PARTITION    the session of the partition, and the last sequence known from those before it

An expired session answers no more repeats, but no write can be applied under it either. The log itself shows which of
its sequences were applied (`_recovered`), and a new session continues behind them. If that part of the log is no longer
kept, the outcome is unknown, and that is an error.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.api.errors import Code, Outcome
from raftlog.cluster.api.kv import OperationIn, TxnIn
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import (
    ClientError,
    CompareFailed,
    NewRecord,
    OutcomeUnknown,
    SessionBook,
    SessionExpired,
    SyncClient,
    Ticket,
    Unavailable,
)
from raftlog.spark_export.errors import ExportError, UnreachableError

PREFIX: Final = b"raftlog.sink/"
CHUNKS_MAX: Final = 1 << 24
"""Chunks of one batch in one partition: sequences are batch x CHUNKS_MAX + chunk, below 2^53 for 2^29 batches."""
OPEN_MAX: Final = 1_000
"""Sequences whose answers are kept, so that a chunk with other bytes is noticed: just below a session's window."""
PUTS_MAX: Final = 128  # operations of one transaction (raftlog.statemachine.commands.Limits.txn_operations_max)


class Registered(msgspec.Struct, frozen=True):
    """The session of one partition; everything up to `after` was applied under earlier ones."""

    session: int
    after: int = 0


class Done(msgspec.Struct, frozen=True):
    """The last batch that is written as a whole, and an index at which it was."""

    batch: int
    index: int


_registered: Final = msgspec.json.Decoder(Registered).decode
_done: Final = msgspec.json.Decoder(Done).decode


class ReplayError(ExportError):
    """A batch came back with other rows than the first time: to write them would be to write some twice."""


class ForgottenError(ExportError):
    """The cluster no longer knows which rows of a batch were written."""


Applied = Callable[[int, int], int]
"""The highest sequence of a session that was applied from an index on; 0 for none. Raises DataLossError where the log
does not go back so far."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows these are: of which writing, which batch of it, which partition of that."""

    name: str
    batch: int
    partition: int


class PartWriter:
    """Writes the chunks of one partition in order, one at a time."""

    def __init__(self, client: SyncClient, part: Part, *, ttl_ms: int, patience_s: float, applied: Applied) -> None:
        self.client = client
        self.part = part
        self.ttl_ms = ttl_ms
        self.patience_s = patience_s
        self.applied = applied
        self.is_done = done_batch(client, part.name) >= part.batch
        self.written = 0  # chunks of this call
        self.skipped = 0  # chunks that were applied before
        self._first = part.batch * CHUNKS_MAX + 1
        self._sequence = self._first
        self._key = key_of(part.name, str(part.partition))
        self._registered = Registered(0) if self.is_done else self._register()

    @property
    def session(self) -> int:
        """The session that was written with last."""
        return self._registered.session

    def append(self, records: list[NewRecord]) -> None:
        """Appends the next chunk."""
        self._write(requests.append(records))

    def put(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Puts the next chunk, all of it at one revision; no key may be in it twice."""
        steps = [OperationIn("put", key_b64=to_b64(key), value_b64=to_b64(value)) for key, value in pairs]
        self._write(requests.txn(TxnIn([], steps, [])))

    def _write(self, request: Any) -> None:
        """One chunk, exactly once. Raises ReplayError, ForgottenError, UnreachableError, ExportError."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        if sequence - self._first >= CHUNKS_MAX - 1:
            raise ExportError(f"more than {CHUNKS_MAX} requests in one partition of one batch: use smaller batches")
        until = time.monotonic() + self.patience_s
        while True:
            if self.is_done or sequence <= self._registered.after:
                self.skipped += 1
                return
            lowest = max(self._first, sequence - OPEN_MAX + 1)
            ticket = Ticket(SessionBook(self._registered.session, sequence + 1, lowest), sequence)
            try:
                answer = self.client.call(request, deadline_s=max(0.1, until - time.monotonic()), ticket=ticket)
            except ClientError as error:
                self._met(error, sequence, until)
            else:
                is_old = answer.result == "repeated"
                self.written, self.skipped = self.written + (not is_old), self.skipped + is_old
                return

    def _met(self, error: ClientError, sequence: int, until: float) -> None:
        """Returns where the chunk is to be tried again."""
        if isinstance(error, SessionExpired):
            self._renew()
        elif error.code in (Code.SEQUENCE_REUSED, Code.SEQUENCE_SETTLED):
            if self.client.receipt(self._registered.session, sequence).state != "settled":
                part = self.part
                raise ReplayError(
                    f"batch {part.batch}, partition {part.partition} of {part.name} came back with other rows than "
                    f"were written under request {sequence} of session {self._registered.session}. Nothing was written "
                    f"twice. A replayed batch must have the same rows in the same partitions and order: keep the "
                    f"number of partitions, and sort where the plan does not"
                ) from error
            self._registered = Registered(self._registered.session, max(self._registered.after, sequence))
        elif isinstance(error, Unavailable) or error.code is Code.TIMEOUT or error.row.outcome is Outcome.UNKNOWN:
            if time.monotonic() >= until:
                raise UnreachableError(
                    f"no node took rows of {self.part.name} within {self.patience_s:g} s ({error}). Run the query "
                    f"again: written rows are not written twice"
                ) from error
        else:
            raise ExportError(f"the cluster refused rows of {self.part.name}: {error}") from error

    # Sessions.

    def _register(self) -> Registered:
        """The partition's session, opened where there is none yet."""
        found = self.client.get(self._key)
        if found is not None:
            return _registered(found.value)
        return self._propose(Registered(self.client.open_session(self.ttl_ms).session), 0)

    def _renew(self) -> None:
        """A new session in the place of one that has expired, behind all that was applied under that."""
        found = self.client.get(self._key)
        if found is None:
            raise ForgottenError(
                f"{self._key!r} is gone: some client deleted the key. Start the query with a new checkpoint"
            )
        registered = _registered(found.value)
        if registered.session == self._registered.session:
            after = max(registered.after, self._recovered(registered.session))
            new = self.client.open_session(self.ttl_ms).session
            registered = self._propose(Registered(new, after), found.mod)
        self._registered = registered

    def _propose(self, registered: Registered, revision: int) -> Registered:
        """Writes it down, or takes what another attempt at this partition has written down meanwhile."""
        until = time.monotonic() + self.patience_s
        while True:
            try:
                self.client.put(self._key, msgspec.json.encode(registered), if_revision=revision)
            except CompareFailed:
                break
            except OutcomeUnknown:  # the next try shows the outcome: after a success the key has another revision
                if time.monotonic() >= until:
                    raise
            else:
                return registered
        found = self.client.get(self._key)
        if found is None:
            raise ForgottenError(
                f"{self._key!r} is gone: some client deleted the key. Start the query with a new checkpoint"
            )
        theirs = _registered(found.value)
        if theirs.session != registered.session:
            end_session(self.client, registered.session)
        return theirs

    def _recovered(self, session: int) -> int:
        """The last sequence that was applied under a session that has expired."""
        done = read_done(self.client, self.part.name)
        start = max(session, done.index if done is not None else 0)
        try:
            return self.applied(session, start)
        except ExportError as error:
            raise ForgottenError(
                f"session {session} of {self.part.name} expired, and the log from index {start} on, which would show "
                f"its applied requests, cannot be read: {error}"
            ) from error


def key_of(name: str, what: str) -> bytes:
    """Where it is kept in the store."""
    return PREFIX + name.encode() + b"/" + what.encode()


def read_done(client: SyncClient, name: str) -> Done | None:
    """The last batch that is written as a whole."""
    found = client.get(key_of(name, "done"))
    return None if found is None else _done(found.value)


def done_batch(client: SyncClient, name: str) -> int:
    """Its number; -1 for none."""
    done = read_done(client, name)
    return -1 if done is None else done.batch


def finish_batch(client: SyncClient, name: str, batch: int) -> None:
    """Says that the batch is written as a whole: a replay of it writes nothing."""
    while done_batch(client, name) < batch:
        try:
            client.put(key_of(name, "done"), msgspec.json.encode(Done(batch, client.index)))
        except OutcomeUnknown:
            continue  # that of a later try is known; each has its own deadline, and Spark can stop the query


def forget(client: SyncClient, name: str, sessions: list[int]) -> None:
    """Removes the keys of a finished writing that can never return, and ends its sessions."""
    start = key_of(name, "")
    client.delete_range(start, requests.prefix_end(start))
    for session in sessions:
        end_session(client, session)


def end_session(client: SyncClient, session: int) -> None:
    """Closes a session that no writer needs any more."""
    try:
        client.call(requests.close_session(session))
    except ClientError:
        pass  # it expires by itself


def chunks(pairs: Iterator[tuple[bytes, bytes]], most: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Rows of puts in lists that have no key twice."""
    chunk: dict[bytes, bytes] = {}
    for key, value in pairs:
        if key in chunk or len(chunk) == most:
            yield list(chunk.items())
            chunk = {}
        chunk[key] = value
    if chunk:
        yield list(chunk.items())
