"""Finds lost promises: what peers remember of a disk's promises, and how a node whose disk lost some heals.

A disk that was rolled back, that was cloned, or that lied about a sync, is consistent in itself. Only peers can notice
that it lacks promised entries. So each node remembers two facts about each disk. The first is the newest entry that the
disk acknowledged to it as the leader of that entry's term. The second is the newest term in which the disk gave it a
vote or such an acknowledgement. This `Memory` outlives changes of role, not the process. What outlives the process is
the term of its start, and which entries are committed.

A process that starts asks every peer to recall (`Recall`). Each peer answers with its memory from before that start
(`RecallReply`); one that refuses the process as an older copy does so unasked. The node gives no vote and acknowledges
no entry until all voters have answered, or for too long. If it lacks an entry that a peer remembers, it goes under a
floor, as after damage (`raftlog.raft.wal.repair`): it has no vote until it holds an entry of a term at or above it, or
until the leader of its term confirms that it has all it can have promised. Why that is safe: docs/decisions/0017.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.consensus.progress import FollowerProgress, Mode
from raftlog.raft.consensus.roles import Candidate, Follower, Leader
from raftlog.raft.consensus.state import BEYOND, Memory, State, become_follower, ignore, is_beyond
from raftlog.raft.events import AcknowledgedLost, Healed, PromisesLost, WentUnderFloor
from raftlog.raft.hello import Start
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, Recall, RecallReply, RequestVoteReply
from raftlog.raft.types import NEW_DISK, NOBODY, NodeId

PATIENCE_TIMEOUTS: Final = 2
"""So many election timeouts a started node waits for the answer of a voter that is connected to it."""

MEMORIES_MAX: Final = 64
"""Disks that are remembered: several times the members of a cluster, so that replaced disks do not push others out."""

# ---------------------------------------------------------------------------------------------------------------
# What this node remembers of others.


def link_opened(state: State, peer: NodeId, incarnation: str, start: Start | None) -> None:
    """A process of `peer` connected. A leader restarts its Progress if it is new, and this node asks for its memory."""
    if start is None:
        state.recall.starts.pop(peer, None)
        return
    state.recall.refused.pop(peer, None)
    known, has_answered = state.recall.starts.get(peer), peer in state.recall.recalled
    if known is None or known.run != start.run:
        link_closed(state, peer)  # what an earlier process answered, perhaps late, counts no more
    state.recall.starts[peer] = start
    memory = _memory(state, peer, incarnation)
    if memory.begin(start.run) and not memory.is_kept_by(start):
        state.out.events.append(PromisesLost(peer, *memory.acked, memory.term, start.last_index, start.last_term))
    role = state.role
    if isinstance(role, Leader) and _is_named(state, peer, incarnation):
        progress = role.progress.get(peer)
        if progress is not None and progress.run != start.run:
            reset(state, role, progress, start.last_index, start.last_term)
            progress.run = start.run
    if state.recall.run and peer not in state.recall.recalled:
        if (is_waiting(state) or state.recall.floor == NEW_DISK) and not has_answered:
            _enter_term(state, peer, start.term)
        _ask(state, peer)


def refused(state: State, peer: NodeId, incarnation: str, start: Start | None) -> None:
    """This node refuses a process of `peer`. If it has met a later process of that disk, the refused one runs on an
    older copy. That one cannot ask, because its connection is closed. So this node reports its memory unasked. Answers
    of the later process that are still on their way are not in that report, so they do not count."""
    memory = state.recall.memories.get((peer, incarnation))
    if memory is not None and start is not None and memory.run not in (0, start.run):
        if state.recall.refused.get(peer) != (incarnation, start.run):
            _void_answers(state, peer)
        state.recall.refused[peer] = (incarnation, start.run)
        warn(state, peer)


def _void_answers(state: State, peer: NodeId) -> None:
    """A vote or an acknowledgement of that peer that has not arrived yet does not count. The leader asks again."""
    role = state.role
    if isinstance(role, Candidate):
        role.votes.setdefault(peer, False)
    elif isinstance(role, Leader) and peer in role.progress:
        role.round += 1
        progress = role.progress[peer]
        progress.round_first = role.round
        if progress.mode is not Mode.SNAPSHOT:  # a snapshot ends with a question that has the round of its time
            progress.probe(progress.match)


def warn(state: State, peer: NodeId) -> None:
    """Reports to a refused process which promises its disk may lack; again once the link to it opens."""
    incarnation, run = state.recall.refused.get(peer, ("", 0))
    memory = state.recall.memories.get((peer, incarnation))
    if memory is not None:
        _answer(state, peer, run, memory.lost_by(run))


def _enter_term(state: State, peer: NodeId, term: int) -> None:
    """That peer's memory began with its process, in that term. This node, which has just started, may have lost a vote
    that it gave before, in that term at the latest: it votes for no other node in it."""
    if is_beyond(state, term):
        return
    if term > state.term:
        become_follower(state, term, NOBODY, f"node {peer} started in that term")
    if term == state.term and state.vote == NOBODY:
        state.vote = state.node
        state.out.hard_state = True


def acknowledged(state: State, message: AppendEntriesReply) -> None:
    """A leader counts that answer: what it says of an entry of this term is to be remembered. (Entries of older terms
    are never committed by counting: thesis 3.6.2.)"""
    if state.log.term_at(message.match) == state.term:
        memory = _memory_of_connected(state, message.sender)
        if memory is not None:
            memory.note(state.term, message.match)


def voted(state: State, message: RequestVoteReply) -> None:
    """A candidate counts that vote."""
    memory = _memory_of_connected(state, message.sender)
    if memory is not None:
        memory.note(message.request_term, 0)


def led(state: State, message: AppendEntries, match: int) -> None:
    """This node acknowledges entries up to `match` to its leader. The leader may count itself for them, so its disk
    should have them too. A node without a vote remembers nothing: its acknowledgements are no part of a majority, it
    cannot be elected, and the leader's next process would wait for its log for ever.
    """
    if state.log.term_at(match) == state.term:
        memory = _memory_of_connected(state, message.sender)
        if memory is not None:
            memory.note(state.term, 0)  # it voted for itself
            if state.configurations[-1][1].is_voter(state.node):
                memory.led = max(memory.led, (state.term, match))


def reset(state: State, role: Leader, progress: FollowerProgress, hint_index: int, hint_term: int) -> None:
    """Nothing is known of that follower any more but where its log may end. Answers to earlier messages do not
    count; once `match` is at `heal_at` again, the follower has all that it can have promised."""
    role.round += 1
    progress.match, progress.match_at_heartbeat = 0, -1
    progress.round_first = role.round
    progress.heal_at = state.log.last.index
    progress.doubted_in = 0
    index, is_exact = state.log.last_end(hint_index, hint_term)
    progress.probe(index, is_exact=is_exact)


def doubt(state: State, role: Leader, peer: NodeId, message: AppendEntriesReply) -> None:
    """A follower rejects an entry that it acknowledged, so the leader asks once more, in a new round, at the next
    heartbeat.

    A late answer would look the same. A rejection in that new round proves that the follower's log lost entries.
    """
    progress = role.progress[peer]
    progress.is_waiting = True
    if not progress.doubted_in:
        role.round += 1
        progress.doubted_in = role.round
    elif message.round >= progress.doubted_in:
        lost = progress.match
        state.out.events.append(AcknowledgedLost(peer, lost, message.hint_index))
        reset(state, role, progress, message.hint_index, message.hint_term)
        progress.is_waiting = True
        progress.lost = lost


def remind(state: State, role: Leader) -> None:
    """Once per heartbeat, inform a follower that lost acknowledged entries while it ran.

    This ends when the follower reports that it is under a floor, or has every entry again.
    """
    for peer, progress in role.progress.items():
        start = state.recall.starts.get(peer)
        if progress.lost and (progress.match >= progress.heal_at or start is None):
            progress.lost = 0
        elif progress.lost and start is not None:
            _answer(state, peer, start.run, Memory(acked=(state.term, progress.lost), term=state.term), is_lost=True)


def on_recall(state: State, message: Recall) -> None:
    """A node asks for its promises from before its start, and whether it has all of them again."""
    peer, start = message.sender, state.recall.starts.get(message.sender)
    incarnation = state.recall.said.get(peer, ("", 0))[0]
    if start is None or start.run != message.run:
        return  # its hello is still to come: it asks again
    role, healed = state.role, 0
    progress = role.progress.get(peer) if isinstance(role, Leader) else None
    if progress is not None and progress.run == message.run and _is_named(state, peer, incarnation):
        if progress.match >= progress.heal_at:
            healed = progress.match
        if message.floor:
            progress.lost = 0
    # A new disk must elect no leader without any entry that is durable here.
    has = _newest(state, state.log.persisted) if message.floor == NEW_DISK else (0, 0)
    _answer(state, peer, message.run, _memory(state, peer, incarnation), healed=healed, has=has)


def _answer(
    state: State,
    to: NodeId,
    run: int,
    memory: Memory,
    *,
    healed: int = 0,
    is_lost: bool = False,
    has: tuple[int, int] = (0, 0),
) -> None:
    """What this node acknowledged to a leader counts as far as it is durable here, else it has not left; and not while
    this disk hangs: no node could be elected by it, and it would keep the leader from voting."""
    led = (0, 0) if state.is_stalled else min(memory.led, _durable(state))
    (acked_term, acked_index), (led_term, led_index) = memory.acked, max(led, has, _newest(state, state.log.committed))
    state.out.messages.append(
        RecallReply(
            shard=state.shard,
            sender=state.node,
            to=to,
            term=state.term,
            run=run,
            promised_term=memory.term,
            acked_term=acked_term,
            acked_index=acked_index,
            led_term=led_term,
            led_index=led_index,
            healed_index=healed,
            is_alone=bool(state.configuration.needs(to)),
            is_lost=is_lost,
        )
    )


def _durable(state: State) -> tuple[int, int]:
    """Term and index of the newest durable entry."""
    return state.log.term_at(state.log.persisted) or 0, state.log.persisted


def _newest(state: State, index: int) -> tuple[int, int]:
    """Term and index of an entry that this voter has. The disk that asks may have helped to commit it in the time of an
    earlier process, whose memory is gone: the committed ones surely, where that disk lost everything perhaps all."""
    return (state.log.term_at(index) or 0, index) if state.configuration.is_voter(state.node) else (0, 0)


def _is_named(state: State, peer: NodeId, incarnation: str) -> bool:
    """Whether the configuration means that disk, or does not know the node at all."""
    member = state.configuration.member(peer)
    return member is None or member.incarnation == incarnation


def _memory(state: State, peer: NodeId, incarnation: str) -> Memory:
    """Of that disk. Disks that the configuration does not name go first where there are too many."""
    memory = state.recall.memories.get((peer, incarnation))
    if memory is None:
        if len(state.recall.memories) >= MEMORIES_MAX:
            named = {(member.node, member.incarnation): None for member in state.configuration.members}
            strangers = [key for key in state.recall.memories if key not in named]
            del state.recall.memories[(strangers or list(state.recall.memories))[0]]
        memory = state.recall.memories[peer, incarnation] = Memory()
    return memory


def _memory_of_connected(state: State, peer: NodeId) -> Memory | None:
    said = state.recall.said.get(peer)
    return None if said is None else _memory(state, peer, said[0])


# -- what others remember of this node


def is_waiting(state: State) -> bool:
    """Whether a peer may still report that this node's disk lost a promise: until then this node promises nothing.

    A voter that is not connected is waited for one election timeout after the start; one whose program remembers
    nothing is not waited for. A connected node that the configuration does not name is waited for, too: the disk may
    have lost the configuration that names it.
    """
    if not state.recall.run:
        return False
    options, waited_ms = state.options, state.now.monotonic_ms - state.recall.started_ms
    if waited_ms >= PATIENCE_TIMEOUTS * options.election_timeout_max_ms:
        return False
    configuration = state.configuration
    strangers = [peer for peer in state.recall.starts if configuration.member(peer) is None]
    voters = [peer for peer in configuration.peers(state.node) if configuration.is_voter(peer)]
    for peer in (*voters, *strangers):
        if peer in state.recall.recalled:
            continue
        is_expected = state.recall.floor == NEW_DISK or waited_ms < options.election_timeout_min_ms
        if peer in state.recall.starts or (peer not in state.recall.said and is_expected):
            return True
    return False


def link_closed(state: State, peer: NodeId) -> None:
    """A peer's memory counts only while it is connected: after a reconnect it is asked again."""
    for known in (state.recall.starts, state.recall.recalled, state.recall.led):
        known.pop(peer, None)


