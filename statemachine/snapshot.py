"""Writes the whole state as canonical bytes, in slices while apply goes on, and reads it back.

The state machine calls it for snapshots and backups. A snapshot is a row of frames, each at most CHUNK_BYTES_MAX long,
with magic, version, kind and CRC32C. First comes the head (indexes, clocks, revisions, digest, limits). Then come keys
with their readable history, sessions with their kept answers, remembered digests, consumer groups, users with
roles and tokens, and an end that counts them. Each kind has an order of its own (keys by key, sessions by id, sequences
by number, groups and users by name). So equal states give equal bytes, however they came about. Layout:
docs/formats_state.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

import google_crc32c
import msgpack

from raftlog.statemachine import versions
from raftlog.statemachine.access.table import AccessTable
from raftlog.statemachine.answers import ANSWER_SIZE, decode_consumer_row
from raftlog.statemachine.commands import BadParameter, ConsumerGroup, Limits, UnknownCommand, whole
from raftlog.statemachine.consumers import ConsumerTable
from raftlog.statemachine.digest import DigestHistory, SetDigest
from raftlog.statemachine.sessions import VOID, Session, SessionTable
from raftlog.statemachine.store import Store
from raftlog.statemachine.store_load import Loader
from raftlog.statemachine.store_walk import walk

CHUNK_BYTES_MAX: Final = 128 << 10
"""A frame, header included: below the 256 KiB that a bulk link carries at once."""

FRAME_ITEMS_MAX: Final = 1_000
"""Items in a frame, which may be small: making one frame is a few milliseconds of work."""

SNAPSHOT_MAGIC: Final = b"RLST"
SNAPSHOT_VERSION: Final = 1

CONTINUED: Final = 1
"""Flag: the one item of this frame goes on in the next."""

_FRAME: Final = Struct("<4sBBHI")  # magic, version, kind, flags, payload bytes; then the CRC of these and the payload
_CRC: Final = Struct("<I")
FRAME_SIZE: Final = _FRAME.size + _CRC.size
PAYLOAD_BYTES_MAX: Final = CHUNK_BYTES_MAX - FRAME_SIZE

HEAD, KEYS, SESSIONS, DIGESTS, END, CONSUMERS, ACCESS = 1, 2, 3, 4, 5, 6, 7
"""Kinds of frames. Their numbers are for ever."""

_ORDER: Final = {kind: place for place, kind in enumerate((0, HEAD, KEYS, SESSIONS, DIGESTS, CONSUMERS, ACCESS, END))}
"""In which they come; 0 is before the first."""
_COUNTS: Final = 5  # of the end: keys, sessions, digests, consumers, access

_ARRAY_SHORT_MAX: Final = 15
_ARRAY_HEAD_SHORT: Final = 1
_ARRAY_HEAD: Final = 3
"""Bytes in front of the items of a MessagePack array of up to 15 items, and of one of up to 65,535."""

_KEPT_MIN: Final = 8 + ANSWER_SIZE  # payload hash and the shortest answer


class CorruptSnapshot(ValueError):
    """Bytes that are no whole snapshot, or fail a check."""


class UnknownSnapshot(ValueError):
    """A snapshot of a version, kind or limit that this code does not know: upgrade before going on."""


class SnapshotState(NamedTuple):
    """All that a state machine is."""

    limits: Limits
    applied_index: int
    applied_term: int
    time_ms: int
    clock_ms: int
    store: Store
    sessions: SessionTable
    digests: DigestHistory
    consumers: ConsumerTable
    oldest: int = 1
    version: int = 1  # the cluster's
    access: AccessTable = AccessTable()  # every maker of a state gives one of its own


# ---------------------------------------------------------------------------------------------------------------
# Out.


class SnapshotWalk:
    """The chunks of a snapshot, consistent as of its making although the state changes between two of them.

    Take the chunks where apply runs too, never in another thread. A chunk may be empty: it looked for a while and found
    nothing to keep. It holds versions in memory that would otherwise be dropped, until it is exhausted or closed.
    """

    def __init__(self, state: SnapshotState) -> None:
        self._is_open = False
        self.index = state.applied_index
        self.term = state.applied_term
        self._state = state
        self._revision = state.store.revision
        self._compacted = state.store.compacted
        self._head = _head(state)
        self._digests = state.digests.copied_rows()
        self._consumers = [_consumer_row(row, state.consumers.maker(row[0])) for row in state.consumers.rows()]
        self._access = state.access.rows()
        self._sessions = state.sessions.start_walk()
        state.store.pin()
        self._is_open = True
        self._chunks = self._frames()

    def __iter__(self) -> SnapshotWalk:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees the pinned history; the walk gives no more chunks."""
        if self._is_open:
            self._is_open = False
            self._chunks.close()
            self._state.store.unpin()
            self._state.sessions.end_walk(self._sessions)

    def __enter__(self) -> SnapshotWalk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _frames(self) -> Generator[bytes, None, None]:
        store, sessions = self._state.store, self._state.sessions
        counts = [0] * _COUNTS

        def counted(place: int, slices: Iterable[list[Any]]) -> Iterator[list[Any]]:
            for rows in slices:
                counts[place] += len(rows)
                yield rows

        def one_by_one(place: int, rows: Iterable[Any]) -> Iterator[list[Any]]:
            return counted(place, ([row] for row in rows))

        framed = partial(_framed, msgpack.Packer(use_bin_type=True).pack)
        yield from framed(HEAD, [[self._head]])
        yield from framed(KEYS, counted(0, walk(store, self._compacted, self._revision)))
        yield from framed(SESSIONS, one_by_one(1, map(_session_row, sessions.walked(self._sessions))))
        yield from framed(DIGESTS, one_by_one(2, self._digests))
        yield from framed(CONSUMERS, one_by_one(3, self._consumers))
        yield from framed(ACCESS, one_by_one(4, self._access))
        yield from framed(END, [[counts]])


