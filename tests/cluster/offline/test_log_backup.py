"""Backups with the log: taken in several runs, read back, and made into clusters that go on with the same log."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.cluster_file import (
    ClusterFile,
    SettingsError,
    first_entry,
    read_cluster,
    render_cluster_file,
)
from raftlog.cluster.files.errors import FolderExists, FolderForeign, FolderReadOnly, NoSpace
from raftlog.cluster.files.folder import IDENTITY
from raftlog.cluster.http.routes import log_stream
from raftlog.cluster.node.formatting import format_cluster, format_file, may_exist
from raftlog.cluster.offline import take_backup
from raftlog.cluster.offline.backup_folder import read_folder, read_manifest
from raftlog.cluster.offline.backup_target import PART, BackupRefused, held
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.offline.restore import CannotRestore, make_cluster, renewed
from raftlog.cluster.offline.take_backup import Pace, take_backup as take
from raftlog.cluster.peers.hello import Hello, Purpose
from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.cluster.records.backup_manifest import MANIFEST
from raftlog.cluster.security.tokens import make_token
from raftlog.cluster.stores.object_place import StoragePlace
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.statemachine.access.commands import AccessAction, AccessCommand
from raftlog.statemachine.access.grants import parse_grant
from raftlog.statemachine.commands import Operation, Result as Told
from tests.cluster.disk.small_disk import SmallDisks
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.http.access_world import change_access, raise_version
from tests.cluster.importer.conftest import client, node
from tests.cluster.nodes import append_block, cluster_of, deadline, put_block
from tests.cluster.peers.test_refused_hello import refusal_of, start_of
from tests.cluster.records.test_backup import answer, fill as fill_nodes, new_file, run, running
from tests.support import forking, wait_until_async

pytestmark = pytest.mark.usefixtures("durable_renames")

__all__ = ["client", "node"]

SEGMENT = 1 << 16
KILLED = 7
_processes = forking(__name__)


def fill(node: FakeNode, count: int, size: int = 100) -> None:
    """Appends, and a few puts."""
    for number in range(count):
        node.submit_now((append_block(b"a" * size, b"b" * size, b"%d" % number), 3))
        if number % 10 == 0:
            node.submit_now((put_block(b"k%02d" % (number % 50), b"%d" % number), 1))


def quiet(done: int, total: int, more: str = "") -> None:
    """A bar that is not shown."""


def taken(folder: StoragePlace, client: SyncClient, rate: int = 0) -> int:
    """Takes a backup. Returns the record with which it ends."""
    _, manifest = take(folder, client, Pace(rate), quiet)
    assert manifest.end is not None
    return manifest.end.index


def restored(backup: StoragePlace, file: Path, nodes: tuple[int, ...] = (), *, keep: bool = True) -> list[Path]:
    """As `raftlog restore --keep-log --new-ids`; with `nodes` by the ids of the file."""
    seed, log = read_folder(backup)
    cluster = read_cluster(file) if nodes else renewed(read_cluster(file))
    if keep:
        cluster = msgspec.structs.replace(cluster, cluster=msgspec.structs.replace(cluster.cluster, log=seed.log_id))

    def commit(made: ClusterFile) -> None:
        file.write_text(render_cluster_file(made))

    return make_cluster(seed, cluster, file, segment_bytes=SEGMENT, nodes=nodes, log=log, commit=commit)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files a run, each of several chunks."""
    monkeypatch.setattr(take_backup, "FILE_BYTES", 30_000)
    for name in ("SLICE_BYTES", "RAW_SLICE_BYTES"):
        monkeypatch.setattr(log_stream, name, 10_000)


# -- taking


