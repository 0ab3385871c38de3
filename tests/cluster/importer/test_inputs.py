"""Inputs of every kind become the same lines: compressed, in other charsets, as JSON, Parquet and Arrow."""

import bz2
import datetime
import decimal
import gzip
import hashlib
import io
import json
import lzma
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.client.new_records import NewRecord
from raftlog.cluster.importer import inputs
from raftlog.cluster.importer.batches import BatchEnds, Unacceptable, batches
from raftlog.cluster.importer.files import InputFiles
from raftlog.cluster.importer.formats import converting, deciding
from raftlog.cluster.importer.formats.lines import InputError, InputFormat, InputOptions, split_lines
from raftlog.cluster.importer.importer import ImportPlan, preview

pa = pytest.importorskip("pyarrow", reason="pyarrow is of the extra `spark`")


def stored(path: Path, **options: Any) -> list[bytes | None]:
    """The values as an import would store them."""
    plan = ImportPlan(str(path), path.with_name("note"), path.with_name("rejected"), **options)
    return [each.value for _, each in preview(plan, io.BytesIO(), 1_000) if isinstance(each, NewRecord)]


def test_compressed_files_are_found_by_their_first_bytes(tmp_path: Path) -> None:
    """Whatever the name is; a cut file is an error that names it."""
    data = b"".join(b'{"n": %d}\n' % number for number in range(500))
    zstd = pa.compress(data, codec="zstd", asbytes=True)
    packs = {
        "a": gzip.compress(data),
        "b.zst": zstd,
        "c.ndjson": data,
        "d": bz2.compress(data),
        "e": lzma.compress(data),
    }
    for name, packed in packs.items():
        (tmp_path / name).write_bytes(packed)
        assert stored(tmp_path / name) == data.splitlines()
        if packed != data:
            (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
            with pytest.raises(InputError, match="cut: the compressed file is damaged or cut"):
                stored(tmp_path / "cut")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="zip: a zip archive: unzip it"):
        stored(tmp_path / "zip")
    for name, head in (("a.XLSX", b"PK\x03\x04"), ("a.xls", b"\xd0\xcf\x11\xe0")):
        (tmp_path / name).write_bytes(head)
        with pytest.raises(InputError, match=f"{name}: a spreadsheet: save each sheet as CSV"):
            stored(tmp_path / name)


@pytest.mark.parametrize("charset", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "cp1252"])
def test_any_charset_becomes_utf_8(tmp_path: Path, charset: str) -> None:
    """With and without a byte order mark; the names of the columns have no mark."""
    (tmp_path / "a.csv").write_bytes("städte,n\nZürich,1\n".encode(charset))
    assert stored(tmp_path / "a.csv", key="städte") == ["Zürich,1".encode()]


def test_utf_16_without_a_mark_is_known_in_any_script(tmp_path: Path) -> None:
    """Letters without a zero byte, too; bytes that are no text are not taken for it."""
    for charset in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.csv").write_bytes("名前,値\n東京,一\n".encode(charset))
        assert stored(tmp_path / "a.csv", key="名前") == ["東京,一".encode()]
    (tmp_path / "b").write_bytes(b"\x00\x01\n\x00\xff\xfe\n")
    assert stored(tmp_path / "b", format=InputFormat.LINES) == [b"\x00\x01", b"\x00\xff\xfe"]


def test_what_a_selection_cannot_keep_as_a_number_is_text(tmp_path: Path) -> None:
    """Infinity and NaN are not lost, nor are digits of integers."""
    (tmp_path / "a.ndjson").write_bytes(b'{"a":1e400}\n{"a":{"b":[NaN,1]}}\n{"a":123456789012345678901234567890}\n')
    assert stored(tmp_path / "a.ndjson", select=("a",)) == [
        b'{"a":"inf"}',
        b'{"a":{"b":["nan",1]}}',
        b'{"a":123456789012345678901234567890}',
    ]


def test_windows_1252_reads_every_byte_and_a_given_charset_is_kept(tmp_path: Path) -> None:
    """An undefined byte is no reason to stop in the middle of a file."""
    (tmp_path / "a.csv").write_bytes(b"a,b\n\x81\xe4,1\n")
    assert stored(tmp_path / "a.csv") == ["\x81ä,1".encode()]
    assert stored(tmp_path / "a.csv", charset="latin2") == ["\x81ä,1".encode()]
    for charset in ("utf-99", "base64", "rot13"):
        with pytest.raises(InputError, match="no such charset"):
            stored(tmp_path / "a.csv", charset=charset)
    for charset in ("utf-16", "punycode", "undefined"):
        with pytest.raises(InputError, match=f"line 1 or later is not {charset}"):
            stored(tmp_path / "a.csv", charset=charset)
    with pytest.raises(InputError, match="line 1 or later is not ascii"):
        stored(tmp_path / "a.csv", charset="ascii")


