"""The words of a story: every message, event, entry and node as one short line.

`3@2` is the entry that ends at index 3, of term 2; `3-5@2` one of three records, indexes 3 to 5. A name after it is the
data that a story proposed. Fields that say nothing (round 0, no entries) are left out.
"""

from __future__ import annotations

from dataclasses import fields

from raftlog.raft import events
from raftlog.raft.consensus.progress import FollowerProgress
from raftlog.raft.consensus.status import CoreStatus
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.raft.ready import SyncBatch
from raftlog.raft.types import Entry, EntryKind, NodeId

PLAIN = b"x"  # the data of entries that a story does not name


def entry_text(entry: Entry) -> str:
    """Where it is, and what."""
    where = f"{entry.first}-{entry.index}@{entry.term}" if entry.count > 1 else f"{entry.index}@{entry.term}"
    if entry.kind is not EntryKind.COMMANDS:
        return f"{where} {entry.kind.name.lower()}"
    if entry.data == PLAIN:
        return where
    return f"{where} {entry.data.decode()}" if len(entry.data) <= 12 else f"{where} ({len(entry.data)} B)"


def entries_text(entries: tuple[Entry, ...] | list[Entry]) -> str:
    """In brackets, in order."""
    return f"[{', '.join(entry_text(entry) for entry in entries)}]"


def message_text(message: Message) -> str:
    """Its name and its fields, without sender and addressee."""
    words = [type(message).__name__, f"term={message.term}"]
    match message:
        case RequestVote():
            words += [f"last={message.last_index}@{message.last_term}"]
            words += [name for name in ("pre", "transfer", "link_closed") if getattr(message, name)]
        case RequestVoteReply():
            words += ["granted" if message.granted else "refused"]
            words += ["pre"] if message.pre else []
            words += [f"to_term={message.request_term}"] if message.request_term != message.term else []
        case AppendEntries():
            words += [f"prev={message.prev_index}@{message.prev_term}", f"commit={message.commit}"]
            words += [f"round={message.round}"] if message.round else []
            words += [entries_text(message.entries)] if message.entries else []
        case AppendEntriesReply(success=True):
            words += [f"match={message.match}"]
            words += [f"round={message.round}"] if message.round else []
        case AppendEntriesReply():
            words += [f"mismatch at={message.prev_index} hint={message.hint_index}@{message.hint_term}"]
            words += [f"round={message.round}"] if message.round else []
        case TimeoutNow():
            words += [f"last={message.last_index}"]
        case _:
            words += _fields(message)
    return " ".join(words)


def _fields(value: Message) -> list[str]:
    told = []
    for field in fields(value):
        if field.name in {"sender", "to", "term", "shard"}:
            continue
        what = getattr(value, field.name)
        if isinstance(what, bytes):
            told.append(f"{field.name}={len(what)}B")
        elif what or not isinstance(what, bool):
            told.append(f"{field.name}={what}")
    return told


def event_text(event: events.Event) -> str:
    """What happened in a node, after its number."""
    match event:
        case events.BecameFollower(term, leader, reason):
            return f"follows {leader or 'nobody'} in term {term}: {reason}"
        case events.BecamePreCandidate(term, reason):
            return f"asks for pre-votes in term {term}: {reason}"
        case events.BecameCandidate(term, reason):
            return f"campaigns in term {term}: {reason}"
        case events.BecameLeader(term, index):
            return f"LEADS term {term}, from index {index} on"
        case events.ConflictTruncated(kept, lost, term):
            return f"drops entries {kept + 1} to {lost}: the leader of term {term} has others"
        case events.FollowerProbing(follower, index):
            return f"probes {follower} again, at {index}"
        case events.FollowerNeedsSnapshot(follower, index):
            return f"finds that {follower} needs a snapshot: {index} is older than the log"
        case events.TransferStarted(to):
            return f"begins to hand over to {to}"
        case events.TransferEnded(to, reason):
            return f"ends the hand-over to {to}: {reason}"
        case events.ConfigurationChanged(index, voters, outgoing, learners):
            words = [f"voters {list(voters)}"]
            words += [f"and those before, {list(outgoing)}"] if outgoing else []
            words += [f"learners {list(learners)}"] if learners else []
            return f"is under the configuration of index {index}: {', '.join(words)}"
        case events.MessageIgnored(sender, kind, reason):
            return f"ignores {kind} from {sender}: {reason}"
        case _:
            named = ", ".join(f"{field.name} {getattr(event, field.name)}" for field in fields(event))
            return f"notes {type(event).__name__}: {named}"


def batch_text(batch: SyncBatch) -> str:
    """What one trip to the disk makes durable; empty where it only lets answers go."""
    words = []
    if batch.hard_state is not None:
        vote = f" and its vote for {batch.hard_state.vote}" if batch.hard_state.vote else ""
        words.append(f"term {batch.hard_state.term}{vote}")
    if batch.cut_after is not None:
        words.append(f"the cut after {batch.cut_after}")
    if batch.entries:
        words.append(entries_text(batch.entries))
    return ", ".join(words)


def progress_text(node: NodeId, follower: FollowerProgress) -> str:
    """How a leader sees a follower."""
    flight = f" in flight: {len(follower.inflight)} ({follower.inflight_bytes} B)"
    shown = flight if follower.inflight else ""
    return f"{node} {follower.mode.value} match={follower.match} sent={follower.sent}{shown}"


def status_text(status: CoreStatus) -> str:
    """One node in one line."""
    words = [str(status.node), status.role.value, f"term={status.term}", f"vote={status.vote or '-'}"]
    words += [f"leader={status.leader or '-'}", f"last={status.last.index}@{status.last.term}"]
    words += [f"durable={status.persisted}", f"commit={status.commit}", f"applied={status.applied}"]
    if status.transfer_to:
        words.append(f"hands over to {status.transfer_to}")
    return " ".join(words)
