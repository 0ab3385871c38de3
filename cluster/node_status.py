"""What a node tells of itself: events, status, members, the leader's address, and the gauges of /metrics.

Plain functions on `Node`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from cluster import clock, cut_off, node_members, node_points
from cluster.disk_findings import FilesDamaged, Finding, State
from cluster.logging import log_event
from cluster.wire import FollowerStatus, LeaderHint, MemberAnswer, Members, RefusingPeer, SetDigest, Status, fingerprint
from raft import status as raft_status
from raft import versions
from raft.configuration import Configuration, Member
from raft.events import Event, LogDiffers
from raft.roles import RoleName
from raft.types import NOBODY, NodeId

if TYPE_CHECKING:
    from cluster.node import Node


def _version() -> str:
    try:
        return version("raftlog")
    except PackageNotFoundError:
        return "0"


VERSION: Final = _version()
NEVER_MS: Final = -1


def leader_hint(node: Node) -> LeaderHint | None:
    """Node id and advertised URL of the leader, as far as known."""
    leader = node.core.state.leader
    member = node.core.state.configuration.member(leader) if leader != NOBODY else None
    return LeaderHint(leader, member.url) if member is not None else None


def members(node: Node) -> Members:
    """Everyone whom the configuration in force names."""
    told = node.core.status()
    configuration = told.configuration
    matches = {each.node: each.match for each in told.followers}
    if node.is_leader:
        matches[node.node_id] = told.last.index
    answers: list[MemberAnswer] = []
    for member in configuration.members:
        match = matches.get(member.node)
        answers.append(
            MemberAnswer(
                member.node, fingerprint(member.incarnation), member.peer, member.url,
                role_of(configuration, member.node),
                catching_up=member.node in told.catching_up,
                match=match,
                lag=None if match is None else told.last.index - match,
                given_up=node.membership.given_up.get(member.node),
                known_version=known_version(node, member),
            )
        )  # fmt: skip
    return Members(
        node.log_id, answers, leader_hint(node), node.applied, node.term, told.configuration_index, told.is_changing,
        bool(configuration.outgoing),
    )  # fmt: skip


def known_version(node: Node, member: Member) -> int | None:
    """The newest cluster version that a member knows; None where it is not connected to this node."""
    state = node.core.state
    if member.node == node.node_id:
        return state.knows
    return versions.told_by(member, state.said)


def role_of(configuration: Configuration, node: NodeId) -> str:
    """What the configuration says of a member."""
    if node in configuration.voters:
        return "voter"
    return "learner" if node in configuration.learners else "leaving"


def status(node: Node) -> Status:
    """This node's view."""
    told = node.core.status()
    state = node.machine.digest()
    configuration, membership = told.configuration, node.membership
    refusing = refusals(node)
    role = str(told.role.value)
    if node.is_fenced:
        role = "fenced"
    elif not membership.is_member and told.role is not RoleName.LEADER:
        role = "removed" if membership.was_member else "joining"
    elif told.floor:
        role = "healing"
    elif not configuration.is_voter(node.node_id) and told.role is RoleName.FOLLOWER:
        role = "learner"
    return Status(
        log=node.log_id,
        node=node.node_id,
        disk=fingerprint(node.incarnation),
        role=role,
        term=told.term,
        leader=leader_hint(node),
        last=told.last.index,
        persisted=told.persisted,
        committed=told.commit,
        applied=node.applied,
        oldest=node.oldest,
        last_user_index=node.last_user_index,
        revision=node.machine.revision,
        state=SetDigest(*state.as_hex()),
        followers=[_follower(node, told, each) for each in told.followers],
        sessions=node.machine.session_count,
        uptime_ms=int((clock.monotonic() - node.started_at) * 1_000),
        version=VERSION,
        index=node.applied,
        voters=list(configuration.voters),
        outgoing=list(configuration.outgoing),
        learners=list(configuration.learners),
        digests=node_points.status(node),
        scrub=node.damage.status(),
        backfill=node.backfill.status(),
        cluster_version=configuration.version,
        known_version=node.core.state.knows,
        refused_by=[RefusingPeer(peer, reason) for peer, reason in sorted(refusing.items())],
        is_cut_off=is_cut_off(node),
    )


def refusals(node: Node) -> dict[NodeId, str]:
    """The members that refuse this node's connections, and why."""
    links, members = node.transport.links_seen(), node.core.state.configuration.peers(node.node_id)
    return {peer: links[peer].refusal for peer in members if peer in links and links[peer].refusal}


def is_cut_off(node: Node) -> bool:
    """Whether nothing that this node says counts."""
    state = node.core.state
    return cut_off.is_cut_off(state.configuration, node.node_id, state.leader, refusals(node))


