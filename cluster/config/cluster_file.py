"""Reads and writes the cluster file: the first members of a cluster, as TOML.

`raftlog up` and `raftlog demo` make one, `raftlog format` turns it into data folders, `raftlog node` reads addresses
from it. After index 1 the log holds the members; this file only says where this machine keeps and reaches each node.
"""

from __future__ import annotations

import base64
import re
import tomllib
from pathlib import Path, PurePath
from typing import Final

import msgspec

from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import decode_entry, seal_entry
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import GENESIS, Entry, EntryKind
from raftlog.statemachine.commands import BadParameter, Limits
from raftlog.statemachine.versions import CLUSTER_VERSION

CLUSTER_FILE_VERSION: Final = 1
HEX32: Final = re.compile(r"[0-9a-f]{32}")
_PEER: Final = re.compile(r"(\[[^\[\]\s]+\]|[^\[\]\s]+):[0-9]+")
NODE_MAX: Final = 2**31 - 1


_FIRST_WORDS: Final = (
    "# A raftlog cluster as it was first made. Where each node is and keeps its data; the members of now",
    "# stand in the log itself.",
)
_JOIN_WORDS: Final = (
    "# A join file: for one new node of a raftlog cluster. Make its data folder with raftlog format --join FILE, then",
    "# start it with raftlog node --config FILE.",
)


class SettingsError(ValueError):
    """A settings file, cluster file, variable or flag is invalid. The message says where, what, and how to fix it."""


class ClusterNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One [[node]] of the file."""

    id: int
    peer: str  # host:port where its peers reach it
    url: str  # base URL of its HTTP API, as clients should see it
    data: str  # its data folder; relative to the file
    incarnation: str  # 32 hex digits, made once


class ClusterHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The [cluster] table of the file."""

    log: str  # the log id: 32 hex digits
    version: int = CLUSTER_FILE_VERSION
    cluster_version: int = 1  # version of the first entry
    time_ms: int = 0  # Unix time written into the first entry: equal on every node, so it is part of the file
    parameters: dict[str, int] = {}  # limits of the state machine (`raftlog.statemachine.commands.Limits`)
    join: int = 0  # a join file: its node, the only one that it may make a data folder for
    first: str = ""  # a join file, or a restored log: the entry at index 1 as base64, where the [[node]]s are others


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: ClusterHead
    node: list[ClusterNode]

    def of(self, node: int) -> ClusterNode | None:
        return next((each for each in self.node if each.id == node), None)

    def configuration(self) -> Configuration:
        """The first configuration of the log: every node a voter."""
        members = tuple(
            Member(each.id, each.incarnation, each.peer, each.url)
            for each in sorted(self.node, key=lambda each: each.id)
        )
        return Configuration(
            members,
            voters=tuple(member.node for member in members),
            version=self.cluster.cluster_version,
            parameters=tuple(sorted(self.cluster.parameters.items())),
        )


_BUILT: Final = msgspec.json.Decoder(ClusterFile)
"""Makes msgspec complete its converter at import, because two threads must not use a Struct for the first time at
once."""


