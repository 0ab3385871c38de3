"""Writes the rows of one partition to the log exactly once, however often the partition is written: no Spark here.

Every chunk of rows is a request of a session. Its sequence is made of batch and chunk, so the state machine recognises
a repeated chunk and repeats its answer. The store holds the facts that a task must find again after a crash:

    raftlog.sink/NAME/done         the last batch that is written as a whole
    raftlog.sink/NAME/PARTITION    the session of the partition, and the last sequence known from those before it

`raftlog.cluster.client.once` writes. If a session has expired, and the part of the log that would show its applied
sequences is no longer kept, the outcome is unknown, and that is an error.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from raftlog.cluster.api.encoding import to_b64
from raftlog.cluster.api.errors import Code, Outcome
from raftlog.cluster.api.kv import OperationIn, TxnIn
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError, Compacted, OutcomeUnknown, Unavailable
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.client.once import NotesGone, OnceWriter, StoreNotes, end_session
from raftlog.spark_export.errors import ExportError, UnreachableError

PREFIX: Final = b"raftlog.sink/"
CHUNKS_MAX: Final = 1 << 24
"""Chunks of one batch in one partition: sequences are batch x CHUNKS_MAX + chunk, below 2^53 for 2^29 batches."""
OPEN_MAX: Final = 1_000
"""Sequences whose answers are kept, so that a chunk with other bytes is noticed: just below a session's window."""
PUTS_MAX: Final = 128  # operations of one transaction (raftlog.statemachine.commands.Limits.txn_operations_max)


class WrittenBatch(msgspec.Struct, frozen=True):
    """The last batch that is written as a whole, and an index at which it was."""

    batch: int
    index: int


_done: Final = msgspec.json.Decoder(WrittenBatch).decode


class ReplayError(ExportError):
    """A batch came back with other rows than the first time: to write them would be to write some twice."""


class ForgottenError(ExportError):
    """The cluster no longer knows which rows of a batch were written."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows these are: of which writing, which batch of it, which partition of that."""

    name: str
    batch: int
    partition: int


class PartWriter:
    """Writes the chunks of one partition in order, one at a time."""

    def __init__(self, client: SyncClient, part: Part, *, ttl_ms: int, patience_s: float) -> None:
        self.client = client
        self.part = part
        self.patience_s = patience_s
        done = read_done(client, part.name)
        self.is_done = done is not None and done.batch >= part.batch
        self.written = 0  # chunks of this call
        self.skipped = 0  # chunks that were applied before
        self._first = part.batch * CHUNKS_MAX + 1
        self._sequence = self._first
        self._once = OnceWriter(client, StoreNotes(client, key_of(part.name, str(part.partition))), ttl_ms=ttl_ms)
        self._once.since = 0 if done is None else done.index
        if self._once.noted is None and not self.is_done:
            self._once.open()

    @property
    def session(self) -> int:
        """The session that was written with last."""
        return 0 if self.is_done else self._once.session

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
        lowest = max(self._first, sequence - OPEN_MAX + 1)
        while not self.is_done:
            left_s = max(0.1, until - time.monotonic())
            try:
                answer = self._once.write(request, sequence, settled=lowest, deadline_s=left_s)
            except (Compacted, NotesGone) as error:
                raise ForgottenError(
                    f"session {self.session} of {self.part.name} expired, and its applied requests cannot be found "
                    f"any more: {error}. Start the query with a new checkpoint"
                ) from error
            except ClientError as error:
                if self._is_applied(error, sequence, until):
                    break
            else:
                is_old = answer is None or answer.result == "repeated"
                self.written, self.skipped = self.written + (not is_old), self.skipped + is_old
                return
        self.skipped += 1

    def _is_applied(self, error: ClientError, sequence: int, until: float) -> bool:
        """Whether the chunk was applied before; else it is to be tried again."""
        if error.code in (Code.SEQUENCE_REUSED, Code.SEQUENCE_SETTLED):
            if self.client.receipt(self.session, sequence).state == "settled":
                return True
            part = self.part
            raise ReplayError(
                f"batch {part.batch}, partition {part.partition} of {part.name} came back with other rows than "
                f"were written under request {sequence} of session {self.session}. Nothing was written "
                f"twice. A replayed batch must have the same rows in the same partitions and order: keep the "
                f"number of partitions, and sort where the plan does not"
            ) from error
        if isinstance(error, Unavailable) or error.code is Code.TIMEOUT or error.row.outcome is Outcome.UNKNOWN:
            if time.monotonic() < until:
                return False
            raise UnreachableError(
                f"no node took rows of {self.part.name} within {self.patience_s:g} s ({error}). Run the query "
                f"again: written rows are not written twice"
            ) from error
        raise ExportError(f"the cluster refused rows of {self.part.name}: {error}") from error


def key_of(name: str, what: str) -> bytes:
    """Where it is kept in the store."""
    return PREFIX + name.encode() + b"/" + what.encode()


def read_done(client: SyncClient, name: str) -> WrittenBatch | None:
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
            client.put(key_of(name, "done"), msgspec.json.encode(WrittenBatch(batch, client.index)))
        except OutcomeUnknown:
            continue  # that of a later try is known; each has its own deadline, and Spark can stop the query


def forget(client: SyncClient, name: str, sessions: list[int]) -> None:
    """Removes the keys of a finished writing that can never return, and ends its sessions."""
    start = key_of(name, "")
    client.delete_range(start, requests.prefix_end(start))
    for session in sessions:
        end_session(client, session)


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
