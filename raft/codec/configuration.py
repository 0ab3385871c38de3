"""Encodes and decodes the data of a CONFIGURATION entry."""

from __future__ import annotations

from typing import Final

import msgpack

from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.configuration import Configuration, Member

CONFIGURATION_VERSION: Final = 1


def encode_configuration(configuration: Configuration) -> bytes:
    """The data of a CONFIGURATION entry: a msgpack array, its format version first."""
    packed: bytes = msgpack.packb(
        [
            CONFIGURATION_VERSION,
            configuration.version,
            [[m.node, m.incarnation, m.peer, m.url] for m in configuration.members],
            list(configuration.voters),
            list(configuration.outgoing),
            list(configuration.learners),
            [list(pair) for pair in configuration.parameters],
            [list(pair) for pair in configuration.removed],
        ],
        use_bin_type=True,
    )
    return packed


def decode_configuration(data: bytes) -> Configuration:
    """The configuration of a CONFIGURATION entry. Raises Corrupt or UnknownVersion."""
    try:
        version, *rest = msgpack.unpackb(data, raw=False, use_list=False)
        if type(version) is not int:
            raise TypeError(f"its format version is {version!r:.20}")
    except Exception as error:
        raise Corrupt(f"configuration: {error}") from error
    if version != CONFIGURATION_VERSION:
        raise UnknownVersion(f"configuration of format version {version}: this code knows {CONFIGURATION_VERSION}")
    try:
        cluster_version, members, voters, outgoing, learners, parameters, removed = rest
        for rows, kinds in ((members, (int, str, str, str)), (parameters, (str, int)), (removed, (int, str))):
            if any(tuple(map(type, row)) != kinds for row in rows):
                raise TypeError(f"a row is not of {kinds}: {rows!r:.200}")
        if any(type(number) is not int for number in (cluster_version, *voters, *outgoing, *learners)):
            raise TypeError(f"not of whole numbers: {rest!r:.200}")
        return Configuration(
            tuple(Member(*m) for m in members), voters, outgoing, learners, cluster_version, parameters, removed
        )
    except Exception as error:
        raise Corrupt(f"configuration: {error}") from error
