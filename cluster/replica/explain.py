"""Collects the facts of one node that explain a missing leader: its links, its votes, its refusals, its disk.

The HTTP route `/v1/explain/leaderless` calls `view`. It only reads `ReplicaState`.
"""

from __future__ import annotations

from raftlog.cluster.api.explain import NEVER_MS, NodeView, PeerView, RefusedView
from raftlog.cluster.api.status import Status
from raftlog.cluster.replica import status
from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft.consensus.roles import Candidate, PreCandidate


def view(replica: ReplicaState, state: Status | None = None) -> NodeView:
    """The facts as this node knows them now. `state`: its status, where the caller has it."""
    facts = replica.core.status()
    role = replica.core.state.role
    votes = role.votes if isinstance(role, Candidate | PreCandidate) else {}
    links, reports, own = replica.links.links_seen(), disk_exchange.reports(replica), disk_exchange.own(replica)
    handed_over, handed_over_ms = disk_exchange.told_handover(replica)
    state = state or status.status(replica)
    followers = {each.node: each for each in state.followers}
    now = clock.monotonic()
    peers: list[PeerView] = []
    for member in facts.configuration.members:
        if member.node == replica.identity.node:
            continue
        link, report = links.get(member.node), reports.get(member.node)
        follower = followers.get(member.node)
        peers.append(
            PeerView(
                member.node,
                status.role_of(facts.configuration, member.node),
                member.url,
                is_up=link is not None and link.is_reached,
                heard_ms=NEVER_MS if link is None or link.heard is None else int((now - link.heard) * 1_000),
                trouble="" if link is None else link.trouble,
                refuses="" if link is None else link.refusal,
                vote=votes.get(member.node),
                match=None if follower is None else follower.match,
                contact_ms=None if follower is None else follower.last_contact_ms,
                lag_ms=int(1_000 * (follower.lag_seconds or 0)) if follower is not None and follower.lag else None,
                known_version=status.known_version(replica, member),
                disk_lacks_bytes=None if report is None or not report.is_full else report.lacks_bytes,
                is_held=member.node in replica.disks.holds,
            )
        )
    refused = [
        RefusedView(who, reason, int((now - when) * 1_000)) for when, who, reason in replica.links.refused_lately
    ]
    held_by, held_next, held_ms = _held_by(replica)
    return NodeView(
        log=replica.identity.log_id,
        node=replica.identity.node,
        role=state.role,
        is_cut_off=state.is_cut_off,
        term=facts.term,
        vote=facts.vote,
        leader=facts.leader,
        voters=list(facts.configuration.voters),
        outgoing=list(facts.configuration.outgoing),
        configuration_index=facts.configuration_index,
        last=facts.last.index,
        last_term=facts.last.term,
        persisted=facts.persisted,
        committed=facts.commit,
        applied=replica.applier.applied,
        is_fenced=replica.life.is_fenced,
        is_disk_full=not replica.syncer.has_space,
        disk_stalled_ms=int(replica.disk.stalled_ms()),
        disk_stall_ms=replica.settings.limits.disk_stall_ms,
        silent_ms=2 * replica.options.election_timeout_max_ms,
        is_changing=facts.is_changing,
        peers=peers,
        refused=refused,
        oldest=replica.machine.oldest,
        disk_oldest=replica.disk.oldest,
        cluster_version=facts.configuration.version,
        known_version=replica.core.state.knows,
        disk_lacks_bytes=own.lacks_bytes,
        disk_sync_us=own.sync_us,
        takes_writes=replica.disks.takes_writes,
        handed_over=handed_over,
        handed_over_ms=handed_over_ms,
        floor=facts.floor,
        only_here=replica.life.only_here,
        clock_skew_ms=disk_exchange.skew_ms(replica) or 0,
        clock_unknown_ms=disk_exchange.unknown_ms(replica) if replica.is_leader else 0,
        has_waiting_writes=replica.is_leader and not replica.disks.knows_time,
        clock_bound_ms=replica.disks.rules.clock_skew_ms,
        held_by=held_by,
        held_next=held_next,
        held_ms=held_ms,
    )


def _held_by(replica: ReplicaState) -> tuple[str, int, int]:
    """The consumer group that is farthest behind, where it is, and for how many ms it has stood there, as its leader
    knows. No group if all have read everything, or if retention waits for none."""
    policy, groups = replica.retention.policy, replica.machine.consumers.rows()
    if not (groups and replica.is_leader and policy.is_on and policy.held_bytes):
        return "", 0, 0
    name, group = min(groups, key=lambda each: each[1].next)
    if group.next > replica.applier.last_user_index:
        return "", 0, 0
    return name.decode("utf-8", "backslashreplace"), group.next, max(0, replica.machine.time_ms - group.time_ms)
