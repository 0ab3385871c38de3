"""The demo does the whole job, and fails when any part of it did not happen."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raftlog import Client, Record
from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.cli.commands import build
from raftlog.cluster.demo import input, story as demo, table as demo_table
from raftlog.cluster.demo.story import DemoFailed, DemoInput, DemoRow, LeaderKill, Story
from raftlog.cluster.importer.formats.lines import InputFormat
from tests.cluster.fake_node import FakeNode, serve
from tests.support import HANG_S, port_for_up, raftlog, wait_until


def test_input_is_the_history_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many lines whatever the history has; each generated one says so; without history it is the same every time."""
    file = tmp_path / "input.ndjson"
    made = input.write_input(file, 500)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(events) == 500 == made["history"] + made["generated"]
    assert sum(event["source"] == "generated" for event in events) == made["generated"]
    assert all(event["path"] and event["time"] > 0 for event in events)
    monkeypatch.setattr(input, "_history", lambda _: iter(()))
    assert input.write_input(file, 50) == {"history": 0, "generated": 50}
    first = file.read_bytes()
    input.write_input(file, 50)
    assert file.read_bytes() == first


async def test_the_demo_table_shows_every_effect() -> None:
    """Compares that hold and that fail, both branches, deletes, the range delete and a repetition all happen, and the
    log has each."""
    table, node = demo_table.DemoTable(), FakeNode()
    async with serve(node) as served:
        await demo_table.drive(table, [served.url], [b"key %d" % (number % 7) for number in range(120)])
        async with Client(served.url) as client:
            found = Counter(
                [
                    f"{each.operation} {each.result}"
                    async for each in client.log(internal=True)
                    if isinstance(each, Record)
                ]
            )
    assert table.open == 0
    assert {*table.done} == {*demo_table.EFFECTS}
    assert all(found[effect] == count for effect, count in table.effects().items() if "branch" not in effect)


def story_of(folder: Path) -> tuple[Story, list[DemoRow]]:
    """A finished run over four lines, and the rows it should have left."""
    source = folder / "in.ndjson"
    source.write_bytes(b'{"path": "a"}\n{"path": "b"}\n{"no": 1}\n{"path": "c"}\n')
    story = Story(folder, DemoInput(source, "path", lines=4, wanted=3), LeaderKill(1, new_leader=2), acknowledged=3)
    kinds = [
        ("configuration", None, "applied", None),
        ("noop", None, "applied", None),
        ("commands", "put", "applied", None),
        ("commands", "put", "repeated", None),
        ("commands", "put", "compare_failed", None),
        ("commands", "txn", "applied", True),
        ("noop", None, "applied", None),
        ("commands", "txn", "applied", False),
        ("commands", "delete", "applied", None),
        ("commands", "delete_range", "applied", None),
    ]
    rows = [DemoRow(0, kind, operation, result, b"k", b"v", branch) for kind, operation, result, branch in kinds]
    lines = source.read_bytes().splitlines()
    rows[4:4] = [DemoRow(0, "commands", "append", "applied", b"a", lines[0], None)]
    rows += [
        DemoRow(0, "commands", "append", "applied", key, line, None)
        for key, line in ((b"b", lines[1]), (b"c", lines[3]))
    ]
    story.table.done.update(dict.fromkeys(demo_table.EFFECTS, 1) | {"compare and set": 0, "repeated": 1, "put": 0})
    return story, [row._replace(index=index) for index, row in enumerate(rows, start=1)]


def test_rows_that_are_the_input_pass(tmp_path: Path) -> None:
    """The same lines in order, the rejected one left out, internal records accounted for."""
    story, rows = story_of(tmp_path)
    demo.compare(story, rows)
    assert (story.records, story.leader_changes) == (len(rows), 1)


def test_a_transaction_that_was_sent_again_counts_once(tmp_path: Path) -> None:
    """The client lost the answer of a transaction. The log has its repetition, which names the same branch."""
    story, rows = story_of(tmp_path)
    again = next(row for row in rows if row.succeeded)._replace(result="repeated")
    demo.compare(story, renumbered([*rows, again]))
    assert story.effects["then branch"] == 1


