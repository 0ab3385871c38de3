"""An import is exactly once and in order, wherever it is killed, and refuses what it cannot go on with."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import Unavailable
from raftlog.cluster.importer.formats.lines import InputError
from raftlog.cluster.importer.importer import ImportPlan, run
from raftlog.cluster.importer.session_file import CopyStep, SessionFileError, read_state
from tests.cluster.fake_node import FakeNode
from tests.cluster.importer.fake_log import is_done
from tests.cluster.importer.jobs import Killed, finish, killer, values

pytestmark = pytest.mark.usefixtures("durable_renames")

LINES = [b'{"id": "k%d", "n": %d}' % (number % 3, number) for number in range(23)]
LINES[7] = b'{"n": "no key"}'
LINES[8] = b""
LINES[22] = b"no JSON"
GOOD = [line for number, line in enumerate(LINES) if number not in (7, 8, 22)]


def plan_of(folder: Path, **more: Any) -> ImportPlan:
    """An import of LINES from a file, five records a batch."""
    source = folder / "in.ndjson"
    if not source.exists():
        source.write_bytes(b"\n".join(LINES))
    given: dict[str, Any] = {"key": "id", "batch_lines": 5} | more
    return ImportPlan(str(source), folder / "note.json", folder / "rejected.ndjson", **given)


def rejected_lines(folder: Path) -> list[int]:
    """Numbers of the lines written aside."""
    return [json.loads(line)["line"] for line in (folder / "rejected.ndjson").read_bytes().splitlines()]


def test_an_import_is_the_input_in_order(tmp_path: Path, client: SyncClient) -> None:
    """Values are the lines, keys and times are found, rejected lines are aside, and the end is noted."""
    done = finish(plan_of(tmp_path), client)
    assert (done.records, done.rejected, done.lines) == (20, 3, 23)
    assert values(client) == GOOD
    assert next(record for record in client.log() if record.operation == "append").key == b"k0"
    assert rejected_lines(tmp_path) == [8, 9, 23]
    assert is_done(tmp_path / "note.json")
    again = finish(plan_of(tmp_path), client)
    assert (again.records, again.first, again.last, again.result) == (20, done.first, done.last, "")
    assert len(values(client)) == 20
    finish(plan_of(tmp_path, again=True), client)
    assert values(client) == GOOD + GOOD


def test_an_import_is_done_although_its_session_cannot_be_closed(tmp_path: Path, client: SyncClient) -> None:
    """The leader is lost after the last acknowledged batch: the import ends well, and its note says so."""
    plan = plan_of(tmp_path)
    unreachable: list[str] = []

    def lose(request: Any, **more: Any) -> Any:
        if request.method == "DELETE":
            unreachable.append(request.target)
            raise Unavailable(Code.NO_LEADER, "no leader")
        return call(request, **more)

    call, client.call = client.call, lose  # type: ignore[method-assign]
    assert finish(plan, client).records == len(values(client))
    assert len(unreachable) == 1
    assert finish(plan, client).result == "", "nothing is left to do"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data + b'{"more": 1}\n', r"has more now: the log has 20 records.*--again --from-line \d+"),
        (lambda data: data[:-1], "has changed"),
        (lambda data: b"x" + data[1:], "has changed"),
    ],
    ids=["added", "cut", "replaced"],
)
def test_a_finished_import_whose_file_has_changed_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str, client: SyncClient
) -> None:
    """Lines that were added, cut or replaced since are named with the choices; nothing is imported."""
    plan = plan_of(tmp_path)
    finish(plan, client)
    file = Path(plan.source)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(SessionFileError, match=message):
        finish(plan, client)
    assert len(values(client)) == 20


def broken_off(folder: Path, client: SyncClient, batches: int = 2, **more: Any) -> None:
    """An import killed after some batches."""
    with pytest.raises(Killed):
        finish(plan_of(folder, at=killer(CopyStep.NOTED, batches + 1), **more), client)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"k1", b"k9", 1),
        lambda data: data.replace(b'"n": 12', b'"n": 99'),
        lambda data: data[:40],
    ],
    ids=["acknowledged", "noted", "shorter"],
)
def test_changed_input_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], client: SyncClient) -> None:
    """The imported or noted lines are no longer in the input: nothing is sent, and the choices are printed."""
    broken_off(tmp_path, client)
    before = values(client)
    source = tmp_path / "in.ndjson"
    source.write_bytes(change(source.read_bytes()))
    with pytest.raises(SessionFileError, match=r"first \d+ bytes differ.*--again"):
        finish(plan_of(tmp_path), client)
    assert values(client) == before


@pytest.mark.parametrize("noted_batch_arrived", [False, True])
def test_expired_session_is_refused_with_the_logs_outcome(
    tmp_path: Path, noted_batch_arrived: bool, node: FakeNode, client: SyncClient
) -> None:
    """No line is sent under a new session by itself. The log shows the outcome of the noted batch, and the line from
    which the rest can be imported."""
    broken_off(tmp_path, client)
    if noted_batch_arrived:
        with pytest.raises(Killed):
            finish(plan_of(tmp_path, at=killer(CopyStep.ANSWERED, 1)), client)
    before = values(client)
    node.clock_ms += 8 * 24 * 3_600_000
    with pytest.raises(SessionFileError, match=r"session .* has expired") as refused:
        finish(plan_of(tmp_path), client)
    assert values(client) == before
    text = str(refused.value)
    assert ("are not in the log" in text) == (not noted_batch_arrived)
    rest = int(text.partition("--from-line ")[2].split()[0])
    finish(plan_of(tmp_path, again=True, from_line=rest), client)
    assert values(client) == GOOD


def test_standard_input_after_a_kill_is_refused(tmp_path: Path, client: SyncClient) -> None:
    """A pipe cannot be read again; without the choice made by --again nothing is sent."""
    plan = ImportPlan("-", tmp_path / "note.json", tmp_path / "rejected.ndjson", key="id", batch_lines=5)
    pipe = io.BytesIO(b"\n".join(LINES))
    with pytest.raises(Killed):
        list(run(replace(plan, at=killer(CopyStep.ANSWERED, 1)), client, pipe))
    with pytest.raises(SessionFileError, match=r"cannot be read again.*Choose"):
        list(run(plan, client, io.BytesIO(b"\n".join(LINES))))
    assert values(client) == GOOD[:5]
    list(run(replace(plan, again=True), client, io.BytesIO(b"\n".join(LINES))))
    assert values(client) == GOOD[:5] + GOOD
    assert read_state(plan.state) is None


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"key": None}, "with --format ndjson --key id --headers n --batch 5. Choose: the same command"),
        ({"headers": ()}, "--headers n"),
        ({"batch_lines": 6}, "--batch 5"),
        ({"from_line": 3}, "same command"),
    ],
)
def test_other_options_are_refused(tmp_path: Path, more: dict[str, Any], refusal: str, client: SyncClient) -> None:
    """The noted batch can only be made again in the very same way."""
    broken_off(tmp_path, client, headers=("n",))
    with pytest.raises(SessionFileError, match=refusal):
        finish(plan_of(tmp_path, **{"headers": ("n",), **more}), client)
    assert finish(plan_of(tmp_path, headers=("n",)), client).records == len(GOOD)


def test_pitfall_81_an_import_into_another_log_is_refused(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """The note belongs to one log id. Guard: `old_state` compares it with the cluster's."""
    broken_off(tmp_path, client)
    node.log_id = "f" * 32
    client.state.log = ""  # the next import is another process, and has another client
    with pytest.raises(SessionFileError, match="this cluster's log is ffff"):
        finish(plan_of(tmp_path), client)


