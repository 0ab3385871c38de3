"""Where a reader of a stream stands, so that it goes on at another node without a gap or a repetition: pure.

A cursor makes the request that opens the stream at its position, takes the bytes of the body, and gives what they say.
The shells open it anew whenever a stream breaks off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import msgspec

from cluster import client_answers as answers
from cluster import client_requests as requests
from cluster.client_answers import Progress, Record, WatchEvent
from cluster.client_errors import problem_error
from cluster.client_flow import Request

if TYPE_CHECKING:
    from raft.codec import RawHeader

T = TypeVar("T")

SILENCE_S: Final = 15.0
"""A stream says something at least every 5 s (DESIGN section 6); one silent for three times that is dead."""

LINE_BYTES_MAX: Final = 64 << 20


class BadStream(ValueError):
    """Bytes of a stream that are not raftlog's: the next node may do better."""


class Cursor(Protocol[T]):
    """What the shells need of a cursor."""

    def is_done(self) -> bool:
        """Everything asked for was given."""

    def request(self) -> Request[None]:
        """Opens the stream where this cursor stands."""

    def feed(self, data: bytes) -> list[T]:
        """What the next bytes of the body say. Raises BadStream, ClientError."""

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
    """What a line says. A stream that ends with a problem for good raises it; after others (a slow reader, a node that
    stops) the cursor goes on elsewhere."""
    try:
        told = decode(line)
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadStream(f"a line that is not raftlog's: {error}") from error
    if isinstance(told, Progress) and told.problem is not None and not told.problem.retryable:
        raise problem_error(told.problem)
    return told


@dataclass(slots=True)
class LogCursor:
    """Reads the log: every record from `position` on once, and how far the stream is (`Progress`)."""

    position: int = 1
    to: int | None = None
    from_time_ms: int | None = None
    follow: bool = False
    internal: bool = False
    min_index: int = 0
    done: bool = False
    target: int | None = None  # where the log ended when it was first asked
    lines: Lines = field(default_factory=Lines)

    def is_done(self) -> bool:
        return self.done

    def request(self) -> Request[None]:
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
        told: list[Record | Progress] = []
        for line in self.lines.feed(data):
            each = _decoded(answers.log_line, line)
            self.from_time_ms = None
            if isinstance(each, Progress):
                self.position = max(self.position, each.next)
                if self.target is None:
                    self.target = each.committed
            elif each.index < self.position or (self.to is not None and each.index >= self.to):
                continue
            else:
                self.position = each.index + 1
            told.append(each)
            if self.to is not None and self.position >= self.to:
                self.done = True
        return told

    def end(self) -> None:
        """A slow reader's stream ends early, so the end counts only beyond what was there at first."""
        if not self.follow and (self.target is None or self.position > self.target):
            self.done = True


@dataclass(slots=True)
class WatchCursor:
    """Watches changes: every index that changed something, once; from now on where no start is given."""

    prefix: bytes | None = None
    key: bytes | None = None
    position: int | None = None
    from_revision: int | None = None
    done: bool = False
    lines: Lines = field(default_factory=Lines)

    def is_done(self) -> bool:
        return self.done

    def request(self) -> Request[None]:
        self.lines = Lines()
        return requests.watch(
            prefix=self.prefix,
            key=self.key,
            from_index=self.position,
            from_revision=self.from_revision if self.position is None else None,
        )

    def feed(self, data: bytes) -> list[WatchEvent | Progress]:
        told: list[WatchEvent | Progress] = []
        for line in self.lines.feed(data):
            each = _decoded(answers.watch_line, line)
            if isinstance(each, Progress):
                self.position = max(self.position or 0, each.next)
            elif self.position is not None and each.index < self.position:
                continue
            else:
                self.position = each.index + 1
            told.append(each)
        return told

    def end(self) -> None:
        """A watch has no end of its own."""


class RawChunk(NamedTuple):
    """A run of whole entries as on disk: .idx rows, segment bytes, ledger bytes (`raft.codec.RawHeader`)."""

    header: RawHeader
    rows: bytes
    segment: bytes
    ledger: bytes


@dataclass(slots=True)
class RawCursor:
    """Reads raw chunks of all records [position, to); who decodes them checks them."""

    position: int
    to: int
    min_index: int = 0
    done: bool = False
    buffer: bytearray = field(default_factory=bytearray)

    def is_done(self) -> bool:
        return self.done

    def request(self) -> Request[None]:
        self.buffer = bytearray()
        return requests.log_raw(self.position, to=self.to, min_index=self.min_index)

    def feed(self, data: bytes) -> list[RawChunk]:
        from raft.codec import IDX_ROW, RAW_SIZE, decode_raw_header  # here: most commands of the shell read no chunk

        self.buffer += data
        chunks: list[RawChunk] = []
        offset = 0
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
            self.position = max(self.position, header.next)
            offset = end
        del self.buffer[:offset]
        self.done = self.position >= self.to
        return chunks

    def end(self) -> None:
        """The end counts only once everything was given."""