def renumbered(rows: list[DemoRow]) -> list[DemoRow]:
    """The rows with dense indexes, as a cluster that lost or doubled something would have them."""
    return [row._replace(index=index) for index, row in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda rows: rows[:-1], "the end of the input is missing"),
        (lambda rows: [*rows, rows[-1]], "should"),
        (lambda rows: renumbered([*rows, rows[-1]]), "a line more than the input has"),
        (lambda rows: renumbered([*rows[:-2], rows[-1], rows[-2]]), "is not record 2"),
        (lambda rows: [*rows[:-1], rows[-1]._replace(value=b"{}")], "is not record 3"),
        (lambda rows: [*rows[:-1], rows[-1]._replace(key=b"x")], "is not record 3"),
        (lambda rows: rows[1:], "index 2 stands where 1 should"),
        (lambda rows: [row._replace(kind="clock") if row.index == 2 else row for row in rows], "no leader change"),
        *(
            (
                lambda rows, result=result: [
                    row._replace(result="refused") if row.result == result else row for row in rows
                ],
                result,
            )
            for result in ("repeated", "compare_failed")
        ),
        *(
            (
                lambda rows, name=name: [
                    row._replace(operation="clock") if row.operation == name else row for row in rows
                ],
                name,
            )
            for name in ("delete", "delete_range", "put")
        ),
        (lambda rows: [row._replace(succeeded=None) if row.succeeded is False else row for row in rows], "else branch"),
    ],
    ids=range(14),
)
def test_a_demo_with_lost_or_altered_results_fails(tmp_path: Path, damage: object, says: str) -> None:
    """A line lost, doubled, swapped or altered, a hole, no leader change, an effect that was not shown."""
    story, rows = story_of(tmp_path)
    with pytest.raises(DemoFailed, match=says):
        demo.compare(story, damage(rows))  # type: ignore[operator]


def test_lines_that_were_not_acknowledged_fail(tmp_path: Path) -> None:
    """The import said less than the input has."""
    story, rows = story_of(tmp_path)
    story.acknowledged = 2
    with pytest.raises(DemoFailed, match="2 records were acknowledged, the input has 3"):
        demo.compare(story, rows)


INPUTS: dict[str, tuple[bytes, int, InputFormat]] = {  # name: the bytes, how many records they are, read as
    "one line.txt": (b"a single line", 1, InputFormat.LINES),
    "blank first.txt": (b"\n\nthird\n\n", 1, InputFormat.LINES),
    "distinct.ndjson": (b"".join(b'{"k": %d}\n' % number for number in range(60)), 60, InputFormat.NDJSON),
    "no final newline.ndjson": (b'{"k": 1}\n{"k": 2}', 2, InputFormat.NDJSON),
    "latin-1.log": ("Gr\u00fc\u00dfe\n".encode("latin-1") * 9, 9, InputFormat.LINES),
    "bytes.bin": (bytes(range(256)) * 3, 4, InputFormat.LINES),
    "crlf.csv": (b"a,b\r\n1,x\r\n2,y\r\n", 2, InputFormat.CSV),
    "quoted.csv": (b'a,b\n1,"two\nlines"\n2,x\n', 2, InputFormat.CSV),
    "packed.gz": (gzip.compress(b"one\ntwo\n"), 2, InputFormat.LINES),
    "packed.csv.gz": (gzip.compress(b"a,b\n1,2\n"), 1, InputFormat.CSV),
    "mark.txt": (b"\xef\xbb\xbfone\n", 1, InputFormat.LINES),
    "utf-16.txt": ("one\ntwo\n".encode("utf-16"), 2, InputFormat.LINES),
    "array.json": (b'[{"a": 1}, {"a": 2}]', 2, InputFormat.JSON),
    "broken.json": (b'{"a": \n', 1, InputFormat.LINES),
}


