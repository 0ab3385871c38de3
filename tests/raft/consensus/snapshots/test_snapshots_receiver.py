"""Tests a node that receives a snapshot: chunks out of place, kept entries, replaced entries (pitfalls, E)."""

from dataclasses import replace

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.events import MessageIgnored, SnapshotInstalled
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, InstallSnapshotReply, Message
from raftlog.raft.ready import Ready
from raftlog.raft.types import Mark
from tests.raft.lab import append, append_entries, at, chunk, configuration, drain, extend, log_of, make_core


def feed(core: RaftCore, message: Message, *, write: bool = True, now_ms: int = 0) -> list[Ready]:
    """Feed a message; with `write` chunks are written at once. Every Ready that follows."""
    core.step(message, at(now_ms))
    taken: list[Ready] = []
    while (ready := core.ready()) is not None:
        taken.append(ready)
        for each in ready.snapshot_writes if write else ():
            core.snapshot_written(each, at(now_ms))
        if ready.committed:
            core.applied(ready.committed[-1].index)
    return taken


def told(readies: list[Ready]) -> list[tuple[int, bool]]:
    """(offset, accepted) of each answer."""
    messages = [message for ready in readies for message in (*ready.messages, *ready.messages_after_sync)]
    return [(each.offset, each.accepted) for each in messages if isinstance(each, InstallSnapshotReply)]


def heartbeat(term: int = 1) -> AppendEntries:
    """An empty one of node 2."""
    return append_entries(prev=(0, 0), term=term, commit=0)


def test_pitfall_53_an_older_snapshot_is_answered_and_nothing_changes() -> None:
    """Entries at or below the commit index are here already.

    Guard: `_has_all` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3, 1, 1, 1)
    append(core, prev=(4, 1), term=1, commit=4)
    before = core.status()
    assert told(feed(core, chunk(index=3))) == [(6, True)]
    assert replace(core.status(), leader=2) == before


def test_pitfall_53_a_valid_suffix_is_kept() -> None:
    """The entry (index, term) is in the log, so the log has all that the snapshot stands for: only commit moves.

    Guard: `_has_all` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3, 1, 1, 1, 1)
    assert told(feed(core, chunk(index=4))) == [(6, True)]
    assert (core.status().commit, core.status().last.index) == (4, 5)


def test_pitfall_53_a_conflicting_suffix_is_replaced() -> None:
    """Another term at that index: the whole log is dropped, with its acknowledged entries."""
    core = make_core(1, 3, 1, 1, 1, 1, term=3)
    readies = feed(core, chunk(index=4, last_term=2, term=3))
    assert [ready.snapshot_install is not None for ready in readies][-1]
    core.installed(Mark(4, 2, 7, 0, 99), configuration(4), 3, at(10))
    status = core.status()
    assert (status.first, status.last.index, status.commit, status.applied, status.persisted) == (5, 4, 4, 4, 4)
    assert (status.configuration, status.configuration_index) == (configuration(4), 3)
    assert [event for event in drain(core).events if isinstance(event, SnapshotInstalled)] == [SnapshotInstalled(4, 2)]
    append(core, extend(core.state.log.last, 3), prev=(4, 2), term=3)
    assert core.status().last.clock_ms == 99


def test_pitfall_54_nothing_is_appended_or_applied_while_it_installs() -> None:
    """And it answers its leader all the same.

    Guard: `is_installing` in `ready` of raft/consensus/core.py and in `on_append` of raft/consensus/replication.py.
    """
    core = make_core(1, 3, 1, 1, 1, 1, commit=1)
    entries = log_of(configuration(3), 1, 1, 1, 1, 1, 1)
    feed(core, chunk(index=9))
    assert core.state.is_installing
    answer = append(core, prev=(1, 1), term=1, commit=5)
    assert answer.success
    core.step(replace(heartbeat(), prev_index=5, prev_term=1, entries=tuple(entries[5:])), at(0))
    out = drain(core)
    assert (out.committed, out.entries, out.after_sync) == ([], [], [])
    answer = append(core, prev=(5, 1), term=1, commit=5)
    assert answer.match == 5
    assert drain(core).committed == []
    core.snapshot_failed(at(0))
    assert [entry.index for entry in drain(core).committed] == [2, 3, 4, 5]


