"""Encodes and decodes the data of a CONFIGURATION entry."""

from __future__ import annotations

import msgpack

from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.configuration import Configuration, Member


def encode_configuration(configuration: Configuration) -> bytes:
    """The data of a CONFIGURATION entry: a msgpack array, its format version first. Version 2 names removed disks."""
    packed: bytes = msgpack.packb(
        [
            2 if configuration.removed else 1,
            configuration.version,
            [[m.node, m.incarnation, m.peer, m.url] for m in configuration.members],
            list(configuration.voters),
            list(configuration.outgoing),
            list(configuration.learners),
            [list(pair) for pair in configuration.parameters],
            *([[list(pair) for pair in configuration.removed]] if configuration.removed else []),
        ],
        use_bin_type=True,
    )
    return packed


def decode_configuration(data: bytes) -> Configuration:
    """The configuration of a CONFIGURATION entry. Raises Corrupt or UnknownVersion."""
    try:
        version, *rest = msgpack.unpackb(data, raw=False, use_list=False)
    except Exception as error:
        raise Corrupt(f"configuration: {error}") from error
    if version not in (1, 2):
        raise UnknownVersion(f"configuration of format version {version}")
    try:
        cluster_version, members, voters, outgoing, learners, parameters, *removed = rest
        if len(removed) != version - 1:
            raise ValueError(f"{len(rest)} elements in format version {version}")
        return Configuration(
            tuple(Member(*m) for m in members), voters, outgoing, learners, cluster_version, parameters,
            tuple((int(node), str(disk)) for node, disk in (*removed, ())[0]),
        )  # fmt: skip
    except Exception as error:
        raise Corrupt(f"configuration: {error}") from error