def _follower(node: Node, told: raft_status.CoreStatus, follower: raft_status.FollowerStatus) -> FollowerStatus:
    lag: int | None = told.last.index - follower.match
    lag_seconds: float | None = 0.0
    refused = node.transport.refused_of(follower.node)
    if refused:
        lag = lag_seconds = None
    elif lag and node.appended:
        oldest = min(bisect_right(node.appended, (follower.match, float("inf"))), len(node.appended) - 1)
        lag_seconds = round(clock.monotonic() - node.appended[oldest][1], 3)
    contact_ms = clock.read().monotonic_ms - follower.last_contact_ms if follower.last_contact_ms else NEVER_MS
    return FollowerStatus(
        follower.node, follower.mode, follower.match, lag, lag_seconds, contact_ms, follower.snapshot_index,
        follower.snapshot_bytes, follower.snapshot_total, refused,
    )  # fmt: skip


def _lags(node: Node) -> dict[str, float]:
    told = node.core.status()
    return {str(each.node): float(told.last.index - each.match) for each in told.followers}


def is_ready(node: Node) -> bool:
    """Whether it knows a leader and has caught up."""
    state, applier = node.core.state, node.applier
    return (
        state.leader != NOBODY
        and node.membership.is_member
        and not node.is_stopping
        and not node.is_fenced
        and applier.applied >= min(node.start_index, state.log.last.index)
        and applier.waiting == 0
        and not is_cut_off(node)
    )


def tell_events(node: Node, events: Sequence[Event]) -> None:
    """What happened in the core: counted, a line each, and noted where it is about members. A node whose log
    differs from its leader's ends: it takes no entry any more, and its next start reads its disk again."""
    for event in events:
        node.metrics.events.labels(type(event).__name__).inc()
        log_event(node.logger, event, node.core.state.term)
        node_members.note(node, event)
        if isinstance(event, LogDiffers):
            what = (
                f"entry {event.index} has header CRC {event.here:08x} here, and {event.there:08x} at the leader, node"
                f" {event.leader}: one of the two is damaged, or of another history"
            )
            node.fail(FilesDamaged([Finding("log", State.DAMAGED, what)]))


def register_gauges(node: Node) -> None:
    """Numbers that are read when somebody asks for /metrics."""
    gauge = node.metrics.gauge
    gauge("raftlog_term", "Current term", lambda: node.term)
    gauge("raftlog_is_leader", "1 on the leader", lambda: node.is_leader)
    gauge("raftlog_is_member", "1 while the configuration in force names this node", lambda: node.membership.is_member)
    gauge("raftlog_cut_off", "1 while the leader or a majority refuses this node", lambda: is_cut_off(node))
    gauge("raftlog_healing", "1 while damage keeps this node from voting", lambda: node.core.state.floor > 0)
    gauge("raftlog_voters", "Voters of the configuration in force", lambda: len(node.core.state.configuration.voters))
    gauge("raftlog_learners", "Learners in it", lambda: len(node.core.state.configuration.learners))
    gauge("raftlog_cluster_version", "In force", lambda: node.core.state.configuration.version)
    gauge("raftlog_cluster_version_known", "Newest that this node knows", lambda: node.core.state.knows)
    gauge("raftlog_joint", "1 while it is joint", lambda: bool(node.core.state.configuration.outgoing))
    gauge("raftlog_members_changing", "1 while a change is under way", lambda: node.core.status().is_changing)
    node.metrics.gauges("raftlog_follower_lag", "Records it lacks, as its leader knows", "peer", lambda: _lags(node))
    gauge("raftlog_last_index", "Last index in this node's log", lambda: node.core.state.log.last.index)
    gauge("raftlog_persisted_index", "Durable here", lambda: node.core.state.log.persisted)
    gauge("raftlog_committed_index", "Committed as known here", lambda: node.committed)
    gauge("raftlog_applied_index", "Applied here", lambda: node.applied)
    gauge("raftlog_ledger_index", "Effects written here", lambda: node.applier.written)
    gauge("raftlog_oldest_index", "Oldest index that can be read", lambda: node.oldest)
    gauge("raftlog_revision", "Revision of the key-value store", lambda: node.machine.revision)
    gauge("raftlog_sessions", "Live sessions", lambda: node.machine.session_count)
    gauge("raftlog_consumers", "Consumer groups", lambda: len(node.machine.consumers))
    gauge("raftlog_queued_requests", "Writes that wait to be proposed", lambda: node.pending.queued)
    gauge("raftlog_inflight_requests", "Writes whose fate is not known", lambda: node.pending.inflight)
    gauge("raftlog_waiters", "Reads and long polls that wait", lambda: len(node.applier.waiters))
    gauge("raftlog_recent_bytes", "Applied entries kept in memory", lambda: node.applier.recent.bytes)
    gauge("raftlog_disk_stalled_ms", "How long the current disk operation takes", node.disk.stalled_ms)
    gauge("raftlog_disk_syncs", "fdatasync calls since the start", lambda: node.disk.statistics().syncs)
    gauge("raftlog_disk_sync_seconds", "Time spent in them", lambda: node.disk.statistics().sync_seconds)
    node_points.register_gauges(node)
    node.metrics.gauges("raftlog_link_up", "1: this outgoing link is up", "link", node.transport.connections)
