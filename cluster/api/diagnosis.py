"""Explains in words why there is no leader or no progress, and what happened to a record.

`/v1/explain/leaderless` gives it the view of one node, `raftlog explain` the views of all nodes that answered. Pure. A
cause that needs the other node's view is reported only if that view is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from raftlog.cluster.api.explain import Cause, Leaderless, NodeView, PeerView, ReplicaView, UnreachedMember
from raftlog.cluster.api.records import LogRecord
from raftlog.cluster.api.text import counted
from raftlog.raft.quorum import majority
from raftlog.raft.types import NEW_DISK

_ASKING: Final = ("candidate", "pre_candidate")
_PASSES: Final = {
    "log_differs": False,
    "disk_fenced": False,
    "disk_hangs": False,
    "no_room": False,
    "disk_full": False,
    "clock_differs": False,
    "clock_unknown": False,
    "cut_off": False,
    "no_majority": False,
    "link_one_way": False,
    "link_down": False,
    "link_silent": False,
    "peer_refuses": False,
    "vote_refused": False,
    "vote_unanswered": False,
    "follower_silent": False,
    "not_following": False,
    "unreachable": False,
    "refused": True,
    "tls_files": False,
    "client_refused": True,
    "not_committed": True,
    "log_held": False,
    "lags": True,
    "handed_over": True,
    "fetches_older": True,
    "healing": False,
    "members_changing": True,
    "older_version": True,
    "election": True,
}
"""The codes of causes, the most important first. True: it is past, passes by itself, or stands in the table of the
nodes."""
_WEIGHT: Final = tuple(_PASSES)
HELD_MS: Final = 600_000
"""A consumer group that has stood still for longer, while it lacks records, is named: retention waits for it."""


def diagnose(views: Sequence[NodeView], unreachable: Mapping[int, str]) -> Leaderless:
    """All causes that these views show. At least one view; `unreachable` are members that did not answer."""
    by_node = {view.node: view for view in views}
    newest = max(views, key=lambda view: (view.configuration_index, view.term))
    known = leader_of(views) or _followed(by_node)
    causes = [
        *_disks(views),
        *_peers_disks(views),
        *_cut_off(views),
        *_links(by_node),
        *_votes(by_node),
        *_refusals(views),
        *(
            Cause("unreachable", f"node {node} does not answer: {why}", node)
            for node, why in sorted(unreachable.items())
        ),
    ]
    if isinstance(known, NodeView):
        causes += _progress(known, by_node)
    elif known is None:
        causes += _majority(newest, by_node, unreachable)
    if newest.is_changing:
        words = f"a change of the members is under way (configuration {newest.configuration_index})"
        causes.append(Cause("members_changing", words, newest.node))
    causes.sort(key=lambda cause: _WEIGHT.index(cause.code))
    number = known.node if isinstance(known, NodeView) else known or 0
    return Leaderless(
        _summary(known, causes),
        number,
        causes,
        list(views),
        [UnreachedMember(node, reason) for node, reason in sorted(unreachable.items())],
        max(view.applied for view in views),
        max(view.term for view in views),
    )


def trouble_of(diagnosis: Leaderless) -> str | None:
    """What an operator must know first: why there is no leader, else the weightiest cause that does not pass."""
    causes = [cause for cause in diagnosis.causes if not _PASSES[cause.code]]
    if diagnosis.leader and not causes:
        return None
    first = f"{causes[0].words}." if diagnosis.leader else diagnosis.summary
    return first + (" `raftlog explain` has all causes." if len(diagnosis.causes) > 1 else "")


def leader_of(views: Sequence[NodeView]) -> NodeView | None:
    """The view of the node that leads, of several the one in the newest term."""
    return max((view for view in views if view.role == "leader"), key=lambda view: view.term, default=None)


def _followed(by_node: Mapping[int, NodeView]) -> int | None:
    """The leader that a follower hears, if the leader's own view is missing."""
    for view in sorted(by_node.values(), key=lambda view: view.term, reverse=True):
        peer = _peer(view, view.leader)
        if peer is not None and peer.node not in by_node and 0 <= peer.heard_ms <= view.silent_ms:
            return peer.node
    return None


def _summary(known: NodeView | int | None, causes: Sequence[Cause]) -> str:
    first = f" Main cause: {causes[0].words}." if causes else ""
    if known is None:
        return f"There is no leader.{first or ' An election should end that soon.'}"
    if isinstance(known, int):
        return f"Node {known} leads, as its followers report.{first}"
    if known.committed < known.last:
        return f"Node {known.node} leads term {known.term}, and has uncommitted records.{first}"
    return f"Node {known.node} leads term {known.term}, and all its records are committed.{first}"