@pytest.mark.parametrize("name", INPUTS)
def test_any_file_is_an_input(tmp_path: Path, name: str) -> None:
    """What there is to import is known before anything starts, for text, tables and bytes of any kind."""
    source = tmp_path / name
    content, records, format = INPUTS[name]
    source.write_bytes(content)
    read = DemoInput(source)
    demo.prepare(read, lambda text: None)
    assert (read.wanted, read.format) == (records, format)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.txt", b"", "is empty"),
        ("blank.txt", b"\n \n\n", "no line that can be imported, of 3 in all"),
        ("header.csv", b"a,b\n", "no line behind the names of its columns"),
        ("long.txt", b"x" * (2 << 20), "no line that can be imported, of 1 in all"),
        ("longer.txt", b"x" * (17 << 20), "line 1 has more than"),
    ],
)
def test_an_input_without_a_record_is_refused_before_anything_starts(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    """`raftlog demo` ends with 2 and one line that names the file and its fault."""
    source = tmp_path / name
    source.write_bytes(content)
    done = raftlog("demo", "--no-spark", "--input", source, environment={"TMPDIR": str(tmp_path)})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(source) in line
    assert says in line
    assert not list(tmp_path.glob("raftlog-demo-*"))


def test_without_spark_the_demo_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is looked for before the input is made: the error has the line of the check, which says what to install."""
    install = "print('no pyspark: pip install pyspark', file=sys.stderr)"
    monkeypatch.setattr(demo, "SPARK_CHECK", (sys.executable, "-c", f"import sys; {install}; sys.exit(8)"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    shown = CliRunner().invoke(build("demo"), ["demo"])
    assert shown.exit_code == 2
    assert shown.stderr == "raftlog: the demo did not begin: no pyspark: pip install pyspark\n"
    assert not list(tmp_path.iterdir())


def test_the_check_of_spark_names_the_missing_package() -> None:
    """`python -m raftlog.spark_export.runtime.job` ends with 8 and one line where a package of the extra is not
    installed."""
    absent = (
        "import importlib.metadata as m\ndef version(name): raise m.PackageNotFoundError(name)\nm.version = version\n"
    )
    script = f"{absent}import runpy; runpy.run_module('raftlog.spark_export.runtime.job', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 8
    (line,) = done.stderr.splitlines()
    assert how_to_install("spark") in line


@pytest.mark.serial
@pytest.mark.parametrize(("name", "form"), [("one line.txt", []), ("distinct.ndjson", ["--secure"]), ("bytes.bin", [])])
def test_demo_on_a_file_of_any_kind(tmp_path: Path, name: str, form: list[str]) -> None:
    """The whole story without Spark on a file with one line, without a repetition, and of bytes that are no text; once
    with TLS and access control."""
    source = tmp_path / name
    content, records, _ = INPUTS[name]
    source.write_bytes(content)
    environment = {"XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = raftlog("demo", "--no-spark", "--json", "--input", source, *form, environment=environment)
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    assert (story["acknowledged"], story["wanted"]) == (records, records)
    assert story["leader_changes"] >= 1


@pytest.mark.serial
def test_demo_on_three_processes(tmp_path: Path) -> None:
    """The whole story without Spark: a leader killed half-way, the digests agree, the rows are the input."""
    source = tmp_path / "in.ndjson"
    input.write_input(source, 600)
    environment = {"XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = raftlog("demo", "--no-spark", "--json", "--input", source, environment=environment)
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    assert (story["acknowledged"], story["rejected"]) == (600, 0)
    assert story["leader_changes"] >= 1
    assert 300 <= story["killed_after"] < 600
    assert story["killed"] != story["new_leader"]
    assert not list(tmp_path.glob("raftlog-demo-*")), "it leaves nothing behind"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_demo_with_tls_and_access_control_exports_by_spark_and_verifies(tmp_path: Path, java_home: Path) -> None:
    """The whole job: Spark's driver and tasks read by the certificate and token of the environment, and the export is
    proved against the cluster's digests. Spark's event log, from which its UI is drawn, has plans and settings, and no
    token and no private key."""
    source, events = tmp_path / "in.ndjson", tmp_path / "events"
    input.write_input(source, 2_000)
    events.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir {events.as_uri()}\n"
    )
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "JAVA_HOME": str(java_home)}
    environment["SPARK_CONF_DIR"] = str(tmp_path)
    arguments = [*demo.COMMAND, "demo", "--json", "--input", str(source), "--secure"]
    done = subprocess.run(arguments, env=environment, capture_output=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr.decode()
    story = json.loads(done.stdout)
    assert story["acknowledged"] == 2_000
    assert story["exported"] is not None
    assert story["verified"] is not None
    logged = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert "SparkListenerEnvironmentUpdate" in logged
    assert "SparkListenerSQLExecutionStart" in logged, "the plans"
    assert not re.search(r"rl_[0-9a-f]{8}_", logged + done.stdout.decode() + done.stderr.decode())
    assert "PRIVATE KEY" not in logged


@pytest.mark.serial
def test_ctrl_c_ends_a_demo_in_its_import(tmp_path: Path) -> None:
    """It does not wait for the table's writes, which go on meanwhile, and leaves neither its folder nor a node."""
    running = subprocess.Popen(
        [*demo.COMMAND, "demo", "--no-spark"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert running.stderr is not None
        assert any(line.startswith(b"importing: ") for line in running.stderr)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(20) == 130
    finally:
        running.kill()
        running.communicate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.serial
def test_up_is_found_and_leaves_no_process_behind(tmp_path: Path) -> None:
    """`raftlog up` in one process, `raftlog put` in another finds it; SIGKILL to the first ends its nodes, too."""
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    environment.pop("RAFTLOG_ENDPOINTS", None)
    data = tmp_path / "data"
    base = port_for_up()
    up = subprocess.Popen(
        [*demo.COMMAND, "up", "--nodes", "1", "--data", str(data), "--port", str(base)],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert up.stdout is not None
        line = up.stdout.readline().decode().split()
        assert line[:3] == ["node", "1", f"http://127.0.0.1:{base}"]
        pid = int(line[-1])
        put = raftlog("put", "a", "1", environment=environment)
        assert put.returncode == 0, put.stderr
        up.send_signal(signal.SIGKILL)
        up.wait(10)
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or is_zombie(pid), what="the node's end")
    finally:
        up.kill()
        up.communicate()
    again = subprocess.Popen([*demo.COMMAND, "up", "--data", str(data)], env=environment, stdout=subprocess.PIPE)
    try:
        assert again.stdout is not None
        again.stdout.readline()
        got = raftlog("get", "a", "-o", "raw", environment=environment)
        assert got.stdout == "1"
        again.send_signal(signal.SIGINT)
        assert again.wait(20) == 0
    finally:
        again.kill()
        again.communicate()
    assert not list((tmp_path / "raftlog" / "clusters").glob("*.json"))


def is_zombie(pid: int) -> bool:
    """Whether the process ended and is only not yet reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
