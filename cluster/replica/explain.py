"""Collects the facts of one node that explain a missing leader: its links, its votes, its refusals, its disk.

The HTTP route `/v1/explain/leaderless` calls `view`. It only reads `ReplicaState`.
"""

from __future__ import annotations

from raftlog.cluster.api.explain import NEVER_MS, NodeView, PeerView, RefusedView
from raftlog.cluster.replica import status
from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft.consensus.roles import Candidate, PreCandidate


def view(replica: ReplicaState) -> NodeView:
    """The facts as this node knows them now."""
    told = replica.core.status()
    role = replica.core.state.role
    votes = role.votes if isinstance(role, Candidate | PreCandidate) else {}
    links, reports, own = replica.links.links_seen(), disk_exchange.reports(replica), disk_exchange.own(replica)
    handed_over, handed_over_ms = disk_exchange.told_handover(replica)
    followers = {each.node: each for each in told.followers}
    now = clock.monotonic()
    now_ms = clock.read().monotonic_ms
    peers: list[PeerView] = []
    for member in told.configuration.members:
        if member.node == replica.identity.node:
            continue
        link, report = links.get(member.node), reports.get(member.node)
        follower = followers.get(member.node)
        contact_ms = None
        if follower is not None:
            contact_ms = now_ms - follower.last_contact_ms if follower.last_contact_ms else NEVER_MS
        peers.append(
            PeerView(
                member.node,
                status.role_of(told.configuration, member.node),
                member.url,
                is_up=link is not None and link.is_reached,
                heard_ms=NEVER_MS if link is None or link.heard is None else int((now - link.heard) * 1_000),
                trouble="" if link is None else link.trouble,
                refuses="" if link is None else link.refusal,
                vote=votes.get(member.node),
                match=None if follower is None else follower.match,
                contact_ms=contact_ms,
                known_version=status.known_version(replica, member),
                disk_lacks_bytes=None if report is None or not report.is_full else report.lacks_bytes,
                is_held=member.node in replica.disks.holds,
            )
        )
    refused = [
        RefusedView(who, reason, int((now - when) * 1_000)) for when, who, reason in replica.links.refused_lately
    ]
    state = status.status(replica)
    return NodeView(
        log=replica.identity.log_id,
        node=replica.identity.node,
        role=state.role,
        is_cut_off=state.is_cut_off,
        term=told.term,
        vote=told.vote,
        leader=told.leader,
        voters=list(told.configuration.voters),
        outgoing=list(told.configuration.outgoing),
        configuration_index=told.configuration_index,
        last=told.last.index,
        last_term=told.last.term,
        persisted=told.persisted,
        committed=told.commit,
        applied=replica.applier.applied,
        is_fenced=replica.life.is_fenced,
        is_disk_full=not replica.syncer.has_space,
        disk_stalled_ms=int(replica.disk.stalled_ms()),
        disk_stall_ms=replica.settings.limits.disk_stall_ms,
        silent_ms=2 * replica.options.election_timeout_max_ms,
        is_changing=told.is_changing,
        peers=peers,
        refused=refused,
        oldest=replica.machine.oldest,
        disk_oldest=replica.disk.oldest,
        cluster_version=told.configuration.version,
        known_version=replica.core.state.knows,
        disk_lacks_bytes=own.lacks_bytes,
        disk_sync_us=own.sync_us,
        takes_writes=replica.disks.takes_writes,
        handed_over=handed_over,
        handed_over_ms=handed_over_ms,
        floor=told.floor,
        only_here=replica.life.only_here,
        clock_skew_ms=disk_exchange.skew_ms(replica) or 0,
        clock_unknown_ms=disk_exchange.unknown_ms(replica) if replica.is_leader else 0,
        has_waiting_writes=replica.is_leader and not replica.disks.knows_time,
        clock_bound_ms=replica.disks.rules.clock_skew_ms,
    )
