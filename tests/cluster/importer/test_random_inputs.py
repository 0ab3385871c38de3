"""Random inputs, batches and kills: the same command ends, and log and rejected lines are what a naive reader gives."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, example, given, note, settings, strategies as st

from raftlog.cluster.api.encoding import from_b64
from raftlog.cluster.client.errors import Unavailable
from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer import file_source, inputs
from raftlog.cluster.importer.formats import lines
from raftlog.cluster.importer.formats.lines import TABLES, InputFormat
from raftlog.cluster.importer.importer import ImportPlan, ImportProgress, run
from raftlog.cluster.importer.session_file import CopyState, read_state
from tests.cluster.importer.fake_log import FakeLog
from tests.cluster.importer.jobs import Killed

LINE_MAX, ROW_MAX, BATCH_MAX = 90, 50, 150
"""Limits in bytes, so small that the lines below pass them."""

DELIMITERS = {InputFormat.CSV: ",", InputFormat.TSV: "\t"}
NAMES = ("id", "t", "h")
BOM = b"\xef\xbb\xbf"

Rejects = list[tuple[int, bytes]]

# -- the naive reader: character by character, all in memory ---------------------------------------------------------


def cells_of(text: str, delimiter: str) -> tuple[list[str], bool]:
    """The cells of a row, and whether its last one is still open."""
    cells: list[str] = []
    cell, at, is_quoted, is_start = "", 0, False, True
    while at < len(text):
        sign, following, at = text[at], text[at + 1 : at + 2], at + 1
        if is_quoted and sign == following == '"':
            cell, at = cell + sign, at + 1
        elif sign == '"' and (is_quoted or is_start):
            is_quoted = not is_quoted
        elif sign == delimiter and not is_quoted:
            cells, cell = [*cells, cell], ""
        else:
            cell += sign
        is_start = sign == delimiter and not is_quoted
    return [*cells, cell], is_quoted


def rows_in(data: bytes, delimiter: str | None) -> Iterator[tuple[int, bytes]]:
    """The rows, each with the number of its first line. A row with an open quote goes on in the next line."""
    left = [each + b"\n" for each in data.split(b"\n")]
    left[-1] = left[-1][:-1]
    number = 1
    while left and left[0]:
        taken = 1
        if delimiter is not None and len(left[0]) <= LINE_MAX:
            for count in range(1, len(left) + 1):
                row = b"".join(left[:count])
                if not cells_of(row.decode("utf-8", "replace").rstrip("\r\n"), delimiter)[1]:
                    taken = count
                    break
                if len(row) > ROW_MAX:
                    break
        yield number, b"".join(left[:taken]).removesuffix(b"\n")
        number, left = number + taken, left[taken:]


def fields_of(row: bytes, format: InputFormat) -> dict[str, Any]:
    """The fields of a row. Raises ValueError."""
    if format is InputFormat.LINES:
        return {}
    if format is InputFormat.NDJSON:
        fields = json.loads(row)
        if not isinstance(fields, dict):
            raise ValueError
        return fields
    return dict(zip(NAMES, cells_of(row.decode().rstrip("\r\n"), DELIMITERS[format])[0], strict=False))


def record_of(row: bytes, format: InputFormat, asked: Collection[str]) -> NewRecord:
    """The record in a row, with those of key, time and header that are asked for. Raises ValueError if it has none."""
    if not row.strip() or len(row) > LINE_MAX:
        raise ValueError
    try:
        fields = fields_of(row, format)
    except ValueError:
        if {"id", "h"} & {*asked}:
            raise
        return NewRecord(row)
    key, time, header = (fields.get(name) if name in asked else None for name in NAMES)
    if "id" in asked:
        if key in (None, "") or isinstance(key, dict | list):
            raise ValueError
        key = (key if isinstance(key, str) else json.dumps(key)).encode()
    headers = () if header is None else (("h", str(header).encode()),)
    return NewRecord(row, key, headers, int(str(time)) if str(time).isdecimal() else None)


def naive(data: bytes, format: InputFormat, asked: Collection[str]) -> tuple[list[NewRecord], Rejects]:
    """The records of a file, and the lines that have none with their numbers."""
    records: list[NewRecord] = []
    rejected: Rejects = []
    for number, row in rows_in(data.removeprefix(BOM), DELIMITERS.get(format)):
        try:
            if number > 1 or format not in TABLES:
                records.append(record_of(row, format, asked))
        except ValueError:
            rejected.append((number, row))
    return records, rejected


# -- inputs ----------------------------------------------------------------------------------------------------------

GOOD = {
    InputFormat.LINES: [b"a", "ä é".encode(), b" x ", b"\xff\xfe", b"y" * LINE_MAX, b"z" * (LINE_MAX - 1)],
    InputFormat.NDJSON: [
        b'{"id": "k1", "t": 1700000000001, "h": "x"}',
        b'{"h": "", "id": 7}',
        b'{"id":"\xc3\xa4","t":"1700000000002"}',
        b' {"id": "k", "t": "no time"} ',
        b'{"id": 1.5, "t": null, "h": null}',
        b'{"id": true}',
    ],
    InputFormat.CSV: [
        b"k1,1700000000001,x",
        b"k2,,",
        b'"k,3",1700000000002,"a ""b"""',
        b'k4,no time,"c\nd"',
        b"k5",
        b'k6,1,e"f',
        b'"k\n\n7",1700000000003,x',
        b"k8,2,y,more",
        b'"k9",3,"q" r',
    ],
}
BAD = {
    InputFormat.LINES: [b"y" * (LINE_MAX + 1), b"z" * 3 * LINE_MAX],
    InputFormat.NDJSON: [
        b'{"t": 1}',
        b"no JSON",
        b'["id"]',
        b'{"id": ""}',
        b'{"id": null}',
        b'{"id": {"a": 1}}',
        b'{"id": "k"',
        b'{"id": "\xff"}',
        b'{"id": "' + b"y" * LINE_MAX + b'"}',
        b'{"id": [1]}',
    ],
    InputFormat.CSV: [
        b",1,x",
        b'"",2,y',
        b"\xffk,3,z",
        b'"open,4',
        b'k,5,"open\n' + b"y" * ROW_MAX,
        b"y" * (LINE_MAX + 1) + b",6",
        b'k,7,"' + b"y\n" * 20 + b'"',
        b'k,8,"\xfe\n"',
    ],
}
EMPTY = [b"", b" ", b"\t", b"\r"]
FORMATS = [InputFormat.LINES, InputFormat.NDJSON, InputFormat.CSV, InputFormat.TSV]