@pytest.mark.usefixtures("small")
def test_a_further_run_adds_what_is_new_and_a_state_once_the_log_behind_it_is_larger(
    tmp_path: Path, node: FakeNode, client: SyncClient
) -> None:
    """Its files stay as they are. The state is applied up to the newest entry, so it is always that of the node."""
    folder = tmp_path / "b"
    fill(node, 200)
    first = taken(folder, client)
    assert first == node.applied
    kept = {path: path.read_bytes() for path in folder.glob("*.log")}
    assert len(kept) > 2
    assert taken(folder, client) == first
    states = {*folder.glob("*.backup")}
    node.submit_now((put_block(b"new", b"1"), 1))
    assert taken(folder, client) == node.applied
    assert states == {*folder.glob("*.backup")}, "the log behind it is smaller"
    assert {path: path.read_bytes() for path in kept} == kept
    assert len([*folder.glob("*.log")]) == len(kept) + 1
    seed, _ = read_folder(folder)
    assert seed.digest == node.machine.digest()
    assert seed.state.store.revision == node.machine.revision
    fill(node, 500)
    assert taken(folder, client) == node.applied
    assert states != {*folder.glob("*.backup")}
    assert len([*folder.glob("*.backup")]) == 1
    assert read_folder(folder)[0].digest == node.machine.digest()


@pytest.mark.usefixtures("small")
def test_trimmed_records_leave_the_backup_with_the_next_state(
    tmp_path: Path, node: FakeNode, client: SyncClient
) -> None:
    """Else it would grow for ever. What can still be read stays, also where the log was trimmed whole."""
    fill(node, 200)
    taken(tmp_path / "b", client)
    before = len([*(tmp_path / "b").glob("*.log")])
    node.submit_now((encode_block([BlockRecord(Operation.TRIM, argument=node.applied)]), 1))
    fill(node, 300)
    taken(tmp_path / "b", client)
    manifest = read_manifest(tmp_path / "b")
    assert manifest is not None
    assert manifest.files[0].first <= node.machine.oldest <= manifest.files[0].last
    seed, log = read_folder(tmp_path / "b")
    assert (seed.state.oldest, seed.digest) == (node.machine.oldest, node.machine.digest())
    assert len(log.files) < before + 20
    node.submit_now((encode_block([BlockRecord(Operation.TRIM, argument=node.applied + 1)]), 1))
    assert node.machine.oldest == node.applied
    assert taken(tmp_path / "c", client) == node.applied
    file = new_file(tmp_path / "new", 1)
    for made in restored(tmp_path / "c", file):
        assert check_folder(made).troubles == []