def test_csv_keeps_its_first_line_to_itself_and_from_line_skips(tmp_path: Path, client: SyncClient) -> None:
    """The names of the columns are no record, and --from-line counts lines of the file."""
    source = tmp_path / "in.csv"
    source.write_bytes(b'id,v\r\na,"1\n2"\nb,3\nc,4\n')
    plan = ImportPlan(str(source), tmp_path / "n", tmp_path / "r", key="id")
    finish(plan, client)
    assert values(client) == [b'a,"1\n2"', b"b,3", b"c,4"]
    finish(ImportPlan(str(source), tmp_path / "n2", tmp_path / "r", key="id", from_line=5), client)
    assert values(client)[3:] == [b"c,4"]
    with pytest.raises(InputError, match="has only 5 lines"):
        finish(ImportPlan(str(source), tmp_path / "n3", tmp_path / "r", from_line=9), client)
    (tmp_path / "none").touch()
    with pytest.raises(InputError, match="is empty"):
        finish(ImportPlan(str(tmp_path / "none"), tmp_path / "n4", tmp_path / "r"), client)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"a":1}{"a":2} {"a":3}'),
        ("a.ndjson", '{"a":1}\n{"a":2}{"a":3}\n'),
        ("a", '{"a":1},{"a":2},\n{"a":3}'),
        ("a.json", '{"a":1}\t{"a":2}\r\n{"a":\n3}'),
        ("a.jsonl", ' {"a":1} {"a":2} {"a":3}\n'),
    ],
)
def test_objects_without_line_ends_are_a_record_each(name: str, text: str, tmp_path: Path, client: SyncClient) -> None:
    """As other programs read them. With --format ndjson each line stays a record."""
    (tmp_path / name).write_text(text)
    plan = ImportPlan(str(tmp_path / name), tmp_path / "note.json", tmp_path / "rejected.ndjson", key="a")
    list(run(plan, client, io.BytesIO()))
    records = [record for record in client.log() if record.operation == "append"]
    assert [record.key for record in records] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("options", "mend", "mended"),
    [
        ({"strict": True}, "leave out --strict", {"strict": False}),
        (
            {"time_twice": "stop"},
            "go on with --again --from-line 3 --time-twice earlier",
            {"again": True, "from_line": 3, "time_twice": "earlier"},
        ),
    ],
)
def test_a_time_that_occurs_twice_stops_an_import_that_asks_for_it(
    options: dict[str, Any], mend: str, mended: dict[str, Any], tmp_path: Path, client: SyncClient
) -> None:
    """The lines before it are in the log, the message names line and time, and what it says brings in the others."""
    (tmp_path / "in.csv").write_text("when\n2024-10-27 01:00\n2024-10-27 02:30\n2024-03-31 02:30\n")
    plan = ImportPlan(
        str(tmp_path / "in.csv"),
        tmp_path / "note.json",
        tmp_path / "rejected",
        time="when",
        time_zone="Europe/Berlin",
        **options,
    )
    with pytest.raises(InputError, match=f"line 3: time '2024-10-27 02:30' occurs twice in zone Europe/Berlin.*{mend}"):
        finish(plan, client)
    assert len(values(client)) == 1
    (tmp_path / "never.csv").write_text("when\n2024-03-31 02:30\n")
    never = replace(plan, source=str(tmp_path / "never.csv"), state=tmp_path / "other.json", strict=True)
    with pytest.raises(InputError, match="line 2: time '2024-03-31 02:30' never occurs in zone Europe/Berlin; correct"):
        finish(never, client)
    assert finish(replace(plan, **mended), client).without_time == 1
    assert len(values(client)) == 3
