"""A backup in an object store: the manifest is the one commit, so no kill and no second run spoils it."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.cluster.cli.disk import sentences
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.offline import take_backup
from raftlog.cluster.offline.backup_folder import read_folder, read_manifest
from raftlog.cluster.offline.backup_target import ORPHAN_AGE, BackupRefused
from raftlog.cluster.offline.check_backup import report_of
from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.cluster.records.backup_manifest import MANIFEST, BackupManifest
from raftlog.cluster.stores import object_place
from raftlog.cluster.stores.object_place import (
    BadPlaceError,
    NoAnswerError,
    NoPackageError,
    NotAllowedError,
    ObjectPlace,
    ObjectStoreError,
    place_of,
)
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.importer.conftest import client, node
from tests.cluster.offline.test_log_backup import SEGMENT, fill, restored, small, taken
from tests.cluster.records.test_backup import answer, new_file, run
from tests.store_gateway import gateway
from tests.store_server import BUCKET, Gone, Store, killed_before, storing
from tests.support import forking

__all__ = ["client", "node", "small"]

PREFIX = "backups/nightly"
PLACE = f"s3://{BUCKET}/{PREFIX}"
_processes = forking(__name__)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store, which the environment names. A run that is held up by another one waits for it, however long."""
    monkeypatch.setattr(object_place, "STORE_PATIENCE_S", 300)
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE", raising=False)
    with storing(monkeypatch) as running:
        yield running


@pytest.fixture
def place() -> ObjectPlace:
    """Where the backup goes."""
    found = place_of(PLACE)
    assert isinstance(found, ObjectPlace)
    return found


def proved(place: ObjectPlace, node: FakeNode) -> BackupManifest:
    """The manifest of a backup that is that of the node, whole."""
    seed, _ = read_folder(place)
    assert (seed.mark.index, seed.digest) == (node.applied, node.machine.digest())
    manifest = read_manifest(place)
    assert manifest is not None
    return manifest