def has_promised(state: State) -> tuple[int, int]:
    """The newest entry (term, index) that this node may have helped to commit and that its log may lack, by peers'
    reports: a log that ends before it must not win an election by this node's vote. What a leader replaced on this disk
    was not committed, or is in the log."""
    led = max(state.recall.led.values(), default=(0, 0))
    return max(state.recall.reported or (0, 0), led if led > state.recall.kept else (0, 0))


def may_grant(state: State, last_term: int, last_index: int) -> bool:
    """Whether this node may vote for a log that ends so, whatever its own log says.

    Under a floor by damage it grants no vote, because it does not know its promises. If peers reported them, a log that
    has the reported entry is as good as the one that promised.
    """
    return (not state.recall.floor or state.recall.reported is not None) and (last_term, last_index) >= has_promised(
        state
    )


def may_campaign(state: State) -> bool:
    """Whether every voter was asked, and none knows of anything that this log lacks."""
    last = state.log.last
    return not is_waiting(state) and (last.term, last.index) >= has_promised(state)


def next_deadline_ms(state: State) -> int | None:
    """When to ask again; None: there is no node to ask."""
    return state.recall.ask_ms if state.recall.run and (state.recall.floor or _unasked(state)) else None


def tick(state: State) -> None:
    """Once per heartbeat, ask the voters that have not answered, and a leader that may say that this node has
    everything again."""
    now_ms = state.now.monotonic_ms
    if not state.recall.run or now_ms < state.recall.ask_ms:
        return
    state.recall.ask_ms = now_ms + state.options.heartbeat_ms
    heard_ms = now_ms - PATIENCE_TIMEOUTS * state.options.election_timeout_max_ms
    for peer, answered_ms in list(state.recall.recalled.items()):
        if answered_ms < heard_ms and _keeps_from_campaigning(state, peer):
            # It hangs: as if its connection had closed, until it answers.
            del state.recall.recalled[peer], state.recall.led[peer]
    may_lift(state)
    asked = _unasked(state)
    if state.recall.floor and state.leader in state.recall.starts and state.leader not in asked:
        asked.append(state.leader)
    for peer in asked:
        _ask(state, peer)


