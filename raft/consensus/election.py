"""Elects leaders: time-outs, pre-votes, votes, check-quorum and leadership transfer.

Raft paper section 5.2; thesis 3.10 (transfer), 4.2.3 (disruptive servers), 6.2 (a leader steps down without a
quorum), 9.6 (pre-vote).
"""

from __future__ import annotations

from raftlog.raft.consensus import recall, replication
from raftlog.raft.consensus.roles import Candidate, Follower, Leader, PreCandidate, Transfer
from raftlog.raft.consensus.state import (
    State,
    become_candidate,
    become_follower,
    become_leader,
    become_pre_candidate,
    ignore,
)
from raftlog.raft.events import TransferEnded, TransferStarted
from raftlog.raft.messages import AppendEntries, Message, RequestVote, RequestVoteReply, TimeoutNow
from raftlog.raft.quorum import VoteOutcome, agreed, outcome
from raftlog.raft.refusals import CannotTransfer, NotLeader, TransferInProgress
from raftlog.raft.types import NEW_DISK, NOBODY, NodeId

# ---------------------------------------------------------------------------------------------------------------
# Time.


def next_deadline_ms(state: State) -> int:
    """The earliest monotonic time at which `tick` has something to do."""
    role = state.role
    if not isinstance(role, Leader):
        return _due_ms(role)
    if role.transfer is not None:
        return min(role.heartbeat_ms, role.transfer.deadline_ms)
    return role.heartbeat_ms


def _due_ms(role: Follower | PreCandidate | Candidate) -> int:
    hasty_ms = role.hasty_ms if isinstance(role, Follower) else None
    return role.deadline_ms if hasty_ms is None else min(role.deadline_ms, hasty_ms)


def tick(state: State) -> None:
    """Run the timers that are due.

    If this tick is late by an election timeout, this process stood still, not the others. Their messages may lie
    unread, so the timers start again (pitfall 14: stale timers fire after a stall).
    """
    role, now_ms = state.role, state.now.monotonic_ms
    if isinstance(role, Leader):
        _tick_leader(state, role)
        return
    due_ms = _due_ms(role)
    if now_ms < due_ms:
        return
    is_hasty = now_ms < role.deadline_ms
    if isinstance(role, Follower):
        role.hasty_ms = None
        if is_hasty and not _is_leader_gone(state, role):
            return
    may_campaign = state.may_campaign and recall.may_campaign(state)
    if now_ms - due_ms >= state.options.election_timeout_min_ms or not may_campaign:
        role.deadline_ms = now_ms + state.draw_timeout()
        return
    link_closed = isinstance(role, Follower) and role.link_closed
    pre_campaign(state, "leader's link closed" if link_closed else "election timeout", link_closed=link_closed)


def _is_leader_gone(state: State, role: Follower) -> bool:
    """Whether the refused dial means that the leader's process ended. Where the links of other voters closed as well,
    the network is the likelier reason; and without them no election can be won."""
    reached = {state.node: True, **dict.fromkeys(role.kept, True)}
    return role.link_closed and outcome(state.configuration, reached) is VoteOutcome.WON


def _tick_leader(state: State, role: Leader) -> None:
    now_ms, options = state.now.monotonic_ms, state.options
    if role.transfer is not None and now_ms >= role.transfer.deadline_ms:
        end_transfer(state, role, "gave up: it did not take over in time")
    if now_ms < role.heartbeat_ms:
        return
    if now_ms - role.heartbeat_ms >= options.election_timeout_min_ms:
        role.quorum_since_ms = now_ms
    role.heartbeat_ms = now_ms + options.heartbeat_ms
    # Check-quorum: no node should wait for a leader that a majority does not answer (thesis 6.2).
    contacts = {peer: progress.contact_ms for peer, progress in role.progress.items()}
    contacts[state.node] = now_ms
    heard_ms = max(agreed(state.configuration, contacts), role.quorum_since_ms)
    if now_ms - heard_ms > options.election_timeout_max_ms:
        become_follower(state, state.term, NOBODY, "no majority answers")
        return
    replication.heartbeat(state, role)
    replication.retry(state, role)
    if role.transfer is not None:
        role.transfer.is_told = False  # TimeoutNow may be lost


# ---------------------------------------------------------------------------------------------------------------
# Asking.


def pre_campaign(state: State, reason: str, *, link_closed: bool) -> None:
    """Ask whether an election could be won."""
    become_pre_candidate(state, reason, link_closed=link_closed)
    _ask(state, pre=True, link_closed=link_closed)
    _count(state)


