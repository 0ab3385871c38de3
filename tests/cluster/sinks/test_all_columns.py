"""columns = "all": the members of the first values become columns, and three policies say what becomes of others."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raftlog import NewRecord, sinks
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat
from raftlog.cluster.importer.formats.schema import SCHEMA_VERSION, Schema, encode, key_of
from raftlog.cluster.sinks.columns import columns_of, number_text
from raftlog.cluster.sinks.discovery import found_columns
from raftlog.cluster.sinks.settings import SinkSettingsError

FILE = """
[sink.s]
from = { keys = "k/" }
to = "sqlite"
path = "s.sqlite"
table = "t"
columns = "all"
primary_key = ["key"]
"""


PARTS = {
    "source": '{ keys = "k/" }',
    "key": '["key"]',
    "to": '"sqlite"',
    "table": 'path = "s.sqlite"\ntable = "t"\n',
}
"""What a test may change."""


def file_of(folder: Path, more: str = "", **changed: str) -> sinks.SinkFile:
    """The sink's file, as a command reads it."""
    text = FILE + more
    for old, new in changed.items():
        text = text.replace(PARTS[old], new)
    path = folder / "sinks.toml"
    path.write_text(text)
    return sinks.read_sinks(path)


def put(client: SyncClient, key: str, **members: Any) -> None:
    """A JSON object."""
    client.put(f"k/{key}".encode(), json.dumps(members).encode())