def test_a_pause_inside_a_character_does_not_decide_the_charset() -> None:
    """UTF-8 whose last character is not there yet is UTF-8. Only at the end of the input is it cut."""
    whole = "id,city\n1,Kiruna\n2,åmål\n".encode()
    for at in range(1, len(whole)):
        charset, chunks = inputs.as_utf8(iter([whole[:at], b"", whole[at:]]), None, InputFormat.CSV)
        assert (charset, b"".join(chunks)) == ("utf-8", whole)
    charset, chunks = inputs.as_utf8(iter([whole[:20]]), None, InputFormat.CSV)
    assert charset == "windows-1252"


@pytest.mark.parametrize(
    "data",
    [
        "ts,amount\n2026-01-31T12:00:00Z,5\n",
        '{"ts": "2026-01-31T12:00:00Z", "amount": 5}\n',
        '[\n{"ts": "2026-01-31T12:00:00Z", "amount": 5}\n]\n',
    ],
    ids=["csv", "ndjson", "json"],
)
def test_a_pause_before_the_first_whole_line_of_data_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: str
) -> None:
    """A pipe that stops in the middle of a line, or behind the names of columns: times and numbers are found."""
    for at in range(1, len(data)):
        parts = [data[:at].encode(), b"", b"", data[at:].encode()]
        monkeypatch.setattr(inputs, "_chunks", lambda *_, parts=parts: iter(parts))
        plan = ImportPlan("-", tmp_path / "note", tmp_path / "rejected", time="ts", select=("amount",))
        ((_, found),) = preview(plan, io.BytesIO(), 9)
        assert isinstance(found, NewRecord)
        assert (found.value, found.time_ms) == (b'{"amount":5}', 1_769_860_800_000)


