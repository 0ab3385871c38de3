"""Computes digests of state and log as sets of row hashes, in a form that Spark's built-in functions repeat.

The state machine, `raftlog verify` and the Spark export use it. A row's hash is the chain h = xxh64(bytes, seed=h) from
42 over its columns. Bigints are 8 little-endian bytes (signed), text and bytes stay as they are, and absent columns are
left out. Spark's `xxhash64(a, b, ...)` gives the same. A set of rows is then (count, xor of h, sum of the low halves,
sum of the high halves). See docs/promises.md (the majority's digest is right) and docs/formats_state.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

SEED: Final = 42
"""Where every chain starts: the default seed of Spark's xxhash64."""

LOW: Final = 0xFFFF_FFFF
"""The low half of a hash."""

pack_long: Final = Struct("<q").pack
"""A bigint as Spark hashes it."""


class SetDigest(NamedTuple):
    """Digest of a set of rows, whatever their order. The store keeps that of its live keys as rows come and go."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which no code calls on it
    xor: int = 0  # of the hashes
    sum_low: int = 0  # of h & 0xffffffff
    sum_high: int = 0  # of h >> 32

    def merged(self, other: SetDigest) -> SetDigest:
        """Of the rows of both: digests of parts of a log add up to that of the whole."""
        return SetDigest(
            self.count + other.count, self.xor ^ other.xor, self.sum_low + other.sum_low, self.sum_high + other.sum_high
        )

    def as_hex(self) -> tuple[int, str, str, str]:
        """Count, then the rest as the public answers and manifests show it: xor as 16 hex digits, the sums as hex."""
        return self.count, f"{self.xor:016x}", f"{self.sum_low:x}", f"{self.sum_high:x}"


EMPTY: Final = SetDigest()
"""Of no rows."""


def set_digest(hashes: Iterable[int]) -> SetDigest:
    """Of rows with these hashes."""
    count = xor = low = high = 0
    for row_hash in hashes:
        count += 1
        xor ^= row_hash
        low += row_hash & LOW
        high += row_hash >> 32
    return SetDigest(count, xor, low, high)


def state_row_hash(key: bytes, value: bytes, create: int, mod: int, version: int) -> int:
    """Of one live key: chained over key, value, create, mod, version."""
    row_hash = xxh64_intdigest(value, xxh64_intdigest(key, SEED))
    row_hash = xxh64_intdigest(pack_long(create), row_hash)
    row_hash = xxh64_intdigest(pack_long(mod), row_hash)
    return xxh64_intdigest(pack_long(version), row_hash)


# ---------------------------------------------------------------------------------------------------------------
# Log rows.


class ChangeRow(NamedTuple):
    """One element of a log row's `changes`."""

    key: bytes
    value: bytes | None  # None when deleted
    deleted: bool
    create: int
    mod: int
    version: int


class LogRow(NamedTuple):
    """One record of the log with what it did: the columns of the export, in their order. Times are Unix ms."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on it
    term: int
    time_ms: int  # column `time`
    kind: str  # noop | configuration | clock | commands
    operation: str | None  # lower-case name; None unless the kind is commands
    key: bytes | None
    value: bytes | None  # the record's; of a configuration entry its data. `log_row_hashes` leaves some out
    headers: tuple[tuple[str, bytes], ...] | None
    client_time_ms: int | None  # column `client_time`
    argument: int | None
    session: int | None
    sequence: int | None
    result: str  # lower-case name; `applied` where there are no requests
    revision: int
    succeeded: bool | None  # transactions only
    prior_index: int | None  # this and the next two: of the one change of a put or delete
    create: int | None
    version: int | None
    changes: tuple[ChangeRow, ...] | None  # explicit ones: not contained in the command itself


MASKED: Final = (
    "operation",
    "key",
    "value",
    "headers",
    "client_time",
    "argument",
    "session",
    "sequence",
    "succeeded",
    "prior_index",
    "create",
    "version",
    "changes",
)
"""Columns that may be null. Bit i of a row's mask says that the i-th of them is present: the chain leaves nulls out, so
without the mask two rows could differ only in which column holds a value."""

_MASKS: Final = tuple(pack_long(mask) for mask in range(1 << len(MASKED)))


def log_row_hashes(rows: Iterable[LogRow]) -> Iterator[int]:
    """The hash of each row, in order. Some µs a row: long ranges belong off the event loop.

    Not every reader of the log may see the values of configurations and of changes of permissions. They are left out,
    so that all readers compute the same, and none can check a guess of such a value.
    """
    chain, pack, masks = xxh64_intdigest, pack_long, _MASKS
    for (
        index,
        term,
        time_ms,
        kind,
        operation,
        key,
        value,
        headers,
        client_time_ms,
        argument,
        session,
        sequence,
        result,
        revision,
        succeeded,
        prior_index,
        create,
        version,
        changes,
    ) in rows:
        mask = 0
        if kind == "configuration" or operation == "access":
            value = None
        h = chain(pack(time_ms), chain(pack(term), chain(pack(index), SEED)))
        h = chain(kind.encode(), h)
        if operation is not None:
            mask = 1
        if key is not None:
            mask |= 2
        if value is not None:
            mask |= 4
        if headers is not None:
            mask |= 8
        if client_time_ms is not None:
            mask |= 16
        if argument is not None:
            mask |= 32
        if session is not None:
            mask |= 64
        if sequence is not None:
            mask |= 128
        if succeeded is not None:
            mask |= 256
        if prior_index is not None:
            mask |= 512
        if create is not None:
            mask |= 1024
        if version is not None:
            mask |= 2048
        if changes is not None:
            mask |= 4096
        h = chain(masks[mask], h)
        if operation is not None:
            h = chain(operation.encode(), h)
        if key is not None:
            h = chain(key, h)
        if value is not None:
            h = chain(value, h)
        if headers is not None:
            h = chain(pack(len(headers)), h)
            for name, content in headers:
                h = chain(content, chain(name.encode(), h))
        if client_time_ms is not None:
            h = chain(pack(client_time_ms), h)
        if argument is not None:
            h = chain(pack(argument), h)
        if session is not None:
            h = chain(pack(session), h)
        if sequence is not None:
            h = chain(pack(sequence), h)
        h = chain(pack(revision), chain(result.encode(), h))
        if mask >= 256:
            if succeeded is not None:
                h = chain(pack(succeeded), h)
            if prior_index is not None:
                h = chain(pack(prior_index), h)
            if create is not None:
                h = chain(pack(create), h)
            if version is not None:
                h = chain(pack(version), h)
            if changes is not None:
                h = _changes_hash(changes, h)
        yield h


def _changes_hash(changes: tuple[ChangeRow, ...], h: int) -> int:
    """The chain goes on over the number of changes, then each one's columns; a deleted one has no value."""
    h = xxh64_intdigest(pack_long(len(changes)), h)
    for key, value, deleted, create, mod, version in changes:
        h = xxh64_intdigest(key, h)
        if not deleted:
            assert value is not None, "only a deleted key has no value"
            h = xxh64_intdigest(value, h)
        for number in (deleted, create, mod, version):
            h = xxh64_intdigest(pack_long(number), h)
    return h


