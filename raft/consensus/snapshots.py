"""Sends and receives InstallSnapshot: a follower that needs dropped log gets the state instead, chunk by chunk.

The core never reads storage. Each chunk is answered when it is written. The leader keeps a window of chunks under way,
at the pace of the answers (`raftlog.raft.consensus.progress.Upload`). The answers are the flow control, and give the
place to continue after a lost message. Chunks are accepted in order only; after any loss the leader goes back to the
last answered one.

How a driver uses it. *Sending*: when its own snapshot up to `mark` is durable, it calls `core.compact(mark)`. To give
up the log up to an earlier end of an entry, it calls `core.compact(mark, keep_after)`: slow followers may still need
the entries after it. Only then it removes files. It answers each of `Ready.snapshot_fetches` with
`core.snapshot_chunk(...)`. It keeps a snapshot that is being sent (`status().followers` shows that) if it can.

*Receiving*: it writes each of `Ready.snapshot_writes` aside, in order, and answers with `core.snapshot_written(write,
now)`. At `Ready.snapshot_install` it takes five steps:
1. It carries out every durable part of this and all earlier Readies, and applies their entries.
2. It checks the snapshot.
3. It makes the snapshot durable under its name.
4. It begins the log on disk again after the snapshot.
5. It loads the state, and calls `core.installed(mark, configuration, configuration_index, now)` with the snapshot's
header.

After a crash between 3 and 4, the next start finds a log without the entry (index, term) of the snapshot, and does step
4. If any step fails, it calls `core.snapshot_failed(now)` and drops the waiting writes. From the install to
either call the core gives no entry to append or apply. Raft paper section 7; thesis chapter 5; docs/pitfalls.md,
section E.
"""

from __future__ import annotations

from raftlog.raft.codec.checks import crc32c
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus import membership
from raftlog.raft.consensus.progress import FIRST_CHUNKS, FollowerProgress, Mode, Upload
from raftlog.raft.consensus.roles import Follower, Leader
from raftlog.raft.consensus.state import INDEX_FAR, Download, State, deny, hear_leader, ignore, reject_difference
from raftlog.raft.events import FollowerNeedsSnapshot, LogDiffers, SnapshotInstalled, SnapshotSent, SnapshotStarted
from raftlog.raft.messages import InstallSnapshot, InstallSnapshotReply
from raftlog.raft.ready import SnapshotFetch, SnapshotInstall, SnapshotWrite
from raftlog.raft.types import Mark, NodeId

# ---------------------------------------------------------------------------------------------------------------
# The leader's side.


def need(state: State, peer: NodeId, progress: FollowerProgress, after: int, ask_at: int = 0) -> None:
    """That follower needs what comes after `after`, which this log no longer has, or its disk has no room for.
    Heartbeats ask whether it is at `ask_at`, or where this log begins."""
    state.out.events.append(FollowerNeedsSnapshot(peer, after + 1))
    progress.need_snapshot(max(ask_at, state.log.first - 1))


def feed(state: State, peer: NodeId, progress: FollowerProgress) -> None:
    """Ask the disk for the next chunks, if the window has room for one."""
    log, options = state.log, state.options
    if progress.match >= log.first - 1 and not (progress.hold is not None and progress.hold.is_far):
        progress.probe(progress.match)  # it was far behind on a full disk, and is not any more
        return
    progress.sent = max(progress.sent, log.first - 1)
    if progress.hold is not None and not progress.hold.takes_snapshot:
        return
    sending = progress.sending
    if sending is None:
        if progress.is_waiting or not log.snapshot.index or log.snapshot.index < log.first - 1:
            return
        window_bytes = min(FIRST_CHUNKS * options.snapshot_chunk_bytes, options.snapshot_window_bytes)
        sending = progress.sending = Upload(log.snapshot, window_bytes=window_bytes)
        state.out.events.append(SnapshotStarted(peer, log.snapshot.index))
    if sending.is_silent(state.now.monotonic_ms, options):
        sending.go_to(sending.offset)
        sending.is_doubted = True
    if sending.fetch is None and not progress.is_waiting and sending.has_room(options):
        mark = sending.mark
        sending.fetch = SnapshotFetch(peer, mark.index, mark.term, sending.sent, sending.room_bytes(options))
        state.out.snapshot_fetches.append(sending.fetch)


def on_chunk(state: State, role: Leader, fetch: SnapshotFetch, total: int, data: bytes) -> None:
    """Some chunks came from disk; b"" if that snapshot is gone: then the newest one is sent, from its start."""
    progress = role.progress.get(fetch.peer)
    if progress is None or progress.sending is None or progress.sending.fetch != fetch:
        return  # asked before something changed
    sending = progress.sending
    sending.fetch = None
    if not data:
        progress.sending = None
        progress.is_waiting = True  # until the next heartbeat: a disk that cannot must not be asked in a loop
        return
    assert fetch.offset + len(data) <= min(total, fetch.offset + fetch.bytes_max), (fetch, len(data), total)
    sending.total = total
    for first in range(0, len(data), state.options.snapshot_chunk_bytes):
        chunk = data[first : first + state.options.snapshot_chunk_bytes]
        offset = sending.sent
        sending.note_sent(len(chunk), state.now.monotonic_ms)
        state.out.messages.append(
            InstallSnapshot(
                shard=state.shard,
                sender=state.node,
                to=fetch.peer,
                term=state.term,
                snapshot_index=fetch.index,
                snapshot_term=fetch.term,
                offset=offset,
                total=total,
                crc=crc32c(chunk),
                done=sending.sent == total,
                data=chunk,
            )
        )


