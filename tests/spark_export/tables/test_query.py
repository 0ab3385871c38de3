"""`raftlog query` answers SQL about a cluster as about its export, and says in one line what it cannot answer."""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog import arrow
from raftlog.cluster.api.errors import Code
from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.importer.formats.dialect import Dialect
from raftlog.spark_export.commands import query
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.tables import duck
from tests.spark_export import logs
from tests.spark_export.export.exports import LAST, LOG, ROWS, run as exported
from tests.spark_export.imports import add_import, appended, schema
from tests.spark_export.server import Served, serving

USER = [row for row in ROWS if logs.is_user(row)]
COUNTED = "SELECT operation, count(*) AS n, min(index) AS first FROM log GROUP BY ALL ORDER BY operation"


@pytest.fixture
def served() -> Served:
    """The node's log and how it answers."""
    return Served(LOG, entries_per_chunk=20)


@pytest.fixture(params=["cluster", "export", "odd"])
def place(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> list[str]:
    """The arguments that name a cluster, an export, and one in a folder whose name means something to DuckDB."""
    if request.param == "cluster":
        return ["--endpoints", url]
    folder = tmp_path / ("it's" if request.param == "export" else "a[1]*")
    exported(url, folder, mode="once")
    return [str(folder)]


def ask(*arguments: object, given: str | None = None) -> Result:
    """One query."""
    app = typer.Typer()
    query.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["query", *map(str, arguments)], input=given)


