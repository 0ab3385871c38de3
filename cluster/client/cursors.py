"""Tracks a stream's position, so that it continues at another node without a gap or a repetition: pure.

Both clients drive it. A cursor makes the request that opens the stream at its position, takes the bytes of the body,
and returns their records. The clients open it again whenever a stream breaks off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from raftlog.cluster.client import answers, requests
from raftlog.cluster.client.answers import Progress, Record, WatchEvent
from raftlog.cluster.client.errors import problem_error
from raftlog.cluster.client.flow import ApiRequest

if TYPE_CHECKING:
    from raftlog.raft.codec.raw import RawHeader

T = TypeVar("T")

SILENCE_S: Final = 15.0
"""Longest silence of a stream, in seconds. A node sends something at least every 5 s (docs/promises.md: a stream is
never silent); a stream that is silent for three times that is dead."""

LINE_BYTES_MAX: Final = 64 << 20


class BadStream(ValueError):
    """The bytes of a stream are not raftlog's. Another node may do better."""


@runtime_checkable
class Cursor(Protocol[T]):
    """The methods of a cursor that the clients call."""

    def is_done(self) -> bool:
        """Whether everything requested was returned."""

    def request(self) -> ApiRequest[None]:
        """The request that opens the stream at this position."""

    def feed(self, data: bytes) -> list[T]:
        """The items in the next bytes of the body. Raises BadStream, ClientError; then the position is as before."""

    def end(self) -> None:
        """The stream came to its proper end."""


@dataclass(slots=True)
class Lines:
    """Cuts bytes into lines."""

    buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, without their ends; empty ones are left out."""
        self.buffer += data
        if b"\n" not in data:
            if len(self.buffer) > LINE_BYTES_MAX:
                raise BadStream(f"a line of more than {LINE_BYTES_MAX} bytes")
            return []
        *lines, rest = self.buffer.split(b"\n")
        self.buffer = rest
        return [bytes(line) for line in lines if line]


def _decoded(decode: Callable[[bytes], T | Progress], line: bytes) -> T | Progress:
    """The item in a line. Raises the stream's final problem if no other node can help.

    After other problems (a slow reader, a node that stops) the cursor continues at another node.
    """
    try:
        item = decode(line)
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadStream(f"a line that is not raftlog's: {error}") from error
    if isinstance(item, Progress) and item.problem is not None and not item.problem.retryable:
        raise problem_error(item.problem)
    return item


@dataclass(slots=True)
class LogCursor:
    """Reads the log: every record from `position` on once, and the position of the stream (`Progress`)."""

    position: int = 1
    to: int | None = None
    from_time_ms: int | None = None
    follow: bool = False
    internal: bool = False
    min_index: int = 0
    done: bool = False
    target: int | None = None  # the end of the log at the first request
    lines: Lines = field(default_factory=Lines)

    def is_done(self) -> bool:
        return self.done

    def request(self) -> ApiRequest[None]:
        self.lines = Lines()
        return requests.log_stream(
            self.position,
            to=self.to,
            from_time_ms=self.from_time_ms,
            follow=self.follow,
            internal=self.internal,
            min_index=self.min_index,
        )

    def feed(self, data: bytes) -> list[Record | Progress]:
        items: list[Record | Progress] = []
        for each in [_decoded(answers.log_line, line) for line in self.lines.feed(data)]:
            self.from_time_ms = None
            if isinstance(each, Progress):
                self.position = max(self.position, each.next)
                if self.target is None:
                    self.target = each.committed
            elif each.index < self.position or (self.to is not None and each.index >= self.to):
                continue
            else:
                self.position = each.index + 1
            items.append(each)
            if self.to is not None and self.position >= self.to:
                self.done = True
        return items

    def end(self) -> None:
        """Ignores an early end: a slow reader's stream ends before the end of the log at its beginning."""
        if not self.follow and (self.target is None or self.position > self.target):
            self.done = True


@dataclass(slots=True)
class WatchCursor:
    """Watches changes: every index with changes, once; from now on if no start is given."""

    prefix: bytes | None = None
    key: bytes | None = None
    position: int | None = None
    from_revision: int | None = None
    done: bool = False
    lines: Lines = field(default_factory=Lines)

    def is_done(self) -> bool:
        return self.done

    def request(self) -> ApiRequest[None]:
        self.lines = Lines()
        return requests.watch(
            prefix=self.prefix,
            key=self.key,
            from_index=self.position,
            from_revision=self.from_revision if self.position is None else None,
        )

    def feed(self, data: bytes) -> list[WatchEvent | Progress]:
        items: list[WatchEvent | Progress] = []
        for each in [_decoded(answers.watch_line, line) for line in self.lines.feed(data)]:
            if isinstance(each, Progress):
                self.position = max(self.position or 0, each.next)
            elif (self.position is not None and each.index < self.position) or each.revision < (
                self.from_revision or 0
            ):
                continue  # a stream that is opened again at an index begins below a revision that is yet to come
            else:
                self.position = each.index + 1
            items.append(each)
        return items

    def end(self) -> None:
        """A watch has no end of its own."""


class RawChunk(NamedTuple):
    """A run of whole entries as on disk: .idx rows, segment bytes, ledger bytes
    (`raftlog.raft.codec.raw.RawHeader`)."""

    header: RawHeader
    rows: bytes
    segment: bytes
    ledger: bytes


@dataclass(slots=True)
class RawCursor:
    """Reads raw chunks of all records [position, to). The decoder checks them."""

    position: int
    to: int
    min_index: int = 0
    done: bool = False
    buffer: bytearray = field(default_factory=bytearray)

    def is_done(self) -> bool:
        return self.done

    def request(self) -> ApiRequest[None]:
        self.buffer = bytearray()
        return requests.log_raw(self.position, to=self.to, min_index=self.min_index)

    def feed(self, data: bytes) -> list[RawChunk]:
        from raftlog.raft.codec.index_rows import IDX_ROW
        from raftlog.raft.codec.raw import RAW_SIZE, decode_raw_header

        self.buffer += data
        chunks: list[RawChunk] = []
        offset, position = 0, self.position
        while len(self.buffer) - offset >= RAW_SIZE:
            try:
                header = decode_raw_header(bytes(self.buffer[offset : offset + RAW_SIZE]))
            except ValueError as error:
                raise BadStream(str(error)) from error
            rows_end = offset + RAW_SIZE + header.rows * IDX_ROW.size
            segment_end = rows_end + header.segment_bytes
            end = segment_end + header.ledger_bytes
            if len(self.buffer) < end:
                break
            with memoryview(self.buffer) as view:
                rows = bytes(view[offset + RAW_SIZE : rows_end])
                chunks.append(RawChunk(header, rows, bytes(view[rows_end:segment_end]), bytes(view[segment_end:end])))
            position = max(position, header.next)
            offset = end
        del self.buffer[:offset]
        self.position = position
        self.done = position >= self.to
        return chunks

    def end(self) -> None:
        """The end counts only once everything was returned."""