def _head(state: SnapshotState) -> list[Any]:
    limits = [[name, number] for name, number in state.limits.named()]
    store = state.store
    return [
        state.applied_index,
        state.applied_term,
        state.time_ms,
        state.clock_ms,
        store.revision,
        store.compacted,
        list(store.digest()),
        limits,
        state.oldest,
        state.version,
    ]


def _session_row(session: Session) -> list[Any]:
    kept = [part for sequence in sorted(session.kept) for part in (sequence, session.kept[sequence])]
    return [session.id, session.ttl_ms, session.expires_ms, session.low, kept, session.owner]


def _consumer_row(row: tuple[bytes, ConsumerGroup], maker: str) -> list[Any]:
    name, consumer = row
    return [name, *consumer, maker]


def _framed(pack: Callable[[Any], bytes], kind: int, slices: Iterable[list[Any]]) -> Iterator[bytes]:
    """Frames full of whole items, however these are sliced; an item that is longer than a frame begins one and goes on
    in the next. An empty slice is a pause: it is passed on. One call packs a slice that the frame has room for."""
    parts: list[bytes] = []
    count = size = 0
    for rows in slices:
        if not rows:
            yield b""
            continue
        packed = pack(rows)[_ARRAY_HEAD_SHORT if len(rows) <= _ARRAY_SHORT_MAX else _ARRAY_HEAD :]
        is_room = count + len(rows) <= FRAME_ITEMS_MAX and size + len(packed) <= PAYLOAD_BYTES_MAX
        for items, item in [(len(rows), packed)] if is_room else ((1, pack(row)) for row in rows):
            if parts and (size + len(item) > PAYLOAD_BYTES_MAX or count == FRAME_ITEMS_MAX):
                yield _frame(kind, 0, b"".join(parts))
                parts.clear()
                count = size = 0
            cut = 0
            while len(item) - cut > PAYLOAD_BYTES_MAX:
                yield _frame(kind, CONTINUED, item[cut : cut + PAYLOAD_BYTES_MAX])
                cut += PAYLOAD_BYTES_MAX
            parts.append(item[cut:] if cut else item)
            size += len(item) - cut
            count += items
        if count == FRAME_ITEMS_MAX:
            yield _frame(kind, 0, b"".join(parts))
            parts.clear()
            count = size = 0
    if parts:
        yield _frame(kind, 0, b"".join(parts))


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    head = _FRAME.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, kind, flags, len(payload))
    crc = google_crc32c.extend(google_crc32c.value(head), payload)
    return head + _CRC.pack(crc) + payload


# ---------------------------------------------------------------------------------------------------------------
# In.


