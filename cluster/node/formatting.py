"""Makes cluster files and data folders: those of a new cluster, and that of a node that joins one.

`raftlog format`, `raftlog up` and `raftlog.cluster.node.local_cluster` call it. It runs no node. So processes that only
start nodes need not import the modules of a node.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from raftlog.cluster.config.cluster_file import (
    ClusterFile,
    ClusterHead,
    ClusterNode,
    SettingsError,
    first_entry,
    parse_cluster_file,
    render_cluster_file,
)
from raftlog.cluster.files.folder import DiskIdentity, format_node
from raftlog.cluster.runtime import clock
from raftlog.statemachine.versions import CLUSTER_VERSION


def new_cluster(
    nodes: int,
    *,
    peer_ports: Sequence[int],
    http_ports: Sequence[int],
    parameters: Mapping[str, int] | None = None,
) -> ClusterFile:
    """The cluster file of a new cluster on this machine, with a new log id and new incarnations.

    The data folders are `node-1` and so on, beside the file.
    """
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
                peer=f"127.0.0.1:{peer_ports[node - 1]}",
                url=f"http://127.0.0.1:{http_ports[node - 1]}",
                data=f"node-{node}",
                incarnation=secrets.token_hex(16),
            )
            for node in range(1, nodes + 1)
        ],
    )


def format_cluster(cluster: ClusterFile, file: Path, *, segment_bytes: int, nodes: Sequence[int] = ()) -> list[Path]:
    """Writes the cluster file, unless it is there, and makes the data folders: of all nodes, or of `nodes`.

    Returns the folders. Raises SettingsError or DiskError; a folder with something in it is never touched.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_text(render_cluster_file(cluster), encoding="utf-8")
    entry = first_entry(cluster)
    folders: list[Path] = []
    for node in cluster.node:
        if nodes and node.id not in nodes:
            continue
        folder = file.parent / node.data
        identity = DiskIdentity(cluster.cluster.log, node.id, node.incarnation)
        format_node(folder, identity, entry, segment_bytes=segment_bytes)
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
        file.write_text(render_cluster_file(cluster), encoding="utf-8")
    return folder


def read_cluster(file: Path) -> ClusterFile:
    """The cluster file at that path. Raises SettingsError."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    return parse_cluster_file(text, str(file))


def format_file(file: Path, *, segment_bytes: int, nodes: Sequence[int] = ()) -> list[Path]:
    """Makes the data folders that an existing cluster file names. Raises SettingsError or DiskError."""
    cluster = read_cluster(file)
    if cluster.cluster.join:
        raise SettingsError(f"{file}: it is a join file, of node {cluster.cluster.join} alone: format --join {file}")
    if missing := [node for node in nodes if cluster.of(node) is None]:
        raise SettingsError(f"{file}: it has no node {missing[0]}")
    return format_cluster(cluster, file, segment_bytes=segment_bytes, nodes=nodes)