def _disks(views: Sequence[NodeView]) -> Iterator[Cause]:
    for view in views:
        if view.is_fenced:
            words = f"node {view.node} is fenced: a write or sync of its disk failed; look at the disk, start it again"
            yield Cause("disk_fenced", words, view.node)
        if view.disk_stalled_ms > view.disk_stall_ms:
            words = f"the disk of node {view.node} hangs: one operation has taken {view.disk_stalled_ms} ms so far"
            yield Cause("disk_hangs", words, view.node)
        if not view.takes_writes and len(view.voters) > 1:
            words = f"node {view.node} leads and refuses writes: no majority of the voters answers and has disk space"
            yield Cause("no_room", words, view.node)
        if view.is_disk_full:
            yield Cause("disk_full", _full_disk(view.node, view.disk_lacks_bytes), view.node)
        if view.handed_over:
            words = f"node {view.node} handed the leadership over {view.handed_over_ms} ms ago, {view.handed_over}"
            yield Cause("handed_over", words, view.node)
        if view.only_here:
            yield Cause("log_differs", f"node {view.node}: {view.only_here}", view.node)
        if abs(view.clock_skew_ms) > view.clock_bound_ms:
            side = "ahead of" if view.clock_skew_ms > 0 else "behind"
            words = (
                f"the clock of node {view.node} is {abs(view.clock_skew_ms) / 1_000:.1f} s {side} that of a majority: "
                "it hands leadership over; look at its time server"
            )
            yield Cause("clock_differs", words, view.node)
        if view.clock_unknown_ms > view.silent_ms:
            waits = "writes wait" if view.has_waiting_writes else "retention by age waits"
            words = (
                f"node {view.node} leads, and has not known the clock of a majority for "
                f"{view.clock_unknown_ms / 1_000:.1f} s: {waits}; look at the links between the nodes"
            )
            yield Cause("clock_unknown", words, view.node)
        if view.floor == NEW_DISK:
            words = (
                f"the disk of node {view.node} was formatted for a cluster that may exist already: it votes once all "
                f"voters ({_list(view.voters)}) have answered it, or a leader has sent it all entries"
            )
            yield Cause("healing", words, view.node)
        elif view.floor:
            words = (
                f"node {view.node} lost entries that it had acknowledged (its disk was damaged, rolled back or cloned, "
                "or lied about a sync): it votes again once a leader has sent it the missing entries"
            )
            yield Cause("healing", words, view.node)
        if view.disk_oldest > view.oldest:
            words = f"node {view.node} fetches records {view.oldest} to {view.disk_oldest - 1}, older than its snapshot"
            yield Cause("fetches_older", words, view.node)


def _peers_disks(views: Sequence[NodeView]) -> Iterator[Cause]:
    """Full disks of nodes whose own views are missing, as peers know them; and followers that get no entries for it."""
    known = {view.node for view in views}
    for view in views:
        for peer in view.peers:
            if peer.disk_lacks_bytes is not None and peer.node not in known:
                known.add(peer.node)
                words = f"{_full_disk(peer.node, peer.disk_lacks_bytes)} (reported to node {view.node})"
                yield Cause("disk_full", words, peer.node, view.node)
            if peer.is_held:
                words = f"node {view.node} sends node {peer.node} no entries, because the disk there is full"
                yield Cause("lags", words, peer.node, view.node)


def _full_disk(node: int, lacks_bytes: int) -> str:
    lacking = f"it needs {lacks_bytes} more bytes to accept writes, and" if lacks_bytes else "it"
    return f"the disk of node {node} is full: {lacking} goes on when there is disk space"


def _cut_off(views: Sequence[NodeView]) -> Iterator[Cause]:
    for view in views:
        if view.is_cut_off:
            refusing = [peer.node for peer in view.peers if peer.refuses]
            refuse = f"{_nodes(refusing)} refuse{'s' if len(refusing) == 1 else ''}"
            words = f"node {view.node} is cut off: {refuse} its connections, so its messages do not count"
            yield Cause("cut_off", words, view.node)


