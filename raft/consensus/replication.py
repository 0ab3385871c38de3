"""Replicates by AppendEntries, both ways: sending, probing, backing off, acknowledging, and the commit rule.

Messages are made when the driver asks for a Ready, so that everything proposed in one turn travels together. Raft paper
figure 2 and section 5.3; thesis 3.6.2 (commit rule), 10.2.1 (the leader's disk works in parallel).
"""

from __future__ import annotations

from raftlog.raft.codec.checks import INDEX_MAX
from raftlog.raft.consensus import membership, recall, snapshots
from raftlog.raft.consensus.progress import FollowerProgress, Mode
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.consensus.state import (
    INDEX_FAR,
    State,
    deny,
    hear_leader,
    ignore,
    note_difference,
    reject_difference,
)
from raftlog.raft.events import ConflictTruncated, FollowerProbing, LogDiffers
from raftlog.raft.messages import AppendEntries, AppendEntriesReply
from raftlog.raft.options import Options
from raftlog.raft.quorum import agreed
from raftlog.raft.ready import Fetch, without_void_promises
from raftlog.raft.types import NOBODY, Entry, NodeId

# ---------------------------------------------------------------------------------------------------------------
# The leader's side.


def replicate(state: State, role: Leader) -> None:
    """Send each follower the messages that its mode allows: entries in its window, a probe, or a commit index."""
    log = state.log
    last, committed = log.last.index, log.committed
    for peer, progress in role.progress.items():
        if progress.mode is Mode.REPLICATE:
            if progress.sent < log.first and log.term_at(progress.sent) is None:
                snapshots.need(state, peer, progress, progress.sent)  # compacted away meanwhile
                continue
            if progress.is_for(log.snapshot.index):
                snapshots.need(state, peer, progress, progress.match, ask_at=log.snapshot.index)
                continue
            if progress.sent < last and progress.takes(progress.sent):
                _stream(state, role, peer, progress)
            if progress.commit_sent < committed and progress.commit_sent < progress.sent:
                _send(state, role, peer, progress, progress.sent)
        elif progress.mode is Mode.SNAPSHOT:
            snapshots.feed(state, peer, progress)
        elif not progress.is_waiting:
            _probe(state, role, peer, progress)


def heartbeat(state: State, role: Leader) -> None:
    """Send every follower an empty AppendEntries from its match: durable entries can be answered without a sync.

    A follower that waits for a snapshot is asked whether it got the missing entries in another way.
    """
    for peer, progress in role.progress.items():
        heartbeat_to(state, role, peer, progress)


def heartbeat_to(state: State, role: Leader, peer: NodeId, progress: FollowerProgress) -> None:
    """The same for one follower."""
    _send(state, role, peer, progress, progress.sent if progress.mode is Mode.SNAPSHOT else progress.match)


def retry(state: State, role: Leader) -> None:
    """Once per heartbeat: ask again where a question or a message may be lost, and check which followers are behind."""
    log = state.log
    role.is_stuck = role.committed_at_heartbeat == log.committed < log.last.index
    role.committed_at_heartbeat = log.committed
    for peer, progress in role.progress.items():
        progress.look_at_pace(max(0, log.committed - progress.sent), state.now.monotonic_ms, state.options)
        progress.is_waiting = False
        if progress.inflight and progress.match == progress.match_at_heartbeat:
            _send(state, role, peer, progress, progress.sent)  # lost before it: the answer is a mismatch
        progress.match_at_heartbeat = progress.match
    recall.remind(state, role)


def _stream(state: State, role: Leader, peer: NodeId, progress: FollowerProgress) -> None:
    log, options = state.log, state.options
    while progress.sent < log.last.index and progress.takes(progress.sent) and progress.has_room(options):
        is_behind = _is_behind(state, role, progress)
        if is_behind and len(progress.inflight) >= progress.pace.messages_max:
            return
        bytes_max = _bytes_max(options, is_behind=is_behind)
        if progress.sent < log.tail.start.index:
            _fetch(state, peer, progress, bytes_max)
            return
        entries = progress.taken(log.tail.slice(progress.sent, bytes_max, options.append_entries_max))
        _send(state, role, peer, progress, progress.sent, entries)


def _is_behind(state: State, role: Leader, progress: FollowerProgress) -> bool:
    """Whether the follower's next missing entries were committed without it. Then no other node waits for them.

    The exception is a leader that commits nothing any more, perhaps because it needs this follower's vote.
    """
    return progress.sent < state.log.committed and not role.is_stuck


