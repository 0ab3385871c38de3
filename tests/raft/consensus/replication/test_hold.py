"""A follower that takes no entries (its disk is full) hears heartbeats, commits and questions, and catches up later."""

from __future__ import annotations

import pytest

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import Hold, Mode
from raftlog.raft.events import TransferEnded
from raftlog.raft.messages import AppendEntries
from raftlog.raft.options import Options
from raftlog.raft.ready import Ready
from raftlog.raft.types import NOBODY, Entry, EntryKind
from tests.raft.lab import (
    Drained,
    appends,
    at,
    configuration,
    drain,
    lead,
    log_of,
    make_core,
    progress,
    reply,
)

NOTHING = Hold(0, takes_snapshot=False)


def sent(out: Drained, to: int) -> list[Entry]:
    """The entries that one follower is sent."""
    return [entry for message in appends(out, to) for entry in message.entries]


def leading() -> RaftCore:
    """Node 1 of three leads, and both others have everything."""
    core = make_core(1, 3)
    lead(core)
    for peer in (2, 3):
        reply(core, peer, match=core.state.log.last.index)
    drain(core)
    return core


def propose(core: RaftCore, count: int = 1) -> int:
    """One more entry of so many records; its index."""
    return core.propose(EntryKind.COMMANDS, count, b"x", at(400)).last


def test_a_held_follower_is_sent_no_entries_and_hears_the_commit_index() -> None:
    """Node 3 is held: node 2 alone commits, and node 3 is sent heartbeats without entries, and no entry by probing."""
    core = leading()
    match = progress(core, 3).match
    core.hold({3: NOTHING})
    index = propose(core)
    out = drain(core, 400)
    assert [entry.index for entry in sent(out, 2)] == [index]
    assert sent(out, 3) == []
    reply(core, 2, match=index)
    drain(core, 400)
    assert core.state.log.committed == index
    core.tick(at(core.next_deadline_ms()))
    (heartbeat,) = appends(drain(core, 500), 3)
    assert (heartbeat.entries, heartbeat.prev_index, heartbeat.commit) == ((), match, match)
    core.link_closed(3, at(510))
    core.tick(at(core.next_deadline_ms()))
    out = drain(core, 600)
    assert appends(out, 3)
    assert sent(out, 3) == []
    reply(core, 3, match=match, prev=match)
    assert progress(core, 3).mode is Mode.REPLICATE
    assert sent(drain(core, 600), 3) == []


def test_a_released_follower_gets_its_missing_entries() -> None:
    """The driver calls `hold` without it: the next Ready carries every entry since."""
    core = leading()
    core.hold({3: NOTHING})
    indexes = [propose(core), propose(core)]
    drain(core, 400)
    core.hold({})
    assert [entry.index for entry in sent(drain(core, 400), 3)] == indexes


def test_a_node_that_does_not_lead_holds_no_follower() -> None:
    """What its driver said before it led counts no more: it says all again."""
    core = make_core(1, 3)
    core.hold({3: NOTHING})
    lead(core)
    assert progress(core, 3).hold is None


def test_a_held_follower_gets_entries_that_free_space() -> None:
    """Up to the entry that holds the index that the driver names (a trim), and nothing behind it."""
    core = leading()
    first, trim, behind = propose(core), propose(core, 3), propose(core)
    core.hold({3: Hold(trim - 1, takes_snapshot=False)})
    assert [entry.index for entry in sent(drain(core, 400), 3)] == [first, trim]
    reply(core, 3, match=trim, prev=first)
    assert sent(drain(core, 400), 3) == []
    assert core.state.log.last.index == behind


def test_entries_from_the_disk_are_held_back_too() -> None:
    """The follower's missing entries lie on the leader's disk only. For a held follower none of them is read, and
    entries that were requested before it was held are not sent."""
    options = Options(tail_entries_max=2, tail_bytes_max=200)
    core = make_core(1, 3, *([1] * 20), options=options, tail=2, commit=20)
    lead(core)
    reply(core, 3, match=5, prev=core.state.log.last.index - 1, success=False, hint=(5, 1))
    core.hold({3: NOTHING})
    out = drain(core)
    assert sent(out, 3) == []
    core.hold({})
    reply(core, 3, match=5, prev=5)
    (fetch,) = drain(core).fetches
    core.hold({3: NOTHING})
    core.fetched(fetch, tuple(log_of(configuration(3), *([1] * 20))[5:9]), at(400))
    out = drain(core)
    assert sent(out, 3) == []
    assert out.fetches == []


