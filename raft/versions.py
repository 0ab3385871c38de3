"""Decides the cluster version: the features that every member supports, so that apply may use them.

It is a field of the configuration entry. A program knows every version up to a newest one, which it sends to its peers
when it connects. Once every member, learners too, is connected to the leader and has said that it knows a newer one,
the leader appends the configuration in force with that version (`raftlog.raft.consensus.reconfiguration`): what
apply does differently from then on begins behind one entry, on every node alike (pitfall 77: apply that differs between
nodes). It is never lowered, and a program that does not know it refuses to go on (pitfall 71: newer data opened by
older code). docs/decisions/0013.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import NodeId


def check(configuration: Configuration, knows: int) -> None:
    """Raises UnknownVersion where a program that knows versions up to `knows` must not follow that configuration."""
    if configuration.version > knows:
        raise UnknownVersion(
            f"the cluster is at version {configuration.version}, this program knows versions up to {knows}: start the "
            "version of raftlog that the other nodes run"
        )


def told_by(member: Member, said: Mapping[NodeId, tuple[str, int]]) -> int | None:
    """The newest version that a member knows; None where it is not connected, or with another disk than the one that is
    named. `said` are the connected nodes: disk, newest version."""
    incarnation, knows = said.get(member.node, (None, 0))
    return knows if incarnation == member.incarnation else None


def known_to_all(configuration: Configuration, node: NodeId, knows: int, said: Mapping[NodeId, tuple[str, int]]) -> int:
    """The newest version that every member knows; 0 if a member has not reported one (`told_by`).

    `knows` is the version of `node` itself; `said` has the versions of the connected nodes.
    """
    newest = knows
    for member in configuration.members:
        if member.node != node:
            newest = min(newest, told_by(member, said) or 0)
    return newest
