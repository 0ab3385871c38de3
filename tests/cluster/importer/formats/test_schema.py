"""The schema of an import is a record of its log, as docs/formats.md shows it."""

import pytest

from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat, InputOptions
from raftlog.cluster.importer.formats.schema import decode, encode, schema_of
from raftlog.cluster.importer.formats.times import TimeRule
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