def _links(by_node: Mapping[int, NodeView]) -> Iterator[Cause]:
    """Each directed link that is down, and each link that is up although the receiver gets nothing on it."""
    for view in by_node.values():
        for peer in view.peers:
            other = by_node.get(peer.node)
            back = None if other is None else _peer(other, view.node)
            if peer.refuses:
                words = f"node {peer.node} refuses node {view.node}: {peer.refuses}"
                yield Cause("peer_refuses", words, view.node, peer.node)
            elif not peer.is_up:
                why = f" ({peer.trouble})" if peer.trouble else ""
                if back is not None and back.is_up:
                    words = (
                        f"the link is cut one way: node {view.node} does not reach node {peer.node}{why}, "
                        f"node {peer.node} reaches node {view.node}"
                    )
                    yield Cause("link_one_way", words, view.node, peer.node)
                else:
                    words = f"node {view.node} does not reach node {peer.node}{why}"
                    yield Cause("link_down", words, view.node, peer.node)
            elif (
                # What comes from a peer that a node does not reach is not believed, so it does not count as heard.
                view.role == "leader"
                and back is not None
                and other is not None
                and back.is_up
                and back.heard_ms > other.silent_ms
            ):
                words = (
                    f"node {view.node} is connected to node {peer.node}, which has received nothing from it for "
                    f"{back.heard_ms} ms"
                )
                yield Cause("link_silent", words, view.node, peer.node)


def _refusals(views: Sequence[NodeView]) -> Iterator[Cause]:
    for view in views:
        clients = [] if view.refused_client is None else [("client_refused", view.refused_client)]
        for code, each in [*(("refused", peer) for peer in view.refused[-1:]), *clients]:
            yield Cause(code, f"node {view.node} refused {each.who} {each.ago_ms} ms ago: {each.reason}", view.node)
        if view.tls_files:
            words = f"node {view.node} cannot use its changed certificate files, and goes on with those before: "
            yield Cause("tls_files", words + view.tls_files, view.node)


def _majority(newest: NodeView, by_node: Mapping[int, NodeView], unreachable: Mapping[int, str]) -> Iterator[Cause]:
    """Whether any voter could be elected."""
    for voters in (newest.voters, newest.outgoing):
        needed = majority(len(voters))
        if not voters:
            continue
        answering = [node for node in voters if node in by_node and not by_node[node].is_fenced]
        missing = [node for node in voters if node in unreachable or (node in by_node and by_node[node].is_fenced)]
        if len(voters) - len(missing) < needed:
            only = (
                f"only {_nodes(answering)} answer{'s' if len(answering) == 1 else ''}" if answering else "none answers"
            )
            lacking = needed - (len(voters) - len(missing))
            back = _nodes(missing) if lacking == len(missing) else f"{lacking} of the nodes {_list(missing)}"
            words = f"of the voters {_list(voters)} {only}, and {needed} must: bring back {back}"
            yield Cause("no_majority", words, answering[0] if answering else newest.node)
            continue
        if all(len(_connected(by_node[node], by_node, voters)) + 1 < needed for node in answering):
            links = "; ".join(
                f"node {node} with {_nodes(found) if (found := _connected(by_node[node], by_node, voters)) else 'none'}"
                for node in answering
            )
            words = (
                f"no voter is connected both ways with {needed - 1} other voter{'s' if needed > 2 else ''}, as an "
                f"election needs: {links}"
            )
            yield Cause("no_majority", words, answering[0] if answering else newest.node)


def _connected(view: NodeView, by_node: Mapping[int, NodeView], voters: Sequence[int]) -> list[int]:
    """The other voters that it reaches and that reach it, as far as their views are there."""
    found: list[int] = []
    for peer in view.peers:
        other = by_node.get(peer.node)
        back = None if other is None else _peer(other, view.node)
        if peer.node in voters and peer.is_up and not peer.refuses and (back is None or back.is_up):
            found.append(peer.node)
    return found


def _votes(by_node: Mapping[int, NodeView]) -> Iterator[Cause]:
    for view in by_node.values():
        if view.role not in _ASKING:
            continue
        yield Cause("election", f"node {view.node} asks for votes after term {view.term}", view.node)
        for peer in view.peers:
            if peer.vote is False:
                why = _why_refused(view, by_node.get(peer.node))
                words = f"node {peer.node} refuses node {view.node} its vote: {why}"
                yield Cause("vote_refused", words, peer.node, view.node)
            elif peer.vote is None and peer.is_up and peer.role != "learner":
                words = f"node {peer.node} has not answered the vote request of node {view.node}"
                yield Cause("vote_unanswered", words, peer.node, view.node)


def _why_refused(asking: NodeView, voter: NodeView | None) -> str:
    if voter is None:
        return "its own reason is not known, because it does not answer"
    if (voter.last_term, voter.last) > (asking.last_term, asking.last):
        return (
            f"its log is newer, it ends with {voter.last} of term {voter.last_term}, that of node {asking.node} with "
            f"{asking.last} of term {asking.last_term}"
        )
    if voter.leader:
        return f"it follows node {voter.leader}"
    if voter.vote not in (0, asking.node) and voter.term >= asking.term:
        return f"it gave its vote of term {voter.term} to node {voter.vote}"
    if voter.term > asking.term:
        return f"it is in term {voter.term} already"
    return "it had a leader or had already voted then; it would grant the vote now"


