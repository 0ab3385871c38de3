"""Makes the data folders of a new cluster from a state: that of a backup, or of the survivor of a lost one.

The new log has an id of its own and begins behind the state: what belongs to the old log (sessions, positions, Spark
offsets, manifests) is foreign to it. **Sessions and consumer groups are dropped from the state.** Session ids and
generations are indexes of the old log, which went on after the backup and gave indexes that the new log gives again. An
old client's retry must not be answered from the table either: it does not know what was applied after the backup, and
"not seen" would be a lie. The retry is told `session_expired`, as by any cluster that does not know what became of it.
A group's position would point into records that the new log does not have.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from cluster import clock
from cluster.backup_file import BackupDamaged, BackupDecoder, BackupEnd, BackupHead, NoBackup
from cluster.cluster_file import ClusterFile, SettingsError, render_cluster_file
from cluster.disk_errors import SnapshotDamaged
from cluster.disk_files import ShardFiles, write_new
from cluster.disk_open import SHARD, Identity, make_folder
from cluster.disk_snapshots import RecoveredSnapshot, SnapshotWriter
from cluster.snapshots import chunks_of, decode_preamble
from cluster.snapshots import restore as read_back
from raft.codec import Corrupt, UnknownVersion
from raft.configuration import Configuration
from raft.formats import HARD_STATE_BYTES, Log, Slot
from raft.journal import HARD_STATE, begin_after, check_segment_bytes, keep_slot
from raft.operations import Allocate
from raft.storage_snapshots import open_snapshot
from raft.types import HardState, Mark
from statemachine.consumers import ConsumerTable
from statemachine.digest import SetDigest
from statemachine.sessions import SessionTable
from statemachine.snapshot import CorruptSnapshot, Restorer, SnapshotWalk, State, UnknownSnapshot

READ_BYTES: Final = 1 << 18

Progress = Callable[[int, int], None]
"""Told how many bytes of how many were read."""


class CannotRestore(Exception):
    """A backup or a cluster file that no new cluster can be made of: the message says what to do."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a new cluster begins with: the state after the entry of `mark` of another log."""

    log_id: str
    mark: Mark
    configuration: Configuration  # of the old cluster, at the mark
    last_user: int
    state: State

    @property
    def digest(self) -> SetDigest:
        """Of the live keys."""
        return SetDigest(*self.state.store.digest())


# ---------------------------------------------------------------------------------------------------------------
# The state of a backup.


def check_backup(file: Path, progress: Progress | None = None) -> tuple[BackupHead, BackupEnd]:
    """Reads every byte, a part at a time. Raises BackupDamaged (with the file's name), UnknownVersion or OSError."""
    decoder = BackupDecoder()
    for _ in _parts(file, decoder, progress):
        pass
    return decoder.finish()


def read_backup(file: Path, progress: Progress | None = None) -> Seed:
    """The state in a backup, compared with what its head says of it. Raises as `check_backup`."""
    decoder, restorer = BackupDecoder(), Restorer()
    last_user = -1
    try:
        for part in _parts(file, decoder, progress):
            if last_user < 0:
                last_user = decode_preamble(part)
            else:
                restorer.feed(part)
        state = restorer.finish()
    except (Corrupt, CorruptSnapshot) as error:
        raise BackupDamaged(f"{file}: its state cannot be read: {error}") from error
    except UnknownSnapshot as error:
        raise UnknownVersion(f"{file}: {error}") from error
    head, end = decoder.finish()
    here = (state.applied_index, state.applied_term, state.store.revision, state.store.digest())
    if here != (head.index, head.term, head.revision, tuple(head.digest)):
        raise BackupDamaged(f"{file}: its state is {here}, its head names {head}")
    return Seed(head.log_id, end.mark, end.configuration, last_user, state)