def test_a_line_after_a_pause_is_still_taken_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One whole line of data is enough to begin: a slow stream of events is not held back."""
    for data, options in (
        (b'{"a": 1}\n', {}),
        (b"1,2\n", {"columns": ("a", "b")}),
        (b"a,b\n1,2\n", {"format": InputFormat.CSV}),
    ):
        asked: list[int] = []

        def chunks(*_: Any, data: bytes = data, asked: list[int] = asked) -> Iterator[bytes]:
            yield from (data, b"")
            asked.append(1)

        monkeypatch.setattr(inputs, "_chunks", chunks)
        files = InputFiles(ImportPlan("-", tmp_path / "note", tmp_path / "rejected", **options), None, io.BytesIO())
        assert files.next() is not None
        assert not asked


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_json_values_become_lines_wherever_the_pieces_end(size: int) -> None:
    """Arrays, objects over several lines, and numbers whose digits are kept."""

    def pieces(text: str) -> Iterator[bytes]:
        data = text.encode()
        return (data[at : at + size] for at in range(0, len(data), size))

    pretty = '[\n {"a": 1.10,\n "b": "x\\ny, ]é"},\r\n {"a": 123456789012345678901234567890}\n]\n'
    found = [*converting.json_lines(pieces(pretty))]
    assert found == ['{"a": 1.10,  "b": "x\\ny, ]é"}\n'.encode(), b'{"a": 123456789012345678901234567890}\n']
    assert [*converting.json_lines(pieces('{"a":\n1}{"a":2}\n'))] == [b'{"a": 1}\n', b'{"a":2}\n']
    assert [*converting.json_lines(pieces('{"a":1},\n{"a":2},\n'))] == [b'{"a":1}\n', b'{"a":2}\n']
    assert [*converting.json_lines(pieces("[]"))] == []
    assert [*converting.json_lines(pieces('[{"a":1}]\n[{"a":2}]{"a":3}'))] == [b'{"a":%d}\n' % n for n in (1, 2, 3)]
    for text, reason in (
        ('[{"a": 1},\n {"a"', "line 2: value 2 is not JSON, or cut"),
        ('[{"a": 1}', "the file is cut"),
        ('[{"a": 1}]\nmore', "line 2: value 2 is not JSON.*--format lines"),
    ):
        with pytest.raises(InputError, match=reason):
            list(converting.json_lines(pieces(text)))


def all_types() -> Any:
    """A table with a column of every type."""
    when = datetime.datetime(2016, 1, 1, 0, 30, 4, 910_000)
    return pa.table(
        {
            "i": pa.array([2**63 - 1, None], pa.int64()),
            "u": pa.array([2**64 - 1, 0], pa.uint64()),
            "f": pa.array([0.1, float("nan")], pa.float64()),
            "h": pa.array([1.5, None], pa.float32()),
            "b": pa.array([True, None]),
            "s": pa.array(["é", ""]),
            "x": pa.array([b"\xff", None], pa.binary()),
            "t": pa.array([when, None], pa.timestamp("us")),
            "z": pa.array([when, None], pa.timestamp("ms", "UTC")),
            "n": pa.array([1_451_608_204_910_000_001, None], pa.timestamp("ns")),
            "d": pa.array([datetime.date(2016, 1, 1), None]),
            "c": pa.array([datetime.time(1, 2, 3), None]),
            "m": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
            "p": pa.array([datetime.timedelta(seconds=1), None], pa.duration("ms")),
            "l": pa.array([[1, 2], None], pa.list_(pa.int32())),
            "o": pa.array([{"a": 1, "w": when}, None]),
            "k": pa.array(["x", "x"]).dictionary_encode(),
            "e": pa.nulls(2),
        }
    )


EXPECTED = {
    "i": 2**63 - 1,
    "u": 2**64 - 1,
    "f": 0.1,
    "h": 1.5,
    "b": True,
    "s": "é",
    "x": "/w==",
    "t": "2016-01-01T00:30:04.910000",
    "z": "2016-01-01T00:30:04.910Z",
    "n": "2016-01-01T00:30:04.910000001",
    "d": "2016-01-01",
    "c": "01:02:03.000000",
    "m": "1.10",
    "p": 1000,
    "l": [1, 2],
    "o": {"a": 1, "w": "2016-01-01T00:30:04.910000"},
    "k": "x",
    "e": None,
}


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "parquet.gz"])
def test_every_arrow_type_is_kept(tmp_path: Path, kind: str) -> None:
    """As JSON without loss; times of any column can be the record's time."""
    import pyarrow.parquet

    path = tmp_path / f"a.{'arrows' if kind == 'stream' else kind}"
    table = all_types()
    if kind.startswith("parquet"):
        pyarrow.parquet.write_table(table, path)
        if kind.endswith("gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
    values = stored(path)
    first, second = (json.loads(value or b"") for value in values)
    assert first == EXPECTED
    assert second == dict.fromkeys(EXPECTED) | {"u": 0, "f": "nan", "s": "", "k": "x"}
    plan = ImportPlan(str(path), tmp_path / "note", tmp_path / "rejected", time="n", key="s")
    (_, found), _ = preview(plan, io.BytesIO(), 9)
    assert isinstance(found, NewRecord)
    assert (found.key, found.time_ms) == ("é".encode(), 1_451_608_204_910)


def test_a_container_is_not_read_as_text_by_mistake(tmp_path: Path) -> None:
    """The message says what the file is. As plain lines any bytes are kept. A file without text has no charset."""
    file = tmp_path / "trips.parquet"
    file.write_bytes(b"PAR1" + bytes(8))
    with pytest.raises(InputError, match="parquet by its first bytes: leave out --format csv"):
        inputs.open_input(str(file), io.BytesIO(), InputFormat.CSV, None, threading.Event())
    inputs.open_input(str(file), io.BytesIO(), InputFormat.LINES, None, threading.Event()).close()
    decided = deciding.decide(
        deciding.Sample("trips.parquet", [b'{"a":1}\n'], InputFormat.PARQUET), deciding.ImportOptions()
    )
    assert "charset" not in " ".join(decided.notices)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    """And so is Parquet from a pipe, which cannot be read from its end."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match=r"a\.parquet: not a Parquet file"):
        stored(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="save the input to a file"):
        inputs.open_input("-", io.BytesIO(b"PAR1"), None, None, threading.Event())


def test_what_is_no_input_is_refused(tmp_path: Path) -> None:
    """A folder without files, a pattern without any, and a pipe among files."""
    for names, message in (
        ([str(tmp_path)], "no file to import"),
        ([str(tmp_path / "*.json")], "no file matches"),
        (["-", "a"], "together with files"),
    ):
        with pytest.raises(InputError, match=message):
            inputs.expand(names)


def test_lines_may_be_any_bytes(tmp_path: Path) -> None:
    """Plain lines need no charset."""
    (tmp_path / "a.txt").write_bytes(b"\xff\xfeanything"[1:] + b"\nx\r\n")
    assert stored(tmp_path / "a.txt", format=InputFormat.LINES) == [b"\xfeanything", b"x\r"]


def test_strict_stops_before_a_line_that_is_not_like_the_others() -> None:
    """No JSON, or a row with more cells than columns: the lines before it are a batch."""
    csv = InputOptions(InputFormat.CSV, columns=("a", "b"))
    for reading, data, message in (
        (InputOptions(InputFormat.NDJSON), [b'{"a": 1}\n', b"no\n"], "line 2: not JSON"),
        (csv, [b"1,2\n", b"1,2,3\n"], "line 2: 3 cells, not 2; correct it, or leave out --strict"),
    ):
        found = batches(split_lines(data, reading), reading, BatchEnds(10, 1_000, strict=True), hashlib.sha256())
        assert [record.value for record in next(found).records] == [data[0].rstrip()]
        with pytest.raises(Unacceptable, match=message):
            next(found)