LAG_MS: Final = 1_000
"""A follower that lacks younger records alone is no cause: they are on their way."""


def _progress(leader: NodeView, by_node: Mapping[int, NodeView]) -> Iterator[Cause]:
    """The reasons that hold up a leader."""
    for peer in leader.peers:
        if peer.match is None or peer.contact_ms is None:
            continue
        if peer.contact_ms == -1 or peer.contact_ms > leader.silent_ms:
            since = "has never answered" if peer.contact_ms == -1 else f"has not answered for {peer.contact_ms} ms"
            words = f"node {peer.node} {since} its leader, node {leader.node}"
            yield Cause("follower_silent", words, peer.node, leader.node)
        if peer.match < leader.last and (peer.lag_ms is None or peer.lag_ms >= LAG_MS):
            words = f"node {peer.node} is missing {counted(leader.last - peer.match, 'record')} of the leader's log"
            yield Cause("lags", words, peer.node, leader.node)
        other = by_node.get(peer.node)
        if other is not None and other.leader != leader.node and not other.is_fenced:
            whom = f"follows node {other.leader}" if other.leader else "follows no leader"
            words = f"node {peer.node} (term {other.term}, {other.role}) {whom}, not node {leader.node}"
            yield Cause("not_following", words, peer.node, leader.node)
        knows = peer.known_version
        if knows is not None and knows <= leader.cluster_version < leader.known_version:
            words = (
                f"node {peer.node} runs a raftlog that knows cluster versions up to {knows}: the cluster stays at "
                f"version {leader.cluster_version} until it is upgraded"
            )
            yield Cause("older_version", words, peer.node, leader.node)
    if leader.held_ms > HELD_MS:
        words = (
            f"the consumer group {leader.held_by} has stood at index {leader.held_next} for {leader.held_ms // 60_000} "
            f"minutes, and retention keeps the log from there on: start its reader, or raftlog consumers delete it"
        )
        yield Cause("log_held", words, leader.node)
    if leader.committed < leader.last:
        words = f"records {leader.committed + 1} to {leader.last} are not on a majority yet"
        yield Cause("not_committed", words, leader.node)


def _peer(view: NodeView, node: int) -> PeerView | None:
    return next((peer for peer in view.peers if peer.node == node), None)


def _list(nodes: Sequence[int]) -> str:
    """1, 2 and 3."""
    if len(nodes) < 2:
        return ", ".join(map(str, nodes))
    return f"{', '.join(map(str, nodes[:-1]))} and {nodes[-1]}"


# ---------------------------------------------------------------------------------------------------------------
# One record.


def tell_record(
    at: int,
    state: str,
    record: LogRecord | None,
    when: str,
    replicas: Sequence[ReplicaView],
    past: Sequence[str],
    before: Sequence[str],
) -> list[str]:
    """What happened to a record, in sentences."""
    sentences: list[str] = []
    if record is not None:
        what = record.operation or record.kind
        article = "an" if what[:1] in "aeiou" else "a"
        sentences.append(f"Record {at} is {article} {what}, of term {record.term}, {when}.")
        if record.session is not None:
            sentences.append(f"Its request came with sequence {record.sequence} of session {record.session}.")
        sentences.append(_effect(record))
    else:
        sentences.append(f"Record {at} is {state}: its effect is known once it is applied.")
    durable = [each.node for each in replicas if each.is_durable]
    lacking = [each.node for each in replicas if each.is_durable is False]
    if durable:
        sentences.append(f"It is durable on {_nodes(durable)}{f', not yet on {_nodes(lacking)}' if lacking else ''}.")
    if unknown := [each.node for each in replicas if each.is_durable is None]:
        sentences.append(f"Of {_nodes(unknown)} this node has no information: ask the leader.")
    if applied := [each.node for each in replicas if each.is_applied]:
        sentences.append(f"It is applied on {_nodes(applied)}.")
    if past or before:
        sentences.append(
            f"Consumer groups past it: {', '.join(past) or 'none'}; not yet there: {', '.join(before) or 'none'}."
        )
    return sentences


def _effect(record: LogRecord) -> str:
    result = f"Result: {record.result}" if record.result else "It carries no request"
    if record.revision and record.operation:
        result += f", at revision {record.revision}"
    if record.prior_index:
        result += f", in place of the version of record {record.prior_index}"
    if record.succeeded is not None:
        result += ", by its `then` branch" if record.succeeded else ", by its `else` branch"
    if record.changes:
        result += f", {counted(len(record.changes), 'key')} changed"
    return f"{result}."


def _nodes(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {_list(nodes)}"
