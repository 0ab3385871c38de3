"""Defines a change of the members as a value, and computes the new configuration or the reason for a refusal.

Pure: from a configuration and a change to the next configuration. `raftlog.raft.consensus.membership` asks the
running cluster (which voters answer, which learners have caught up). Thesis chapter 4; pitfall 44: a joint
configuration counted as one; pitfall 46: a wiped disk that votes under its old number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.refusals import ConfigurationRefused, WhyRefused
from raftlog.raft.types import NodeId

NODE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AddLearners:
    """New members that receive entries and are not counted. With `promote`, each becomes a voter as soon as it has
    caught up (thesis 4.2.1). Said again of learners that are already there, it only starts to promote them."""

    members: tuple[Member, ...]
    promote: bool = True


@dataclass(frozen=True, slots=True)
class Promote:
    """Learners become voters, all in one joint change. Each must have caught up."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Members leave, voters in one joint change."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """`member` takes the place of `old`, as a learner first; once it has caught up, one joint change does both.

    With the number of `old` and another incarnation, it is the same machine with a new disk. Then `old` is removed
    first, because a number cannot stand for two disks at once.
    """

    old: NodeId
    member: Member


@dataclass(frozen=True, slots=True)
class ChangeAddresses:
    """Members listen elsewhere; their identity stays: number and incarnation are those in force."""

    members: tuple[Member, ...]


MemberChange = AddLearners | Promote | Remove | Replace | ChangeAddresses


def after(configuration: Configuration, change: AddLearners | Promote | Remove | ChangeAddresses) -> Configuration:
    """Where the change leads, both majorities of a joint change left out. Raises ConfigurationRefused."""
    match change:
        case AddLearners():
            return _with_learners(configuration, change.members)
        case Promote():
            return _promoted(configuration, change.nodes)
        case Remove():
            return _without(configuration, change.nodes)
        case ChangeAddresses():
            return _readdressed(configuration, change.members)


def swapped(configuration: Configuration, old: NodeId, new: NodeId) -> Configuration:
    """Where a replacement leads whose new member has caught up. Raises ConfigurationRefused."""
    return _without(_promoted(configuration, (new,)), (old,))


def joined(old: Configuration, new: Configuration) -> Configuration:
    """The configuration to append on the way from `old` to `new`.

    It is the joint configuration (thesis 4.3) when the voters differ. With the same voters it is `new` itself, because
    every majority of one is a majority of the other.
    """
    if old.voters == new.voters:
        return new
    members = {member.node: member for member in (*old.members, *new.members)}
    named = [node for node in sorted(members) if old.is_voter(node) or new.member(node) is not None]
    return replace(new, members=tuple([members[node] for node in named]), outgoing=old.voters)


def left(joint: Configuration) -> Configuration:
    """The configuration that follows a joint one: a node that was only in the old majority is no member any more."""
    stay = [member for member in joint.members if member.node in joint.voters or member.node in joint.learners]
    return replace(joint, members=tuple(stay), outgoing=())


def with_removed(before: Configuration, following: Configuration) -> Configuration:
    """`following`, which takes the place of `before`, with the names of the disks that it removes."""
    gone = [(each.node, each.incarnation) for each in before.members]
    there = {(each.node, each.incarnation): None for each in following.members}
    return following.with_removed(each for each in (*before.removed, *gone) if each not in there)


def check_newcomer(configuration: Configuration, member: Member) -> None:
    """Raises ConfigurationRefused where it could be taken for a member that is there."""
    if not 1 <= member.node <= NODE_MAX:
        what = f"{member.node} cannot be a node's number"
        raise ConfigurationRefused(WhyRefused.INVALID, what, f"take one of 1 to {NODE_MAX}")
    there = configuration.member(member.node)
    if there is None:
        check_incarnation(configuration, member)
        return
    role = "voter" if configuration.is_voter(member.node) else "learner"
    raise ConfigurationRefused(
        WhyRefused.ALREADY_MEMBER,
        f"node {member.node} is a {role} already",
        "replace it if it has another disk now, promote it if it is a learner, change its addresses if it moved",
    )


def check_incarnation(configuration: Configuration, member: Member) -> None:
    """Raises ConfigurationRefused if a member already has this disk.

    One of the two would be a copy (pitfall 46: a wiped disk that votes under its old number).
    """
    for other in configuration.members:
        if other.incarnation == member.incarnation:
            raise ConfigurationRefused(
                WhyRefused.INCARNATION_REUSED,
                f"that disk is the one of node {other.node}: a copy or a wiped disk has forgotten its promises",
                f"format a new data folder for node {member.node}, and name its incarnation",
            )


def _with_learners(configuration: Configuration, members: tuple[Member, ...]) -> Configuration:
    _check_named([member.node for member in members])
    for member in members:  # one by one, so that two of them cannot be the same disk
        check_newcomer(configuration, member)
        configuration = replace(
            configuration,
            members=tuple(sorted([*configuration.members, member], key=lambda each: each.node)),
            learners=tuple(sorted([*configuration.learners, member.node])),
        )
    return configuration


def _promoted(configuration: Configuration, nodes: tuple[NodeId, ...]) -> Configuration:
    _check_named(nodes)
    for node in nodes:
        _check_member(configuration, node)
        if node not in configuration.learners:
            what = f"node {node} is a voter already"
            raise ConfigurationRefused(WhyRefused.NOTHING_CHANGES, what, "nothing is to be done")
    return replace(
        configuration,
        voters=tuple(sorted([*configuration.voters, *nodes])),
        learners=tuple([node for node in configuration.learners if node not in nodes]),
    )


def _without(configuration: Configuration, nodes: tuple[NodeId, ...]) -> Configuration:
    _check_named(nodes)
    for node in nodes:
        _check_member(configuration, node)
    voters = tuple([node for node in configuration.voters if node not in nodes])
    if not voters:
        what = f"without {_several(nodes)} no voter would be left"
        raise ConfigurationRefused(WhyRefused.LAST_VOTER, what, "add a voter first")
    return replace(
        configuration,
        members=tuple([member for member in configuration.members if member.node not in nodes]),
        voters=voters,
        learners=tuple([node for node in configuration.learners if node not in nodes]),
    )


def _readdressed(configuration: Configuration, members: tuple[Member, ...]) -> Configuration:
    _check_named([member.node for member in members])
    given = {member.node: member for member in members}
    for member in members:
        if _check_member(configuration, member.node).incarnation != member.incarnation:
            what = f"node {member.node} has another disk"
            raise ConfigurationRefused(WhyRefused.INVALID, what, "replace it: addresses change, a disk does not")
    changed = replace(
        configuration, members=tuple([given.get(member.node, member) for member in configuration.members])
    )
    if changed == configuration:
        what = f"{_several(sorted(given))} is known at these addresses"
        raise ConfigurationRefused(WhyRefused.NOTHING_CHANGES, what, "nothing is to be done")
    return changed


def _check_named(nodes: Iterable[NodeId]) -> None:
    named = list(nodes)
    if not named or len(named) != len({*named}):
        what = f"the change names {named}"
        raise ConfigurationRefused(WhyRefused.INVALID, what, "name at least one node, and each once")


def _check_member(configuration: Configuration, node: NodeId) -> Member:
    member = configuration.member(node)
    if member is None:
        what = f"node {node} is no member"
        known = [each.node for each in configuration.members]
        raise ConfigurationRefused(WhyRefused.UNKNOWN_NODE, what, f"name one of {known}")
    return member


def _several(nodes: Iterable[NodeId]) -> str:
    return ", ".join([f"node {node}" for node in nodes])