class Restorer:
    """Takes a snapshot's bytes in any slices and builds the state; every frame is checked before it is believed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0  # of the buffer's start, for messages
        self._item = bytearray()  # an item that goes on in the next frame
        self._kind = 0
        self._counts = [0] * _COUNTS
        self._is_counted = False  # the end came, and its counts are right
        self._state: SnapshotState | None = None
        self._loader: Loader | None = None
        self._digest = SetDigest()

    def feed(self, chunk: bytes) -> None:
        """The next bytes. Raises CorruptSnapshot or UnknownSnapshot."""
        buffer = self._buffer
        buffer += chunk
        offset = 0
        while len(buffer) - offset >= FRAME_SIZE:
            magic, version, kind, flags, size = _FRAME.unpack_from(buffer, offset)
            where = f"frame at byte {self._position + offset}"
            if magic != SNAPSHOT_MAGIC:
                raise CorruptSnapshot(f"{where}: its magic is {magic!r}")
            if version != SNAPSHOT_VERSION:
                raise UnknownSnapshot(f"{where} has version {version}: this code knows {SNAPSHOT_VERSION}, upgrade it")
            if size > PAYLOAD_BYTES_MAX:
                raise CorruptSnapshot(f"{where} claims {size} bytes, {PAYLOAD_BYTES_MAX} is the most")
            end = offset + FRAME_SIZE + size
            if end > len(buffer):
                break
            head = bytes(buffer[offset : offset + _FRAME.size])
            payload = bytes(buffer[offset + FRAME_SIZE : end])
            crc = _CRC.unpack_from(buffer, offset + _FRAME.size)[0]
            if crc != google_crc32c.extend(google_crc32c.value(head), payload):
                raise CorruptSnapshot(f"{where} fails its CRC")
            self._take(kind, flags, payload, where)
            offset = end
        del buffer[:offset]
        self._position += offset

    def _take(self, kind: int, flags: int, payload: bytes, where: str) -> None:
        if kind not in _ORDER or not kind or flags & ~CONTINUED:
            raise UnknownSnapshot(f"{where} has kind {kind}, flags {flags:#x}: upgrade this code")
        before = _ORDER[self._kind]
        if _ORDER[kind] < before or self._kind == END or (self._kind == 0) != (kind == HEAD):
            raise CorruptSnapshot(f"{where} of kind {kind} comes after one of kind {self._kind}")
        if self._item and kind != self._kind:
            raise CorruptSnapshot(f"{where}: the item before it does not go on")
        self._kind = kind
        self._item += payload
        if flags & CONTINUED:
            return
        unpacker = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=len(self._item) or 1)
        unpacker.feed(bytes(self._item))
        self._item.clear()
        try:
            if kind == KEYS:
                self._take_keys(unpacker)
            else:
                for row in unpacker:
                    self._TAKE[kind](self, row)
            if unpacker.read_bytes(1):
                raise ValueError("half an item")
        except (BadParameter, UnknownCommand, versions.UnknownClusterVersion) as error:
            raise UnknownSnapshot(f"{where}: {error}") from error
        except Exception as error:
            raise CorruptSnapshot(f"{where}: {error}") from error

    def _take_head(self, row: Any) -> None:
        if self._state is not None:
            raise ValueError("a second head")
        index, term, time_ms, clock_ms, revision, compacted, digest, limits, oldest, version = row
        self._digest = SetDigest(*digest)
        self._loader = Loader(whole(revision), whole(compacted))
        self._state = SnapshotState(
            Limits().with_parameters(limits),
            whole(index),
            whole(term),
            whole(time_ms),
            whole(clock_ms),
            Store(),
            SessionTable(),
            DigestHistory(),
            ConsumerTable(),
            whole(oldest),
            versions.check(whole(version), whole(index)),
            AccessTable(),
        )

    def _take_keys(self, rows: Iterable[Any]) -> None:
        assert self._loader is not None, "the head comes first"
        self._counts[0] += self._loader.add_rows(rows)

    def _take_session(self, row: Any) -> None:
        number, ttl_ms, expires_ms, low, parts, owner = row
        if type(owner) is not str:
            raise TypeError(f"session {number} has owner {owner!r}")
        kept: dict[int, bytes] = dict(zip(map(whole, parts[::2]), parts[1::2], strict=True))
        for answer in kept.values():
            if type(answer) is not bytes or (answer != VOID and len(answer) < _KEPT_MIN):
                raise ValueError(f"session {number} keeps {answer!r}")
        assert self._state is not None, "the head comes first"
        self._state.sessions.load(Session(whole(number), whole(ttl_ms), whole(expires_ms), whole(low), kept, owner))
        self._counts[1] += 1

    def _take_digest(self, row: Any) -> None:
        end, *digest = map(whole, row)
        count, xor, low, high = digest
        assert self._state is not None, "the head comes first"
        self._state.digests.remember(end, (count, xor, low, high), self._state.limits.digests_kept)
        self._counts[2] += 1

    def _take_consumer(self, row: Any) -> None:
        name, *fields, maker = row
        assert self._state is not None, "the head comes first"
        if type(maker) is not str:
            raise TypeError(f"consumer {name!r} has maker {maker!r}")
        self._state.consumers.load(name, decode_consumer_row(*fields), maker)
        self._counts[3] += 1

    def _take_access(self, row: Any) -> None:
        assert self._state is not None, "the head comes first"
        self._state.access.load(row)
        self._counts[4] += 1

    def _take_end(self, row: Any) -> None:
        if self._is_counted:
            raise ValueError("a second end")
        self._is_counted = True
        if list(row) != self._counts:
            raise ValueError(f"it has {self._counts} keys, sessions, digests, consumers and access, its end says {row}")

    _TAKE: Final[dict[int, Callable[[Restorer, Any], None]]] = {
        HEAD: _take_head,
        SESSIONS: _take_session,
        DIGESTS: _take_digest,
        END: _take_end,
        CONSUMERS: _take_consumer,
        ACCESS: _take_access,
    }

    def finish(self) -> SnapshotState:
        """The state, once all bytes were fed. Raises CorruptSnapshot where they are not a whole snapshot."""
        if self._state is None or self._loader is None or not self._is_counted or self._buffer or self._item:
            raise CorruptSnapshot(f"the snapshot is cut short after {self._position + len(self._buffer)} bytes")
        try:
            store = self._loader.finish()
        except ValueError as error:
            raise CorruptSnapshot(f"keys of the snapshot: {error}") from error
        if store.digest() != self._digest:
            raise CorruptSnapshot(f"its keys have digest {store.digest()}, its head says {tuple(self._digest)}")
        return self._state._replace(store=store)