def parse_cluster_file(text: str, name: str) -> ClusterFile:
    """The cluster file in `text`; `name` is what errors call it. Raises SettingsError."""
    try:
        cluster = msgspec.convert(tomllib.loads(text), ClusterFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SettingsError(f"{name}: {error}; name a cluster file, which `raftlog create` makes") from error
    if cluster.cluster.version != CLUSTER_FILE_VERSION:
        raise SettingsError(
            f"{name}: cluster.version is {cluster.cluster.version}; this raftlog knows {CLUSTER_FILE_VERSION}"
        )
    if not 1 <= cluster.cluster.cluster_version <= CLUSTER_VERSION:
        raise SettingsError(
            f"{name}: cluster.cluster_version is {cluster.cluster.cluster_version}; this raftlog knows 1 to "
            f"{CLUSTER_VERSION}: use the one that made the file"
        )
    if not HEX32.fullmatch(cluster.cluster.log):
        raise SettingsError(f"{name}: cluster.log is {cluster.cluster.log!r}: it must be 32 hexadecimal digits")
    if not cluster.node:
        raise SettingsError(f"{name}: no [[node]]: a cluster has at least one")
    _check_parameters(cluster.cluster.parameters, name)
    if cluster.cluster.join and not cluster.cluster.first:
        raise SettingsError(f"{name}: a join file has both cluster.join and cluster.first; ask for the join file again")
    if cluster.cluster.join and cluster.of(cluster.cluster.join) is None:
        raise SettingsError(f"{name}: cluster.join is {cluster.cluster.join}: it has no such [[node]]")
    seen: dict[object, int] = {}
    for node in cluster.node:
        if not 1 <= node.id <= NODE_MAX:
            raise SettingsError(f"{name}: node id {node.id}: it must be 1 to {NODE_MAX}")
        if not HEX32.fullmatch(node.incarnation):
            raise SettingsError(f"{name}: incarnation of node {node.id} must be 32 hexadecimal digits")
        if not node.url.startswith(("http://", "https://")):
            raise SettingsError(f"{name}: url of node {node.id} is {node.url!r}: it must begin with http://")
        check_peer(node.peer, f"{name}: peer of node {node.id}")
        for what in (
            ("id", node.id),
            ("address", node.peer),
            ("address", place_of(node.url)),
            ("data", node.data),
            ("incarnation", node.incarnation),
        ):
            if what in seen:
                raise SettingsError(f"{name}: nodes {seen[what]} and {node.id} have the same {what[0]} {what[1]!r}")
            seen[what] = node.id
    first_entry(cluster, name)
    return cluster


def configured_text(path: Path) -> str:
    """The text of a file that a person configures. Raises SettingsError."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(
            f"{path}: {reason}; `raftlog create` and `raftlog up` make a cluster with its files"
        ) from error


def read_cluster(path: Path) -> ClusterFile:
    """The cluster file at that path. Raises SettingsError."""
    return parse_cluster_file(configured_text(path), str(path))


def render_cluster_file(cluster: ClusterFile) -> str:
    """The file as text that `parse_cluster_file` reads."""
    head = cluster.cluster
    lines = [
        *(_JOIN_WORDS if head.join else _FIRST_WORDS),
        "[cluster]",
        f'log = "{head.log}"',
        f"version = {head.version}",
        f"time_ms = {head.time_ms}",
        f"cluster_version = {head.cluster_version}",
    ]
    if head.join:
        lines.append(f"join = {head.join}")
    if head.first:
        lines.append(f'first = "{head.first}"')
    if head.parameters:
        lines += ["", "[cluster.parameters]"]
        lines += [f"{name} = {value}" for name, value in sorted(head.parameters.items())]
    for node in cluster.node:
        lines += ["", "[[node]]", f"id = {node.id}"]
        lines += [f"{name} = {quoted(getattr(node, name))}" for name in ("peer", "url", "data", "incarnation")]
    return "\n".join(lines) + "\n"


def first_entry(cluster: ClusterFile, name: str = "cluster file") -> Entry:
    """The entry at index 1: the first configuration, the same bytes on every node. Raises SettingsError."""
    head = cluster.cluster
    if head.first:
        try:
            return decode_entry(base64.b64decode(head.first, validate=True))
        except (ValueError, Corrupt, UnknownVersion) as error:
            raise SettingsError(f"{name}: cluster.first is damaged: {error}; ask for the join file again") from error
    return seal_entry(
        GENESIS,
        term=1,
        kind=EntryKind.CONFIGURATION,
        count=1,
        time_ms=head.time_ms,
        clock_ms=0,
        data=encode_configuration(cluster.configuration()),
    )


SINCE_S: Final = 1_735_689_600
"""Second 0 of the terms of new logs, 1 January 2025: `raft.consensus.state.TERM_JUMP_MAX` is 31 years later."""


def term_of(time_ms: int) -> int:
    """A term that no leader can have had before that Unix time: one for each second, and an election takes longer."""
    return max(0, time_ms // 1_000 - SINCE_S)


FORCE: Final = "--force-new-cluster"
"""The option of `raftlog format` that makes data folders for a log without asking its members."""
AGAIN: Final = "--again"
"""The option of `raftlog format` that makes a data folder again, of a member whose cluster was led."""


def quoted(text: str | PurePath) -> str:
    """A TOML basic string (its escapes are JSON's)."""
    return msgspec.json.encode(str(text)).decode()


def split_address(address: str, what: str) -> tuple[str, int]:
    """host and port of `host:port` (`[::1]:port` for IPv6). Raises SettingsError naming `what`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"{what} is {address!r}: it must be host:port, as in 127.0.0.1:7001")
    return host.removeprefix("[").removesuffix("]"), int(port)


def place_of(url: str) -> str:
    """The host and port of a base URL, as a peer address is written."""
    return url.partition("://")[2].rstrip("/")


def check_peer(address: str, what: str) -> None:
    """Raises SettingsError naming `what` unless peers can dial that address."""
    if not _PEER.fullmatch(address) or not split_address(address, what)[1]:
        raise SettingsError(f"{what} is {address!r}: it must be host:port, as in 127.0.0.1:7001")


def _check_parameters(parameters: dict[str, int], name: str) -> None:
    known = Limits.__dataclass_fields__
    for key, value in parameters.items():
        if key not in known:
            raise SettingsError(f"{name}: cluster.parameters.{key} is not known; there are {', '.join(known)}")
        if value < 1:
            raise SettingsError(f"{name}: cluster.parameters.{key} is {value}: it must be at least 1")
    try:
        Limits().with_parameters(tuple(parameters.items()))
    except BadParameter as error:  # every node would stop at the first entry
        raise SettingsError(f"{name}: cluster.parameters: {error}") from error
