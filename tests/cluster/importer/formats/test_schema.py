"""The schema of an import is a record of its log, as docs/formats.md shows it."""

import io
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat, InputOptions
from raftlog.cluster.importer.formats.schema import PREFIX, decode, encode, key_of, schema_of
from raftlog.cluster.importer.formats.times import TimeRule
from raftlog.cluster.importer.importer import ImportPlan, run
from tests.house.rules import ROOT

READING = InputOptions(
    InputFormat.CSV,
    time="at",
    columns=("at", "mag"),
    times=TimeRule("%Y/%m/%d %H:%M:%S.%f"),
    types=(InputColumn("at", "string"), InputColumn("mag", "number")),
)


def test_the_page_shows_what_is_written() -> None:
    """Byte for byte, and it is read back."""
    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8").partition("## Schema of an import")[2]
    shown = page.partition("```json\n")[2].partition("\n```")[0]
    schema = schema_of(READING, "quakes.csv")
    assert encode(schema).decode() == shown
    assert decode(shown.encode()) == schema
    with pytest.raises(ValueError, match="version 2"):
        decode(shown.replace('"version":1', '"version":2').encode())


def test_selected_fields_are_json() -> None:
    """The schema is of the values as they are stored, not of the file."""
    schema = schema_of(
        InputOptions(InputFormat.CSV, select=("mag",), types=READING.types, dialect=Dialect(";")), "q.csv"
    )
    assert (schema.values, schema.columns, schema.dialect) == ("json", (InputColumn("mag", "number"),), None)


def test_every_record_of_an_import_leads_to_its_schema(tmp_path: Path, client: SyncClient) -> None:
    """By its session. Two imports have two schemas, and each schema is there once."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"id,{name}\n1,2\n")
        note, rejects = tmp_path / f"{name}.note", tmp_path / f"{name}.rejected"
        plan = ImportPlan(str(tmp_path / name), note, rejects, format=InputFormat.CSV)
        list(run(plan, client, io.BytesIO()))
    rows = [record for record in client.log() if record.operation == "append"]
    assert len({record.session for record in rows}) == 2
    for record, name in zip(rows, ("a", "b"), strict=True):
        assert record.session is not None
        item = client.get(key_of(record.session))
        assert item is not None
        assert [column.name for column in decode(item.value or b"").columns] == ["id", name]
    assert len(list(client.range(PREFIX, PREFIX + b"\xff"))) == 2