def on_reply(state: State, role: Leader, message: InstallSnapshotReply) -> None:
    """The progress of that follower. An answer about a snapshot that is not being sent is old."""
    progress = role.progress.get(message.sender)
    if progress is None:
        ignore(state, message, "the sender is not in this configuration")
        return
    progress.contact_ms = state.now.monotonic_ms
    sending = progress.sending
    if sending is None or (sending.mark.index, sending.mark.term) != (message.snapshot_index, message.snapshot_term):
        return
    if not sending.total or message.offset > sending.total:
        ignore(state, message, "it answers a chunk that was never sent")
    elif not message.accepted:
        sending.go_to(message.offset)
        progress.is_waiting = True  # until the next heartbeat
    elif message.offset == sending.total:
        # Not proved by this: asked, as after every start. The log may have moved on by more than one snapshot.
        progress.probe(sending.mark.index)
        state.out.events.append(SnapshotSent(message.sender, message.snapshot_index))
    elif message.offset > sending.offset:
        sending.note_written(message.offset, state.now.monotonic_ms, state.options)
    elif sending.is_doubted and message.offset < sending.offset:
        # That follower began again, and a late answer from before was believed (found by the simulator).
        sending.go_to(message.offset)


def on_link_closed(progress: FollowerProgress) -> None:
    """The chunks under way are lost, and the follower does not listen now. Sending goes on with the next heartbeat."""
    if progress.mode is Mode.SNAPSHOT and progress.sending is not None:
        progress.sending.go_to(progress.sending.offset)
        progress.is_waiting = True


def on_bulk_opened(state: State, peer: NodeId) -> None:
    """The link that carries chunks to that follower was made again: the chunks under way are lost, and are sent again.
    Not while the follower itself is not connected: a proxy takes dials for a process that is down."""
    progress = state.role.progress.get(peer) if isinstance(state.role, Leader) else None
    if progress is not None and progress.sending is not None and peer in state.recall.said:
        progress.sending.go_to(progress.sending.offset)


# ---------------------------------------------------------------------------------------------------------------
# The follower's side.


def on_install(state: State, message: InstallSnapshot) -> None:
    """One chunk from the leader of this term (figure 5.3 of the thesis, receiver implementation)."""
    hear_leader(state, message.sender)
    if state.is_installing:
        return  # the answer follows when that is done
    if reason := _impossible(state, message):
        deny(state, message, reason)
        return
    if isinstance(state.role, Follower) and state.role.differs_at:
        event = LogDiffers(message.sender, state.role.differs_at, 0, 0)
        what = (
            f"a snapshot would replace committed entries: that at {event.index} is another one at node {event.leader}"
        )
        reject_difference(state, message, event, what)
        return
    if _has_all(state, message.snapshot_index, message.snapshot_term):
        state.receiving = None
        _answer(state, message.sender, message.snapshot_index, message.snapshot_term, message.total)
        return
    receiving = state.receiving
    if receiving is None or not _belongs(receiving, message):
        if receiving is not None and _is_older(receiving, message):
            return
        receiving = Download(message.sender, message.term, message.snapshot_index, message.snapshot_term, message.total)
        if message.offset == 0:
            state.receiving = receiving
    end = message.offset + len(message.data)
    if crc32c(message.data) != message.crc or not message.data or message.done != (end == message.total):
        ignore(state, message, f"bytes {message.offset} to {end} of {message.total} fail their check")
        _tell(state, receiving, accepted=False)
    elif receiving.offset <= message.offset < receiving.ahead:
        pass  # it waits for its turn already, and is answered when it is written
    elif message.offset != receiving.ahead:
        _tell(state, receiving, accepted=receiving is state.receiving)
    elif not receiving.writes or end - receiving.offset <= state.options.snapshot_window_bytes:
        write = SnapshotWrite(receiving.index, receiving.term, message.offset, message.total, message.data)
        receiving.ahead = end
        receiving.writes.append(write)
        state.out.snapshot_writes.append(write)