def campaign(state: State, reason: str, *, transfer: bool = False, link_closed: bool = False) -> None:
    """Begin a new term and ask for votes.

    The requests leave once term and own vote are durable (pitfall 1: a vote that is not on disk before the reply).
    """
    become_candidate(state, reason)
    _ask(state, pre=False, transfer=transfer, link_closed=link_closed)
    _count(state)


def _ask(state: State, *, pre: bool, transfer: bool = False, link_closed: bool = False) -> None:
    configuration, last = state.configuration, state.log.last
    box = state.out.messages if pre else state.out.after_sync
    for peer in configuration.peers(state.node):
        if configuration.is_voter(peer):
            box.append(
                RequestVote(
                    shard=state.shard,
                    sender=state.node,
                    to=peer,
                    term=state.term + 1 if pre else state.term,
                    last_index=last.index,
                    last_term=last.term,
                    pre=pre,
                    transfer=transfer,
                    link_closed=link_closed,
                )
            )


def on_vote_reply(state: State, message: RequestVoteReply) -> None:
    """Count the first answer to the question that this node asks now; ignore answers to older questions.

    Pitfall 4: duplicate vote replies counted twice. Pitfall 8: deadlock of pre-vote and check-quorum. Pitfall 20: a
    late reply moves the progress.
    """
    role = state.role
    if isinstance(role, PreCandidate):
        if not message.pre or message.request_term != state.term + 1:
            return
    elif not isinstance(role, Candidate) or message.pre or message.request_term != state.term:
        return
    if message.sender in role.votes:
        return
    role.votes[message.sender] = message.granted
    if message.granted and not message.pre:
        recall.voted(state, message)
    _count(state)


def _count(state: State) -> None:
    role = state.role
    assert isinstance(role, PreCandidate | Candidate), role
    result = outcome(state.configuration, role.votes)
    if result is VoteOutcome.WON:
        if isinstance(role, PreCandidate):
            campaign(state, "won the pre-vote", link_closed=role.link_closed)
        else:
            if len(role.votes) > 1:
                state.durable_term = state.term  # a voter that answers was asked after the sync
            become_leader(state)
    elif isinstance(role, Candidate) and False in role.votes.values() and _have_all_answered(state, role):
        # It won the pre-vote and not the vote: votes were split. No answer is to come that could change it.
        delay_ms = state.random(state.options.link_refused_delay_min_ms, state.options.link_refused_delay_max_ms)
        role.deadline_ms = min(role.deadline_ms, state.now.monotonic_ms + delay_ms)


def _have_all_answered(state: State, role: Candidate) -> bool:
    """Whether each voter that is connected to this node has answered it."""
    return all(peer in role.votes for peer in state.recall.said if state.configuration.is_voter(peer))


# ---------------------------------------------------------------------------------------------------------------
# Answering.


def is_bound(state: State, message: RequestVote) -> bool:
    """Whether this node has a leader that it still hears, and so must not help to unseat it (thesis 4.2.3).

    A hand-over overrides that, if it can be one: the leader of this term asks a voter that has everything. So does a
    closed link, but only if this node's own link to the leader closed too. A killed process closes all of its
    connections; a cut between two nodes does not.
    """
    role = state.role
    if message.transfer and message.term == state.term + 1 and state.configuration.is_voter(message.sender):
        if state.log.is_up_to_date(message.last_index, message.last_term):
            return False
    if isinstance(role, Leader):
        return True
    if not isinstance(role, Follower) or role.leader == NOBODY:
        return False
    if message.link_closed and role.link_closed:
        return False
    return state.now.monotonic_ms - role.contact_ms < state.options.election_timeout_min_ms


def on_request_vote(state: State, message: RequestVote) -> None:
    """Answer a candidate of the current term, or a pre-candidate of any.

    The voter does not check whether its own configuration names the candidate (pitfall 11: a promoted learner refuses
    its vote). The candidate counts by its own configuration.
    """
    # A healing log is shorter than the log that acknowledged. So it cannot decide whether the candidate has all
    # acknowledged entries (pitfall 66: a damaged node that wins an election).
    may_grant = recall.may_grant(state, message.last_term, message.last_index) and not recall.is_waiting(state)
    up_to_date = may_grant and state.log.is_up_to_date(message.last_index, message.last_term)
    if message.pre:
        is_later = message.term > state.term
        granted = is_later and up_to_date and not is_bound(state, message) and not _goes_first(state, message)
        state.out.messages.append(_reply(state, message, granted=granted))  # promises nothing, changes nothing
        return
    assert message.term == state.term, (message.term, state.term)
    granted = up_to_date and (state.vote == message.sender or (state.vote == NOBODY and state.leader == NOBODY))
    if granted and state.vote == NOBODY:
        state.vote = message.sender
        state.out.hard_state = True
    if granted and isinstance(state.role, Follower):
        state.role.deadline_ms = state.now.monotonic_ms + state.role.timeout_ms
    state.out.after_sync.append(_reply(state, message, granted=granted))