@pytest.mark.usefixtures("small")
def test_a_store_has_the_same_backup_as_a_folder(
    tmp_path: Path,
    node: FakeNode,
    client: SyncClient,
    store: Store,
    place: ObjectPlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same records and state after each run, and the same data folders made of it. Files that are there stay as
    they are; on this machine a file is only while it is written."""
    (tmp_path / "aside").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "aside"))
    kept: dict[str, bytes] = {}
    for count in (200, 10, 500):
        fill(node, count)
        assert taken(place, client) == taken(tmp_path / "b", client) == node.applied
        manifest, other = proved(place, node), read_manifest(tmp_path / "b")
        assert other is not None
        written = [msgspec.structs.replace(file, writer=msgspec.UNSET) for file in manifest.files]
        assert (written, manifest.state, manifest.end) == ([*other.files], other.state, other.end)
        now = {name: each.data for name, each in store.objects.items() if not name.endswith(MANIFEST)}
        assert {name: now[name] for name in kept} == kept
        assert {Path(name).name for name in now} >= manifest.names - {MANIFEST}
        kept = now
    assert not [*(tmp_path / "aside").iterdir()]
    file = new_file(tmp_path / "one", 1)
    (tmp_path / "two").mkdir()
    copy = tmp_path / "two" / file.name
    copy.write_bytes(file.read_bytes())
    logs = []
    for backup, cluster in ((place, file), (tmp_path / "b", copy)):
        (made,) = restored(backup, cluster, (1,))
        logs.append({path.name: path.read_bytes() for path in (made / "shard-0/log").iterdir()})
    assert logs[0] == logs[1]
    assert file.read_bytes() == copy.read_bytes()


@pytest.mark.usefixtures("small")
def test_every_lost_or_changed_object_is_named(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """As in a folder."""
    fill(node, 120)
    taken(place, client)
    for name, each in list(store.objects.items()):
        whole = each.data
        each.data = whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:]
        with pytest.raises(BackupDamaged, match=Path(name).name):
            read_folder(place)
        each.data = whole
        del store.objects[name]
        with pytest.raises(BackupDamaged, match=Path(name).name):
            read_folder(place)
        store.objects[name] = each
    proved(place, node)


async def test_the_commands_take_a_store(tmp_path: Path, store: Store) -> None:
    """Backup, check and restore by the URL; a reason is one sentence with its exit code."""
    fake = FakeNode()
    fill(fake, 20)
    async with serve(fake) as served:
        made = answer(await run("backup", PLACE, url=served.url))
        assert (made["folder"], made["last"], made["state"]) == (PLACE, fake.applied, fake.applied)
        assert answer(await run("backup", PLACE, url=served.url))["added"] == 0
        for words, code, what in (
            ((PLACE, "--state-only"), 2, f"{PLACE}: --state-only writes a file of this machine; name one"),
            (("s3://other/x",), 2, "there is no bucket of that name: create it, or correct s3://other/x"),
            (("ftp://h/x",), 2, "ftp://h/x is no place that raftlog knows"),
        ):
            refused = await run("backup", *words, url=served.url, ok=False)
            assert (refused.exit_code, what in refused.stderr) == (code, True), refused.stderr
    checked = await run("disk", "check", PLACE)
    assert f"records 1 to {fake.applied} of term 1" in answer(checked)["findings"][0]["what"]
    assert next(sentences(report_of(place_of(PLACE)))).startswith(f"{PLACE}: intact: a backup of log {fake.log_id}")
    file = new_file(tmp_path / "new", 1)
    done = await run("restore", PLACE, "--cluster", file, "--new-ids", "--keep-log", *("--segment-bytes", SEGMENT))
    assert [row["log"] for row in answer(done)] == [fake.log_id]
    store.refusal = (403, "AccessDenied")
    refused = await run("restore", PLACE, "--cluster", file, ok=False)
    assert (refused.exit_code, "the store does not permit this" in refused.stderr) == (9, True)
    assert (await run("disk", "check", PLACE, ok=False)).exit_code == 8


# ---------------------------------------------------------------------------------------------------------------
# Kills, lost answers, and two runs.


def _take(environment: dict[str, str], aside: str, url: str, size: int = 30_000) -> None:
    os.environ.update(environment)
    tempfile.tempdir = aside
    take_backup.FILE_BYTES = size  # type: ignore[misc]
    place = place_of(PLACE)
    with SyncClient(url) as client:
        taken(place, client)


def killed(store: Store, url: str, number: int) -> bool:
    """Takes a backup in a process of its own, which is killed before its n-th change of the store. False if it has come
    to its end."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    aside = tempfile.TemporaryDirectory()
    process = _processes.Process(target=_take, args=(environment, aside.name, url))
    with aside:
        return killed_before(store, process, number)


@pytest.mark.usefixtures("small")
def test_killed_before_every_change_of_the_store(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """The first run, and a later one with a new state and old files to delete. The former backup stays whole, or longer
    by whole files, and the same command goes on to the end."""
    url, former, asked = client.state.routes.configured[0], 0, list[str]()
    for is_first in (True, False):
        fill(node, 100)
        start = dict(store.objects)
        for number in itertools.count(1):
            store.objects = dict(start)
            was_killed = killed(store, url, number)
            if not is_first:
                assert read_folder(place)[0].mark.index >= former
            taken(place, client)
            proved(place, node)
            if not was_killed:
                break
        assert number > 4
        former, asked = node.applied, store.asked[-40:]
        if is_first:  # a file of a run that was killed long ago
            store.objects[f"{PREFIX}/{1:020d}-{5:020d}-x.log"] = store.objects[f"{PREFIX}/{MANIFEST}"]
            store.ahead = 2 * ORPHAN_AGE
            taken(place, client)
    assert "POST list" in asked


@pytest.mark.usefixtures("small")
def test_objects_that_no_manifest_names_go_with_a_later_run(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """Those of a killed run, and a replaced state, which readers may still read, stay for ORPHAN_AGE by the store's
    clock. Objects of others stay for ever."""
    url = client.state.routes.configured[0]
    fill(node, 100)
    assert killed(store, url, 3)
    left = set(store.names(f"{PREFIX}/")) - {MANIFEST}
    assert len(left) == 1
    other = f"{PREFIX}/mine"
    taken(place, client)
    store.objects[other] = store.objects[f"{PREFIX}/{MANIFEST}"]
    fill(node, 500)
    taken(place, client)
    replaced = set(store.names(f"{PREFIX}/")) - {"mine"} - proved(place, node).names
    assert replaced > left
    store.ahead = ORPHAN_AGE + timedelta(minutes=1)
    taken(place, client)
    assert replaced < set(store.names(f"{PREFIX}/")), "the manifest before was young"
    taken(place, client)
    assert set(store.names(f"{PREFIX}/")) == proved(place, node).names | {"mine"}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.usefixtures("small")
def test_of_two_runs_at_once_one_loses_and_says_so(
    is_first: bool, node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """A whole run ends before the n-th change of another one, for every n. The other one has a reason, or it had read
    what the first wrote; the backup is whole."""
    url = client.state.routes.configured[0]
    fill(node, 60)
    if not is_first:
        taken(place, client)
        fill(node, 100)
    start, outcomes = dict(store.objects), set[str]()
    for number in itertools.count(1):
        store.objects = dict(start)
        requests = itertools.count(1)

        def overtake(what: str, requests: Iterator[int] = requests, number: int = number) -> None:
            if next(requests) == number:
                assert not killed(store, url, 0)

        store.before = overtake
        try:
            taken(place, client)
            outcomes.add("counts")
        except BackupRefused as error:
            outcomes.add(str(error))
        store.before = lambda _: None
        proved(place, node)
        if next(requests) <= number:
            break
    outcomes.remove("counts")
    (reason,) = outcomes
    assert f"another backup into it wrote {MANIFEST} meanwhile" in reason


def test_a_commit_whose_answer_is_lost_counts_once(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """The store's client sends a write again if no answer came, and then meets its own write: this is no other run."""
    fill(node, 20)
    puts = itertools.count()

    def lose(what: str) -> None:
        if what.startswith("PUT") and next(puts) % 2 == 0:
            raise Gone

    store.after = lose
    taken(place, client)
    proved(place, node)
    assert store.asked.count(f"PUT {PREFIX}/{MANIFEST}") > 3


@pytest.mark.long
def test_a_real_store_through_kills(
    tmp_path: Path,
    node: FakeNode,
    client: SyncClient,
    place: ObjectPlace,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """The command or versitygw is killed in turns at some moment of a run whose files go in several parts. What the
    manifest names is whole after each, and the next run goes on."""
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE", raising=False)
    monkeypatch.setattr(take_backup, "FILE_BYTES", 12 << 20)
    chance, ended, former = random.Random(1), 0, 0
    with gateway(tmp_path / "objects", monkeypatch) as server:
        environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        given = (environment, str(tmp_path), client.state.routes.configured[0], take_backup.FILE_BYTES)
        for number in range(40):
            fill(node, 40, 200_000)
            process = _processes.Process(target=_take, args=given)
            process.start()
            process.join(chance.uniform(0.05, 0.5))
            if number % 2 and process.is_alive():
                server.kill()
                server.start()
            elif process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()
            assert process.exitcode in (0, 1, -signal.SIGKILL)  # 1: the store's death can end a run
            ended += process.exitcode == 0
            if (manifest := read_manifest(place)) is not None and manifest.state is not None:
                assert read_folder(place)[0].mark.index >= former
            taken(place, client)
            proved(place, node)
            former = node.applied
        orphans = len(place.listed()) - len(proved(place, node).names)
    record_property("measured", f"40 kills, {ended} runs went on through them, {orphans} other objects left")


def test_an_object_that_is_not_there_after_its_put_does_not_count(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """A store that was killed and started again can call an upload done that it has lost."""
    fill(node, 20)

    def forget(what: str) -> None:
        if what.startswith("PUT") and what.endswith(".log"):
            del store.objects[what.removeprefix("PUT ")]

    store.after = forget
    with pytest.raises(ObjectStoreError, match=r"the store took s3://.*\.log and does not have it whole: run the same"):
        taken(place, client)
    store.after = lambda _: None
    taken(place, client)
    proved(place, node)


# ---------------------------------------------------------------------------------------------------------------
# What cannot be.


def test_a_prefix_of_another_log_or_with_other_objects_is_left_alone(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace
) -> None:
    """One sentence each; nothing is changed."""
    fill(node, 5)
    taken(place, client)
    manifest = store.objects[f"{PREFIX}/{MANIFEST}"]
    whole = manifest.data

    def refused(what: str, kind: type[Exception] = BackupRefused) -> None:
        before = {name: each.data for name, each in store.objects.items()}
        with pytest.raises(kind, match=what):
            taken(place, client)
        assert {name: each.data for name, each in store.objects.items()} == before

    manifest.data = whole.replace(node.log_id.encode(), b"f" * 32)
    refused(f"it is a backup of log {'f' * 32}, and the cluster has log {node.log_id}; name another folder or prefix")
    manifest.data = whole[:-20]
    refused("backup.json: it cannot be read", BackupDamaged)
    del store.objects[f"{PREFIX}/{MANIFEST}"]
    refused("and no backup.json, so it is no backup; name a new folder or prefix")


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        ((403, "AccessDenied"), NotAllowedError, "the store does not permit this on s3://.* [(]AccessDenied[)]: check"),
        ((403, "RequestTimeTooSkewed"), NotAllowedError, "because the clock of this machine is off"),
        (
            (400, "AuthorizationHeaderMalformed"),
            ObjectStoreError,
            "the store refuses s3://.*: AuthorizationH",
        ),
    ],
)
def test_what_a_store_refuses_is_one_sentence(
    refusal: tuple[int, str], kind: type[ObjectStoreError], message: str, client: SyncClient, store: Store
) -> None:
    """No permission, a clock that is off, and what else it may answer."""
    store.refusal = refusal
    with pytest.raises(kind, match=message) as caught:
        taken(place_of(PLACE), client)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["hdfs://h/x", "s3://bucket", "s3://bucket/a b", "s3://other/x"])
def test_a_place_that_is_none_is_refused(place: str, client: SyncClient, store: Store) -> None:
    """Another kind of store, a whole bucket, a prefix that URLs would change, an unknown bucket."""
    with pytest.raises(BadPlaceError, match=r"no place that raftlog knows: write s3://BUCKET/PREFIX|no bucket of that"):
        taken(place_of(place), client)
    assert not store.objects


def test_a_store_that_does_not_answer_is_given_up(
    node: FakeNode, client: SyncClient, store: Store, place: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that takes connections and is silent, none at all, and a store that dies amid a run, which goes on
    later."""
    fill(node, 20)

    def given_up() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(object_place, "STORE_PATIENCE_S", 1)
            with pytest.raises(NoAnswerError, match=r"gave no answer for 1 s: is it running, and is its address right"):
                taken(place, client)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], 9):
            with monkeypatch.context() as patched:
                patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
                given_up()

    def die(what: str, *, is_dead: list[Any] = []) -> None:  # noqa: B006
        if is_dead or what.endswith(".log"):
            is_dead.append(what)
            raise Gone

    store.before = die
    given_up()
    store.before = lambda _: None
    taken(place, client)
    proved(place, node)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore the error names it, and how to install it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NoPackageError, match=r"needs the package obstore, which is not installed on the machine "):
        place_of(PLACE)
