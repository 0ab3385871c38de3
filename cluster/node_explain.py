"""What a node knows that explains a missing leader: its links, votes, refusals, its disk.

Plain functions on `Node`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import clock, node_status
from cluster.wire_explain import NEVER_MS, NodeView, PeerView, RefusedView
from raft.roles import Candidate, PreCandidate

if TYPE_CHECKING:
    from cluster.node import Node


def view(node: Node) -> NodeView:
    """This node's view."""
    told = node.core.status()
    role = node.core.state.role
    votes = role.votes if isinstance(role, Candidate | PreCandidate) else {}
    links, reports, own = node.transport.links_seen(), node.disks.reports(), node.disks.own
    handed_over, handed_over_ms = node.disks.told_handover()
    followers = {each.node: each for each in told.followers}
    now = clock.monotonic()
    now_ms = clock.read().monotonic_ms
    peers: list[PeerView] = []
    for member in told.configuration.members:
        if member.node == node.node_id:
            continue
        link, report = links.get(member.node), reports.get(member.node)
        follower = followers.get(member.node)
        contact_ms = None
        if follower is not None:
            contact_ms = now_ms - follower.last_contact_ms if follower.last_contact_ms else NEVER_MS
        peers.append(
            PeerView(
                member.node, node_status.role_of(told.configuration, member.node), member.url,
                is_up=link is not None and link.is_up,
                heard_ms=NEVER_MS if link is None or link.heard is None else int((now - link.heard) * 1_000),
                trouble="" if link is None else link.trouble,
                refuses="" if link is None else link.refusal,
                vote=votes.get(member.node),
                match=None if follower is None else follower.match,
                contact_ms=contact_ms,
                known_version=node_status.known_version(node, member),
                disk_lacks_bytes=None if report is None or not report.is_full else report.lacks_bytes,
                is_held=member.node in node.disks.holds,
            )
        )  # fmt: skip
    refused = [
        RefusedView(who, reason, int((now - when) * 1_000)) for when, who, reason in node.transport.refused_lately
    ]
    state = node.status()
    return NodeView(
        log=node.log_id,
        node=node.node_id,
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
        applied=node.applied,
        is_fenced=node.is_fenced,
        is_disk_full=not node.syncer.has_space,
        disk_stalled_ms=int(node.disk.stalled_ms()),
        disk_stall_ms=node.settings.limits.disk_stall_ms,
        silent_ms=2 * node.options.election_timeout_max_ms,
        is_changing=told.is_changing,
        peers=peers,
        refused=refused,
        oldest=node.oldest,
        disk_oldest=node.disk.oldest,
        cluster_version=told.configuration.version,
        known_version=node.core.state.knows,
        disk_lacks_bytes=own.lacks_bytes,
        disk_sync_us=own.sync_us,
        takes_writes=node.disks.takes_writes,
        handed_over=handed_over,
        handed_over_ms=handed_over_ms,
        floor=told.floor,
    )