def _bytes_max(options: Options, *, is_behind: bool) -> int:
    return min(options.append_bytes_max, options.catch_up_bytes_max) if is_behind else options.append_bytes_max


def _probe(state: State, role: Leader, peer: NodeId, progress: FollowerProgress) -> None:
    """One question, then wait for its answer or the next heartbeat; entries ride along where they are at hand."""
    log, options = state.log, state.options
    if progress.sent < log.first - 1 or log.term_at(progress.sent) is None:
        snapshots.need(state, peer, progress, progress.sent)
        return
    if not progress.is_exact:
        _fetch(state, peer, progress, 1)  # one entry shows where the one before it ends
        return
    entries: tuple[Entry, ...] = ()
    if progress.sent >= log.tail.start.index:
        bytes_max = _bytes_max(options, is_behind=_is_behind(state, role, progress))
        entries = progress.taken(log.tail.slice(progress.sent, bytes_max, options.append_entries_max))
    progress.is_waiting = True
    _send(state, role, peer, progress, progress.sent, entries)


def _fetch(state: State, peer: NodeId, progress: FollowerProgress, bytes_max: int) -> None:
    if progress.fetch is None and not progress.is_waiting:
        progress.fetch = Fetch(peer, progress.sent, state.log.tail.start.index, bytes_max)
        state.out.fetches.append(progress.fetch)


def _send(
    state: State, role: Leader, peer: NodeId, progress: FollowerProgress, prev: int, entries: tuple[Entry, ...] = ()
) -> None:
    log = state.log
    prev_term = log.term_at(prev)
    if prev_term is None:
        if entries:
            return  # compacted away meanwhile
        prev, prev_term = 0, 0  # what it has is compacted away here: all that is known of both logs is their beginning
    proved = entries[-1].index if entries else prev
    # Never above the entries that this message proves to the follower. Pitfall 16: a follower commits more than the
    # message proved. Pitfall 27: a heartbeat with a commit above the follower's match.
    commit = min(log.committed, proved)
    if progress.mode is Mode.REPLICATE:
        progress.commit_sent = max(progress.commit_sent, commit)
        if entries:
            progress.note_sent(proved, sum([entry.size for entry in entries]))
    state.out.messages.append(
        AppendEntries(
            shard=state.shard,
            sender=state.node,
            to=peer,
            term=state.term,
            prev_index=prev,
            prev_term=prev_term,
            commit=commit,
            round=role.round,
            entries=entries,
        )
    )


def on_append_reply(state: State, role: Leader, message: AppendEntriesReply) -> None:
    """A follower's answer in this term."""
    progress = role.progress.get(message.sender)
    if progress is None:
        ignore(state, message, "the sender is not in this configuration")
        return
    log = state.log
    is_place = message.match <= log.last.index and log.may_end(message.match)
    if not is_place or not progress.round_first <= message.round <= role.round:
        ignore(state, message, "it answers a message that was never sent")
        return
    progress.contact_ms = state.now.monotonic_ms
    progress.round = max(progress.round, message.round)
    if not message.success:
        if message.prev_index <= progress.match:
            recall.doubt(state, role, message.sender, message)
        else:
            _back_off(state, progress, message)
        return
    if message.round >= progress.doubted_in:
        progress.doubted_in = 0
    if progress.note_match(message.match):
        recall.acknowledged(state, message)
        advance_commit(state, role)


def _back_off(state: State, progress: FollowerProgress, message: AppendEntriesReply) -> None:
    """The logs do not agree at `prev_index`: step back by index and term (raft paper section 5.3, pitfall 25: back-off
    one index at a time)."""
    log = state.log
    if progress.mode is Mode.SNAPSHOT:
        return  # as expected
    if progress.mode is Mode.REPLICATE:
        if progress.match < message.prev_index <= progress.sent:
            progress.probe(progress.match)  # a message was lost on the way; proved entries stay proved
            state.out.events.append(FollowerProbing(message.sender, progress.sent))
        return
    if message.prev_index != progress.sent:
        return  # answers an older question
    oldest = log.first - 1
    if log.term_at(message.hint_index) == message.hint_term and log.may_end(message.hint_index):
        index, is_exact = message.hint_index, True  # same index and term: the same entry, so it ends here too
    elif message.hint_index < oldest or message.prev_index <= oldest:
        snapshots.need(state, message.sender, progress, message.hint_index)
        return
    else:
        index, is_exact = log.last_end(message.hint_index, message.hint_term)
    if index < message.prev_index:
        progress.probe(index, is_exact=is_exact)
        progress.is_waiting = index < progress.match  # it is asked at `match`, which it rejects: not at once
    else:
        ignore(state, message, f"its hint {message.hint_index} does not lead back")


