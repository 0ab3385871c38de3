"""An export in an object store: the manifest is the one commit, so no kill and no second run loses or doubles a row."""

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from raftlog import arrow
from raftlog.cluster.stores import object_place as places
from raftlog.spark_export.commands import export as commands, query
from raftlog.spark_export.errors import ExportError, NotCheckedError, NotPermittedError, UnreachableError, UsageError
from raftlog.spark_export.export.compaction import compact
from raftlog.spark_export.export.destination.store import ORPHAN_AGE_S
from raftlog.spark_export.export.manifest import NAME, Layout, Manifest, find_manifest, read_manifest
from raftlog.spark_export.export.place import StorePlace, place_of
from raftlog.spark_export.tables import duck
from tests.spark_export import logs
from tests.spark_export.export.exports import ARROW, HALF, LAST, LOG, ROWS, check, run
from tests.spark_export.server import Served
from tests.store_server import BUCKET, Gone, Store, killed_before, storing
from tests.support import forking

PREFIX = "exports/log"
LAYOUTS = {
    "user": Layout(records="user", records_per_file=100),
    "days": Layout(partition_by="day", records_per_file=100),
    "delta": Layout(table="delta", records="user", records_per_file=100),
}
EACH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
_processes = forking(__name__, "deltalake")


@pytest.fixture
def served() -> Served:
    """Half of a log, until more is committed."""
    served = Served(LOG, entries_per_chunk=7)
    served.commit(HALF)
    return served


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store, which the environment names. A run that is held up by another one waits for it, however long."""
    monkeypatch.setattr(places, "STORE_PATIENCE_S", 300)
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE", raising=False)
    with storing(monkeypatch) as running:
        yield running


@pytest.fixture
def impatient(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that is given up soon."""
    monkeypatch.setattr(places, "STORE_PATIENCE_S", 1)
    return store


@pytest.fixture
def place() -> StorePlace:
    """Where the export goes."""
    found = place_of(f"s3://{BUCKET}/{PREFIX}")
    assert isinstance(found, StorePlace)
    return found


def proved(place: StorePlace, url: str) -> Manifest:
    """The manifest of an export that verify proves, with every row once also for readers."""
    report = check(place, url)
    manifest = read_manifest(place)
    inside = [] if manifest.last == LAST else report.unproved  # an entry's middle has no state
    assert (report.findings, report.unproved) == ([], inside)
    assert indexes(place) == list(range(1, manifest.last + 1))
    return manifest


def indexes(place: StorePlace) -> list[int]:
    """What a reader by the manifest finds."""
    found: list[int] = arrow.export(str(place), columns=["index"], records="all").table().column("index").to_pylist()
    return found


def grow(served: Served) -> None:
    """The rest of the log is committed."""
    served.commit(len(LOG.entries) - 1)


@EACH
def test_an_export_in_a_store_has_every_row_once(
    layout: Layout, served: Served, url: str, store: Store, place: StorePlace
) -> None:
    """Written in batches, appended, compacted, verified and asked with SQL. Each file has its range and its writer in
    its name, and no plan, lock or rename is needed."""
    run(url, place, layout=layout, batch_records=60)
    grow(served)
    assert run(url, place).last == LAST
    manifest = proved(place, url)
    names = {name for entry in manifest.files for name in entry.names}
    others = {name for name in store.names(f"{PREFIX}/") if not name.startswith("log/_delta_log/")} - {NAME}
    assert names == others
    before, after = compact(ARROW, place)
    assert after < before
    proved(place, url)
    rows = arrow.export(str(place))
    users = [row["index"] for row in ROWS if logs.is_user(row)]
    assert rows.table().column("index").to_pylist() == users
    with duck.opened(rows) as tables:
        assert list(tables.ask("SELECT count(*), max(index) FROM log")[1]) == [(len(users), users[-1])]