def test_a_follower_that_installs_rejects_no_entries_so_its_leader_waits_for_the_next_heartbeat() -> None:
    """The leader streams behind what this follower has. The first message is dropped, the next one does not fit. A
    rejection of that one would make the leader probe, succeed and stream again, once per round trip until the snapshot
    is installed."""
    core = make_core(1, 3, 1, 1, 1, 1, commit=1)
    entries = log_of(configuration(3), 1, 1, 1, 1, 1, 1, 1)
    feed(core, chunk(index=9))
    for number in (5, 6):
        core.step(replace(heartbeat(), prev_index=number, prev_term=1, entries=(entries[number],)), at(0))
    assert drain(core).messages == []
    assert append(core, prev=(5, 1), term=1, commit=5).success
    core.snapshot_failed(at(0))
    drain(core)
    core.step(replace(heartbeat(), prev_index=6, prev_term=1, entries=(entries[6],)), at(0))
    (answer,) = drain(core).messages
    assert isinstance(answer, AppendEntriesReply)
    assert not answer.success


def test_a_follower_that_installs_answers_each_heartbeat_also_where_its_log_does_not_fit() -> None:
    """A leader asks a follower that needs a snapshot at an index which the follower may lack. Without an answer the
    leader takes the link for dead, and closes it once per timeout until the snapshot is installed."""
    core = make_core(1, 3, 1, 1, 1, 1, commit=1)
    feed(core, chunk(index=9))
    drain(core)
    for prev, success in ((6, False), (5, True), (1, True)):
        core.step(replace(heartbeat(), prev_index=prev, prev_term=1), at(0))
        (answer,) = drain(core).messages
        assert isinstance(answer, AppendEntriesReply)
        assert answer.success is success


def test_pitfall_55_chunks_out_of_place_are_answered_with_the_place_to_go_on() -> None:
    """Duplicates, gaps, damage, strangers' continuations; each write is asked for once.

    Guard: `on_install` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    assert told(feed(core, chunk(b"cd", offset=2))) == [(0, False)]
    assert told(feed(core, chunk(b"ab"))) == [(2, True)]
    assert told(feed(core, chunk(b"ab"))) == [(2, True)]
    assert told(feed(core, chunk(b"ef", offset=4))) == [(2, True)]
    damaged = feed(core, replace(chunk(b"cd", offset=2), crc=1))
    assert told(damaged) == [(2, False)]
    assert [event for ready in damaged for event in ready.events if isinstance(event, MessageIgnored)]
    assert told(feed(core, replace(chunk(b"cd", offset=2), done=True))) == [(2, False)]
    assert told(feed(core, chunk(b"cd", offset=2, index=7))) == []  # overtaken
    waiting = feed(core, chunk(b"cd", offset=2), write=False)
    assert len(waiting[0].snapshot_writes) == 1
    assert feed(core, chunk(b"cd", offset=2)) == []
    core.snapshot_written(waiting[0].snapshot_writes[0], at(0))
    core.snapshot_written(waiting[0].snapshot_writes[0], at(0))
    assert told(feed(core, chunk(b"cd", offset=2))) == [(4, True), (4, True)]
    assert told(feed(core, chunk(b"ef", offset=4, term=2, sender=3))) == [(0, False)]  # another leader


def test_a_newer_snapshot_of_the_same_leader_takes_over() -> None:
    """The chunks of the older one are dropped; its late write has no effect."""
    core = make_core(1, 3)
    first = feed(core, chunk(b"ab"), write=False)[0].snapshot_writes[0]
    second = feed(core, chunk(b"xy", index=9), write=False)[0].snapshot_writes[0]
    core.snapshot_written(first, at(0))
    assert core.ready() is None
    core.snapshot_written(second, at(0))
    assert told([core.ready() or Ready()]) == [(2, True)]


def test_entries_that_come_while_chunks_do_make_the_install_needless() -> None:
    """Another leader still had the log: when the last chunk is written, the entry is there."""
    core = make_core(1, 3)
    waiting = feed(core, chunk(b"abcdef", index=4), write=False)[0].snapshot_writes[0]
    entries = log_of(configuration(3), 1, 1, 1)
    append(core, entries[1:], prev=(1, 1), term=1)
    core.snapshot_written(waiting, at(0))
    ready = core.ready()
    assert ready is not None
    assert ready.snapshot_install is None
    assert told([ready]) == [(6, True)]
    assert core.status().commit == 4


def test_a_leader_of_an_old_term_learns_the_new_one_by_its_snapshot() -> None:
    """Its chunk is not written, and the answer carries the term."""
    core = make_core(1, 3, term=5)
    readies = feed(core, chunk())
    assert told(readies) == [(0, False)]
    assert readies[0].messages[0].term == 5


def test_pitfall_21_a_write_that_was_under_way_at_the_install_proves_nothing() -> None:
    """Its acknowledgement comes when the log has new entries at the same place.

    Guard: `acknowledge` of raft/consensus/log.py.
    """
    core = make_core(1, 3, 1, 1, term=2)
    core.step(replace(heartbeat(2), prev_index=3, prev_term=1, entries=tuple(extend(core.state.log.last, 2, 2))), at(0))
    ready = core.ready()
    assert ready is not None
    assert [entry.index for entry in ready.entries] == [4, 5]
    feed(core, chunk(index=4, last_term=3, term=3, sender=3))
    core.installed(Mark(4, 3), configuration(3), 1, at(0))
    core.persisted(2, 5, at(0))
    assert core.status().persisted == 4
    core.step(replace(heartbeat(3), sender=3, prev_index=4, prev_term=3, entries=tuple(extend(Mark(4, 3), 3))), at(0))
    assert core.status().persisted == 4


def test_pitfall_54_entries_fetched_during_an_install_are_not_applied() -> None:
    """Asked before the install, for apply: the state is about to be another one.

    Guard: `applying.fetch` in `on_written` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3, 1, 1, 1, 1, tail=0)
    core.step(replace(heartbeat(), prev_index=5, prev_term=1, commit=5), at(0))
    ready = core.ready()
    assert ready is not None
    (fetch,) = ready.fetches
    feed(core, chunk(index=9))
    assert core.state.is_installing
    core.fetched(fetch, tuple(log_of(configuration(3), 1, 1, 1, 1)[1:]), at(0))
    core.tick(at(100))
    assert core.ready() is None
    core.installed(Mark(9, 1), configuration(3), 1, at(0))
    assert drain(core).committed == []