def _unasked(state: State) -> list[NodeId]:
    """Those too whose report keeps this node from campaigning: their disk may hang now, or a leader has cut it."""
    return [
        peer
        for peer in state.recall.starts
        if peer not in state.recall.recalled or _keeps_from_campaigning(state, peer)
    ]


def _keeps_from_campaigning(state: State, peer: NodeId) -> bool:
    """Whether that peer acknowledged an entry to this disk that the log here lacks."""
    least = max(state.recall.kept, (state.log.last.term, state.log.last.index))
    return state.recall.led.get(peer, least) > least


def _ask(state: State, peer: NodeId) -> None:
    state.out.messages.append(
        Recall(
            shard=state.shard,
            sender=state.node,
            to=peer,
            term=state.term,
            run=state.recall.run,
            floor=state.recall.floor,
        )
    )


def on_reply(state: State, message: RecallReply) -> None:
    """A peer remembers; or the leader says that this node has everything again."""
    if not state.recall.run or message.run != state.recall.run:
        ignore(state, message, "it answers another process")
        return
    if is_beyond(state, message.promised_term, message.acked_term, message.led_term):
        ignore(state, message, BEYOND)
        return
    acked = (message.acked_term, message.acked_index)
    durable, is_first = _durable(state), message.sender not in state.recall.recalled
    if not message.is_lost:
        # A peer that refuses this process is not connected, and may report again.
        if message.sender in state.recall.starts:
            state.recall.recalled[message.sender] = state.now.monotonic_ms
        led = (message.led_term, message.led_index)
        state.recall.led[message.sender] = max(led, acked) if state.recall.floor == NEW_DISK else led
        is_kept = acked <= max(durable, state.recall.kept) and message.promised_term <= state.recall.kept_term
        if message.promised_term == state.term and state.vote == NOBODY:
            state.vote = state.node  # it may have voted in this term, and forgotten that: it votes for no other node
            state.out.hard_state = True
    else:
        is_kept = acked <= durable
    if not is_kept and message.is_alone and state.configuration.needs(state.node):
        if is_first:
            state.out.events.append(PromisesLost(state.node, *acked, message.promised_term, durable[1], durable[0]))
    elif not is_kept:
        if not _is_known(state, acked, message.promised_term):
            _go_under_floor(state, message)
    elif state.recall.floor and message.healed_index and _is_whole(state, message) and not is_waiting(state):
        lift(state)
    else:
        may_lift(state)