def pool(known: dict[InputFormat, list[bytes]], format: InputFormat) -> list[bytes]:
    """Lines for a format."""
    if format is not InputFormat.TSV:
        return known[format]
    return [each.replace(b",", b"\t") for each in known[InputFormat.CSV]]


def content(random: Random, format: InputFormat, number: int, *, is_checked: bool) -> bytes:
    """A file: runs of good, bad, quoted and empty lines. The first file is not empty. `is_checked`: the first line of
    each is good, for the options are checked with it."""
    good, bad = pool(GOOD, format), pool(BAD, format)
    if number and random.random() < 0.2:
        return b""
    found = [good[0]] if is_checked else [] if number else [random.choice([b" ", b"\xff\xfe"])]
    for _ in range(random.randrange(6)):
        kind = random.choice([good, good, bad, EMPTY])
        if format in TABLES:  # as long as an open row may be, and around it
            sizes = random.randrange(ROW_MAX - 6, ROW_MAX), random.randrange(LINE_MAX)
            kind = [*kind, b'q%b"%b\n%b"' % (DELIMITERS[format].encode(), b"y" * sizes[0], b"z" * sizes[1])]
        found += [random.choice(kind) for _ in range(random.randrange(1, 6))]
    end = random.choice([b"\n", b"\n", b"\r\n"])
    names = [b"id,t,h".replace(b",", DELIMITERS[format].encode())] if format in TABLES else []
    data = end.join([*names, *found]) + random.choice([b"", end])
    return random.choice([b"", b"", BOM]) + data if data else b""


def plan_of(folder: Path, random: Random, format: InputFormat, asked: Collection[str], count: int) -> ImportPlan:
    """The command."""
    options: dict[str, dict[str, Any]] = {
        "id": {"key": "id"},
        "t": {"time": "t", "time_format": "ms"},
        "h": {"headers": ("h",)},
    }
    given: dict[str, Any] = {}
    for name in asked:
        given |= options[name]
    if format in TABLES:
        given |= {"delimiter": DELIMITERS[format], "header": True}
    first, *more = (str(folder / f"{number}.in") for number in range(count))
    return ImportPlan(
        first,
        folder / "note",
        folder / "rejected",
        format=format,
        batch_lines=random.randrange(1, 7),
        charset="utf-8",
        more=tuple(more),
        **given,
    )


def rejected_in(plan: ImportPlan) -> list[tuple[str | None, int, bytes]]:
    """The lines aside: file, number and bytes."""
    if not plan.rejects.exists():
        return []
    found = [json.loads(each) for each in plan.rejects.read_bytes().splitlines()]
    return [
        (row.get("file"), row["line"], row["value"].encode() if "value" in row else from_b64(row["value_b64"], ""))
        for row in found
    ]


