"""Defines the commands that save and rebuild a cluster: backup, restore, recover."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgpack
import typer

from raftlog.cluster.api.text import as_time
from raftlog.cluster.cli.frame.common import Cli, Exit, Failed, command
from raftlog.cluster.cli.frame.output import Column, bar, view
from raftlog.cluster.client.backup import BackupCursor, BackupPiece
from raftlog.cluster.config.cluster_file import ClusterFile, SettingsError
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.config.settings import DiskSettings
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.records.backup_format import BackupDamaged, BackupEnd, BackupHead
from raftlog.cluster.runtime.file_errors import create_private, naming, replace_file, sync_folder
from raftlog.cluster.security.tls import TlsError
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.statemachine.snapshot import FRAME_SIZE, KEYS

BACKUP: Final = view(
    "file",
    "index",
    "term",
    "revision",
    "keys",
    "bytes",
    "parts",
    "log",
    "node",
    Column("made", lambda row: as_time(row["made_ms"])),
    raw="file",
)
MADE: Final = view("data", "log", "after", "keys", "from_log", raw="data")

SEGMENT_BYTES: Final = DiskSettings().segment_bytes

ClusterOption = Annotated[
    Path,
    typer.Option("--cluster", help="The cluster file of the new cluster, with a log id and incarnations of its own."),
]
NewIds = Annotated[
    bool, typer.Option("--new-ids", help="Write a new log id and new incarnations into the cluster file.")
]
OnlyNodes = Annotated[
    list[int] | None, typer.Option("--node", help="Only this node's folder; may be given again.", min=1)
]
SegmentBytes = Annotated[int, typer.Option("--segment-bytes", help="Size of a segment.", min=1 << 16)]


def backup_command(
    cli: Cli,
    file: Annotated[Path, typer.Argument(help="Where to write it.")],
    stale: Annotated[
        bool, typer.Option("--stale", help="What the asked node has, also without a leader; may lack the newest.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Take the place of a file that is there.")] = False,
) -> None:
    """Save every key of a running cluster, as of one index, into one checked file; export keeps the log.

    It holds keys with their history and sessions, not the log. `raftlog disk check FILE` checks one.
    """
    if file.is_dir():
        raise Failed(f"{file}: it is a folder; name the file to write", Exit.USAGE)
    if file.exists() and not force:
        raise Failed(f"{file}: it is there already; name another file, or give --force", Exit.USAGE)
    aside = file.with_name(f"{file.name}.part-{os.getpid()}")
    try:
        with bar("saving") as progress:
            cursor = _receive(cli, aside, stale, progress)
        if file.exists() and not force:
            raise Failed(f"{file}: it was made meanwhile; name another file, or give --force")
        aside.rename(file)
        sync_folder(file.absolute().parent)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()
    assert cursor.head is not None
    assert cursor.end_of is not None
    cli.printer.one(as_backup(file, cursor.head, cursor.end_of), BACKUP)


def _receive(cli: Cli, aside: Path, stale: bool, progress: Callable[[int, int, str], None]) -> BackupCursor:
    """Writes a backup aside and syncs it. Every byte is checked before it is written."""
    cursor = BackupCursor("stale" if stale else "linearizable")
    keys = size = 0
    with cli.client(sessions=False) as client, naming(aside), create_private(aside, "xb") as target:
        for piece in client.stream(cursor):
            if piece.is_first:
                target.seek(0)
                target.truncate()
                keys = size = 0
            target.write(piece.data)
            size += len(piece.data)
            keys += keys_in(piece)
            head = cursor.head
            progress(keys, head.digest.count if head is not None else 0, f"{size / 1e6:,.1f} MB")
        target.flush()
        os.fsync(target.fileno())
    return cursor


def keys_in(piece: BackupPiece) -> int:
    """The estimated number of keys in these bytes: for a bar, not for a check."""
    count = 0
    for part in piece.parts:
        if len(part) > FRAME_SIZE and part[5] == KEYS:
            unpacker = msgpack.Unpacker()
            unpacker.feed(part[FRAME_SIZE:])
            with suppress(Exception):  # a part of an item that began in the frame before, or ends in the next
                while True:
                    unpacker.skip()
                    count += 1
    return count


def as_backup(file: Path, head: BackupHead, end: BackupEnd) -> dict[str, Any]:
    """The facts about a backup, as a row."""
    count, xor, low, high = head.digest.as_hex()
    return {
        "file": str(file),
        "log": head.log_id,
        "index": head.index,
        "term": head.term,
        "revision": head.revision,
        "keys": count,
        "state": {"count": count, "xor": xor, "sum_low": low, "sum_high": high},
        "parts": end.parts,
        "state_bytes": end.state_bytes,
        "bytes": end.size,
        "node": head.node,
        "made_ms": head.made_ms,
        "voters": list(end.configuration.voters),
    }


def restore_command(
    cli: Cli,
    file: Annotated[Path, typer.Argument(help="A backup, as `raftlog backup` makes one.")],
    cluster: ClusterOption,
    new_ids: NewIds = False,
    nodes: OnlyNodes = None,
    segment_bytes: SegmentBytes = SEGMENT_BYTES,
) -> None:
    """Make the data folders of a new cluster from a backup; then start its nodes.

    The new log has its own id: sessions, positions and exports of the old one are foreign to it. It begins behind the
    backup's index, with the same keys; sessions are not taken along. A folder with something in it is never touched.
    """
    from raftlog.cluster.offline.restore import read_backup

    with _failures(), bar("reading") as progress:
        seed = read_backup(file, progress)
    _make(cli, seed, cluster, new_ids, nodes or (), segment_bytes)


def recover_command(
    cli: Cli,
    folders: Annotated[list[Path], typer.Argument(help="The data folders of all nodes that are left, stopped.")],
    cluster: ClusterOption,
    new_ids: NewIds = False,
    nodes: OnlyNodes = None,
    yes: Annotated[
        bool, typer.Option("--yes-lose-data", help="Do not ask; what may be lost is printed all the same.")
    ] = False,
    segment_bytes: SegmentBytes = SEGMENT_BYTES,
) -> None:
    """Make a new cluster from the remaining folders after a majority was lost for good.

    Takes the folder with the newest log of those given, its whole log included. Acknowledged writes may be lost; what
    is known of that is printed, and must be confirmed. The old folders are only read.
    """
    from raftlog.cluster.offline.survivor import best_of, describe, look, seed_of

    with _failures():
        with bar("reading") as progress:
            survivors = [look(folder, progress) for folder in folders]
        best = best_of(survivors)
        for line in describe(best, survivors):
            print(line, file=sys.stderr)
        _confirm(best.log_id, is_given=yes)
        with bar("applying") as progress:
            seed = seed_of(best, progress)
    _make(cli, seed, cluster, new_ids, nodes or (), segment_bytes)


def _confirm(log_id: str, *, is_given: bool) -> None:
    """Raises Failed unless a person typed the words, or gave the flag instead."""
    if is_given:
        return
    words = f"lose data of {log_id[:8]}"
    if not sys.stdin.isatty():
        raise Failed("nothing was done: give --yes-lose-data, or run it on a terminal, where it asks", Exit.USAGE)
    print(f"To go on, write: {words}", file=sys.stderr)
    if sys.stdin.readline().strip() != words:
        raise Failed("nothing was done")


def _make(cli: Cli, seed: Any, file: Path, new_ids: bool, nodes: tuple[int, ...] | list[int], size: int) -> None:
    from raftlog.cluster.config.cluster_file import read_cluster, render_cluster_file
    from raftlog.cluster.offline.restore import make_cluster, renewed

    with _failures():
        cluster: ClusterFile = read_cluster(file)
        if new_ids:
            cluster = renewed(cluster)
        folders = make_cluster(seed, cluster, file, segment_bytes=size, nodes=nodes)
        if new_ids:  # last: a command that is refused or fails leaves the file to the cluster that has these ids
            replace_file(file, render_cluster_file(cluster).encode())
    rows = [
        {
            "data": str(folder),
            "log": cluster.cluster.log,
            "after": seed.mark.index,
            "keys": seed.digest.count,
            "from_log": seed.log_id,
        }
        for folder in folders
    ]
    cli.printer.all(rows, MADE)
    if advice := _certificates_advice(cluster, file, nodes):
        print(advice, file=sys.stderr)


def _certificates_advice(cluster: ClusterFile, file: Path, nodes: Sequence[int]) -> str:
    """How to make certificates that name the new log; empty without TLS, or if they are beside the cluster file."""
    from raftlog.cluster.security.authority import holder_of_file
    from raftlog.cluster.security.names import Holder, HolderKind, UnknownHolder

    lacking: list[str] = []
    for node in cluster.node:
        if node.url.startswith("https:") and (not nodes or node.id in nodes):
            with suppress(TlsError, UnknownHolder):
                made = holder_of_file(file.parent / TLS_FOLDER / f"node-{node.id}.pem")
                if made == Holder(cluster.cluster.log, HolderKind.NODE, str(node.id)):
                    continue
            lacking.append(str(node.id))
    if not lacking:
        return ""
    return (
        "Certificates of the old cluster name the old log and do not count in the new one. Before its nodes start, "
        f"where ca.key is: raftlog cert node {' '.join(lacking)} --cluster {file}; likewise for clients: raftlog cert "
        f"client NAME --cluster {file}. On one machine `raftlog up --data {file.parent}` makes a new authority and all "
        f"of them, if there is no {file.parent / TLS_FOLDER}."
    )


@contextmanager
def _failures() -> Iterator[None]:
    from raftlog.cluster.offline.restore import CannotRestore

    try:
        yield
    except (SettingsError, CannotRestore) as error:
        raise Failed(str(error), Exit.USAGE) from error
    except BackupDamaged as error:
        raise Failed(str(error), Exit.NOT_VERIFIED, "Take another copy of this backup, or another backup.") from error
    except (DiskError, UnknownVersion) as error:
        raise Failed(str(error)) from error


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    command(app, "backup")(backup_command)
    command(app, "restore")(restore_command)
    command(app, "recover")(recover_command)