def advance_commit(state: State, role: Leader) -> None:
    """Commit entries that a majority holds durably, if the newest of them is of this term (thesis 3.6.2).

    Pitfall 15: an entry of an older term committed by counting. Pitfall 22: a leader counts itself before its own sync.

    The leader counts itself by what its own disk confirmed, and only if it is a voter.
    """
    log = state.log
    matches = {state.node: log.persisted}
    for peer, progress in role.progress.items():
        matches[peer] = progress.match
    index = agreed(state.configurations[-1][1], matches)
    if index <= log.committed or log.term_at(index) != state.term:
        return
    assert log.may_end(index), f"commit {index} is not the end of an entry"
    role.uncommitted_bytes -= log.bytes_between(log.committed, index)
    log.committed = index


def on_fetched(state: State, role: Leader, fetch: Fetch, entries: tuple[Entry, ...]) -> None:
    """Entries that a follower needs came back from disk; () if the disk could not deliver."""
    progress = role.progress.get(fetch.peer)
    if progress is None or progress.fetch != fetch:
        return  # asked before something changed
    progress.fetch = None
    log = state.log
    if not entries or log.term_at(entries[-1].index) != entries[-1].term:
        if not progress.is_exact:  # the disk does not know: go back to a place where an entry ends for sure
            progress.probe(log.last_sure_end(progress.sent, log.term_at(progress.sent) or 0))
        progress.is_waiting = True  # until the next heartbeat
    elif progress.mode is Mode.PROBE:
        progress.probe(min(entries[0].before, progress.sent))
    elif entries[0].before == progress.sent:
        _send(state, role, fetch.peer, progress, progress.sent, progress.taken(entries))
    else:
        progress.is_waiting = True  # a disk that answers something else must not be asked in a loop


# ---------------------------------------------------------------------------------------------------------------
# The follower's side.


def on_append(state: State, message: AppendEntries) -> None:
    """AppendEntries of the current term (figure 2, receiver implementation)."""
    hear_leader(state, message.sender)
    log = state.log
    prev, entries = message.prev_index, message.entries
    if entries and state.is_installing:
        return  # the snapshot replaces this log: the leader sends entries again, and each heartbeat has its answer
    known_term = log.term_at(prev)
    if known_term != message.prev_term and (prev > log.committed or known_term is not None):
        if prev <= log.committed:
            note_difference(state, prev)  # and the leader goes back to where both logs still agree
        if recall.is_waiting(state):
            return  # as below: a rejection would confirm the leader's read round, too
        hint = log.last_sure_end(prev, message.prev_term)
        _answer(state, message, success=False, match=0, hint=(hint, log.term_at(hint) or 0))
        return
    # At or below the commit index the logs agree by leader completeness, even where this log no longer has the terms.
    if entries and not _is_chain(state, message):
        return
    fresh = _skip_known(state, entries)
    if fresh and _is_refused(state, message, fresh[0]):
        return
    proved = entries[-1].index if entries else prev
    commit = min(message.commit, proved)
    if reason := _impossible(state, fresh, commit) or membership.unreadable(state, fresh):
        deny(state, message, reason)
        return
    if fresh:
        if fresh[0].before < log.last.index:
            _cut(state, fresh[0])
        log.append(fresh, state.now.monotonic_ms)
        membership.take_effect(state, fresh)
    log.committed = max(commit, log.committed)
    if recall.is_waiting(state):
        return  # its disk may have lost a promise of a newer term: the leader asks again with each heartbeat
    recall.led(state, message, proved)
    _answer(state, message, success=True, match=proved)


def fetch_committed(state: State) -> None:
    """Ask the disk for committed entries that are not in memory, no faster than they are applied."""
    if state.log.unapplied_bytes >= state.options.apply_bytes_max:
        return
    applying = state.applying
    if applying.fetch is None and applying.retry_ms is None and (wanted := state.log.wants()) is not None:
        applying.fetch = Fetch(NOBODY, *wanted, state.options.append_bytes_max)
        state.out.fetches.append(applying.fetch)


def refuse(state: State, message: AppendEntries) -> None:
    """Send the current term to a leader of an old one."""
    state.out.messages.append(
        AppendEntriesReply(
            shard=state.shard,
            sender=state.node,
            to=message.sender,
            term=state.term,
            success=False,
            match=0,
            prev_index=message.prev_index,
            round=message.round,
        )
    )


