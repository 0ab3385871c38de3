"""Cuts the lines of an input into batches of records.

`raftlog.cluster.importer.file_source` gives them to a copy. A batch ends by its lines, its bytes, or when the input has
no more for now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer.formats.lines import (
    InputError,
    InputOptions,
    Line,
    RejectedLine,
    look_of,
    odd,
    parse,
    read_batch,
)
from raftlog.cluster.importer.formats.rows import InputRow
from raftlog.cluster.importer.formats.times import NEVER, TWICE, doubt

LatestMs = Callable[[], int]
"""Gives the newest time that the lines read now can have, in Unix milliseconds: the age of their file."""


class Hash(Protocol):
    """A running hash, as hashlib has them."""

    def update(self, data: bytes, /) -> None:
        """Adds bytes."""

    def hexdigest(self) -> str:
        """The hash so far."""


@dataclass(slots=True)
class ImportBatch:
    """Lines read for one request, and the hash of the file up to their end."""

    records: list[NewRecord] = field(default_factory=list)
    rejected: list[RejectedLine] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    without_time: int = 0
    hash: str = ""
    reading: InputOptions | None = None  # how its lines were read
    seen: int = 0  # bytes of the file, as it is on disk, that were read so far


class Unacceptable(InputError):
    """With `strict`: a line that would be rejected, or stored without its time."""


@dataclass(frozen=True, slots=True)
class BatchEnds:
    """Where batches end. `first_bytes`: the first batch has exactly these bytes, because it may have been sent. For the
    same reason it is read exactly as it was.
    """

    lines_max: int
    bytes_max: int
    first_bytes: int | None = None
    strict: bool = False


def batches(
    lines: Iterable[Line], reading: InputOptions, cut: BatchEnds, hasher: Hash, latest_ms: LatestMs | None = None
) -> Iterator[ImportBatch]:
    """The batches of the lines. Raises Unacceptable, with `strict`, after the batch before the bad line.

    `latest_ms` is asked for each batch: times without a year are not after it. Without it that of the reading holds.
    """
    taken: list[Line] = []
    size = 0
    first = cut.first_bytes
    for line in lines:
        if line.raw:
            taken.append(line)
            size += len(line.raw)
        if first is not None:
            is_full = size >= first
        else:
            is_full = len(taken) >= cut.lines_max or size >= cut.bytes_max or not line.raw
        if taken and is_full:
            yield from _batch(taken, reading if first is not None else _dated(reading, latest_ms), cut, hasher)
            taken, size, first = [], 0, None
    if taken:
        yield from _batch(taken, _dated(reading, latest_ms), cut, hasher)


def _dated(reading: InputOptions, latest_ms: LatestMs | None) -> InputOptions:
    """The reading, with the newest possible time of now if its times have no year."""
    times = reading.times
    if times is None or times.latest_ms is None or latest_ms is None:
        return reading
    return replace(reading, times=replace(times, latest_ms=latest_ms()))


def _batch(lines: Sequence[Line], reading: InputOptions, cut: BatchEnds, hasher: Hash) -> Iterator[ImportBatch]:
    found = read_batch(lines, reading)
    refusal = None
    if cut.strict or (reading.times is not None and reading.times.twice == "stop"):
        parsed = parse([line.data for line in lines], reading)
        for at, (line, each, row) in enumerate(zip(lines, found, parsed, strict=True)):
            reason = _doubted(row, reading, NEVER) or _fault(each, reading) or odd(row, reading) if cut.strict else None
            mend = "correct it, or leave out --strict"
            if reason is None and (reason := _doubted(row, reading, TWICE)) is not None:
                mend = (
                    f"--again --from-line {line.number} --time-twice earlier (or later)"  # another option: begun again
                )
                mend = f"give it a zone, or {'leave out --strict' if cut.strict else f'go on with {mend}'}"
            if reason is not None:
                refusal = Unacceptable(f"line {line.number}: {reason}; {mend}")
                lines, found = lines[:at], found[:at]
                break
    if lines:
        raw = b"".join([line.raw for line in lines])
        hasher.update(raw)
        records = [each for each in found if type(each) is NewRecord]
        yield ImportBatch(
            records,
            [each for each in found if isinstance(each, RejectedLine)],
            sum(line.lines for line in lines),
            len(raw),
            sum(each.time_ms is None for each in records) if reading.has_time else 0,
            hasher.hexdigest(),
            reading,
        )
    if refusal is not None:
        raise refusal


def _fault(found: NewRecord | RejectedLine, reading: InputOptions) -> str | None:
    if isinstance(found, RejectedLine):
        return found.reason
    return f"no time in {reading.time or 'the line'}" if reading.has_time and found.time_ms is None else None


def _doubted(row: InputRow, reading: InputOptions, why: str) -> str | None:
    """The time of a row and its zone, if it occurs twice there or never."""
    if reading.times is None or isinstance(row, ValueError):
        return None
    value = look_of(reading)(row, reading.time or "time")
    if value in (None, "") or doubt(reading.times, value) != why:
        return None
    return f"time {value!r} {why} in zone {reading.times.zone}"