def test_a_damaged_or_missing_object_is_named(served: Served, url: str, store: Store, place: StorePlace) -> None:
    """Verify names the file, as it does in a folder; an object that no manifest names is in nobody's way."""
    manifest = run(url, place, layout=LAYOUTS["user"], batch_records=60)
    store.objects[f"{PREFIX}/log/other"] = store.objects[f"{PREFIX}/{manifest.files[0].name}"]
    proved(place, url)
    lost, spoiled = (f"{PREFIX}/{entry.name}" for entry in manifest.files[:2])
    store.objects[spoiled].data = store.objects[f"{PREFIX}/{manifest.files[2].name}"].data
    del store.objects[lost]
    findings = check(place, url).findings
    assert f"missing: file {manifest.files[0].name} is not there, indexes 1 to 60" in findings
    assert f"altered: {manifest.files[1].name} is not the file that the export wrote (SHA-256)" in findings


def test_the_commands_take_a_store(served: Served, url: str, store: Store) -> None:
    """Export, append, compact, verify and query, each by the URL alone; a reason is one line with its exit code."""
    grow(served)
    app = typer.Typer()
    commands.register(app)
    query.register(app)

    def done(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.stderr if code else json.loads(result.stdout)

    wanted = ("export", "--engine", "arrow", "--endpoints", url, "--summary-json", "--to", PLACE)
    first = done(*wanted, "--append", "--batch-records", "60", "--to-index", "200")
    assert (first["folder"], first["last"]) == (PLACE, 200)
    assert done(*wanted, "--append")["added"] == LAST - 200
    assert "already holds a finished" in done(*wanted, code=2)
    joined = done("export", "compact", PLACE, "--summary-json")
    assert joined["files"] < joined["files_before"]
    assert done("verify", PLACE, "--endpoints", url, "--summary-json")["verified"]
    assert done("verify", PLACE, "--offline", "--summary-json")["rows"] == LAST
    assert done("query", "SELECT count(*) AS n FROM log", PLACE, "-o", "json") == [{"n": sum(map(logs.is_user, ROWS))}]
    assert done("verify", "s3://other/log", code=2).startswith("raftlog: there is no bucket of that name")
    assert done("query", "SELECT 1", "ftp://x/y", code=2).startswith(
        "raftlog: ftp://x/y is no place that raftlog knows"
    )


COMMANDS = """
import json, sys, typer
from typer.testing import CliRunner
from raftlog.spark_export.commands.export import register
from raftlog.spark_export.runtime.job import session
from tests.spark_export.conftest import FAST

app = typer.Typer()
register(app)
session(**FAST)
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, [*words, "--engine", "spark"])
    print(done.exit_code, done.output)
"""
"""All in one process: they share its session of Spark."""


@pytest.mark.spark
@pytest.mark.extra
def test_tasks_of_spark_write_and_read_a_store(java_home: Path, served: Served, url: str, store: Store) -> None:
    """By the credentials in their own environment, which here is that of the command."""
    grow(served)
    words = [
        ["export", "--to", PLACE, "--records-per-file", "60", "--endpoints", url],
        ["export", "compact", PLACE],
        ["verify", PLACE, "--endpoints", url],
    ]
    command = [sys.executable, "-c", COMMANDS, json.dumps(words)]
    environment = os.environ | {"JAVA_HOME": str(java_home)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith(("0 exported", "0 compacted"))], done.stdout
    assert "0 verified  243 rows" in done.stdout, done.stdout


# ---------------------------------------------------------------------------------------------------------------
# Kills, and lost answers.


def _export(environment: dict[str, str], url: str, place: StorePlace, layout: Layout, last: int | None) -> None:
    os.environ.update(environment)
    with suppress(UsageError):  # another run has come further
        run(url, place, layout=layout, batch_records=130, compact_files=2, last=last)


def killed(store: Store, url: str, place: StorePlace, layout: Layout, number: int, *, last: int | None = None) -> bool:
    """Runs an export in a process of its own, which is killed before its n-th change of the store. False if it has come
    to its end."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    process = _processes.Process(target=_export, args=(environment, url, place, layout, last))
    return killed_before(store, process, number)


@pytest.mark.parametrize(
    "layout", [LAYOUTS["user"], pytest.param(LAYOUTS["delta"], marks=pytest.mark.extra)], ids=["files", "delta"]
)
def test_killed_before_every_change_of_the_store(
    layout: Layout, served: Served, url: str, store: Store, place: StorePlace
) -> None:
    """Two batches and a compaction, killed before every single write to the store, which is after the one before:
    readers see every row up to some index, once, and the same command goes on to the end."""
    grow(served)
    for number in itertools.count(1):
        store.objects.clear()
        if not killed(store, url, place, layout, number):
            break
        if (manifest := find_manifest(place)) is not None and layout.table == "parquet":
            assert indexes(place) == list(range(1, manifest.last + 1))
        run(url, place, layout=layout)
        assert proved(place, url).last == LAST
    assert number > 8


@pytest.mark.parametrize("layout", [LAYOUTS["user"], LAYOUTS["delta"]], ids=["files", "delta"])
@pytest.mark.parametrize("lost", [NAME, "_delta_log/00000000000000000001.json"])
def test_a_commit_whose_answer_is_lost_counts_once(
    lost: str, layout: Layout, served: Served, url: str, store: Store, place: StorePlace
) -> None:
    """The store's client sends a write again if no answer came, and then meets its own write: this is no other run."""
    grow(served)
    left = [1]

    def lose(what: str) -> None:
        if what == f"PUT {PREFIX}/log/{lost}" or what == f"PUT {PREFIX}/{lost}":
            if left and left.pop():
                raise Gone

    store.after = lose
    assert run(url, place, layout=layout).last == LAST
    assert not left or layout.table == "parquet"
    proved(place, url)


@pytest.mark.parametrize("layout", [LAYOUTS["user"], LAYOUTS["delta"]], ids=["files", "delta"])
@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_runs_at_once_one_loses_and_says_so(
    is_first: bool, layout: Layout, served: Served, url: str, store: Store, place: StorePlace
) -> None:
    """A whole run ends while another one writes its files: the other one's batch does not count, and it says why. So
    does a run that was taken for dead, or a late task of it."""
    if not is_first:
        run(url, place, layout=layout)
        grow(served)
    waiting = [1]

    def overtake(what: str) -> None:
        if what.startswith(f"PUT {PREFIX}/log/") and waiting:
            waiting.clear()
            assert not killed(store, url, place, layout, 0)

    store.before = overtake
    with pytest.raises(UsageError, match=f"another export into {place} has put a batch in place meanwhile; this one's"):
        run(url, place, layout=layout)
    last = served.last
    assert proved(place, url).last == last
    assert run(url, place).last == last


@pytest.mark.parametrize(
    "layout", [LAYOUTS["user"], pytest.param(LAYOUTS["delta"], marks=pytest.mark.extra)], ids=["files", "delta"]
)
def test_a_run_that_is_overtaken_at_any_request_loses_or_counts(
    layout: Layout, served: Served, url: str, store: Store, place: StorePlace
) -> None:
    """Another run puts a shorter batch in place before the n-th request, for every n: of the two only those count that
    follow each other."""
    run(url, place, layout=layout, last=100)
    before, outcomes = dict(store.objects), set()
    for number in itertools.count(1):
        store.objects = dict(before)
        requests = itertools.count(1)

        def overtake(what: str, requests: Iterator[int] = requests, number: int = number) -> None:
            if next(requests) == number:
                store.before = lambda _: None
                assert not killed(store, url, place, layout, 0, last=110)

        store.before = overtake
        try:
            run(url, place, last=120)
            outcomes.add("counts")
        except UsageError as error:
            outcomes.add("another export" if "another export into" in str(error) else str(error))
        is_over, store.before = next(requests) <= number, lambda _: None
        assert proved(place, url).last in (110, 120)
        if is_over:
            break
    assert outcomes == {"counts", "another export"}


def test_files_that_no_manifest_names_go_with_a_later_run(
    served: Served, url: str, store: Store, place: StorePlace
) -> None:
    """Those of a killed run, and those that a compaction joined, stay for a day by the store's clock. Then the next run
    deletes them, once it has made a batch count: before that they may be those of a run that still goes on."""
    assert killed(store, url, place, LAYOUTS["user"], 3)
    left = set(store.names(f"{PREFIX}/"))
    assert len(left) == 2
    run(url, place, layout=LAYOUTS["user"], batch_records=60)
    assert left < set(store.names(f"{PREFIX}/"))
    store.ahead = timedelta(seconds=ORPHAN_AGE_S + 60)
    run(url, place)
    assert left < set(store.names(f"{PREFIX}/")), "nothing was written, so nothing is deleted"
    served.commit(HALF + 9)
    run(url, place)
    assert not left & set(store.names(f"{PREFIX}/"))
    before = {name for entry in read_manifest(place).files for name in entry.names}
    compact(ARROW, place)
    joined = before - {name for entry in read_manifest(place).files for name in entry.names}
    assert joined
    assert joined < set(store.names(f"{PREFIX}/")), "readers may read them still"
    store.ahead *= 3
    grow(served)
    run(url, place)
    assert not joined & set(store.names(f"{PREFIX}/"))
    proved(place, url)


def test_a_table_is_enough_to_go_on(served: Served, url: str, store: Store, place: StorePlace) -> None:
    """Each commit of a Delta table has the position and the batch's files: without the manifest an export goes on."""
    run(url, place, layout=LAYOUTS["delta"], batch_records=60)
    del store.objects[f"{PREFIX}/{NAME}"]
    grow(served)
    assert run(url, place, layout=LAYOUTS["delta"]).last == LAST
    proved(place, url)
    for name in [name for name in store.objects if name.endswith(("00000000000000000001.json", NAME))]:
        del store.objects[name]
    with pytest.raises(NotCheckedError, match=f"the Delta table in {place}/log cannot be read or changed"):
        run(url, place, layout=LAYOUTS["delta"])


# ---------------------------------------------------------------------------------------------------------------
# What cannot be.


def refused(url: str, place: str, **options: Any) -> ExportError:
    """What an export into that place raises."""
    with pytest.raises(ExportError) as caught:
        run(url, place_of(place), **options)
    return caught.value


PLACE = f"s3://{BUCKET}/{PREFIX}"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("hdfs://h/x", "hdfs://h/x is no place that raftlog knows: write s3://BUCKET/PREFIX, gs:// or az://"),
        ("s3://bucket", "s3://bucket is no place that raftlog knows"),
        ("s3://bucket/a b", "a prefix of letters, digits and . _ = - between slashes"),
        ("s3://other/log", "there is no bucket of that name: create it, or correct s3://other/log"),
    ],
)
def test_a_place_that_is_none_is_refused(place: str, message: str, url: str, store: Store) -> None:
    """Another kind of store, a whole bucket, a prefix that URLs would change, an unknown bucket."""
    error = refused(url, place)
    assert message in str(error)
    assert error.exit_code == UsageError.exit_code


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "AccessDenied"), f"the store does not permit this on {PLACE}/{NAME} (AccessDenied): check the credent"),
        ((403, "RequestTimeTooSkewed"), "because the clock of this machine is off (RequestTimeTooSkewed): set the clo"),
        ((400, "AuthorizationHeaderMalformed"), f"the store refuses {PLACE}/{NAME}: AuthorizationHeaderMalformed"),
    ],
)
def test_what_a_store_refuses_is_one_sentence(refusal: tuple[int, str], message: str, url: str, store: Store) -> None:
    """No permission, a clock that is off, and what else it may say."""
    store.refusal = refusal
    error = refused(url, PLACE)
    assert message in str(error)
    assert "\n" not in str(error)
    assert isinstance(error, NotPermittedError) == (refusal[0] == 403)