def test_a_backup_is_slowed_down(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """No bytes a second are more than asked for."""
    waited: list[float] = []

    class Watched(Pace):
        def took(self, size: int) -> None:
            waited.append(size / 1_000_000)

    fill(node, 50)
    take(tmp_path / "b", client, Watched(1_000_000), quiet)
    assert sum(waited) * 1e6 >= sum(path.stat().st_size for path in (tmp_path / "b").glob("*.log"))


def test_the_pace_is_that_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece waits until its bytes may have come; time in which nothing came is not made up for."""
    now, waits = [0.0], list[float]()

    def wait(_: object, seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("raftlog.cluster.offline.take_backup.clock.monotonic", lambda: now[0])
    monkeypatch.setattr("threading.Event.wait", wait)
    pace = Pace(100)
    pace.took(200)
    now[0] = 10.0
    pace.took(50)
    assert waits == [2.0, 0.5]
    Pace(0).took(1_000)
    assert waits == [2.0, 0.5]


# -- bad input


def test_what_no_backup_can_be_taken_into_is_refused_in_one_sentence(
    tmp_path: Path, node: FakeNode, client: SyncClient
) -> None:
    """Another log's folder, one with other files, one that is in use, a damaged manifest; nothing in it is changed."""
    fill(node, 5)
    folder = tmp_path / "b"
    taken(folder, client)
    whole = (folder / MANIFEST).read_bytes()

    def refused(what: str, kind: type[Exception] = BackupRefused) -> None:
        before = {path: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(kind, match=what):
            taken(folder, client)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before

    with held(folder):
        refused("another backup is being taken into it; wait")
    (folder / MANIFEST).write_bytes(whole.replace(node.log_id.encode(), b"f" * 32))
    refused(f"it is a backup of log {'f' * 32}, and the cluster has log {node.log_id}; name another folder")
    (folder / MANIFEST).write_bytes(whole[:-20])
    refused("backup.json: it cannot be read", BackupDamaged)
    (folder / MANIFEST).unlink()
    refused("and no backup.json, so it is no backup; name a new folder")


def test_a_gap_says_what_to_do(
    tmp_path: Path, node: FakeNode, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was trimmed beyond the newest backup, which stays as it is; or while a run reads it."""
    fill(node, 20)
    end = taken(tmp_path / "b", client)
    fill(node, 20)
    node.submit_now((encode_block([BlockRecord(Operation.TRIM, argument=node.applied)]), 1))
    with pytest.raises(
        BackupRefused, match=f"lacks records that were trimmed: the log begins at {node.machine.oldest}. Take the next"
    ):
        taken(tmp_path / "b", client)
    assert read_folder(tmp_path / "b")[0].mark.index == end
    cursor = SyncClient.log_raw

    def trimming(self: SyncClient, *given: Any, **more: Any) -> Any:
        node.submit_now((encode_block([BlockRecord(Operation.TRIM, argument=node.applied)]), 1))
        return cursor(self, *given, **more)

    monkeypatch.setattr(SyncClient, "log_raw", trimming)  # while the first run reads
    with pytest.raises(BackupRefused, match="lacks records that were trimmed"):
        taken(tmp_path / "c", client)


@pytest.mark.parametrize("ahead", [-1, 0, 1, 2])
def test_a_backup_goes_on_exactly_where_the_log_still_has_its_next_record(
    tmp_path: Path, node: FakeNode, client: SyncClient, ahead: int
) -> None:
    """Only a log that begins behind that record lacks something."""
    fill(node, 20)
    end = taken(tmp_path / "b", client)
    fill(node, 20)
    node.submit_now((encode_block([BlockRecord(Operation.TRIM, argument=end + ahead)]), 1))
    if ahead > 1:
        with pytest.raises(BackupRefused, match="lacks records that were trimmed"):
            taken(tmp_path / "b", client)
        return
    assert taken(tmp_path / "b", client) == node.applied
    assert read_folder(tmp_path / "b")[0].digest == node.machine.digest()


def test_another_history_of_the_same_log_is_refused(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """The cluster was restored from an older backup: it is shorter, or its next entry does not follow."""
    fill(node, 20)
    taken(tmp_path / "b", client)
    manifest = read_manifest(tmp_path / "b")
    assert manifest is not None
    assert manifest.end is not None
    for end, what in (
        (msgspec.structs.replace(manifest.end, index=node.applied + 5), "has lost records that the backup has"),
        (msgspec.structs.replace(manifest.end, header_crc=1), "does not go on where the backup ends"),
    ):
        changed = msgspec.structs.replace(manifest, end=end)
        (tmp_path / "b" / MANIFEST).write_bytes(msgspec.json.encode(changed))
        node.submit_now((put_block(b"k", b"v"), 1))
        with pytest.raises(BackupRefused, match=what):
            taken(tmp_path / "b", client)


def test_a_full_disk_leaves_the_former_backup(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """The error names the file; the next run goes on."""
    fill(node, 20)
    end = taken(tmp_path / "b", client)
    fill(node, 20)
    (tmp_path / "b" / PART).symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*b/new.part"):
        taken(tmp_path / "b", client)
    assert read_folder(tmp_path / "b")[0].mark.index == end
    assert taken(tmp_path / "b", client) == node.applied


@pytest.mark.usefixtures("small")
def test_every_change_of_a_file_is_found(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """One bit of any of them, cut short, longer, missing, two exchanged, the manifest of another moment: `disk check`
    says which file, and nothing is restored."""
    fill(node, 120)
    folder = tmp_path / "b"
    taken(folder, client)
    old = (folder / MANIFEST).read_bytes()
    node.submit_now((put_block(b"new", b"1"), 1))
    taken(folder, client)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        places = range(0, len(whole), 1 if path.name == MANIFEST else len(whole) // 9)
        for spoilt in (
            *(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in places),
            whole[:-1],
            whole + b"x",
            b"",
            None,
        ):
            path.unlink()
            if spoilt is not None:
                path.write_bytes(spoilt)
            if path.name == MANIFEST and spoilt is not None:
                with suppress(BackupDamaged, UnknownVersion):
                    read_folder(folder)
                    changed = msgspec.json.decode(spoilt)
                    assert changed | {"made_ms": 0} == msgspec.json.decode(whole) | {"made_ms": 0}
                continue
            with pytest.raises(BackupDamaged, match=path.name if path.name != MANIFEST else "no backup.json"):
                read_folder(folder)
        path.write_bytes(whole)
    one, two, *_ = sorted(folder.glob("*.log"))
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)
    with pytest.raises(BackupDamaged, match=one.name):
        read_folder(folder)
    two.write_bytes(one.read_bytes())
    one.write_bytes(first)
    read_folder(folder)
    (folder / MANIFEST).write_bytes(old)  # of the run before: the backup of then, whole
    assert read_folder(folder)[0].mark.index == node.applied - 1


def test_effects_that_the_state_does_not_give_are_found(
    tmp_path: Path, node: FakeNode, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries behind the state are applied to it, and their effects compared with those of the cluster."""
    fill(node, 20)
    taken(tmp_path / "b", client)
    node.machine._store.revision += 1  # a node that has computed something else
    node.submit_now((put_block(b"k", b"v"), 1))
    taken(tmp_path / "b", client)
    with pytest.raises(BackupDamaged, match="is not that of the cluster"):
        read_folder(tmp_path / "b")


# -- kills


def killed_at(step: int) -> None:
    """Ends this process at that change of a file or folder."""
    seen = 0

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == step:
                os._exit(KILLED)
            return work(*given, **more)

        return call

    for name in ("fsync", "fdatasync", "rename", "replace", "unlink", "mkdir", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))


def _take_until(url: str, folder: Path, step: int) -> None:
    take_backup.FILE_BYTES = 30_000  # type: ignore[misc]
    killed_at(step)
    with SyncClient(url) as client:
        taken(folder, client)


def _restore_until(backup: Path, file: Path, step: int) -> None:
    killed_at(step)
    restored(backup, file)


def is_killed(work: Callable[..., None], *given: object) -> bool:
    """Whether a process of its own was ended within that work; else it has done it."""
    process = _processes.Process(target=work, args=given)
    process.start()
    process.join(120)
    assert process.exitcode in (0, KILLED)
    return process.exitcode == KILLED


@pytest.mark.usefixtures("small")
def test_a_backup_that_is_killed_at_any_step_leaves_the_former_one_whole(
    tmp_path: Path, node: FakeNode, client: SyncClient
) -> None:
    """The first run and a later one with a new state. The same command goes on, and leaves nothing else behind."""
    url = client.state.routes.configured[0]
    former, steps = 0, 0
    for start in (None, tmp_path / "former"):
        fill(node, 100)
        while True:
            steps += 1
            folder = tmp_path / f"b{former}-{steps}"
            if start is not None:
                shutil.copytree(start, folder)
            was_killed = is_killed(_take_until, url, folder, steps)
            if former:
                assert read_folder(folder)[0].mark.index >= former
            taken(folder, client)
            seed, _ = read_folder(folder)
            assert (seed.mark.index, seed.digest) == (node.applied, node.machine.digest())
            manifest = read_manifest(folder)
            assert manifest is not None
            assert {path.name for path in folder.iterdir()} == manifest.names
            if not was_killed:
                break
        assert steps > 12
        if start is None:
            folder.rename(tmp_path / "former")
        former, steps = node.applied, 0


def test_a_restore_that_is_killed_at_any_step_leaves_no_folder_that_is_half_made(
    tmp_path: Path, node: FakeNode, client: SyncClient
) -> None:
    """A folder gets its identity once all are written. The same command makes them again; after the first has its name
    the cluster file is that of the folders, and the command makes the others by it."""
    fill(node, 100)
    taken(tmp_path / "b", client)
    step, was_killed, parts = 0, True, 0
    while was_killed:
        step += 3  # a third of all: each is a sync, a name or a removal
        file = new_file(tmp_path / f"new{step}", 2)
        was_killed = is_killed(_restore_until, tmp_path / "b", file, step)
        places = {each.id: file.parent / each.data for each in read_cluster(file).node}
        named = [number for number, place in places.items() if (place / IDENTITY).exists()]
        parts += len(named) == 1
        if not named:
            restored(tmp_path / "b", file)
        elif missing := tuple(number for number in places if number not in named):
            restored(tmp_path / "b", file, missing)
        for place in places.values():
            assert check_folder(place).troubles == []
        logs = [
            {path.name: path.read_bytes() for path in (place / "shard-0/log").iterdir()} for place in places.values()
        ]
        assert logs[0] == logs[1]
    assert step > 30


# -- restoring


def test_a_user_that_may_not_see_all_is_refused(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """The node would send zeros in the place of what it hides."""
    fill(node, 5)
    raise_version(node)
    root, taker = make_token(), make_token()
    grants = ("operate on cluster", "read on log", "read on keys:*", "read on groups:*")
    for command in (
        AccessCommand(AccessAction.INIT, "root", token=root.identifier, token_hash=root.digest),
        AccessCommand(AccessAction.SET_ROLE, "taker", grants=tuple(map(parse_grant, grants))),
        AccessCommand(AccessAction.SET_USER, "taker", roles=("taker",)),
        AccessCommand(AccessAction.ADD_TOKEN, "taker", token=taker.identifier, token_hash=taker.digest),
    ):
        change_access(node, command)
    url = client.state.routes.configured[0]
    for name, token in (("taker", taker), ("root", root)):
        (tmp_path / name).write_text(token.text)
        with SyncClient(url, token_file=str(tmp_path / name)) as user:
            if name == "root":
                assert taken(tmp_path / "b", user) == node.applied
                continue
            with pytest.raises(BackupRefused, match="the node hides records from this user") as refused:
                taken(tmp_path / "b", user)
            assert refused.value.exit_code == 9, "as of any command without permission"


@pytest.fixture
def backup(tmp_path: Path, node: FakeNode, client: SyncClient) -> Path:
    """A backup with the log."""
    fill(node, 60)
    taken(tmp_path / "b", client)
    return tmp_path / "b"


def test_a_cluster_file_that_is_not_of_a_new_cluster_is_refused(backup: Path, tmp_path: Path) -> None:
    """The log id may be the old one. The disks may not, nor may the file be older than the newest record: the terms of
    the old cluster could be above that of the new one."""
    seed, log = read_folder(backup)
    file = new_file(tmp_path / "new", 1)
    cluster = read_cluster(file)
    old = seed.configuration.members[0].incarnation
    head = msgspec.structs.replace(cluster.cluster, log=seed.log_id)
    disk = [msgspec.structs.replace(cluster.node[0], incarnation=old)]
    stale = msgspec.structs.replace(head, time_ms=seed.mark.time_ms)
    for spoilt, what in (
        (msgspec.structs.replace(cluster, node=disk), "has the incarnation of the old node 1; give it new ones"),
        (msgspec.structs.replace(cluster, cluster=stale), "made before the newest record of the backup"),
    ):
        with pytest.raises(CannotRestore, match=what):
            make_cluster(seed, spoilt, file, segment_bytes=SEGMENT, log=log)
    assert not (file.parent / "node-1").exists()
    renamed = msgspec.structs.replace(cluster, cluster=head)
    assert make_cluster(seed, renamed, file, segment_bytes=SEGMENT, log=log)
    assert read_folder(backup)[0].configuration.removed == ()


def test_a_restore_that_fails_leaves_no_folder(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for the second folder, one without permission, a folder with something in it: one sentence,
    and the cluster file stays as it was."""
    file = new_file(tmp_path / "new", 2)
    before = file.read_bytes()
    two = file.parent / "node-2"

    def refused(kind: type[Exception], what: str) -> None:
        with pytest.raises(kind, match=what):
            restored(backup, file)
        assert file.read_bytes() == before
        assert not [*file.parent.glob("node-*/*identity*"), *file.parent.glob("node-*/shard-0")]

    with monkeypatch.context() as patched:
        SmallDisks(patched).room[two] = 20_000
        refused(NoSpace, "node-2: the disk is full .*; free disk space, then try again")
    with monkeypatch.context() as patched:
        real = os.mkdir

        def mkdir(path: Any, *given: Any, **more: Any) -> None:
            if Path(path).is_relative_to(two):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            real(path, *given, **more)

        patched.setattr(os, "mkdir", mkdir)
        refused(FolderReadOnly, "node-2: .*Permission denied.*; give this user the right to write there")
    (two / "something").mkdir(parents=True)
    refused(FolderExists, "node-2: there is something already; name another folder")


def test_nothing_is_made_inside_the_data_folder_of_a_node(backup: Path, tmp_path: Path, client: SyncClient) -> None:
    """Neither the folders of a restore nor a backup: a lost disk would take both. A link hides no folder."""
    (node_folder, *_) = restored(backup, new_file(tmp_path / "old", 1))
    (tmp_path / "link").symlink_to(node_folder)
    before = sorted(node_folder.rglob("*"))
    for outer in (node_folder, tmp_path / "link"):
        file = new_file(tmp_path / f"new of {outer.name}", 1)
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('data = "', f'data = "{outer}/inside/'), encoding="utf-8")
        with pytest.raises(FolderForeign, match=rf"it is inside {node_folder}, the data folder of a node; name a fol"):
            restored(backup, file)
        with pytest.raises(FolderForeign, match=rf"it is inside {node_folder}, the data folder of a node; name a fol"):
            taken(outer / "backup", client)
    assert sorted(node_folder.rglob("*")) == before


async def test_the_commands_print_what_they_did_and_refuse_in_one_sentence(tmp_path: Path) -> None:
    """Each as a user has it; with TLS the certificates are named that the log id asks for."""
    fake = FakeNode()
    fill(fake, 20)
    folder = tmp_path / "b"
    async with serve(fake) as served:
        made = answer(await run("backup", folder, url=served.url))
        assert (made["first"], made["last"], made["state"]) == (1, fake.applied, fake.applied)
        assert answer(await run("backup", folder, url=served.url))["added"] == 0
        (tmp_path / "file").touch()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "mine").touch()
        for words, code, what in (
            ((tmp_path / "file" / "b",), 1, "Not a directory; a part of this path is a file"),
            ((folder, "--force"), 2, "--stale and --force are for --state-only"),
            ((folder, "--state-only"), 2, "it is a folder; name the file to write"),
            ((tmp_path / "file",), 2, "a backup with the log is a folder; name another, or give --state-only"),
            ((tmp_path / "other",), 1, "it has mine and no backup.json, so it is no backup; name a new folder"),
        ):
            refused = await run("backup", *words, url=served.url, ok=False)
            assert (refused.exit_code, what in refused.stderr) == (code, True), refused.stderr
    told = answer(await run("disk", "check", folder))
    assert f"records 1 to {fake.applied} of term 1" in told["findings"][0]["what"]
    file = new_file(tmp_path / "new", 2, "https")
    own = read_cluster(file).cluster.log
    gone = await run("restore", tmp_path / "none", "--cluster", file, ok=False)
    assert (gone.exit_code, "there is no such backup" in gone.stderr) == (2, True)
    done = await run("restore", folder, "--cluster", file, "--node", 1, *("--segment-bytes", SEGMENT))
    assert "Later writes of the old cluster are lost" in done.stderr
    assert "raftlog cert node 1" in done.stderr
    assert [row["log"] for row in answer(done)] == [own]
    done = await run("restore", folder, "--cluster", file, "--node", 2, "--keep-log", *("--segment-bytes", SEGMENT))
    assert [row["log"] for row in answer(done)] == [fake.log_id] == [read_cluster(file).cluster.log]
    async with serve(fake) as served:
        await run("backup", "--state-only", tmp_path / "state", url=served.url)
    refused = await run("restore", tmp_path / "state", "--cluster", file, "--keep-log", ok=False)
    assert (refused.exit_code, "it has no log, and --keep-log is for a backup" in refused.stderr) == (2, True)
    (folder / MANIFEST).write_text("{}")
    torn = await run("restore", folder, "--cluster", file, ok=False)
    assert (torn.exit_code, "backup.json: it cannot be read" in torn.stderr) == (7, True)
    assert (await run("disk", "check", folder, ok=False)).exit_code == 1


async def test_a_restored_cluster_goes_on_and_refuses_the_disks_of_the_old_one(tmp_path: Path) -> None:
    """The three nodes have equal logs. Under the old log id they elect a leader in a term above all old ones, and an
    old disk is refused as one that was removed: with the number of a member, and with that of none."""
    async with cluster_of(3, tmp_path / "old") as nodes:
        session, _ = await fill_nodes(nodes)
        leader = await nodes.leader()
        async with serve(leader) as served:
            made = answer(await run("backup", tmp_path / "b", url=served.url))
        old = nodes.cluster
        term, oldest = leader.term, leader.oldest
        group = leader.machine.consumers.get(b"group")
    file = new_file(tmp_path / "new")
    await run("restore", tmp_path / "b", "--cluster", file, "--keep-log", "--segment-bytes", SEGMENT)
    async with running(file) as again:
        leader = await again.leader()
        assert (leader.log_id, leader.oldest) == (made["log"], oldest)
        assert leader.term > term + 1_000_000
        assert leader.machine.consumers.get(b"group") == group
        retried = append_block(b"once", session=session, sequence=1)
        told = await leader.submit(retried, 1, deadline=deadline(), session=session, sequence=1)
        assert told.effect.result is Told.REPEATED
        assert told.effect.first_answer_index < made["last"]
        last = (await again.append(leader, b"on")).last
        await again.all_at(last)
        assert len({node.machine.digest() for node in again.running.values()}) == 1
        for number, sender in ((1, 2), (2, 9)):
            hello = Hello(
                log=made["log"],
                sender=sender,
                to=3,
                incarnation=old.node[number - 1].incarnation,
                boot=9,
                purpose=Purpose.CONSENSUS,
                start=start_of(9),
            )
            assert "was removed from this cluster" in await refusal_of(again, hello)
    async with running(file) as again:  # and after a restart
        await again.all_at(last)


@pytest.mark.parametrize("oldest", [1, 20])
async def test_a_restored_log_begins_with_its_own_first_entry_on_every_disk(tmp_path: Path, oldest: int) -> None:
    """The cluster file has that entry, because its own members are others. A disk that is formatted again gets the log,
    by entries, or where its beginning was trimmed by a snapshot and the older segments. Before, its first entry was
    another one under the same index and term, and its leader probed it for ever. No command makes a whole log of such a
    file."""
    async with cluster_of(3, tmp_path / "old") as nodes:
        await fill_nodes(nodes)
        leader = await nodes.leader()
        trim = encode_block([BlockRecord(Operation.TRIM, argument=oldest)])
        await leader.submit(trim, 1, deadline=deadline())
        async with serve(leader) as served:
            await run("backup", tmp_path / "b", url=served.url)
    file = new_file(tmp_path / "new")
    await run("restore", tmp_path / "b", "--cluster", file, "--keep-log", "--segment-bytes", SEGMENT)
    made = read_cluster(file)
    assert (first_entry(made) == first_entry(nodes.cluster)) == (oldest == 1)
    async with running(file) as again:
        leader = await again.leader()
        gone = next(node for node in again.running if node != leader.node_id)
        await again.stop(gone)
        shutil.rmtree(again.data(gone))
        later = may_exist(made.cluster.time_ms - 100_000)  # as if this were seconds later
        format_cluster(made, file, segment_bytes=SEGMENT, nodes=[gone], first=later)
        new = await again.start(gone)
        await again.all_at((await again.append(await again.leader(), b"on")).last)
        await wait_until_async(
            lambda: new.state.disk.oldest == leader.state.disk.oldest <= oldest, what="its older log"
        )
    if oldest == 1:
        with pytest.raises(SettingsError, match="its log came from a backup: raftlog restore makes it again"):
            format_file(file, segment_bytes=SEGMENT, is_forced=True)