def _is_known(state: State, acked: tuple[int, int], promised_term: int) -> bool:
    """Whether this node is under a floor for that loss already: a peer that refuses it reports again and again."""
    if state.recall.floor == NEW_DISK:
        return promised_term <= state.recall.kept_term
    return state.recall.floor > promised_term and (state.recall.reported is None or acked <= state.recall.reported)


def _is_whole(state: State, message: RecallReply) -> bool:
    """Whether the leader of this term says it, of the entries that are durable here."""
    is_leader = isinstance(state.role, Follower) and state.role.leader == message.sender
    return is_leader and message.term == state.term and state.log.persisted >= message.healed_index


def _go_under_floor(state: State, message: RecallReply) -> None:
    """Promises were lost: no vote below the floor, and none at all in the terms in which one may have been given."""
    term = max(state.term, message.promised_term)
    acked = (message.acked_term, message.acked_index)
    if term > state.term or not isinstance(state.role, Follower):
        leader = NOBODY
        become_follower(state, term, leader, f"node {message.sender} remembers promises that this disk lost")
    if state.vote == NOBODY:
        state.vote = state.node  # it may have voted in this term, and forgotten it: it votes for no other node
    is_news = term + 1 > state.recall.floor
    # Else damage may have taken more than any peer remembers.
    if not state.recall.floor or state.recall.reported is not None:
        state.recall.reported = max(acked, state.recall.reported or (0, 0))
    state.recall.floor = max(state.recall.floor, term + 1)
    state.recall.kept, state.recall.kept_term = (0, 0), max(term, state.recall.kept_term)
    state.durable_term = min(state.durable_term, term - 1)  # the floor goes to the disk before anything is promised
    state.out.hard_state = True
    if is_news:  # else it was damaged, and is under that floor already
        state.out.events.append(
            WentUnderFloor(
                state.recall.floor,
                message.sender,
                message.acked_index,
                message.acked_term,
                message.promised_term,
                state.log.persisted,
            )
        )