def test_chunks_that_come_while_it_installs_are_answered_when_that_is_done() -> None:
    """The last chunk once more, and a newer snapshot: neither is written, refused or promised anything. Then the leader
    hears that it is in force, and goes on from there.

    Guard: `is_installing` in `on_install` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    assert told(feed(core, chunk())) == []
    assert core.state.is_installing
    for again in (chunk(), chunk(b"xy", index=9)):
        readies = feed(core, again)
        assert told(readies) == []
        assert not [ready for ready in readies if ready.snapshot_writes or ready.snapshot_install]
    core.installed(Mark(8, 1), configuration(3), 1, at(0))
    assert told([core.ready() or Ready()]) == [(6, True)]


def test_a_leader_of_an_older_term_gets_no_answer_for_its_chunk() -> None:
    """The term went on while its last chunk was being written. The snapshot still covers committed entries, so it is
    put in force. But this node answers no more in the old term, so the former leader gets no reply.

    Guard: the term in `_tell` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    first = feed(core, chunk(b"abc"), write=False)[0].snapshot_writes[0]
    feed(core, replace(heartbeat(2), sender=3))
    core.snapshot_written(first, at(0))
    assert core.ready() is None
    core = make_core(1, 3)
    feed(core, chunk())
    feed(core, replace(heartbeat(2), sender=3))
    core.installed(Mark(8, 1), configuration(3), 1, at(0))
    out = drain(core)
    assert [event for event in out.events if isinstance(event, SnapshotInstalled)] == [SnapshotInstalled(8, 1)]
    assert (out.messages, out.after_sync) == ([], [])
    assert core.status().applied == 8


def test_a_snapshot_that_ends_inside_an_entry_that_came_meanwhile_is_not_installed() -> None:
    """No leader that has this entry has such a snapshot: it is rejected, and the log stays.

    Guard: `_is_inside` in `on_written` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    (write,) = feed(core, chunk(index=3), write=False)[0].snapshot_writes
    append(core, log_of(configuration(3), (1, 3))[1:], prev=(1, 1), term=1)
    core.snapshot_written(write, at(0))
    assert told([core.ready() or Ready()]) == [(0, False)]
    assert (core.state.receiving, core.status().last.index) == (None, 4)


def test_a_write_that_fails_after_the_snapshot_became_needless_changes_nothing() -> None:
    """Entries came meanwhile, so no snapshot is being received any more: there is no leader to inform, and the log
    stays.

    Guard: `receiving` in `on_failed` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    feed(core, chunk(b"abc", index=4), write=False)
    append(core, log_of(configuration(3), 1, 1, 1)[1:], prev=(1, 1), term=1)
    assert told(feed(core, chunk(b"def", offset=3, index=4))) == [(6, True)]
    before = core.status()
    core.snapshot_failed(at(0))
    assert core.ready() is None
    assert core.status() == before


def test_a_snapshot_whose_entries_came_from_another_leader_is_not_received_any_more() -> None:
    """Its sender lost the leadership after one chunk, and sends no other. As long as the node counted as receiving, it
    made no new reserve after its disk had been full, so that each leader took the disk for full and held it back.

    Guard: `forget_overtaken` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    feed(core, chunk(b"abc", index=4), write=False)
    append(core, log_of(configuration(3), 1, 1, 1)[1:], prev=(1, 1), term=1, commit=3)
    assert core.state.receiving is not None
    feed(core, replace(heartbeat(2), sender=3, prev_index=4, prev_term=1, commit=4))
    assert core.status().commit == 4
    assert core.state.receiving is None
