"""Makes a file of measurements with known truth: late rows, rows out of order, repeated rows and malformed ones.

    python docs/examples/readings.py readings.csv

Stations of a river report the height of the water. `make` writes the file and returns the truth, row by row, so that
everything read from the log, by any way, can be compared with it. The same seed makes the same file.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Literal

COLUMNS = ("Measured", "Station", "Level", "Remark")
TIME_FORMAT = "%Y/%m/%d %H:%M:%S.%f"
BEGIN = datetime(2026, 3, 1, 6, tzinfo=UTC)
STATIONS = ("Donau, Ulm", "Iller", "Lech", 'Inn "Alte Brücke"')
REMARKS = ("", "ice; seen", "pump\nchanged", "ok", "Hörbar")
LATE_MAX = timedelta(minutes=9)

Form = Literal["csv", "json"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One row that becomes a record, and its oddity if it has one."""

    measured: datetime | None  # None: its time cannot be read
    station: str
    level: float | None  # None: it is no number, or empty
    remark: str | None
    value: bytes  # of its record: the row as it is written
    is_late: bool = False  # older than a row before it
    is_repeated: bool = False  # equal to a row before it


@dataclass(frozen=True, slots=True)
class Truth:
    """The rows in the order of the file, and how many lines have no record (no station, or nothing at all)."""

    rows: tuple[Reading, ...]
    rejected: int

    def repeated(self) -> int:
        """How many rows are equal to one before them."""
        return sum(row.is_repeated for row in self.rows)

    def late(self) -> int:
        """How many rows are older than one before them."""
        return sum(row.is_late for row in self.rows)


def make(path: Path, count: int = 2_000, seed: int = 1, form: Form = "csv") -> Truth:
    """Writes a file of about `count` rows. Each oddity occurs in some hundredths of them."""
    chance = Random(seed)
    rows: list[Reading] = []
    lines: list[bytes] = []
    rejected = 0
    for reading in _readings(chance, count, form):
        lines.append(reading.value + b"\n")
        rows.append(reading)
        if chance.random() < 0.02:
            lines.append(lines[-1])
            rows.append(_again(reading, rows))
        if chance.random() < 0.01:
            lines.append(
                chance.choice([b"\n", b'{"Measured": "2026/03/01 06:00:00.00"}\n' if form == "json" else b",,\n"])
            )
            rejected += 1
    heading = b"" if form == "json" else (",".join(COLUMNS) + "\n").encode()
    path.write_bytes(heading + b"".join(lines))
    return Truth(tuple(rows), rejected)


def _readings(chance: Random, count: int, form: Form) -> Iterator[Reading]:
    newest = BEGIN
    for number in range(count):
        due = BEGIN + number * timedelta(seconds=7, milliseconds=370)
        is_late = number > 200 and chance.random() < 0.05
        measured: datetime | None = due - (LATE_MAX * chance.random() if is_late else timedelta(0))
        assert measured is not None
        measured = measured.replace(microsecond=measured.microsecond // 10_000 * 10_000)
        is_late, newest = measured < newest, max(newest, measured)
        text = measured.strftime(TIME_FORMAT)[:-4]  # hundredths of a second, as instruments write them
        station = chance.choice(STATIONS)
        level: float | None = round(chance.gauss(3 + STATIONS.index(station), 0.4), 2)
        shown = f"{level}"
        remark = chance.choice(REMARKS) if chance.random() < 0.2 else ""
        if number > 1_000 and chance.random() < 0.01:  # behind what an import looks at to decide the types
            shown, level = chance.choice(["n/a", "3,4", ""]), None
        if number > 1_000 and chance.random() < 0.005:
            text, measured, is_late = "yesterday", None, False
        value = _value([text, station, shown, remark], form)
        yield Reading(measured, station, level, remark or None, value, is_late)


def _again(reading: Reading, rows: list[Reading]) -> Reading:
    newest = max(row.measured for row in rows if row.measured is not None)
    is_late = reading.measured is not None and reading.measured < newest
    return replace(reading, is_late=is_late, is_repeated=True)


def _value(fields: list[str], form: Form) -> bytes:
    if form == "json":
        named: dict[str, object] = dict(zip(COLUMNS, fields, strict=True))
        try:
            named["Level"] = float(fields[2])
        except ValueError:
            pass
        return json.dumps({name: value for name, value in named.items() if value != ""}).encode()
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(fields)
    return written.getvalue().rstrip("\n").encode()


def main() -> None:
    """Writes the file of the first argument, and prints its counts."""
    truth = make(Path(sys.argv[1]))
    print(
        f"{len(truth.rows)} rows: {truth.late()} late, {truth.repeated()} repeated; {truth.rejected} more are no rows"
    )


if __name__ == "__main__":
    main()