def table(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of the table by their key, as SQLite has them."""
    with closing(sqlite3.connect(folder / "s.sqlite")) as database:
        database.row_factory = sqlite3.Row
        return {row["key"]: dict(row) for row in database.execute("SELECT * FROM t")}


def run(file: sinks.SinkFile, client: SyncClient) -> list[str]:
    """Runs the sink to the end of the log, checks the store, and returns what it said."""
    said: list[str] = []
    sinks.run_of(file, "s", client, tell=said.append).run(once=True)
    with closing(file.open_store("s")) as store:
        found = sinks.verify("s", file.sinks["s"], store, client)
    assert found.is_same, found
    return said


def test_the_members_of_the_first_values_are_columns(client: SyncClient, tmp_path: Path) -> None:
    """With a type that all of their values have; NAME.columns keeps them, and the next run has the same."""
    put(client, "a", name="x", count=1, ratio=1, flag=True, tree={"b": [1]}, odd=1, none=None)
    put(client, "b", name="y", ratio=0.5, odd="text", large=1 << 70)
    run(file_of(tmp_path), client)
    kinds = {"name": "string", "count": "bigint", "ratio": "double", "flag": "boolean", "tree": "json"}
    kinds |= {"odd": "string", "none": "string", "large": "string"}
    wanted = {"key": "key:string"} | {name: f"value.{name}:{kind}" for name, kind in kinds.items()}
    assert json.loads((tmp_path / "s.columns").read_text()) == wanted
    assert table(tmp_path)["k/b"]["large"] == str(1 << 70)
    put(client, "c", name="z")
    run(file_of(tmp_path), client)
    assert table(tmp_path)["k/c"] == dict.fromkeys(wanted) | {"key": "k/c", "name": "z"}


def test_a_new_member_stops_the_sink(client: SyncClient, tmp_path: Path) -> None:
    """The message names index, key and member, and what to do."""
    put(client, "a", name="x")
    run(file_of(tmp_path), client)
    put(client, "b", name="y", born="1815")
    with pytest.raises(
        sinks.SinkStopped, match=r"index \d+, with the key k/b: the value has the member born, which no"
    ):
        run(file_of(tmp_path), client)
    (tmp_path / "s.columns").unlink()
    file = file_of(tmp_path)
    sinks.rebuild(file, "s", client)
    assert table(tmp_path)["k/b"]["born"] == "1815"


def test_new_members_go_into_one_column(client: SyncClient, tmp_path: Path) -> None:
    """With new_columns = "rescue"; its cell is NULL where there are none."""
    put(client, "a", name="x")
    file = file_of(tmp_path, 'new_columns = "rescue"')
    run(file, client)
    put(client, "b", name="y", born="1815", exact=1.50)
    client.put(b"k/c", b'{"name": "z", "digits": 1.2345678901234567890123}')
    run(file_of(tmp_path, 'new_columns = "rescue"'), client)
    rows = table(tmp_path)
    assert rows["k/a"]["rescued"] is None
    assert json.loads(rows["k/b"]["rescued"]) == {"born": "1815", "exact": 1.5}
    assert rows["k/c"]["rescued"] == '{"digits":1.2345678901234567890123}'


def test_new_members_become_columns(client: SyncClient, tmp_path: Path) -> None:
    """With new_columns = "add"; older rows have NULL there. A type never changes by itself."""
    put(client, "a", name="x")
    file = file_of(tmp_path, 'new_columns = "add"')
    run(file, client)
    put(client, "b", name="y", born=1815)
    put(client, "c", name="z", born=1906, more=True)
    said = run(file_of(tmp_path, 'new_columns = "add"'), client)
    assert [each.partition(", with")[2] for each in said] == [
        " the key k/b: new columns: born",
        " the key k/c: new columns: more",
    ]
    assert {key: row["born"] for key, row in table(tmp_path).items()} == {"k/a": None, "k/b": 1815, "k/c": 1906}
    put(client, "d", born="of old")
    with pytest.raises(sinks.SinkStopped, match="born is of old, which is no integer"):
        run(file_of(tmp_path, 'new_columns = "add"'), client)


def test_a_member_that_cannot_be_named_stops_the_sink(client: SyncClient, tmp_path: Path) -> None:
    """A point in a name goes inside a value, so it is no column."""
    put(client, "a", name="x")
    put(client, "b", **{"a.b": 1})
    with pytest.raises(sinks.SinkStopped, match=r"the value has the member a\.b, which no column takes"):
        run(file_of(tmp_path, 'new_columns = "add"'), client)


def test_rows_of_a_table_keep_every_digit(client: SyncClient, tmp_path: Path) -> None:
    """Numbers of PostgreSQL have more digits than a double."""
    image = '{"id": 1, "price": 12345678901234567890.0123456789}'
    head = '{"op":"insert","table":"public.t","lsn":"0/1","n":1,"xid":7,"time":null,'
    client.append_many([NewRecord(value=f'{head}"before":null,"after":{image},"last":true}}'.encode())])
    file = file_of(tmp_path, source='{ table = "public.t" }', key='["id"]')
    assert found_columns("s", file.sinks["s"], client) == {
        "id": "value.id:bigint",
        "price": "value.price:decimal(38,18)",
    }
    assert number_text(sinks.preview(file, "s", client).rows[0]["price"]) == "12345678901234567890.0123456789"


def test_rows_of_an_import_have_the_types_of_its_schema(client: SyncClient, tmp_path: Path) -> None:
    """Its cells are text."""
    columns = (InputColumn("n", "integer"), InputColumn("name", "string"), InputColumn("tags", "array"))
    schema = Schema(version=SCHEMA_VERSION, source="a.csv", format=InputFormat.CSV, values="csv", columns=columns)
    client.put(key_of(7), encode(schema))
    file = file_of(tmp_path, source='{ import = "a.csv" }', key='["index"]')
    assert found_columns("s", file.sinks["s"], client) == {
        "index": "index",
        "n": "value.n:bigint",
        "name": "value.name:string",
        "tags": "value.tags:json",
    }


def test_without_a_record_there_is_nothing_to_find(client: SyncClient, tmp_path: Path) -> None:
    """It says so; a member of the name of the sink's own column is refused too, and so are other wrong settings."""
    file = file_of(tmp_path)
    with pytest.raises(sinks.StoreError, match="the log has no record yet"):
        sinks.run_of(file, "s", client)
    with pytest.raises(SinkSettingsError, match='columns = "all" are known once the sink has run'):
        file.open_store("s")
    client.put(b"k/a", b'{"key": "x"}')
    with pytest.raises(sinks.StoreError, match="the values have a member key"):
        sinks.preview(file, "s", client)
    with pytest.raises(SinkSettingsError, match='this store cannot add a column: new_columns is "stop" or "rescue"'):
        file_of(tmp_path, 'new_columns = "add"', to='"opensearch"\nurl = "http://h"\nindex = "i"', table="")
    (tmp_path / "s.columns").write_text('{"key": "nowhere"}')
    with pytest.raises(SinkSettingsError, match=r"s\.columns: .*delete it and let raftlog sink rebuild"):
        file_of(tmp_path)


def test_numbers_of_one_column_share_a_type() -> None:
    """Integers and fractions are fractions; anything else is text."""
    rows: list[dict[str, Any]] = [{"a": 1, "b": 1, "c": b"x"}, {"a": 0.5, "b": "x"}, {"": 1, "x:y": 1}]
    assert columns_of(rows, "double") == {"a": "value.a:double", "b": "value.b:string", "c": "value.c:binary"}
