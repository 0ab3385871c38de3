"""Makes cluster files and data folders: those of a new cluster, and that of a node that joins one.

`raftlog format`, `raftlog up` and `raftlog.cluster.node.local_cluster` call it. It runs no node. So processes that only
start nodes need not import the modules of a node.
"""

from __future__ import annotations

import os
import pkgutil
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.config.cluster_file import (
    SINCE_S,
    ClusterFile,
    ClusterHead,
    ClusterNode,
    SettingsError,
    first_entry,
    parse_cluster_file,
    read_cluster,
    render_cluster_file,
    split_address,
    term_of,
)
from raftlog.cluster.config.joining import TLS_FOLDER, tls_lines
from raftlog.cluster.files.folder import FIRST_STATE, DiskIdentity, format_node
from raftlog.cluster.offline.places import check_outside
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.file_errors import replace_file
from raftlog.cluster.security.tls import TlsFiles
from raftlog.raft.types import NEW_DISK, HardState
from raftlog.statemachine.versions import CLUSTER_VERSION

YOUNG_S: Final = 500_000
"""Age of a cluster file, in seconds, up to which a disk that is made again counts as started once a second;"""
START_EVERY_S: Final = 600
"""and after that once in so many seconds. `raft.hello.BOOT_JUMP_MAX` starts are nine years."""
UNIT: Final = "raftlog@.service"
"""The unit for systemd, beside this module."""
OPERATOR: Final = "operator"  # the client whose certificate a new cluster with TLS gets


def new_cluster(
    nodes: int,
    *,
    peer_ports: Sequence[int],
    http_ports: Sequence[int],
    parameters: Mapping[str, int] | None = None,
    hosts: Sequence[str] = (),
    scheme: str = "http",
) -> ClusterFile:
    """The cluster file of a new cluster, with a new log id and new incarnations.

    The nodes are on `hosts`, or all on this machine. The data folders are `node-1` and so on, beside the file.
    """
    places = [f"[{host}]" if ":" in host else host for host in hosts or ["127.0.0.1"] * nodes]
    return ClusterFile(
        ClusterHead(
            log=secrets.token_hex(16),
            cluster_version=CLUSTER_VERSION,
            time_ms=clock.wall_ms(),
            parameters=dict(parameters or {}),
        ),
        [
            ClusterNode(
                id=node,
                peer=f"{place}:{peer_ports[node - 1]}",
                url=f"{scheme}://{place}:{http_ports[node - 1]}",
                data=f"node-{node}",
                incarnation=secrets.token_hex(16),
            )
            for node, place in enumerate(places, 1)
        ],
    )


class CreatedCluster(NamedTuple):
    """What `create_cluster` made."""

    cluster: ClusterFile
    machines: dict[int, Path]  # by node: the folder to copy to its machine
    operator: TlsFiles


