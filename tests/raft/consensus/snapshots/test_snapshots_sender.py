"""A leader that sends a snapshot chunk by chunk, again where one was lost (pitfalls, E)."""

from dataclasses import replace

from raftlog.raft.codec.checks import crc32c
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import FollowerNeedsSnapshot, MessageIgnored
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, InstallSnapshot, InstallSnapshotReply
from raftlog.raft.options import Options
from raftlog.raft.types import EntryKind
from tests.raft.lab import (
    at,
    compacted_core,
    drain,
    lead,
    make_core,
    progress,
    reply,
)


def sending(total: int = 6, first: bytes = b"ab", **options: int) -> RaftCore:
    """A leader, its log compacted to 8, that has just sent node 2 the first of `total` bytes, two by two. Unless the
    options say something else, no more may be under way."""
    options = {"snapshot_window_bytes": len(first), **options}
    core = compacted_core(Options(snapshot_chunk_bytes=2, **options))
    lead(core, now_ms=300)
    reply(core, 2, match=0, success=False, prev=11, hint=(3, 1), now_ms=300)
    drain(core, 300)
    core.tick(at(360))
    ready = core.ready()
    assert ready is not None
    (fetch,) = ready.snapshot_fetches
    assert (fetch.peer, fetch.index, fetch.offset, fetch.bytes_max) == (2, 7, 0, len(first))
    core.snapshot_chunk(fetch, total, first, at(360))
    left = [
        (each.offset, each.total, each.done, each.crc, each.data)
        for each in drain(core, 360).to(2)
        if isinstance(each, InstallSnapshot)
    ]
    chunks = [(offset, first[offset : offset + 2]) for offset in range(0, len(first), 2)]
    assert left == [(offset, total, False, crc32c(data), data) for offset, data in chunks]
    return core


def answer(core: RaftCore, offset: int, *, accepted: bool = True, now_ms: int = 370) -> list[tuple[int, int]]:
    """Feed the leader an answer; (index, offset) of each chunk that it then wants from disk."""
    core.step(
        InstallSnapshotReply(
            sender=2, to=1, term=core.state.term, snapshot_index=7, snapshot_term=1, offset=offset, accepted=accepted
        ),
        at(now_ms),
    )
    ready = core.ready()
    return [(fetch.index, fetch.offset) for fetch in ready.snapshot_fetches] if ready else []


def test_an_answer_asks_for_the_next_chunk_and_an_old_one_for_nothing() -> None:
    """Late, doubled and impossible answers move nothing; a refusal waits for the heartbeat."""
    core = sending()
    assert answer(core, 2) == [(7, 2)]
    assert answer(core, 2) == []
    assert answer(core, 0) == []
    assert answer(core, 7) == []
    assert answer(core, 0, accepted=False) == []
    core.tick(at(core.next_deadline_ms()))
    ready = core.ready()
    assert ready is not None
    assert [fetch.offset for fetch in ready.snapshot_fetches] == [0]


def test_an_answer_from_before_does_not_hide_where_the_follower_is() -> None:
    """The follower lost its chunks and began again, and then an earlier answer came late. So the leader continues too
    far ahead. When that chunk has to leave again, the leader accepts the next answer, though it is further back (found
    by the simulator).
    """
    core = sending()
    assert answer(core, 4) == [(7, 4)]
    under_way = progress(core, 2).sending
    assert under_way is not None
    assert under_way.fetch is not None
    core.snapshot_chunk(under_way.fetch, 6, b"ef", at(370))
    drain(core, 370)
    assert answer(core, 2) == [], "it may be an old answer"
    wanted: list[int] = []
    for now_ms in range(420, 1_500, 60):
        reply(core, 3, match=12, now_ms=now_ms)
        reply(core, 2, match=0, success=False, prev=7, now_ms=now_ms)
        core.tick(at(now_ms))
        wanted += drain_fetches(core)
        if wanted:
            break
    assert wanted == [4]
    assert answer(core, 2, now_ms=1_500) == [(7, 2)]
    assert answer(core, 0, now_ms=1_500) == [], "what follows may be old again"


def test_a_chunk_that_is_not_answered_leaves_again() -> None:
    """After a while, not with every heartbeat."""
    core = sending()
    wanted: list[int] = []
    for now_ms in range(420, 1_500, 60):
        reply(core, 3, match=12, now_ms=now_ms)
        reply(core, 2, match=0, success=False, prev=7, now_ms=now_ms)
        core.tick(at(now_ms))
        wanted += [now_ms for fetch in drain_fetches(core) if fetch == 0]
    assert wanted == [1_380]


