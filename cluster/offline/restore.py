"""Makes the data folders of a new cluster from a backup, or from the survivor of a lost cluster.

`raftlog restore` and `raftlog recover` call it. Two kinds of sources differ in what the new log is:

- **State and log** (a backup folder). The new log has every entry of the old one with its bytes, effects and index, and
  behind them one configuration entry: the new members, in a term above those of the old cluster. Keys, groups and
  sessions are those after the last entry. The log id may be the old one, so that positions, exports and sinks go on.
  The old disks count as removed, so a node of the old cluster that comes back is refused.
- **State alone** (a backup file, or a survivor). The new log has an id of its own and begins after the state.
  Everything of the old log is foreign to it, and **sessions and consumer groups are dropped from the state**. Their ids
  and generations are indexes of the old log, and the new log uses the same indexes for other records. A retry gets
  `session_expired`, as from any cluster that does not know its result.

All folders are made before the first of them gets its name, so no node starts on one of a restore that was killed
(docs/decisions/0035).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import msgspec

from raftlog.cluster.config.cluster_file import ClusterFile, SettingsError
from raftlog.cluster.files.errors import StoredSnapshotDamaged
from raftlog.cluster.files.folder import SHARD, DiskIdentity, begin_folder, drop_unfinished, finish_folder
from raftlog.cluster.files.shard_files import ShardFiles
from raftlog.cluster.files.snapshot_files import RecoveredSnapshot, SnapshotWriter
from raftlog.cluster.offline.backup_file import Seed
from raftlog.cluster.offline.backup_folder import BackupLog
from raftlog.cluster.offline.places import check_outside
from raftlog.cluster.offline.restored_log import with_first_entry, with_members, write_log
from raftlog.cluster.records.snapshot_stream import chunks_of, restore as read_back
from raftlog.cluster.runtime import clock
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import HardState
from raftlog.raft.wal.formats import HARD_STATE, HARD_STATE_BYTES, LogIdentity, Slot
from raftlog.raft.wal.journal import begin_after, check_segment_bytes, keep_slot
from raftlog.raft.wal.operations import Allocate
from raftlog.raft.wal.snapshot_files import open_snapshot
from raftlog.statemachine.consumers import ConsumerTable
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.sessions import SessionTable
from raftlog.statemachine.snapshot import SnapshotWalk


class CannotRestore(Exception):
    """No new cluster can be made from this backup or cluster file. The message says what to do."""

    exit_code = 2  # of the command line


def renewed(cluster: ClusterFile) -> ClusterFile:
    """The same nodes at the same places with a new log id and new incarnations."""
    head = msgspec.structs.replace(cluster.cluster, log=secrets.token_hex(16), time_ms=clock.wall_ms(), first="")
    nodes = [msgspec.structs.replace(node, incarnation=secrets.token_hex(16)) for node in cluster.node]
    return msgspec.structs.replace(cluster, cluster=head, node=nodes)


def first_configuration(seed: Seed, cluster: ClusterFile, name: str, *, has_log: bool) -> Configuration:
    """The members of the new cluster, from its file. Raises CannotRestore if the file is not of a new cluster."""
    mend = "give it new ones: --new-ids writes them into the file, `openssl rand -hex 16` makes one"
    if cluster.cluster.join:
        raise CannotRestore(f"{name}: it is a join file; a cluster file is wanted, as `raftlog up --data` makes one")
    if cluster.cluster.log == seed.log_id and not has_log:
        raise CannotRestore(
            f"{name}: log {seed.log_id} is the old cluster's; a new log needs its own id, or positions and sessions of "
            f"the old one would be taken for its own; {mend}"
        )
    if cluster.cluster.log == seed.log_id and cluster.cluster.time_ms <= seed.mark.time_ms:
        raise CannotRestore(
            f"{name}: it was made before the newest record of the backup, so the terms of the old cluster may be above "
            "that of the new one: give it new incarnations and its time: --new-ids writes them into the file"
        )
    configuration = seed.configuration
    disks = [(member.node, member.incarnation) for member in configuration.members]
    old = {disk: node for node, disk in (*configuration.removed, *disks)}
    for node in cluster.node:
        if node.incarnation in old:
            raise CannotRestore(
                f"{name}: node {node.id} has the incarnation of the old node {old[node.incarnation]}; {mend}"
            )
    parameters = dict(configuration.parameters)
    if cluster.cluster.parameters and cluster.cluster.parameters != parameters:
        raise CannotRestore(
            f"{name}: cluster.parameters is {cluster.cluster.parameters}, the state was made with {parameters}: leave "
            "the section out; the state's are kept"
        )
    made = replace(cluster.configuration(), parameters=configuration.parameters, version=configuration.version)
    return made.with_removed((*configuration.removed, *disks) if has_log else ())


def make_cluster(
    seed: Seed,
    cluster: ClusterFile,
    file: Path,
    *,
    segment_bytes: int,
    nodes: Sequence[int] = (),
    log: BackupLog | None = None,
    commit: Callable[[ClusterFile], None] = lambda cluster: None,
) -> list[Path]:
    """Makes the data folders of all nodes of the file, or of `nodes`, and reads their state back.

    `log`: the log that they get; else it begins after the state. `commit` is called with the cluster file of the new
    cluster once all is written, before the folders get their names. Raises CannotRestore, BackupDamaged, DiskError (a
    folder with something in it is never touched) or ValueError; no folder is left then.
    """
    configuration = first_configuration(seed, cluster, str(file), has_log=log is not None)
    check_segment_bytes(segment_bytes)
    if missing := [node for node in nodes if cluster.of(node) is None]:
        raise SettingsError(f"{file}: it has no node {missing[0]}")
    if log is None:
        state = seed.state._replace(sessions=SessionTable(), consumers=ConsumerTable(), oldest=seed.mark.index + 1)
        seed, last = replace(seed, state=state), None
    else:
        cluster = with_first_entry(cluster, log)
        seed, last = with_members(seed, cluster, configuration)
    identity = LogIdentity(bytes.fromhex(cluster.cluster.log))

    def fill(files: ShardFiles, identity: LogIdentity) -> None:
        mark = seed.mark
        promise, repeat = keep_slot(identity, Slot(0, HardState(term=mark.term)))
        files.execute([Allocate(HARD_STATE, HARD_STATE_BYTES), *promise, *repeat])
        writer = SnapshotWriter(files, identity, mark.index)
        writer.begin()
        with SnapshotWalk(seed.state) as walk:
            for chunk in chunks_of(seed.last_user, walk):
                writer.add(chunk)
        writer.finish(mark, configuration, mark.index, keep="")
        if log is not None and last is not None:
            write_log(files, identity, seed.mark, chain(log.pieces(), (last,)), segment_bytes)
        files.execute(begin_after(identity, mark, segment_bytes))

    places = [node for node in cluster.node if not nodes or node.id in nodes]
    folders: list[Path] = []
    try:
        for node in places:
            folder = file.parent / node.data
            check_outside(folder)
            begin_folder(folder, DiskIdentity(cluster.cluster.log, node.id, node.incarnation), fill)
            folders.append(folder)
            _check_made(folder, identity, seed, is_read_whole=len(folders) == 1)
        commit(cluster)
    except BaseException:
        for folder in folders:
            drop_unfinished(folder)
        raise
    for folder in folders:
        finish_folder(folder)
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
        here, there = [
            (each.applied_index, each.digest(), each.session_count, len(each.consumers), each.oldest)
            for each in (machine, StateMachine.of(seed.state))
        ]
        if (here, last_user) != (there, seed.last_user):
            raise StoredSnapshotDamaged(
                f"{folder}: its state is {here}, not that of the source: do not use it, report this"
            )