def _is_chain(state: State, message: AppendEntries) -> bool:
    """Whether the entries follow prev and each other, and the first names the header that is really there."""
    index, term = message.prev_index, message.prev_term
    for entry in message.entries:
        if entry.before != index or not term <= entry.term <= message.term:
            deny(state, message, f"entry {entry.index} (term {entry.term}) does not follow {index} (term {term})")
            return False
        if max(entry.time_ms, entry.clock_ms) > INDEX_MAX:  # no leader could put an entry behind it
            deny(state, message, f"entry {entry.index} has the time {entry.time_ms}, clock {entry.clock_ms}")
            return False
        index, term = entry.index, entry.term
    return not _has_other_header(state, message, message.entries[0])


def _has_other_header(state: State, message: AppendEntries, entry: Entry) -> bool:
    """Whether the entry before the leader's `entry` is another one here."""
    mark, named = state.log.mark_at(entry.before), entry.previous_crc
    if mark is None or mark.index == 0 or mark.header_crc == named:
        return False
    what = f"entry {mark.index} has header CRC {mark.header_crc:08x} here, {named:08x} there"
    reject_difference(state, message, LogDiffers(message.sender, mark.index, mark.header_crc, named), what)
    return True


def _is_refused(state: State, message: AppendEntries, entry: Entry) -> bool:
    """Whether the leader's `entry` cannot follow this log, or would take the place of a committed one: a disk that was
    made again under its old identity may have helped to elect a leader without it (docs/decisions/0017)."""
    log = state.log
    if entry.before >= log.committed:
        return _has_other_header(state, message, entry)
    mark = log.mark_at(entry.index)
    event = LogDiffers(message.sender, entry.index, 0 if mark is None else mark.header_crc, entry.mark.header_crc)
    what = f"entry {entry.index} of term {entry.term} is not the one that is committed here"
    reject_difference(state, message, event, what)
    return True


def _skip_known(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Without the leading entries that the log has already: an old message must not shorten it (pitfall 18: an old
    message shortens the log)."""
    log = state.log
    last = log.last.index
    known = 0
    for entry in entries:
        if entry.index > last:
            break
        here = log.term_at(entry.index)
        if here != entry.term and (entry.index > log.committed or here is not None):
            break
        known += 1
    return entries[known:] if known else entries


def _impossible(state: State, fresh: tuple[Entry, ...], commit: int) -> str:
    """Why no log that agrees with this one up to its commit index has these entries, or is committed up to there; "" if
    one may. It is asked before anything is changed, so that no message breaks an invariant."""
    log = state.log
    known = log.last.index
    if fresh:
        known = fresh[0].before
        if fresh[-1].index > INDEX_FAR:
            return f"no log has {fresh[-1].index} records"
        if not log.may_end(known) or fresh[0].term < (log.term_at(known) or 0):
            return f"no entry of term {fresh[0].term} or before ends at {known} here"
    is_end = any(entry.index == commit for entry in fresh) if commit > known else log.may_end(commit)
    return "" if commit <= log.committed or is_end else f"it commits {commit}, which is not the end of an entry here"


def _cut(state: State, replacement: Entry) -> None:
    """Figure 2, AppendEntries step 3: an existing entry conflicts with a new one."""
    log = state.log
    lost = log.last.index
    log.cut(replacement.before, replacement, state.term)
    membership.roll_back(state, replacement.before)
    state.out.after_sync = without_void_promises(state.out.after_sync, replacement.before)
    state.out.events.append(ConflictTruncated(replacement.before, lost, state.term))


def _answer(state: State, message: AppendEntries, *, success: bool, match: int, hint: tuple[int, int] = (0, 0)) -> None:
    """Reply; at once only if nothing in the reply has still to reach the disk (persist, then promise)."""
    reply = AppendEntriesReply(
        shard=state.shard,
        sender=state.node,
        to=message.sender,
        term=state.term,
        success=success,
        match=match,
        prev_index=message.prev_index,
        round=message.round,
        hint_index=hint[0],
        hint_term=hint[1],
    )
    if match <= state.log.persisted and state.term == state.durable_term:
        state.out.messages.append(reply)
        return
    waiting = state.out.after_sync
    if success and waiting and _is_covered(waiting[-1], reply):
        waiting[-1] = reply
    else:
        waiting.append(reply)


def _is_covered(older: object, newer: AppendEntriesReply) -> bool:
    """Whether `newer`, which waits for the same sync, says all that `older` does."""
    return (
        isinstance(older, AppendEntriesReply)
        and older.success
        and (older.to, older.term) == (newer.to, newer.term)
        and older.match <= newer.match
        and older.round <= newer.round
    )
