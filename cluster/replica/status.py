"""Reports the node to its clients: events, status, members, and the leader's address.

The replica and the HTTP routes call it. It only reads `ReplicaState`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from raftlog.cluster.api.explain import NEVER_MS
from raftlog.cluster.api.members import MemberAnswer, Members
from raftlog.cluster.api.status import FollowerStatus, RefusingPeer, SetDigestHex, Status, fingerprint
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.files.findings import FileHealth, FilesDamaged, Finding
from raftlog.cluster.replica import readiness
from raftlog.cluster.replica.parts import digest_exchange, disk_exchange, link_events, members as node_members
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.upkeep import backfill, damage
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.logging import log_event
from raftlog.raft import versions
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus import status as raft_status
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import Event, LogDiffers, MessageIgnored
from raftlog.raft.types import NOBODY, NodeId


def _version() -> str:
    try:
        return version("raftlog")
    except PackageNotFoundError:
        return "0"


VERSION: Final = _version()


def leader_hint(replica: ReplicaState) -> LeaderHint | None:
    """Node id and advertised URL of the leader, if this node knows them."""
    leader = replica.core.state.leader
    member = replica.core.state.configuration.member(leader) if leader != NOBODY else None
    return LeaderHint(leader, member.url) if member is not None else None


def members(replica: ReplicaState) -> Members:
    """The members that the configuration in force names."""
    facts = replica.core.status()
    configuration = facts.configuration
    matches = {each.node: each.match for each in facts.followers}
    if replica.is_leader:
        matches[replica.identity.node] = facts.last.index
    answers: list[MemberAnswer] = []
    for member in configuration.members:
        match = matches.get(member.node)
        answers.append(
            MemberAnswer(
                member.node,
                fingerprint(member.incarnation),
                member.peer,
                member.url,
                role_of(configuration, member.node),
                catching_up=member.node in facts.catching_up,
                match=match,
                lag=None if match is None else facts.last.index - match,
                given_up=replica.members.given_up.get(member.node),
                known_version=known_version(replica, member),
            )
        )
    return Members(
        replica.identity.log_id,
        answers,
        leader_hint(replica),
        replica.applier.applied,
        facts.term,
        facts.configuration_index,
        facts.is_changing,
        bool(configuration.outgoing),
    )


def known_version(replica: ReplicaState, member: Member) -> int | None:
    """The newest cluster version that a member knows; None if it is not connected to this node."""
    state = replica.core.state
    if member.node == replica.identity.node:
        return state.knows
    return versions.told_by(member, state.recall.said)


def role_of(configuration: Configuration, node: NodeId) -> str:
    """The role of a member in that configuration: voter or learner."""
    if node in configuration.voters:
        return "voter"
    return "learner" if node in configuration.learners else "leaving"


def status(replica: ReplicaState) -> Status:
    """This node's view."""
    facts = replica.core.status()
    state = replica.machine.digest()
    configuration, membership = facts.configuration, replica.members
    refusing = readiness.refusals(replica)
    role = str(facts.role.value)
    if replica.life.is_fenced:
        role = "fenced"
    elif not membership.is_member and facts.role is not RoleName.LEADER:
        role = "removed" if membership.was_member else "joining"
    elif facts.floor:
        role = "healing"
    elif not configuration.is_voter(replica.identity.node) and facts.role is RoleName.FOLLOWER:
        role = "learner"
    return Status(
        log=replica.identity.log_id,
        node=replica.identity.node,
        disk=fingerprint(replica.identity.incarnation),
        role=role,
        term=facts.term,
        leader=leader_hint(replica),
        last=facts.last.index,
        persisted=facts.persisted,
        committed=facts.commit,
        applied=replica.applier.applied,
        oldest=replica.machine.oldest,
        last_user_index=replica.applier.last_user_index,
        revision=replica.machine.revision,
        state=SetDigestHex(*state.as_hex()),
        followers=[_follower(replica, facts, each) for each in facts.followers],
        sessions=replica.machine.session_count,
        uptime_ms=int((clock.monotonic() - replica.life.started_at) * 1_000),
        version=VERSION,
        index=replica.applier.applied,
        voters=list(configuration.voters),
        outgoing=list(configuration.outgoing),
        learners=list(configuration.learners),
        digests=digest_exchange.status(replica),
        scrub=damage.status(replica),
        backfill=backfill.status(replica),
        cluster_version=configuration.version,
        known_version=replica.core.state.knows,
        refused_by=[RefusingPeer(peer, reason) for peer, reason in sorted(refusing.items())],
        is_cut_off=readiness.is_cut_off(replica),
        clock_skews_ms=disk_exchange.skews_ms(replica),
    )


def _follower(
    replica: ReplicaState, facts: raft_status.CoreStatus, follower: raft_status.FollowerView
) -> FollowerStatus:
    lag: int | None = facts.last.index - follower.match
    lag_seconds: float | None = 0.0
    refused = replica.links.refused_of(follower.node)
    if refused:
        lag = lag_seconds = None
    elif lag and (appended := replica.writes.appended):
        oldest = min(bisect_right(appended, (follower.match, float("inf"))), len(appended) - 1)
        lag_seconds = round(clock.monotonic() - appended[oldest][1], 3)
    contact_ms = clock.read().monotonic_ms - follower.last_contact_ms if follower.last_contact_ms else NEVER_MS
    return FollowerStatus(
        follower.node,
        follower.mode,
        follower.match,
        lag,
        lag_seconds,
        contact_ms,
        follower.snapshot_index,
        follower.snapshot_bytes,
        follower.snapshot_total,
        refused,
    )


def tell_events(replica: ReplicaState, events: Sequence[Event]) -> None:
    """Counts the core's events, logs a line for each, and hands those about members to `parts/members`.

    A node whose log differs from its leader's ends. It accepts no entry any more, and its next start reads its disk
    again. If the entry comes from its disk and is committed, no start helps: the node stays up, keeps all its entries,
    and serves stale reads alone.
    """
    for event in events:
        replica.metrics.count("raftlog_raft_events_total", type(event).__name__)
        if isinstance(event, MessageIgnored):
            link_events.refused(replica, event)
            continue
        log_event(replica.logger, event, replica.core.state.term)
        node_members.note(replica, event)
        if isinstance(event, LogDiffers):
            if event.index <= min(replica.life.start_index, replica.core.state.log.committed):
                _keep(replica, event)
                continue
            what = (
                f"entry {event.index} has header CRC {event.here:08x} here, and {event.there:08x} at the leader, node"
                f" {event.leader}: one of the two is damaged, or of another history"
            )
            replica.driver.fail(FilesDamaged([Finding("log", FileHealth.DAMAGED, what)]))


def _keep(replica: ReplicaState, event: LogDiffers) -> None:
    """This log has committed entries that the leader's log lacks: no request may be answered from it, nothing goes."""
    committed = replica.core.state.log.committed
    is_one = event.index == committed
    entries = f"entry {committed} was" if is_one else f"entries {event.index} to {committed} were"
    replica.life.only_here = (
        f"{entries} committed here, and the leader, node {event.leader}, has others in their place: a disk was"
        " formatted again under its old identity, or put back. Acknowledged writes may be lost: they are on this node"
        " alone. It keeps its folder, and takes no entry of that leader. Stop it, and print what only it has: raftlog"
        f" disk dump FOLDER records --from {event.index} (docs/operations/causes.md, A log that differs from its"
        " leader's)"
    )
    replica.logger.error(
        "log_kept", first=event.index, last=committed, leader=event.leader, reason=replica.life.only_here
    )