def _parts(file: Path, decoder: BackupDecoder, progress: Progress | None) -> Iterator[bytes]:
    total, done = file.stat().st_size, 0
    with file.open("rb") as source:
        try:
            while data := source.read(READ_BYTES):
                yield from decoder.feed(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
            decoder.finish()
        except NoBackup as error:
            raise NoBackup(f"{file}: {error}; `raftlog backup FILE` makes one") from error
        except BackupDamaged as error:
            raise BackupDamaged(f"{file}: {error}") from error


# ---------------------------------------------------------------------------------------------------------------
# The new cluster.


def renewed(cluster: ClusterFile) -> ClusterFile:
    """The same nodes at the same places with a new log id and new incarnations."""
    head = msgspec.structs.replace(cluster.cluster, log=secrets.token_hex(16), time_ms=clock.wall_ms())
    nodes = [msgspec.structs.replace(node, incarnation=secrets.token_hex(16)) for node in cluster.node]
    return msgspec.structs.replace(cluster, cluster=head, node=nodes)


def first_configuration(seed: Seed, cluster: ClusterFile, name: str) -> Configuration:
    """Who the members of the new cluster are: those of its file. Raises CannotRestore where it is no new cluster."""
    mend = "give it new ones: --new-ids writes them into the file, `openssl rand -hex 16` makes one"
    if cluster.cluster.join:
        raise CannotRestore(f"{name}: it is a join file; a cluster file is wanted, as `raftlog up --data` makes one")
    if cluster.cluster.log == seed.log_id:
        raise CannotRestore(
            f"{name}: log {seed.log_id} is the old cluster's; a new log needs its own id, or positions and sessions of "
            f"the old one would be taken for its own; {mend}"
        )
    old = {member.incarnation: member.node for member in seed.configuration.members}
    for node in cluster.node:
        if node.incarnation in old:
            raise CannotRestore(
                f"{name}: node {node.id} has the incarnation of the old node {old[node.incarnation]}; {mend}"
            )
    parameters = dict(seed.configuration.parameters)
    if cluster.cluster.parameters and cluster.cluster.parameters != parameters:
        raise CannotRestore(
            f"{name}: cluster.parameters is {cluster.cluster.parameters}, the state was made with {parameters}: leave "
            "the section out; the state's are kept"
        )
    return replace(
        cluster.configuration(), parameters=seed.configuration.parameters, version=seed.configuration.version
    )


def make_cluster(
    seed: Seed, cluster: ClusterFile, file: Path, *, segment_bytes: int, nodes: Sequence[int] = ()
) -> list[Path]:
    """Makes the data folders of all nodes of the file, or of `nodes`, and reads them back.

    Raises CannotRestore, DiskError (a folder with something in it is never touched) or ValueError.
    """
    configuration = first_configuration(seed, cluster, str(file))
    check_segment_bytes(segment_bytes)
    if missing := [node for node in nodes if cluster.of(node) is None]:
        raise SettingsError(f"{file}: it has no node {missing[0]}")
    mark = seed.mark
    state = seed.state._replace(sessions=SessionTable(), consumers=ConsumerTable(), oldest=mark.index + 1)
    log = Log(bytes.fromhex(cluster.cluster.log))

    def fill(files: ShardFiles, log: Log) -> None:
        promise, repeat = keep_slot(log, Slot(0, HardState(term=mark.term)))
        files.execute([Allocate(HARD_STATE, HARD_STATE_BYTES), *promise, *repeat])
        writer = SnapshotWriter(files, log, mark.index)
        writer.begin()
        with SnapshotWalk(state) as walk:
            for chunk in chunks_of(seed.last_user, walk):
                writer.add(chunk)
        writer.finish(mark, configuration, mark.index, keep="")
        files.execute(begin_after(log, mark, segment_bytes))

    folders: list[Path] = []
    for node in cluster.node:
        if not nodes or node.id in nodes:
            folder = file.parent / node.data
            make_folder(folder, Identity(cluster.cluster.log, node.id, node.incarnation), fill)
            folders.append(folder)
    for number, folder in enumerate(folders):
        _check_made(folder, log, seed, is_read_whole=number == 0)
    return folders


def _check_made(folder: Path, log: Log, seed: Seed, *, is_read_whole: bool) -> None:
    """Reads back what was written: every CRC, and of one of the equal folders the state itself."""
    files = ShardFiles(folder / SHARD, read_only=True)
    try:
        stored = open_snapshot(files, log, seed.mark.index)
    finally:
        files.close()
    if is_read_whole:
        machine, last_user = read_back(RecoveredSnapshot(folder / SHARD, stored).chunks())
        here = (machine.applied_index, machine.digest(), machine.session_count, machine.oldest, last_user)
        if here != (seed.mark.index, seed.digest, 0, seed.mark.index + 1, seed.last_user):
            raise SnapshotDamaged(f"{folder}: its state is {here}, not that of the source: do not use it, report this")


def write_cluster_file(cluster: ClusterFile, file: Path) -> None:
    """Puts the file in place of the one that is there, at once."""
    aside = file.with_name(f"{file.name}.new")
    aside.unlink(missing_ok=True)
    write_new(aside, render_cluster_file(cluster).encode())
    aside.rename(file)