def may_lift(state: State) -> None:
    """Lift the floor once an entry of a leader that was elected without this node is durable here: its log has all
    committed entries. Every voter that can be reached must also have reported its memory."""
    if state.recall.floor == NEW_DISK:
        _look_at_all(state)
    elif state.recall.floor and not is_waiting(state) and _durable(state)[0] >= state.recall.floor:
        lift(state)


def _look_at_all(state: State) -> None:
    """A disk that was formatted lost every promise of an earlier disk of its name. What that one helped to commit is on
    other voters too, perhaps on one alone: all have to answer, however long that takes. If none has more than the first
    configuration, the cluster is new. Else this node votes for a log that has all of theirs, until its leader lifts."""
    voters = [peer for peer in state.configuration.peers(state.node) if state.configuration.is_voter(peer)]
    if any(peer not in state.recall.recalled for peer in voters):
        return
    if not voters or max(has_promised(state)[1], state.log.last.index) <= 1:
        lift(state)
    elif has_promised(state)[1] > 1:
        state.recall.reported = has_promised(state)


def lift(state: State) -> None:
    """This node has all that it can have promised: it votes again."""
    state.recall.floor, state.recall.reported = 0, None
    state.recall.kept = max(state.recall.kept, _durable(state))
    state.out.hard_state = True
    state.out.events.append(Healed(state.log.persisted))
