"""Defines the commands that save and rebuild a cluster: backup, restore, recover."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from raftlog.cluster.api.text import as_time
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import Column, bar, view
from raftlog.cluster.config.cluster_file import ClusterFile
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.config.settings import DiskSettings
from raftlog.cluster.records.backup_format import BackupEnd, BackupHead
from raftlog.cluster.runtime.file_errors import replace_file, sync_folder
from raftlog.cluster.security.tls import TlsError
from raftlog.raft.codec.checks import UnknownVersion

if TYPE_CHECKING:
    from raftlog.cluster.offline.backup_file import Seed
    from raftlog.cluster.offline.backup_folder import BackupLog
    from raftlog.cluster.offline.take_backup import Pace

commands = Commands()
register = commands.register

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
FOLDER: Final = view(
    "folder",
    "first",
    "last",
    "state",
    "files",
    "bytes",
    "added",
    "log",
    Column("made", lambda row: as_time(row["made_ms"])),
    raw="folder",
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


@commands("backup")
def backup_command(
    cli: Cli,
    target: Annotated[
        str, typer.Argument(help="The backup: a folder, or s3://BUCKET/PREFIX. With --state-only the file to write.")
    ],
    state_only: Annotated[
        bool, typer.Option("--state-only", help="Only the state, in one file: keys with their history, users, tokens.")
    ] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="With --state-only: what the asked node has, also without a leader.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --state-only: take the place of a file that is there.")
    ] = False,
    rate: Annotated[int, typer.Option("--rate", help="Most megabytes a second; 0: no limit.", min=0)] = 0,
) -> None:
    """Save a running cluster into a folder or an object store: log and state. The next run adds new entries.

    Each byte is checked when it comes. `raftlog disk check TARGET` checks all of it again, and `raftlog restore` makes
    a cluster from it.
    """
    from raftlog.cluster.offline.take_backup import Pace, take_backup
    from raftlog.cluster.stores.object_place import place_of

    pace = Pace(1_000_000 * rate)
    if state_only:
        if "://" in target:
            raise CommandFailed(f"{target}: --state-only writes a file of this machine; name one", Exit.USAGE)
        _save_state(cli, Path(target), stale, force, pace)
        return
    if stale or force:
        raise CommandFailed("--stale and --force are for --state-only: a folder only grows", Exit.USAGE)
    place = place_of(target)
    if isinstance(place, Path) and place.exists() and not place.is_dir():
        raise CommandFailed(
            f"{target}: it is a file, and a backup with the log is a folder; name another, or give --state-only",
            Exit.USAGE,
        )
    with _newer(), bar("saving") as progress, cli.client(sessions=False) as client:
        before, manifest = take_backup(place, client, pace, progress)
    row = {
        "folder": str(place),
        "log": manifest.log,
        "first": manifest.files[0].first if manifest.files else 0,
        "last": manifest.end.index if manifest.end else 0,
        "state": manifest.state,
        "files": len(manifest.files),
        "bytes": sum(file.size for file in manifest.files),
        "added": sum(file.size for file in manifest.files if file.first > before),
        "made_ms": manifest.made_ms,
    }
    cli.printer.one(row, FOLDER)


def _save_state(cli: Cli, file: Path, stale: bool, force: bool, pace: Pace) -> None:
    from raftlog.cluster.offline.places import check_outside
    from raftlog.cluster.offline.take_backup import receive_state

    if file.is_dir():
        raise CommandFailed(f"{file}: it is a folder; name the file to write", Exit.USAGE)
    if file.exists() and not force:
        raise CommandFailed(f"{file}: it is there already; name another file, or give --force", Exit.USAGE)
    check_outside(file)
    aside = file.with_name(f"{file.name}.part-{os.getpid()}")
    try:
        with bar("saving") as progress, cli.client(sessions=False) as client:
            cursor = receive_state(client, aside, "stale" if stale else "linearizable", pace, progress)
        if file.exists() and not force:
            raise CommandFailed(f"{file}: it was made meanwhile; name another file, or give --force")
        aside.rename(file)
        sync_folder(file.absolute().parent)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()
    assert cursor.head is not None
    assert cursor.end_of is not None
    cli.printer.one(as_backup(file, cursor.head, cursor.end_of), BACKUP)


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


@commands("restore")
def restore_command(
    cli: Cli,
    backup: Annotated[str, typer.Argument(help="A backup, as `raftlog backup` makes one: its path or s3://… URL.")],
    cluster: ClusterOption,
    new_ids: NewIds = False,
    keep_log: Annotated[
        bool, typer.Option("--keep-log", help="Write the log id of the backup into the cluster file.")
    ] = False,
    nodes: OnlyNodes = None,
    segment_bytes: SegmentBytes = SEGMENT_BYTES,
) -> None:
    """Make the data folders of a new cluster from a backup; then start its nodes.

    From a folder the cluster gets the log, with the same indexes, keys, groups and sessions. With --keep-log it has the
    old log id, so that exports, sinks and consumers go on. From a file it gets the keys alone, behind the index of the
    backup. A folder with something in it is never touched.
    """
    from raftlog.cluster.offline.backup_file import read_backup
    from raftlog.cluster.offline.backup_folder import read_folder
    from raftlog.cluster.stores.object_place import ObjectPlace, place_of

    with _newer(), bar("reading") as progress:
        place = place_of(backup)
        if isinstance(place, ObjectPlace) or place.is_dir():
            seed, log = read_folder(place, progress)
        elif place.is_file():
            seed, log = read_backup(place, progress), None
        else:
            raise CommandFailed(f"{backup}: there is no such backup; `raftlog backup` makes one", Exit.USAGE)
    if log is None and keep_log:
        raise CommandFailed(f"{backup}: it has no log, and --keep-log is for a backup with the log", Exit.USAGE)
    _make(cli, seed, cluster, new_ids, nodes or (), segment_bytes, log, keep_log)
    if log is not None:
        say(
            f"The log goes on behind record {seed.mark.index} of {as_time(seed.mark.time_ms)}. Later writes of the old "
            "cluster are lost, also those that were acknowledged, exported or consumed."
        )


@commands("recover")
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

    with _newer():
        with bar("reading") as progress:
            survivors = [look(folder, progress) for folder in folders]
        best = best_of(survivors)
        for line in describe(best, survivors):
            say(line)
        _confirm(best.log_id, is_given=yes)
        with bar("applying") as progress:
            seed = seed_of(best, progress)
    _make(cli, seed, cluster, new_ids, nodes or (), segment_bytes)


def _confirm(log_id: str, *, is_given: bool) -> None:
    """Raises CommandFailed unless a person typed the words, or gave the flag instead."""
    if is_given:
        return
    words = f"lose data of {log_id[:8]}"
    if not sys.stdin.isatty():
        raise CommandFailed(
            "nothing was done: give --yes-lose-data, or run it on a terminal, where it asks", Exit.USAGE
        )
    say(f"To go on, write: {words}")
    if sys.stdin.readline().strip() != words:
        raise CommandFailed("nothing was done")


def _make(
    cli: Cli,
    seed: Seed,
    file: Path,
    new_ids: bool,
    nodes: Sequence[int],
    size: int,
    log: BackupLog | None = None,
    keep_log: bool = False,
) -> None:
    from raftlog.cluster.config.cluster_file import read_cluster, render_cluster_file
    from raftlog.cluster.offline.restore import make_cluster, renewed

    def commit(made: ClusterFile) -> None:  # a command that is refused or fails leaves the file as it was
        if made != found:
            replace_file(file, render_cluster_file(made).encode())

    cluster = found = read_cluster(file)
    if new_ids:
        cluster = renewed(cluster)
    if keep_log:
        head = msgspec.structs.replace(cluster.cluster, log=seed.log_id)
        cluster = msgspec.structs.replace(cluster, cluster=head)
    folders = make_cluster(seed, cluster, file, segment_bytes=size, nodes=nodes, log=log, commit=commit)
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
        say(advice)


def _certificates_advice(cluster: ClusterFile, file: Path, nodes: Sequence[int]) -> str:
    """How to make the certificates that name the log; empty without TLS, or if they are beside the cluster file."""
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
        f"A certificate counts only in the cluster whose log it names, here {cluster.cluster.log}. Before the nodes "
        "start, put those that name it beside the cluster file, or make them where ca.key is: raftlog cert node "
        f"{' '.join(lacking)} --cluster {file}; likewise for clients: raftlog cert client NAME --cluster {file}. On "
        f"one machine `raftlog up --data {file.parent}` makes a new authority and all of them, if there is no "
        f"{file.parent / TLS_FOLDER}."
    )


@contextmanager
def _newer() -> Iterator[None]:
    """A backup or folder of a newer version is no wrong usage, as other bad values are."""
    try:
        yield
    except UnknownVersion as error:
        raise CommandFailed(str(error)) from error