def rows_of(result: Result) -> list[dict[str, Any]]:
    """The rows that it printed as JSON."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_view_has_each_user_record_once(place: list[str]) -> None:
    """Repetitions are no events; with all records every index is there, also in a range, and joined with itself."""
    counts = Counter(row["operation"] for row in USER)
    first = {row["operation"]: row["index"] for row in reversed(USER)}
    assert rows_of(ask(COUNTED, *place, "-o", "jsonl")) == [
        {"operation": name, "n": counts[name], "first": first[name]} for name in sorted(counts)
    ]
    whole = "SELECT count(*) AS n, sum(index) AS s, max(event_time) AS t FROM log"
    (found,) = rows_of(ask(whole, *place, "-o", "jsonl", "--records", "all"))
    assert (found["n"], found["s"]) == (LAST, LAST * (LAST + 1) // 2)
    newest = max(logs.shown(row)["event_time"] for row in ROWS)
    assert found["t"] == newest.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    pairs = "SELECT count(*) AS n FROM log a JOIN log b USING (index)"
    assert rows_of(ask(pairs, *place, "-o", "jsonl", "--from", 11, "--to-index", 60, "--records", "all")) == [{"n": 50}]


def test_keys_are_compared_and_shown_as_text(place: list[str]) -> None:
    """A key is bytes; text() gives its text, or null where it is none."""
    keys = Counter(row["key"] for row in USER if row["key"] is not None)
    key, times = keys.most_common(1)[0]
    sql = f"SELECT key, text(key) AS t, count(*) AS n FROM log WHERE key = '{key.decode()}' GROUP BY ALL"
    assert rows_of(ask(sql, *place, "-o", "jsonl")) == [{"key": key.decode(), "t": key.decode(), "n": times}]
    assert rows_of(ask(r"SELECT text('\xFF'::BLOB) AS t", *place, "-o", "jsonl")) == [{"t": None}]


def test_a_table_says_when_there_are_more_rows(place: list[str]) -> None:
    """The limit is a default that one can lift; SQL may come from standard input."""
    shown = ask("SELECT range AS n FROM range(1200)", *place)
    assert shown.stderr == "the first 1,000 rows; --limit 0 shows all\n"
    assert shown.stdout.split() == ["n", *map(str, range(1_000))]
    assert ask("SELECT range AS n FROM range(1200)", *place, "--limit", 0).stderr == ""
    assert len(rows_of(ask("-", *place, "-o", "jsonl", "--limit", 2, given="SELECT index FROM log"))) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "match"),
    [
        (("SELEC 1",), 2, "the SQL was not carried out: Parser Error: syntax error at or near"),
        (("SELECT colour FROM log",), 2, 'Referenced column "colour" not found'),
        (("SELECT * FROM events",), 2, "There is no view events: the log has no import"),
        ((" ",), 2, "the SQL is empty; for example: raftlog query 'SELECT count(*) FROM log'"),
        (("SELECT 1", "--to-index", "99999"), 2, "there are no records 1 to 99999"),
        (("SELECT 1 FROM log", "--records", "some"), 2, "Invalid value for '--records'"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    place: list[str], arguments: tuple[str, ...], code: int, match: str
) -> None:
    """The message says where the error is and how to correct it; the exit code is that of a wrong usage."""
    told = ask(*arguments, *place)
    assert told.exit_code == code, told.output
    assert match in " ".join(told.stderr.replace("│", " ").split())
    if "Invalid" not in match:
        assert len(told.stderr.strip().splitlines()) == 1


def test_what_reading_met_is_told_and_not_hidden_by_the_database(url: str, served: Served, tmp_path: Path) -> None:
    """A node that stops to answer amid a query, a folder without an export, and a damaged file have their own exit
    codes."""
    served.faults = [lambda body: Code.NO_LEADER] * 9999
    told = ask("SELECT count(*) FROM log", "--endpoints", url, "--timeout", "0.1")
    assert (told.exit_code, told.stdout) == (5, "")
    assert told.stderr.startswith("raftlog: no node gave the log from index 1 on within 0.1 s")
    assert len(told.stderr.strip().splitlines()) == 1
    assert ask("SELECT 1", tmp_path).exit_code == 8
    served.faults = []
    exported(url, tmp_path / "out", mode="once")
    file = next((tmp_path / "out" / "log").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    told = ask("SELECT 1", tmp_path / "out")
    assert (told.exit_code, len(told.stderr.strip().splitlines()), file.name in told.stderr) == (8, 1, True), (
        told.output
    )


def test_ctrl_c_in_the_database_is_ctrl_c() -> None:
    """DuckDB makes a RuntimeError of it, whose trace the user would see."""

    class Interrupted:
        def execute(self, sql: str) -> None:
            raise RuntimeError("Query interrupted")

    with pytest.raises(KeyboardInterrupt):
        duck.Tables(Interrupted(), None).ask("SELECT 1")  # type: ignore[arg-type]


def test_without_a_leader_the_answer_is_that_of_one_node_at_once(url: str, served: Served) -> None:
    """It says up to which record, and does not wait for a leader as long as for a node."""
    served.has_leader = False
    told = ask("SELECT max(index) AS n FROM log", "--endpoints", url, "-o", "jsonl", "--records", "all")
    assert rows_of(told) == [{"n": LAST}]
    assert told.stderr.startswith(f"there is no leader: the answer is of the records up to {LAST}, which one node has")
    assert len(told.stderr.splitlines()) == 1


def test_what_a_user_may_not_read_ends_with_9(url: str, served: Served) -> None:
    """As every command; with `-o json` the error is JSON too."""
    served.faults = [lambda body: Code.FORBIDDEN] * 9
    told = ask("SELECT 1 FROM log", "--endpoints", url)
    assert told.exit_code == 9
    assert "(forbidden)" in told.stderr
    told = ask("SELECT 1 FROM log", "--endpoints", url, "-o", "json")
    assert json.loads(told.stderr)["code"] == "not_permitted"


def test_no_column_is_lost_by_its_name(place: list[str]) -> None:
    """Two columns of one name are two in each format."""
    assert rows_of(ask("SELECT 1 AS a, 2 AS a, 3 AS a_", *place, "-o", "jsonl")) == [{"a": 1, "a_": 2, "a__": 3}]


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_a_missing_extra_is_one_line_with_the_command(url: str, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """It names the package and what installs it."""
    for name in [each for each in sys.modules if each.startswith("raftlog.spark_export.tables")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    told = ask("SELECT 1", "--endpoints", url)
    assert told.exit_code == 8
    assert told.stderr.splitlines() == [
        f"raftlog: this command needs the package {package}, which is not installed: {how_to_install('query')}"
    ]


def test_nothing_is_left_where_the_command_ran(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into memory goes to a temporary folder, which goes with the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    sql = "SET memory_limit = '20MB'; SELECT count(*) AS n FROM (SELECT * FROM range(3000000) t(i) ORDER BY hash(i))"
    assert rows_of(ask(sql, "--endpoints", url, "-o", "jsonl")) == [{"n": 3_000_000}]
    assert list(tmp_path.iterdir()) == []


def test_members_of_json_have_any_name() -> None:
    """None of them costs the view: a quote, a slash, a dot, no name at all."""
    names = ["a.b", 'e"f', "x/y~0", "", "it's", "$"]
    log = appended()
    columns = [(name, "integer") for name in names]
    add_import(log, schema("json", *columns), [json.dumps({name: at for at, name in enumerate(names)}).encode()])
    with serving(Served(log)) as url, duck.opened(arrow.log(url)) as tables:
        found, rows = tables.ask("SELECT * FROM events")
        assert next(iter(rows))[-len(names) :] == (0, 1, 2, 3, 4, 5)
    assert found[-len(names) :] == ["a.b", 'e"f', "x/y~0", "column", "it's", "$"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_cell_that_does_not_fit_its_column_is_null(form: str) -> None:
    """No fraction is rounded to an integer, and no other text is taken for a number or a boolean."""
    cells: list[tuple[str, list[str], list[Any]]] = [
        ("integer", ["1", "-7", "2.0", "2.7", "0x1f", "1_000", "", "x"], [1, -7, 2] + [None] * 5),
        ("number", ["1", "2.7", "1e3", "inf", "1_000", "0x1f", "", "x"], [1.0, 2.7, 1e3, math.inf] + [None] * 4),
        ("boolean", ["true", "FALSE", "False", "yes", "1", "0", "", "t"], [True, False, False] + [None] * 5),
    ]
    log = appended()
    for type, given, _ in cells:
        rows = [each.encode() if form == "csv" else json.dumps({"a": each}).encode() for each in given]
        add_import(log, schema(form, ("a", type), source=type), [row or b'""' for row in rows])
    add_import(log, schema("json", ("b", "integer"), source="numbers"), [b'{"b":1}', b'{"b":2.7}', b'{"b":true}'])
    with serving(Served(log)) as url, duck.opened(arrow.log(url)) as tables:
        for type, _, due in cells:
            assert [row[0] for row in tables.ask(f'SELECT a FROM "{type}" ORDER BY index')[1]] == due
        assert [*tables.ask("SELECT sum(b), count(b) FROM numbers")[1]] == [(1, 1)]


def test_each_import_is_a_view_with_the_columns_of_its_format() -> None:
    """By the name of its file; `events` is the newest. Numbers are numbers, nested values JSON, a line of another kind
    has no columns."""
    log = appended()
    add_import(
        log,
        schema("json", ("n", "uint8"), ("in", "struct<a: string>"), source="p.parquet"),
        [b'{"n":3,"in":{"a":"x"}}'],
    )
    add_import(log, schema("lines", source="notes.txt"), [b"one line"])
    add_import(
        log,
        schema("access", source="access.log"),
        [b'1.2.3.4 - - [01/Jan/2026:00:00:00 +0000] "GET /a HTTP/1.1" 200 512 "-" "curl"', b"no"],
    )
    add_import(log, schema("csv", ("a", "integer"), source="a.csv"), [b"1", b"x"])
    add_import(log, schema("csv", ("a", "integer"), source="b.csv"), [b"2"])
    add_import(log, schema("csv", ("a", "integer"), source="B.csv"), [b"3"])
    german = schema("csv", ("a", "comma_number"), ("b", "string"), source="de.csv", dialect=Dialect(";", header=False))
    add_import(log, german, [b"3,14;1", b"-2;1", b"x;1"])
    add_import(log, schema("syslog", source="older"), [b"<35>Oct 10 22:14:15 here su[9]: no"])
    add_import(log, schema("syslog", source="messages"), [b"<34>Oct 11 22:14:15 here su[9]: no"])
    asked: dict[str, list[Any]] = {
        "SELECT host, app, procid, severity, facility + 0, message, event_time FROM messages": [
            ("here", "su", "9", "crit", 4, "no", None)
        ],
        "SELECT severity FROM events": [("crit",), ("err",)],  # of all imports with the columns of the newest
        "SELECT severity FROM older": [("err",)],
        """SELECT n + 1, "in"->>'$.a' FROM "p.parquet\"""": [(4, "x")],
        'SELECT line FROM "notes.txt"': [("one line",)],
        'SELECT sum(a), count(a) FROM "de.csv"': [(3.14 - 2, 2)],
        'SELECT host, path, status + sent, agent FROM "access.log"': [("1.2.3.4", "/a", 712, "curl"), (None,) * 4],
        'SELECT a.a, b.a, c.a FROM "a.csv" a, "B.csv" b, "b.csv_" c': [(1, 3, 2), (None, 3, 2)],
    }
    with serving(Served(log)) as url, duck.opened(arrow.log(url)) as tables:
        for sql, rows in asked.items():
            assert sorted(tables.ask(sql)[1], key=str) == sorted(rows, key=str), sql
        with pytest.raises(
            UsageError,
            match=r'is of the import messages and older; the view of each is "messages", "older", "de.csv", "B.csv"',
        ):
            tables.ask("SELECT line FROM events")
        for name in ("nosuch", "nosuch.csv"):
            with pytest.raises(UsageError, match=r'; the view of each is "messages", "older"'):
                tables.ask(f'SELECT 1 FROM "{name}"')
        with pytest.raises(UsageError, match=r"(?i)function with name nope does not exist!(?!.*events)"):
            tables.ask("SELECT nope(1)")
