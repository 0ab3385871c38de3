"""Collects what this node knows of every member, and how old it is: for `GET /v1/cluster`.

It only reads `ReplicaState`. Nothing is asked of a peer: the values come with what nodes send each other anyway.
"""

from __future__ import annotations

from raftlog.cluster.api.explain import NEVER_MS, PeerView
from raftlog.cluster.api.members import ClusterView, DiskSeen, LinkState, MemberSeen
from raftlog.cluster.api.status import FollowerStatus, Status
from raftlog.cluster.peers.transport import LinkSeen
from raftlog.cluster.protocol.disk_reports import DiskReport
from raftlog.cluster.replica import explain, status
from raftlog.cluster.replica.parts import disk_exchange
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.runtime import clock
from raftlog.raft.configuration import Member


def cluster(replica: ReplicaState) -> ClusterView:
    """The view as of now."""
    own = status.status(replica)
    facts, links = explain.view(replica, own), replica.links.links_seen()
    peers = {each.node: each for each in facts.peers}
    configuration = replica.core.state.configuration
    members = [
        _peer(replica, own, peers[each.node], links.get(each.node)) if each.node in peers else _own(replica, own, each)
        for each in configuration.members
    ]
    return ClusterView(
        log=own.log,
        node=own.node,
        leader=own.leader,
        is_cut_off=own.is_cut_off,
        is_changing=facts.is_changing,
        last=own.last,
        committed=own.committed,
        oldest=own.oldest,
        last_user_index=own.last_user_index,
        revision=own.revision,
        sessions=own.sessions,
        uptime_ms=own.uptime_ms,
        members=members,
        index=own.index,
        term=own.term,
    )


def _own(replica: ReplicaState, own: Status, member: Member) -> MemberSeen:
    leads = replica.is_leader
    return MemberSeen(
        node=own.node,
        url=member.url,
        member=status.role_of(replica.core.state.configuration, own.node),
        role=own.role,
        term=own.term,
        durable=own.persisted,
        applied=own.applied,
        lag=0 if leads else None,
        lag_seconds=0.0 if leads else None,
        log_age_ms=0,
        disk=_disk(disk_exchange.own(replica), replica.disk.size_bytes, 0),
        program=own.version,
        program_age_ms=0,
        known_version=own.known_version,
        contact_ms=0,
        clock_skew_ms=own.clock_skews_ms.get(own.node),
    )


def _peer(replica: ReplicaState, own: Status, peer: PeerView, link: LinkSeen | None) -> MemberSeen:
    """A leader knows the place of a member that has answered it; another node knows its leader's role and term."""
    now, node = clock.monotonic(), peer.node
    report = replica.disks.reports.newest(node)
    follower = next((each for each in own.followers if each.node == node), None)
    heard = [each for each in (link and link.heard, report and report[0]) if each]
    hello = None if link is None else link.hello
    role, term, age_ms = _role(own, peer, follower)
    return MemberSeen(
        node=node,
        url=peer.url,
        member=peer.role,
        role=role,
        term=term,
        durable=None if follower is None or role is None else follower.match,
        lag=None if follower is None else follower.lag,
        lag_seconds=None if follower is None else follower.lag_seconds,
        log_age_ms=age_ms,
        disk=None if report is None else _disk(report[1], hello.disk_bytes if hello else 0, _ms(now - report[0])),
        program=(hello.program or None) if hello else None,
        program_age_ms=(0 if link is None or link.left is None else _ms(now - link.left)) if hello else None,
        known_version=hello.knows if hello else None,
        link=LinkState(
            peer.is_up,
            None if link is None else link.round_trip_us,
            replica.metrics.counts["raftlog_link_dropped_total"].get(str(node), 0),
            peer.trouble,
            peer.refuses,
        ),
        contact_ms=_ms(now - max(heard)) if heard else NEVER_MS,
        clock_skew_ms=own.clock_skews_ms.get(node),
    )


def _role(own: Status, peer: PeerView, follower: FollowerStatus | None) -> tuple[str | None, int | None, int | None]:
    """Role and term of that member, and how old both are; None three times: not known here."""
    if follower is not None and follower.last_contact_ms != NEVER_MS:
        return "learner" if peer.role == "learner" else "follower", own.term, follower.last_contact_ms
    if own.leader is not None and own.leader.node == peer.node and peer.heard_ms != NEVER_MS:
        return "leader", own.term, peer.heard_ms
    return None, None, None


def _disk(report: DiskReport, size_bytes: int, age_ms: int) -> DiskSeen:
    lacks = report.lacks_bytes if report.is_full else None
    return DiskSeen(report.free_bytes, size_bytes or None, lacks, report.sync_us, age_ms)


def _ms(seconds: float) -> int:
    return int(1_000 * seconds)
