"""How a follower is fed: probing, back-off, windows, fetches from disk (items 23 to 25 and 29 of the pitfalls)."""

import itertools

import pytest

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.events import ConflictTruncated, FollowerNeedsSnapshot
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch
from raftlog.raft.refusals import Busy
from raftlog.raft.types import NOBODY, EntryKind
from tests.raft.lab import (
    Lab,
    append,
    appends,
    at,
    compacted_core,
    drain,
    lead,
    make_core,
    progress,
    reply,
)

SMALL = Options(
    tail_entries_max=8, tail_bytes_max=4_000, append_bytes_max=1_000, append_entries_max=4, inflight_messages_max=2
)


def test_pitfall_23_progress_never_falls_below_the_proved_end() -> None:
    """Late successes and mismatches, in any order, leave match where it was and sent at or above it.

    Guard: `note_match` and `probe` in raft/consensus/progress.py take the larger of both.
    """
    core = make_core(1, 3)
    lead(core)
    for _ in range(4):
        core.propose(EntryKind.COMMANDS, 2, b"x", at(400))
        drain(core, 400)
    reply(core, 2, match=2, prev=1)
    drain(core, 400)
    reply(core, 2, match=10)
    reply(core, 2, match=4)
    reply(core, 2, match=0, success=False, prev=4, hint=(1, 1))
    assert (progress(core, 2).match, progress(core, 2).sent) == (10, 10)
    reply(core, 2, match=0, success=False, prev=10, hint=(1, 1))
    assert (progress(core, 2).match, progress(core, 2).sent) == (10, 10)


@pytest.mark.parametrize("over", [-1, 0, 1, 5_000])
def test_pitfall_24_a_batch_cut_by_size_is_without_gaps(over: int) -> None:
    """Entries exactly at, one byte over and far over the limit: every message goes on from the one before.

    Guard: `Log.slice` in raft/consensus/log.py stops at the first entry that does not fit, and always gives one.
    """
    sizes = [100, 300 + over, 50, 900, 2_000, 10, 10]
    core = make_core(1, 3, options=Options(append_bytes_max=100 + 64 + 300 + 64, inflight_messages_max=1_000))
    lead(core)
    reply(core, 2, match=2)
    drain(core)
    for size in sizes:
        core.propose(EntryKind.COMMANDS, 1, bytes(size), at(400))
    sent = [message for message in appends(drain(core, 400), 2) if message.entries]
    assert [entry.index for message in sent for entry in message.entries] == list(range(3, 10))
    assert all(message.prev_index == message.entries[0].before for message in sent)
    assert len(sent[0].entries) == (2 if over <= 0 else 1)