def drain_fetches(core: RaftCore) -> list[int]:
    """The offsets of the chunks wanted."""
    offsets: list[int] = []
    while (ready := core.ready()) is not None:
        offsets += [fetch.offset for fetch in ready.snapshot_fetches]
        if ready.entries:
            core.persisted(ready.entries[-1].term, ready.entries[-1].index, core.state.now)
        if ready.committed:
            core.applied(ready.committed[-1].index)
    return offsets


def test_a_closed_link_goes_on_where_it_was() -> None:
    """With the next heartbeat, at the same offset."""
    core = sending()
    assert answer(core, 2) == [(7, 2)]
    core.link_closed(2, at(380))
    assert drain_fetches(core) == []
    core.tick(at(core.next_deadline_ms()))
    assert drain_fetches(core) == [2]


def test_late_chunks_from_disk_are_not_sent() -> None:
    """Their follower got there otherwise, or is gone, or leadership is."""
    core = sending()
    core.step(
        InstallSnapshotReply(sender=2, to=1, term=2, snapshot_index=7, snapshot_term=1, offset=2, accepted=True),
        at(370),
    )
    ready = core.ready()
    assert ready is not None
    (fetch,) = ready.snapshot_fetches
    reply(core, 2, match=7, prev=7)
    assert progress(core, 2).mode is Mode.REPLICATE
    core.snapshot_chunk(fetch, 6, b"cd", at(380))
    core.snapshot_chunk(replace(fetch, peer=9), 6, b"cd", at(380))
    assert not [message for message in drain(core).messages if isinstance(message, InstallSnapshot)]
    core.step(AppendEntriesReply(sender=2, to=1, term=9, success=False, match=0, prev_index=0, round=0), at(390))
    core.snapshot_chunk(fetch, 6, b"cd", at(390))
    assert core.status().role is RoleName.FOLLOWER
    assert not [message for message in drain(core).messages if isinstance(message, InstallSnapshot)]


def test_answers_of_strangers_and_of_other_snapshots_are_ignored() -> None:
    """Neither moves anything; a follower's own late answer is at least a sign of life."""
    core = sending()
    core.step(
        InstallSnapshotReply(sender=8, to=1, term=2, snapshot_index=7, snapshot_term=1, offset=6, accepted=True),
        at(370),
    )
    assert [event for event in drain(core).events if isinstance(event, MessageIgnored)]
    core.step(
        InstallSnapshotReply(sender=2, to=1, term=2, snapshot_index=5, snapshot_term=1, offset=6, accepted=True),
        at(390),
    )
    assert progress(core, 2).mode is Mode.SNAPSHOT
    assert progress(core, 2).contact_ms == 390


def test_a_disk_that_cannot_deliver_is_not_asked_in_a_loop() -> None:
    """Again with the next heartbeat, from the start of the newest snapshot."""
    core = sending()
    assert answer(core, 2) == [(7, 2)]
    fetch = progress(core, 2).sending.fetch  # type: ignore[union-attr]
    assert fetch is not None
    core.snapshot_chunk(fetch, 0, b"", at(380))
    assert drain_fetches(core) == []
    core.tick(at(core.next_deadline_ms()))
    assert drain_fetches(core) == [0]


def test_a_streamed_follower_that_a_compaction_overtakes_gets_the_snapshot() -> None:
    """Its window was full: the next entries to send are gone.

    Guard: the term of `sent` in `replicate` of raft/consensus/replication.py.
    """
    core = make_core(1, 3, options=Options(inflight_messages_max=1))
    lead(core, now_ms=300)
    reply(core, 2, match=2, now_ms=300)
    reply(core, 3, match=2, now_ms=300)
    for _ in range(4):
        core.propose(EntryKind.COMMANDS, 1, b"x", at(310))
        drain(core)
    assert progress(core, 2).sent == 3
    for match in (3, 6):
        reply(core, 3, match=match, now_ms=320)
        drain(core)
    core.compact(core.state.log.last, 6)
    out = drain(core)
    assert [event for event in out.events if isinstance(event, FollowerNeedsSnapshot)] == [FollowerNeedsSnapshot(2, 4)]
    assert progress(core, 2).mode is Mode.SNAPSHOT


def test_a_follower_that_waits_is_asked_about_where_the_log_begins_now() -> None:
    """Further compactions move the place; a follower that got there in another way is streamed to.

    Guard: `progress.sent` in `feed` of raft/consensus/snapshots.py.
    """
    core = sending()
    reply(core, 3, match=12, now_ms=370)
    drain(core)
    core.compact(core.state.log.last, 12)
    assert drain_fetches(core) == []
    core.tick(at(core.next_deadline_ms()))
    asked = [message.prev_index for message in drain(core).to(2) if isinstance(message, AppendEntries)]
    assert asked == [12]
