"""Backups with the log: taken in several runs, read back, and made into clusters that go on with the same log."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.cluster_file import read_cluster, render_cluster_file
from raftlog.cluster.files.folder import IDENTITY
from raftlog.cluster.http.routes import log_stream
from raftlog.cluster.offline import take_backup
from raftlog.cluster.offline.backup_folder import read_folder, read_manifest
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.offline.restore import make_cluster, renewed
from raftlog.cluster.offline.take_backup import BackupRefused, Pace, take_backup as take
from raftlog.cluster.records.backup_format import BackupDamaged
from raftlog.cluster.records.backup_manifest import MANIFEST
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.commands import Operation
from tests.cluster.fake_node import FakeNode
from tests.cluster.importer.conftest import client, node
from tests.cluster.nodes import append_block, put_block
from tests.cluster.records.test_backup import new_file

__all__ = ["client", "node"]

SEGMENT = 1 << 16
KILLED = 7
_processes = multiprocessing.get_context("forkserver")  # it has no threads, and has read the modules once
_processes.set_forkserver_preload(["__main__", __name__])


def fill(node: FakeNode, count: int, size: int = 100) -> None:
    """Appends, and a few puts."""
    for number in range(count):
        node.submit_now((append_block(b"a" * size, b"b" * size, b"%d" % number), 3))
        if number % 10 == 0:
            node.submit_now((put_block(b"k%02d" % (number % 50), b"%d" % number), 1))


def quiet(done: int, total: int, more: str = "") -> None:
    """A bar that is not shown."""


def taken(folder: Path, client: SyncClient, rate: int = 0) -> int:
    """Takes a backup. Returns the record with which it ends."""
    _, manifest = take(folder, client, Pace(rate), quiet)
    assert manifest.end is not None
    return manifest.end.index


def restored(backup: Path, file: Path, nodes: tuple[int, ...] = (), *, keep: bool = True) -> list[Path]:
    """As `raftlog restore --keep-log --new-ids`; with `nodes` by the ids of the file."""
    seed, log = read_folder(backup)
    cluster = read_cluster(file) if nodes else renewed(read_cluster(file))
    if keep:
        cluster = msgspec.structs.replace(cluster, cluster=msgspec.structs.replace(cluster.cluster, log=seed.log_id))

    def commit() -> None:
        file.write_text(render_cluster_file(cluster))

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

    monkeypatch.setattr(take_backup.clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(take_backup.threading.Event, "wait", wait)
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

    with take_backup._held(folder):
        refused("another backup is being taken into it; wait")
    (folder / MANIFEST).write_bytes(whole.replace(node.log_id.encode(), b"f" * 32))
    refused(f"it is a backup of log {'f' * 32}, and the cluster has log {node.log_id}; name another folder")
    (folder / MANIFEST).write_bytes(whole[:-20])
    refused("backup.json: it cannot be read", BackupDamaged)
    (folder / MANIFEST).unlink()
    refused("and no backup.json, so it is no backup; name a new folder")


def test_a_gap_says_what_to_do(tmp_path: Path, node: FakeNode, client: SyncClient) -> None:
    """The log was trimmed beyond the newest backup, which stays as it is."""
    fill(node, 20)
    end = taken(tmp_path / "b", client)
    fill(node, 20)
    node.submit_now((encode_block([BlockRecord(Operation.TRIM, argument=node.applied)]), 1))
    with pytest.raises(BackupRefused, match=f"ends with record {end}, and the log begins at .* into a new folder"):
        taken(tmp_path / "b", client)
    assert read_folder(tmp_path / "b")[0].mark.index == end


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
    (tmp_path / "b" / take_backup.PART).symlink_to("/dev/full")
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
