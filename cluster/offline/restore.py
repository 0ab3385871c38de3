"""Makes the data folders of a new cluster from a state: that of a backup, or of the survivor of a lost one.

`raftlog restore` and `raftlog recover` call it. The new log has an id of its own and begins after the state. Everything
of the old log (sessions, positions, Spark offsets, manifests) is foreign to it. **Sessions and consumer groups are
dropped from the state.** Session ids and generations are indexes of the old log. The old log went on after the backup,
and the new log uses the same indexes again. An old client's retry must not be answered from the table either: the
table does not have the writes after the backup, and "not seen" would be a lie. The retry gets `session_expired`, as
from
any cluster that does not know its result. A group's position would point to records that the new log does not have.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from raftlog.cluster.api.text import as_time
from raftlog.cluster.config.cluster_file import ClusterFile, SettingsError
from raftlog.cluster.files.errors import StoredSnapshotDamaged
from raftlog.cluster.files.findings import NEWER_CODE, FileHealth, Finding, NotLooked, Report
from raftlog.cluster.files.folder import SHARD, DiskIdentity, make_folder
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.files.snapshot_files import RecoveredSnapshot, SnapshotWriter
from raftlog.cluster.files.stopped_folder import OnBytesRead
from raftlog.cluster.records.backup_format import BackupDamaged, BackupDecoder, BackupEnd, BackupHead, NoBackup
from raftlog.cluster.records.snapshot_stream import chunks_of, decode_preamble, restore as read_back
from raftlog.cluster.runtime import clock
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import HardState, Mark
from raftlog.raft.wal.formats import HARD_STATE, HARD_STATE_BYTES, LogIdentity, Slot
from raftlog.raft.wal.journal import begin_after, check_segment_bytes, keep_slot
from raftlog.raft.wal.operations import Allocate
from raftlog.raft.wal.snapshot_files import open_snapshot
from raftlog.statemachine.consumers import ConsumerTable
from raftlog.statemachine.digest import SetDigest
from raftlog.statemachine.sessions import SessionTable
from raftlog.statemachine.snapshot import CorruptSnapshot, Restorer, SnapshotState, SnapshotWalk, UnknownSnapshot

READ_BYTES: Final = 1 << 18


class CannotRestore(Exception):
    """No new cluster can be made from this backup or cluster file. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The beginning of a new cluster: the state after the entry of `mark` of another log."""

    log_id: str
    mark: Mark
    configuration: Configuration  # of the old cluster, at the mark
    last_user: int
    state: SnapshotState

    @property
    def digest(self) -> SetDigest:
        """The digest of the live keys."""
        return SetDigest(*self.state.store.digest())


# ---------------------------------------------------------------------------------------------------------------
# The state of a backup.


def check_backup(file: Path, progress: OnBytesRead | None = None) -> tuple[BackupHead, BackupEnd]:
    """Reads every byte, a part at a time. Raises BackupDamaged (with the file's name), UnknownVersion or OSError."""
    decoder = BackupDecoder()
    for _ in _parts(file, decoder, progress):
        pass
    return decoder.finish()


def read_backup(file: Path, progress: OnBytesRead | None = None) -> Seed:
    """The state in a backup, compared with the digest in its head. Raises as `check_backup`."""
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


def _parts(file: Path, decoder: BackupDecoder, progress: OnBytesRead | None) -> Iterator[bytes]:
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
    """The members of the new cluster, from its file. Raises CannotRestore if the file is not of a new cluster."""
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
    log = LogIdentity(bytes.fromhex(cluster.cluster.log))

    def fill(files: ShardFiles, log: LogIdentity) -> None:
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
            make_folder(folder, DiskIdentity(cluster.cluster.log, node.id, node.incarnation), fill)
            folders.append(folder)
    for number, folder in enumerate(folders):
        _check_made(folder, log, seed, is_read_whole=number == 0)
    return folders


def _check_made(folder: Path, log: LogIdentity, seed: Seed, *, is_read_whole: bool) -> None:
    """Reads back the written folders: every CRC, and the state itself of one of the equal folders."""
    files = ShardFiles(folder / SHARD, read_only=True)
    try:
        stored = open_snapshot(files, log, seed.mark.index)
    finally:
        files.close()
    if is_read_whole:
        machine, last_user = read_back(RecoveredSnapshot(folder / SHARD, stored).chunks())
        here = (machine.applied_index, machine.digest(), machine.session_count, machine.oldest, last_user)
        if here != (seed.mark.index, seed.digest, 0, seed.mark.index + 1, seed.last_user):
            raise StoredSnapshotDamaged(
                f"{folder}: its state is {here}, not that of the source: do not use it, report this"
            )


MEND = "take another copy of this backup, or another backup: nothing is restored from this one"


def check_backup_file(file: Path, progress: OnBytesRead | None = None) -> Report:
    """Reads everything, a part at a time. Raises NotLooked; damage is in the report."""

    def report_of(state: FileHealth, what: str, mend: str = "") -> Report:
        refusal = "" if state is FileHealth.INTACT else what
        return Report(str(file), None, None, 0, 0, [Finding(file.name, state, what, mend=mend)], refusal)

    try:
        head, end = check_backup(file, progress)
    except BackupDamaged as error:
        return report_of(FileHealth.DAMAGED, str(error).removeprefix(f"{file}: "), MEND)
    except UnknownVersion as error:
        return report_of(FileHealth.NEWER, str(error), NEWER_CODE)
    except OSError as error:
        raise NotLooked(f"{file}: {error}; run it as a user with the right to read it") from error
    what = (
        f"a backup of log {head.log_id}: the state after record {head.index} of term {head.term}, {head.digest.count} "
        f"keys, {end.parts} parts of {end.state_bytes} bytes; made by node {head.node}, {as_time(head.made_ms)}"
    )
    return report_of(FileHealth.INTACT, what)