def snapshots(core: RaftCore) -> list[Ready]:
    """Every Ready that asks for a piece of a snapshot."""
    found = []
    while (ready := core.ready()) is not None:
        if ready.snapshot_fetches:
            found.append(ready)
    return found


def test_a_held_follower_is_sent_a_snapshot_only_if_it_has_room_for_one() -> None:
    """It needs one, and no piece of it is read from disk before the driver says that it fits."""
    core = make_core(1, 3, *([1] * 20), commit=20)
    lead(core)
    log = core.state.log
    core.compact(log.mark_at(15) or log.last, keep_after=15)
    reply(core, 3, match=0, prev=core.state.log.last.index - 1, success=False, hint=(2, 1))
    core.hold({3: NOTHING})
    core.tick(at(core.next_deadline_ms()))
    assert snapshots(core) == []
    assert progress(core, 3).mode is Mode.SNAPSHOT
    core.hold({3: Hold(0, takes_snapshot=True)})
    core.tick(at(core.next_deadline_ms()))
    assert len(snapshots(core)) == 1


@pytest.mark.parametrize("has_room", [False, True])
def test_a_held_follower_that_is_far_behind_gets_a_snapshot_in_place_of_entries_that_the_log_has(
    has_room: bool,
) -> None:
    """No entry, and no snapshot that ends before the one that frees space. A snapshot that is there is sent once. One
    whose disk has room before any piece of it left is sent entries again."""
    core = make_core(1, 3, *([1] * 20), commit=20)
    lead(core)
    log = core.state.log
    reply(core, 2, match=log.last.index)
    reply(core, 3, match=5, prev=log.last.index - 1, success=False, hint=(5, 1))
    reply(core, 3, match=5, prev=5)
    core.hold({3: Hold(12, takes_snapshot=True, is_far=True)})
    core.compact(log.mark_at(11) or log.last, keep_after=None)
    core.tick(at(core.next_deadline_ms()))
    out = drain(core)
    assert (sent(out, 3), progress(core, 3).mode) == ([], Mode.REPLICATE)
    core.compact(log.mark_at(15) or log.last, keep_after=None)
    drain(core)
    assert progress(core, 3).mode is Mode.SNAPSHOT
    if has_room:
        core.hold({})
        assert snapshots(core) == []
        assert progress(core, 3).mode is Mode.PROBE
    core.tick(at(core.next_deadline_ms()))
    if has_room:
        assert [entry.index for entry in sent(drain(core), 3)] == list(range(6, 1 + log.last.index))
        return
    (ready,) = snapshots(core)
    (asked,) = [each for each in ready.messages if isinstance(each, AppendEntries) and each.to == 3]
    assert (asked.prev_index, asked.entries) == (15, ())
    reply(core, 3, match=15, prev=15)
    assert progress(core, 3).mode is Mode.REPLICATE
    assert snapshots(core) == []


@pytest.mark.parametrize("lacks", [True, False], ids=["lacks an entry", "has everything"])
def test_a_transfer_to_a_follower_that_turns_out_full_ends_at_once(lacks: bool) -> None:
    """A held follower gets no entries: one that lacks some can never take over, so that the leader may try another.
    One that has everything was asked to campaign already."""
    core = leading()
    if lacks:
        propose(core)
    core.transfer(3, at(400))
    drain(core, 400)
    core.hold({3: NOTHING})
    ended = [event for event in drain(core, 401).events if isinstance(event, TransferEnded)]
    assert ended == ([TransferEnded(3, "gave up: its disk is full")] if lacks else [])
    assert core.status().transfer_to == (NOBODY if lacks else 3)