@pytest.mark.parametrize("entries", [50, 2_000])
def test_pitfall_25_backing_off_over_many_divergent_entries_takes_few_rounds(entries: int) -> None:
    """Terms that alternate on both sides are skipped a term at a time, long runs at once; both logs end up equal.

    Guard: the term in `last_end` of raft/consensus/log.py, used for hints on both sides.
    """
    mine: list[int | tuple[int, int]] = [1, *[2] * entries, 6]
    theirs: list[int | tuple[int, int]] = [1, *[3] * (entries // 2), *[4] * (entries // 2), *[5] * entries]
    lab = Lab(3, {1: mine, 2: theirs, 3: mine})
    lab.elect(1)
    lab.run(300)
    assert lab.delivered < 60
    assert lab.terms(2) == lab.terms(1)
    lab.propose(1)
    lab.run(100)
    assert lab.applied[2] == lab.applied[1]


def test_pitfall_25_ten_thousand_entries_of_many_terms_take_a_round_for_each_term_at_most() -> None:
    """A follower has 10,000 entries in 100 terms that no other node has: the rounds count terms, not entries.

    Guard: as above.
    """
    theirs: list[int | tuple[int, int]] = [2 + 2 * (index // 100) for index in range(10_000)]
    mine: list[int | tuple[int, int]] = [3 + 2 * (index // 100) for index in range(10_000)]
    mine.append(300)
    lab = Lab(3, {1: mine, 2: theirs, 3: mine}, options=Options(append_entries_max=100_000, append_bytes_max=1 << 24))
    lab.elect(1)
    before = lab.delivered
    lab.run(60)
    assert lab.delivered - before < 30
    assert lab.terms(2) == lab.terms(1)
    probes = [event for event in lab.events[2] if isinstance(event, ConflictTruncated)]
    assert len(probes) == 1


def test_pitfall_29_an_isolated_leader_refuses_beyond_its_bound() -> None:
    """What cannot be committed does not pile up: Busy, and again free once it is committed.

    Guard: the `uncommitted_bytes_max` check in `RaftCore.propose` of raft/consensus/core.py.
    """
    core = make_core(1, 3, options=Options(uncommitted_bytes_max=1_000, entry_bytes_max=1_000))
    lead(core)
    reply(core, 2, match=2)
    for _ in range(2):
        core.propose(EntryKind.COMMANDS, 1, bytes(400), at(400))
    with pytest.raises(Busy):
        core.propose(EntryKind.COMMANDS, 1, bytes(400), at(400))
    drain(core, 400)
    reply(core, 2, match=4)
    assert isinstance(core.state.role, Leader)
    assert core.state.role.uncommitted_bytes == 0
    core.propose(EntryKind.COMMANDS, 1, bytes(1_000), at(400))


def test_a_probe_is_one_message_until_it_is_answered_or_a_heartbeat_passes() -> None:
    """A follower that does not answer costs one probe a heartbeat, not one a turn."""
    core = make_core(1, 3)
    lead(core)
    assert appends(drain(core), 2) == []
    core.propose(EntryKind.COMMANDS, 1, b"x", at(400))
    assert appends(drain(core, 400), 2) == []
    core.tick(at(core.next_deadline_ms()))
    assert [len(message.entries) for message in appends(drain(core), 2)] == [0, 2]  # heartbeat, probe


def test_a_follower_behind_the_tail_is_fed_from_disk() -> None:
    """The tail holds 8 entries, a follower comes back 300 behind: fetches bridge the gap, a window at a time."""
    lab = Lab(3, options=SMALL)
    lab.elect(1)
    lab.run(100)
    lab.isolate(3)
    for _ in range(300):
        lab.propose(1, count=2, data=bytes(50))
        lab.settle()
    assert len(lab.cores[1].state.log.tail.entries) <= 8
    lab.heal()
    lab.run(1_000)
    assert lab.applied[3] == lab.applied[1]
    assert lab.cores[3].status().commit == lab.cores[1].status().commit == 602


BEHIND = Options(append_bytes_max=2_000, catch_up_bytes_max=300)


def behind(tail: int | None = None) -> RaftCore:
    """A leader whose follower 3 has only the first entry, while 20 more are committed with the help of 2."""
    core = make_core(1, 3, *[1] * 20, tail=tail, options=BEHIND)
    lead(core)
    reply(core, 2, match=22)
    drain(core, 400)
    assert core.status().commit == 22
    progress(core, 3).probe(1)
    reply(core, 3, match=1, prev=1)
    return core


def test_a_follower_behind_gets_committed_entries_in_small_messages() -> None:
    """The others write at full width meanwhile. Each answer lets the next small message go. At the end of the committed
    entries the follower is an ordinary one again.

    Guard: `_is_behind` in `_stream` of raft/consensus/replication.py.
    """
    core = behind()
    (first,) = [each for each in appends(drain(core, 400), 3) if each.entries]
    assert 1 < len(first.entries) < 6
    assert sum(entry.size for entry in first.entries) <= BEHIND.catch_up_bytes_max
    for _ in range(2):
        core.propose(EntryKind.COMMANDS, 1, bytes(900), at(400))
    out = drain(core, 400)
    assert [len(message.entries) for message in appends(out, 2)] == [2]
    assert appends(out, 3) == []
    seen = [first]
    while seen[-1].entries[-1].index < 22:
        reply(core, 3, match=seen[-1].entries[-1].index)
        seen += [each for each in appends(drain(core, 400), 3) if each.entries]
    assert [entry.index for message in seen for entry in message.entries] == list(range(2, 25))
    assert [len(message.entries) for message in seen] == [4, 4, 4, 4, 4, 1, 2], "what waits for its commit is whole"


def test_a_follower_behind_is_fed_from_disk_in_small_pieces() -> None:
    """The leader reads, checks and encodes no more of it in one go than it sends.

    Guard: `_bytes_max` in `_stream` of raft/consensus/replication.py.
    """
    core = behind(tail=2)
    (fetch,) = [each for each in drain(core, 400).fetches if each.peer == 3]
    assert (fetch.after, fetch.bytes_max) == (1, BEHIND.catch_up_bytes_max)


def test_a_follower_whose_vote_is_missing_is_fed_at_full_width() -> None:
    """Follower 2 is gone, and nothing is committed until 3 has caught up: after two heartbeats in which nothing was,
    it gets the whole window.

    Guard: `is_stuck` in `_is_behind` of raft/consensus/replication.py.
    """
    core = behind()
    core.propose(EntryKind.COMMANDS, 1, b"x", at(400))
    drain(core, 400)
    now_ms = 400
    for _ in range(2):
        now_ms = core.next_deadline_ms()
        reply(core, 3, match=1, prev=1, now_ms=now_ms)
        core.tick(at(now_ms))
        out = appends(drain(core, now_ms), 3)
    assert sum(len(message.entries) for message in out) > 10


@pytest.mark.parametrize("disk_tells", [True, False])
def test_a_probe_below_the_tail_asks_the_disk_where_an_entry_ends(disk_tells: bool) -> None:
    """A hint inside one of the leader's own entries is rounded down with the help of the disk, or further without."""
    mine: list[int | tuple[int, int]] = [(1, 10), (2, 10), (2, 10), (2, 10), *[5] * 20]
    theirs: list[int | tuple[int, int]] = [(1, 10), (3, 5)]
    lab = Lab(3, {1: mine, 2: theirs, 3: mine}, options=SMALL)
    core = lab.start(1, tail=3)
    if not disk_tells:
        lab.inside_is_nothing = True
    lab.elect(1)
    lab.run(1_000)
    assert lab.terms(2) == lab.terms(1)
    assert progress(core, 2).mode is Mode.REPLICATE


def test_a_follower_below_the_log_needs_a_snapshot_reported_once() -> None:
    """A follower whose next entry was trimmed everywhere is not spammed with what cannot help it."""
    core = compacted_core()
    lead(core)
    reply(core, 2, match=0, success=False, prev=11, hint=(3, 1))
    out = drain(core)
    assert [event for event in out.events if isinstance(event, FollowerNeedsSnapshot)] == [FollowerNeedsSnapshot(2, 4)]
    assert progress(core, 2).mode is Mode.SNAPSHOT
    for now_ms in itertools.islice(itertools.count(core.next_deadline_ms(), 60), 5):
        core.tick(at(now_ms))
        out = drain(core, now_ms)
        reply(core, 2, match=0, success=False, prev=7, hint=(3, 1), now_ms=now_ms)
        assert not [event for event in out.events if isinstance(event, FollowerNeedsSnapshot)]
    reply(core, 2, match=7, prev=7)
    assert progress(core, 2).mode is Mode.REPLICATE


def test_a_fetch_that_fails_is_tried_again_after_a_heartbeat() -> None:
    """Found by the simulator: a follower in replicate waited for ever after one failed read."""
    core = make_core(1, 3, *[1] * 20, tail=2)
    lead(core)
    reply(core, 2, match=5, success=True, prev=5)
    progress(core, 2).probe(5)
    reply(core, 2, match=5, prev=5)
    (fetch,) = drain(core).fetches
    assert fetch == Fetch(2, 5, 19, core.state.options.append_bytes_max)
    core.fetched(fetch, (), at(400))
    assert drain(core).fetches == []
    core.tick(at(core.next_deadline_ms()))
    assert [again.after for again in drain(core).fetches if again.peer == 2] == [5]


def test_a_failed_fetch_for_apply_waits_a_little() -> None:
    """The disk that could not deliver is asked again later, not in a loop."""
    core = make_core(1, 3, *[1] * 10, tail=1)
    append(core, prev=(11, 1), term=1, commit=11)
    assert core.state.applying.fetch is not None
    fetch = core.state.applying.fetch
    core.fetched(fetch, (), at(10))
    assert drain(core).fetches == []
    assert core.next_deadline_ms() == 70
    core.tick(at(70))
    assert drain(core).fetches == [fetch]
    assert fetch.peer == NOBODY