@pytest.mark.usefixtures("impatient")
def test_a_store_that_does_not_answer_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that takes connections and says nothing, or none at all: after the patience an error names what to
    check."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        errors = [refused(url, PLACE)]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    errors.append(refused(url, PLACE))
    for error in errors:
        assert isinstance(error, UnreachableError)
        assert "gave no answer for 1 s: is it running, and is its address right (AWS_ENDPOINT_URL" in str(error)


@pytest.mark.parametrize(
    ("layout", "amid", "message"),
    [
        (LAYOUTS["user"], "log/", "gave no answer for 1 s"),
        (LAYOUTS["delta"], "log/_delta_log/", "the Delta table in .*/log cannot be read or changed"),
    ],
)
def test_a_store_that_dies_amid_a_batch_leaves_the_batch_out(
    layout: Layout,
    amid: str,
    message: str,
    served: Served,
    url: str,
    impatient: Store,
    place: StorePlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run ends with an error; when the store is back, the same command goes on."""
    store = impatient

    def die(what: str) -> None:
        if what.startswith(f"PUT {PREFIX}/{amid}"):
            store.before = die_always
            raise Gone

    def die_always(what: str) -> None:
        raise Gone

    store.before = die
    with pytest.raises(ExportError, match=message):
        run(url, place, layout=layout)
    store.before = lambda _: None
    monkeypatch.setattr(places, "STORE_PATIENCE_S", 300)
    assert find_manifest(place) is None
    run(url, place, layout=layout)
    proved(place, url)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (NAME, b'{"format": "raftlog-export", "ver', f"{PLACE}/{NAME} is no manifest of an export"),
        (NAME, b'{"format": "x", "version": 9, "schema_version": 1}', "is of format x version 9"),
        ("log/data.csv", b"1,2", f"{PLACE} holds log/data.csv, and no export: name a prefix without other objects"),
    ],
)
def test_a_prefix_with_other_content_is_left_alone(
    name: str, data: bytes, message: str, url: str, store: Store, place: StorePlace
) -> None:
    """Half a manifest, one of another program, and other objects."""
    (place / name).replace(data, None)
    before = dict(store.objects)
    assert message in str(refused(url, PLACE))
    assert store.objects == before


def test_a_prefix_of_another_log_is_left_alone(served: Served, url: str, store: Store, place: StorePlace) -> None:
    """The manifest says of which log it is."""
    run(url, place, layout=LAYOUTS["user"])
    served.log_id = "cd" * 16
    assert "is of log" in str(refused(url, PLACE))


def test_a_table_of_another_program_is_left_alone(url: str, store: Store, place: StorePlace) -> None:
    """No batch is added to it."""
    import pyarrow as pa
    from deltalake import DeltaTable, Schema

    options = places.options(place.root) | {"conditional_put": "etag"}
    DeltaTable.create(f"{place}/log", Schema.from_arrow(pa.schema([("x", pa.int64())])), storage_options=options)
    error = refused(url, PLACE, layout=LAYOUTS["delta"])
    assert f"{place}/log is a Delta table of another program: name another prefix" in str(error)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore the error names it, and how to install it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ExportError, match="needs the package obstore, which is not installed on the machine "):
        place_of(PLACE)


def test_credentials_come_from_the_environment_or_a_file(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file has the usual form, with profiles. An error names the file that is missing, or has no such profile."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert f"AWS_SHARED_CREDENTIALS_FILE names {file}, which has no readable profile [default]" in str(
        refused(url, PLACE)
    )
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    assert run(url, place_of(PLACE), layout=LAYOUTS["user"]).first == 1
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert "has no readable profile [other]" in str(refused(url, PLACE))