def broken(plan: ImportPlan, random: Random) -> None:
    """What a killed process leaves of the rejected lines that its note does not count: any part of them."""
    found = read_state(plan.state)
    noted = 0 if found is None else found.position["rejected_bytes"]
    if plan.rejects.exists() and (size := plan.rejects.stat().st_size) > noted:
        with plan.rejects.open("r+b") as file:
            file.truncate(random.randrange(noted, size + 1))


def rewrite(source: Path, noted: CopyState, number: int, random: Random) -> None:
    """Corrects or adds lines of the last file, behind those that may have been sent. Without a quote, which could close
    one that an earlier line left open."""
    data, at = source.read_bytes(), noted.position
    end = at["offset"] if noted.kept is None else noted.kept.position["offset"]
    end += len(BOM) * data.startswith(BOM)
    if at["file"] == number and data[:end].endswith(b"\n"):
        more = random.choices([b"k1,1,x", b"k2\t2\ty", b"x", *EMPTY], k=random.randrange(4))
        source.write_bytes(data[:end] + b"\n".join(more))


def ended(plan: ImportPlan, log: FakeLog, random: Random) -> ImportProgress:
    """Gives the same command again, until it ends by itself. Meanwhile the end of the last file may be another."""
    begun = (ImportProgress(0, 0, 0, 0, None, None, ""),)  # all that is shown of an input without a line
    for _ in range(random.randrange(6)):
        log.steps_left, log.has_leader = random.randrange(1, 50), random.random() < 0.9
        try:
            with patch.object(inputs, "CHUNK_BYTES", random.choice([1, 7, 64, 256 << 10])):
                return (*begun, *run(plan, log, io.BytesIO()))[-1]  # type: ignore[arg-type]  # what it needs of a client
        except (Killed, Unavailable):
            pass
        broken(plan, random)
        noted = read_state(plan.state)
        if random.random() < 0.5 and noted is not None and not noted.position["done"]:
            rewrite(Path(plan.sources[-1]), noted, len(plan.sources) - 1, random)
    log.steps_left, log.has_leader = 0, True
    return (*begun, *run(plan, log, io.BytesIO()))[-1]  # type: ignore[arg-type]


@example(0, InputFormat.LINES)  # lines of the greatest size
@example(2**32 - 1, InputFormat.LINES)  # the mark of another charset
@example(26_990_431, InputFormat.TSV)  # an open row of the greatest size
@given(st.integers(0, 2**32 - 1), st.sampled_from(FORMATS))
@settings(max_examples=300, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_the_same_command_ends_with_what_a_naive_reader_gives(seed: int, format: InputFormat) -> None:
    """An import of one to three files is killed at random steps, also in the middle of its files, or loses the leader;
    the same command is given until it ends. Every record is in the log once and in order, every other line aside once.
    """
    random = Random(seed)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        log, folder = FakeLog(), Path(name)
        asked = [] if format is InputFormat.LINES else [name for name in NAMES if random.random() < 0.7]
        plan = plan_of(folder, random, format, asked, random.choice([1, 1, 2, 3]))
        for number, source in enumerate(plan.sources):
            Path(source).write_bytes(content(random, format, number, is_checked=asked != []))
        stack.enter_context(log.in_place())
        for module, limit, value in (
            (file_source, "BATCH_BYTES_MAX", BATCH_MAX),
            (lines, "LINE_BYTES_MAX", LINE_MAX),
            (lines, "ROW_BYTES_MAX", ROW_MAX),
            (file_source, "STOP_S", 0),
        ):
            stack.enter_context(patch.object(module, limit, value))
        done = ended(replace(plan, at=log.step), log, random)
        found = [(source, naive(Path(source).read_bytes(), format, asked)) for source in plan.sources]
        note(f"{plan.batch_lines} lines a batch: {[Path(source).read_bytes() for source in plan.sources]}")
        records = [record for _, (records, _) in found for record in records]
        assert log.records == records
        assert rejected_in(plan) == [
            (source if plan.more else None, *each) for source, (_, rejected) in found for each in rejected
        ]
        assert (done.records, done.rejected) == (len(records), sum(len(rejected) for _, (_, rejected) in found))
        assert done.without_time == sum(each.time_ms is None for each in records) * (plan.time is not None)
        assert (done.first, done.last) == ((1, len(records)) if records else (None, None))
        assert len({session for session, _ in log.answers}) <= 1