def _goes_first(state: State, message: RequestVote) -> bool:
    """Whether this node refuses because it has the lower number of two nodes that ask each other at the same time.

    That happens when both logs are equal and the leader's link closed. It refuses while it waits for the other's
    answer: two grants would split the votes. Questions after a time-out are not refused, so a lost answer delays the
    other node only once.
    """
    role, last = state.role, state.log.last
    if not isinstance(role, PreCandidate) or not role.link_closed or message.sender in role.votes:
        return False
    return state.node < message.sender and (message.last_term, message.last_index) == (last.term, last.index)


def refuse_vote(state: State, message: RequestVote) -> None:
    """Send the current term to a candidate of an old one."""
    state.out.messages.append(_reply(state, message, granted=False))


def _reply(state: State, message: RequestVote, *, granted: bool) -> RequestVoteReply:
    return RequestVoteReply(
        shard=state.shard,
        sender=state.node,
        to=message.sender,
        term=state.term,
        request_term=message.term,
        granted=granted,
        pre=message.pre,
    )


# ---------------------------------------------------------------------------------------------------------------
# Transfer.


def transfer(state: State, to: NodeId) -> NodeId:
    """Begin to hand leadership to `to`, or with NOBODY to the most caught-up voter that answers; returns the chosen
    node.

    Raises NotLeader, TransferInProgress (to another) or CannotTransfer.
    """
    role = state.role
    if not isinstance(role, Leader):
        raise NotLeader(state.leader)
    if role.transfer is not None:
        if to not in {NOBODY, role.transfer.to}:
            raise TransferInProgress(role.transfer.to)
        return role.transfer.to
    now_ms, options = state.now.monotonic_ms, state.options
    candidates = [peer for peer in role.progress if peer in state.configuration.voters]
    if to == NOBODY:
        since_ms = now_ms - options.election_timeout_min_ms
        near = [peer for peer in candidates if role.progress[peer].contact_ms >= since_ms]
        if not near:
            raise CannotTransfer("no other voter answers")
        to = max(near, key=lambda peer: (role.progress[peer].match, -peer))
    elif to not in candidates:
        raise CannotTransfer(f"node {to} is not another voter; the others are {candidates}")
    role.transfer = Transfer(to, now_ms + options.transfer_timeout_ms)
    state.out.events.append(TransferStarted(to))
    return to


def advance_transfer(state: State, role: Leader) -> None:
    """Ask the target to campaign, once it has everything (pitfall 82: a transfer that leaves a trace): no new entries
    are taken meanwhile."""
    transfer = role.transfer
    assert transfer is not None
    if not transfer.is_told and role.progress[transfer.to].match == state.log.last.index:
        transfer.is_told = True
        state.out.messages.append(
            TimeoutNow(
                shard=state.shard, sender=state.node, to=transfer.to, term=state.term, last_index=state.log.last.index
            )
        )


def held(state: State, role: Leader) -> None:
    """Some followers are sent no entries now. One of them that lacks entries cannot take over."""
    if role.transfer is not None:
        progress = role.progress[role.transfer.to]
        if progress.hold is not None and progress.match < state.log.last.index:
            end_transfer(state, role, "gave up: its disk is full")


def on_timeout_now(state: State, message: TimeoutNow) -> None:
    """The leader asks this node to campaign at once, without a pre-vote."""
    if not isinstance(state.role, Follower) or state.role.leader != message.sender:
        ignore(state, message, "the sender is not the leader that this node follows")
    elif state.log.last.index < message.last_index or not (state.may_campaign and recall.may_campaign(state)):
        ignore(state, message, f"this node, at {state.log.last.index}, could not win")
    else:
        campaign(state, f"node {message.sender} hands over", transfer=True)


def end_transfer(state: State, role: Leader, reason: str) -> None:
    """The transfer is given up: this node takes new entries again."""
    assert role.transfer is not None
    state.out.events.append(TransferEnded(role.transfer.to, reason))
    role.transfer = None


def leaves_term(state: State, message: Message) -> bool:
    """Whether this node, which heals, begins a newer term rather than take that message. Its leader refuses it, or
    neither knows the other's start, as in a further Raft group, and no leader reports when this node has healed. The
    next leader asks from nothing."""
    is_alone = message.sender not in state.recall.starts or not state.recall.run
    if not (isinstance(message, AppendEntries) and NEW_DISK > state.recall.floor > state.term and is_alone):
        return False
    become_follower(state, state.recall.floor, NOBODY, "its log is healing, and the leader does not help")
    return True