def create_cluster(folder: Path, hosts: Sequence[str], *, port: int, peer_port: int) -> CreatedCluster:
    """Makes the files of a new cluster with TLS on several machines, one node on each host.

    Below `folder`: a folder `machine-N` for each node, with the cluster file, its settings, its own certificate and a
    unit for systemd; and `tls` with the authority's key and the certificate of the first client. Raises SettingsError,
    TlsError.
    """
    if len(set(hosts)) < len(hosts):
        raise SettingsError(f"the hosts {', '.join(hosts)} are not all different: one node goes on each")
    if folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"{folder}: something is in it, and it is not touched; name a new folder")
    count = len(hosts)
    cluster = new_cluster(count, peer_ports=[peer_port] * count, http_ports=[port] * count, hosts=hosts, scheme="https")
    text, tls = render_cluster_file(cluster), folder / TLS_FOLDER
    parse_cluster_file(text, "the cluster file")
    make_certificates(tls, cluster)
    machines: dict[int, Path] = {}
    for node in range(1, count + 1):
        machine = machines[node] = folder / f"machine-{node}"
        own = machine / TLS_FOLDER
        own.mkdir(parents=True, mode=0o700)
        (own / "ca.pem").write_bytes((tls / "ca.pem").read_bytes())
        for name in (f"node-{node}.pem", f"node-{node}.key"):
            (tls / name).rename(own / name)
        (machine / "cluster.toml").write_text(text, encoding="utf-8")
        lines = [f"node = {node}", 'cluster_file = "cluster.toml"', *tls_lines(node)]
        (machine / "node.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (machine / UNIT).write_bytes(pkgutil.get_data("raftlog.cluster.node", UNIT) or b"")
    return CreatedCluster(cluster, machines, tls_files(tls, f"client-{OPERATOR}"))


def make_certificates(folder: Path, cluster: ClusterFile) -> None:
    """Makes an authority, the certificates of all nodes, and that of the first client. Raises TlsError."""
    from raftlog.cluster.security import authority  # here: its library takes long to import

    log = cluster.cluster.log
    authority.make_authority(folder, f"raftlog {log[:8]}")
    authority.make_client(folder, OPERATOR, log)
    for node in cluster.node:
        authority.make_node(folder, log, node.id, hosts_of(node))


def hosts_of(node: ClusterNode) -> list[str]:
    """The hosts at which clients and peers reach that node."""
    hosts = (urlsplit(node.url).hostname, split_address(node.peer, "peer")[0])
    return list(dict.fromkeys(host for host in hosts if host))


def tls_files(folder: Path, holder: str) -> TlsFiles:
    """The files of `client-NAME` or `node-N` in a folder of certificates, by absolute paths."""
    folder = folder.resolve()
    return TlsFiles(str(folder / "ca.pem"), str(folder / f"{holder}.pem"), str(folder / f"{holder}.key"))


def may_exist(made_ms: int) -> HardState:
    """A new disk of a log in which an earlier disk of its identity may have promised something.

    `made_ms`: Unix time of the cluster file; 0: not known. The disk counts as started more often than its earlier one,
    or peers would refuse it as an old copy of that one (`raftlog.raft.hello`).
    """
    age_s = max(0, clock.wall_ms() // 1_000 - max(SINCE_S, made_ms // 1_000))
    boot = age_s if age_s < YOUNG_S else YOUNG_S + (age_s - YOUNG_S) // START_EVERY_S
    return HardState(term=1, boot=boot, floor=NEW_DISK)


def format_cluster(
    cluster: ClusterFile, file: Path, *, segment_bytes: int, nodes: Sequence[int] = (), first: HardState | None = None
) -> list[Path]:
    """Writes the cluster file, unless it is there, and makes the data folders: of all nodes, or of `nodes`.

    `first` is the hard state of the new disks. Without it, a cluster file that is there may be that of a cluster which
    was led already: the new disks have no vote then before all voters have answered (docs/decisions/0017). Returns the
    folders. Raises SettingsError or DiskError; a folder with something in it is never touched.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    first = first or may_exist(cluster.cluster.time_ms)
    if not file.exists():
        first = FIRST_STATE
        replace_file(file, render_cluster_file(cluster).encode(), is_private=True)
    entry = first_entry(cluster)
    folders: list[Path] = []
    for node in cluster.node:
        if nodes and node.id not in nodes:
            continue
        folder = file.parent / node.data
        identity = DiskIdentity(cluster.cluster.log, node.id, node.incarnation)
        check_outside(folder)
        format_node(folder, identity, entry, segment_bytes=segment_bytes, first=first)
        folders.append(folder)
    return folders


def format_join(file: Path, data: Path | None, *, segment_bytes: int) -> Path:
    """Makes the data folder of the new node of a join file, in `data` or in the folder that the file names.

    A given `data` is written into the file. Returns the folder. Raises SettingsError or DiskError.
    """
    cluster = read_cluster(file)
    node = cluster.cluster.join
    if not node:
        raise SettingsError(f"{file}: it is no join file; `raftlog members add` writes one. Without --join it is taken")
    nodes = cluster.node
    if data is not None:
        where = str(data if data.is_absolute() else Path(os.path.relpath(data, file.parent)))
        nodes = [msgspec.structs.replace(each, data=where) if each.id == node else each for each in nodes]
        cluster = parse_cluster_file(render_cluster_file(msgspec.structs.replace(cluster, node=nodes)), str(file))
    (folder,) = format_cluster(cluster, file, segment_bytes=segment_bytes, nodes=[node])
    if data is not None:
        replace_file(file, render_cluster_file(cluster).encode())
    return folder


def format_file(
    file: Path, *, segment_bytes: int, nodes: Sequence[int] = (), is_forced: bool = False, is_again: bool = False
) -> list[Path]:
    """Makes the data folders that an existing cluster file names. Where it makes all of them, the log is a new one,
    unless `is_again` says otherwise.

    With `is_forced` it is a new one too, whatever a cluster of this file may have committed: the new disks begin in a
    term that no leader of it can have had, one for each second. Else a leader that they elect could lead in the term of
    lost entries, with others under the same numbers, and a node that has the lost ones would not see it.

    Raises SettingsError or DiskError.
    """
    cluster = read_cluster(file)
    if cluster.cluster.join:
        raise SettingsError(f"{file}: it is a join file, of node {cluster.cluster.join} alone: format --join {file}")
    if missing := [node for node in nodes if cluster.of(node) is None]:
        raise SettingsError(f"{file}: it has no node {missing[0]}")
    makes_all = not (nodes or is_again) and not any((file.parent / node.data).exists() for node in cluster.node)
    if cluster.cluster.first and (makes_all or is_forced):
        raise SettingsError(f"{file}: its log came from a backup: raftlog restore makes it again")
    first = FIRST_STATE if makes_all else None
    if is_forced:
        first = HardState(term=term_of(clock.wall_ms()))
    return format_cluster(cluster, file, segment_bytes=segment_bytes, nodes=nodes, first=first)