def log_digest(rows: Iterable[LogRow]) -> SetDigest:
    """Digest of a range of the log."""
    return set_digest(log_row_hashes(rows))


# ---------------------------------------------------------------------------------------------------------------
# Digests of the state as it was.


class Inside(LookupError):
    """The index lies inside an entry: the state exists at `before` and at `after`, not between them."""

    def __init__(self, index: int, before: int, after: int) -> None:
        super().__init__(f"index {index} lies inside an entry: there are digests at {before} and at {after}")
        self.before, self.after = before, after


class TooOld(LookupError):
    """The digest at that index is no longer remembered; `oldest` is the first index that is."""

    def __init__(self, index: int, oldest: int) -> None:
        super().__init__(f"the digest at index {index} is no longer kept: the oldest is at {oldest}")
        self.oldest = oldest


class NotYet(LookupError):
    """The index is not applied here yet; `applied` is the newest that is."""

    def __init__(self, index: int, applied: int) -> None:
        super().__init__(f"index {index} is not applied here yet: this node has applied up to {applied}")
        self.applied = applied


_POINT: Final = Struct("<B7xQQQQQ")
POINT_FORM: Final = 1
"""First byte of a point's value: what it is made of. Values of another form are not compared."""
POINT_BYTES: Final = _POINT.size


def point_value(state: tuple[int, int, int, int], rest: int) -> bytes:
    """What a replica reports at a digest point: digest of the live keys, and a hash of the rest of the state."""
    return _POINT.pack(POINT_FORM, *state, rest)


class DigestHistory:
    """State digests at the ends of the newest entries; entries that changed nothing share one tuple."""

    __slots__ = ("_digests", "_ends")

    def __init__(self) -> None:
        self._ends: deque[int] = deque()
        self._digests: deque[tuple[int, int, int, int]] = deque()

    def __len__(self) -> int:
        return len(self._ends)

    def remember(self, index: int, digest: tuple[int, int, int, int], kept: int) -> None:
        """`digest` is the state's at the end of the entry that ends at `index`; the oldest beyond `kept` go."""
        ends = self._ends
        ends.append(index)
        self._digests.append(digest)
        while len(ends) > kept:
            ends.popleft()
            self._digests.popleft()

    def at(self, index: int) -> SetDigest:
        """The digest at that end of an entry. Raises Inside, TooOld or NotYet."""
        ends = self._ends
        if not ends or index > ends[-1]:
            raise NotYet(index, ends[-1] if ends else 0)
        if index < ends[0]:
            raise TooOld(index, ends[0])
        place = bisect_left(ends, index)
        if ends[place] != index:
            raise Inside(index, ends[place - 1], ends[place])
        return SetDigest._make(self._digests[place])

    def count_after(self, index: int) -> int:
        """How many of the remembered entries end after that index."""
        return len(self._ends) - bisect_right(self._ends, index)

    def copied_rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(end, count, xor, sum_low, sum_high) each, oldest first, as they are now whatever comes."""
        return ((end, *digest) for end, digest in zip(list(self._ends), list(self._digests), strict=True))