def on_written(state: State, write: SnapshotWrite) -> None:
    """A chunk is written aside; the last one is answered when the snapshot is in force."""
    receiving = state.receiving
    if receiving is None or not receiving.writes or receiving.writes[0] != write:
        return  # of a snapshot that is not wanted any more
    receiving.writes.popleft()
    receiving.offset += len(write.data)
    if receiving.offset < receiving.total:
        _tell(state, receiving, accepted=True)
    elif _has_all(state, receiving.index, receiving.term):  # entries came meanwhile, from another leader
        state.receiving = None
        _tell(state, receiving, accepted=True)
    elif _is_inside(state, receiving.index, receiving.term):  # such entries as no leader has that has this snapshot
        on_failed(state)
    else:
        receiving.is_installing = True
        # nothing is applied from here on (pitfall 54: apply that runs beside an install)
        state.applying.fetch = state.applying.retry_ms = None
        state.out.snapshot_install = SnapshotInstall(receiving.index, receiving.term)


def on_installed(state: State, mark: Mark, configuration: Configuration, configuration_index: int) -> None:
    """The snapshot is durable and in force: the log begins behind it, with the snapshot's configuration.

    That holds for any configuration of the log before. Pitfall 42: an install keeps the old configuration. Pitfall 53:
    a snapshot that wipes a valid suffix.
    """
    receiving = state.receiving
    assert receiving is not None, "no snapshot was to be installed"
    assert receiving.is_installing, "the snapshot is not there yet"
    assert (mark.index, mark.term) == (receiving.index, receiving.term), (mark, receiving.index, receiving.term)
    assert configuration_index <= mark.index, (configuration_index, mark.index)
    assert not isinstance(state.role, Leader), "a leader has everything that is committed"
    state.log.restart(mark, state.now.monotonic_ms)
    state.configurations = [(configuration_index, configuration)]
    state.receiving = None
    state.out.events.append(SnapshotInstalled(mark.index, mark.term))
    _tell(state, receiving, accepted=True)


def forget_overtaken(state: State) -> None:
    """The log has all that a snapshot stands for, by entries of another leader: its sender may send no other chunk."""
    receiving = state.receiving
    if receiving is not None and not receiving.is_installing and receiving.index <= state.log.committed:
        state.receiving = None


def on_failed(state: State) -> None:
    """It could not be written, or the bytes are no snapshot: the log stays, and the leader begins again."""
    receiving, state.receiving = state.receiving, None
    if receiving is not None:
        receiving.offset = 0
        _tell(state, receiving, accepted=False)


def _impossible(state: State, message: InstallSnapshot) -> str:
    """Why no leader of that term has such a snapshot; "" if one may."""
    index, term, end = message.snapshot_index, message.snapshot_term, message.offset + len(message.data)
    committed = state.log.committed
    if index > INDEX_FAR or term > message.term or (index > committed and term < (state.log.term_at(committed) or 0)):
        return f"no snapshot of term {message.term} ends at {index} in term {term}"
    if _is_inside(state, index, term):
        return f"its snapshot ends at {index}, which is not the end of an entry here"
    return f"bytes up to {end} of {message.total}" if end > message.total else ""


def _is_inside(state: State, index: int, term: int) -> bool:
    """Whether this log has the record at `index` in that term, and no entry ends there."""
    log = state.log
    return index > log.committed and log.term_at(index) == term and not log.may_end(index)


def _has_all(state: State, index: int, term: int) -> bool:
    """Whether the log has what the snapshot (index, term) stands for, and so keeps all it has (thesis section 5.1).

    An equal entry at its end means equal entries before; and a snapshot holds only committed entries.
    """
    log = state.log
    if index <= log.committed:
        return True
    if log.term_at(index) != term or not log.may_end(index):
        return False
    log.committed = index
    membership.forget(state)
    return True


def _belongs(receiving: Download, message: InstallSnapshot) -> bool:
    """Whether it is a chunk of that very snapshot: another leader's may have other bytes."""
    return (message.sender, message.term, message.snapshot_index, message.snapshot_term, message.total) == (
        receiving.sender,
        receiving.leader_term,
        receiving.index,
        receiving.term,
        receiving.total,
    )


def _is_older(receiving: Download, message: InstallSnapshot) -> bool:
    """Whether it was overtaken by a newer snapshot of the same leader."""
    return message.term == receiving.leader_term and message.snapshot_index < receiving.index


def _tell(state: State, receiving: Download, *, accepted: bool) -> None:
    """Answer the leader, if it still leads."""
    if receiving.leader_term == state.term:
        _answer(state, receiving.sender, receiving.index, receiving.term, receiving.offset, accepted=accepted)


def _answer(state: State, to: NodeId, index: int, term: int, offset: int, *, accepted: bool = True) -> None:
    reply = InstallSnapshotReply(
        shard=state.shard,
        sender=state.node,
        to=to,
        term=state.term,
        snapshot_index=index,
        snapshot_term=term,
        offset=offset,
        accepted=accepted,
    )
    (state.out.messages if state.term == state.durable_term else state.out.after_sync).append(reply)


def refuse(state: State, message: InstallSnapshot) -> None:
    """Send the current term to a leader of an old one."""
    _answer(state, message.sender, message.snapshot_index, message.snapshot_term, 0, accepted=False)
