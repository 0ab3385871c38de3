"""Replication where something comes late, twice or from a strange disk: nothing moves that should not."""

from dataclasses import replace

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.state import CHAIN_REJECTIONS_MAX
from raftlog.raft.events import FollowerNeedsSnapshot, LogDiffers, MessageIgnored
from raftlog.raft.messages import AppendEntries, AppendEntriesReply
from raftlog.raft.ready import Fetch
from raftlog.raft.types import Entry
from tests.raft.lab import (
    Drained,
    append_entries,
    at,
    chunk,
    compacted_core,
    configuration,
    drain,
    extend,
    lead,
    log_of,
    make_core,
    progress,
    reply,
)


def asking() -> tuple[RaftCore, Fetch]:
    """A leader with one entry of six in memory, that asks its disk for the missing entries of follower 2, which has
    two.
    """
    core = make_core(1, 3, 1, 1, 1, 1, tail=1)
    lead(core)
    reply(core, 2, match=0, success=False, prev=5, hint=(2, 1))
    reply(core, 2, match=2, prev=2)
    (fetch,) = [each for each in drain(core).fetches if each.peer == 2]
    assert (fetch.after, fetch.to, progress(core, 2).mode) == (2, 4, Mode.REPLICATE)
    return core, fetch


def sent_to(core: RaftCore, peer: int) -> list[tuple[int, int]]:
    """(prev, entries) of the messages that leave for that peer now."""
    messages = drain(core).to(peer)
    return [(each.prev_index, len(each.entries)) for each in messages if isinstance(each, AppendEntries)]


def test_a_disk_that_answers_something_else_is_not_asked_in_a_loop() -> None:
    """Entries that do not follow the sent ones are dropped, and the next heartbeat asks again."""
    core, fetch = asking()
    entries = log_of(configuration(3), 1, 1, 1, 1)
    core.fetched(fetch, (entries[3],), at(310))
    out = drain(core)
    assert (out.fetches, out.to(2)) == ([], [])
    core.tick(at(core.next_deadline_ms()))
    (again,) = drain(core).fetches
    core.fetched(again, tuple(entries[2:4]), at(370))
    assert (2, 2) in sent_to(core, 2)


def test_an_answer_of_the_disk_counts_once() -> None:
    """The same entries again, or entries for a node that is no follower, are not sent."""
    core, fetch = asking()
    entries = tuple(log_of(configuration(3), 1, 1, 1, 1)[2:4])
    core.fetched(fetch, entries, at(310))
    assert sent_to(core, 2)
    core.fetched(fetch, entries, at(310))
    core.fetched(Fetch(9, 2, 4, 1 << 20), entries, at(310))
    assert sent_to(core, 2) == []


def test_a_mismatch_about_an_older_question_changes_nothing() -> None:
    """While a probe asks at 3, an answer about 5 is late: it would lead back too far."""
    core = make_core(1, 3, 1, 1, 1, 1)
    lead(core)
    reply(core, 2, match=0, success=False, prev=5, hint=(3, 1))
    drain(core)
    assert progress(core, 2).sent == 3
    reply(core, 2, match=0, success=False, prev=5, hint=(1, 1))
    assert progress(core, 2).sent == 3


def test_a_hint_that_does_not_lead_back_is_ignored_visibly() -> None:
    """A follower that refuses index 5 and names index 5 itself would keep the leader asking for ever."""
    core = make_core(1, 3, 1, 1, 1, 1)
    lead(core)
    drain(core)
    reply(core, 2, match=0, success=False, prev=5, hint=(5, 1))
    (event,) = [event for event in drain(core).events if isinstance(event, MessageIgnored)]
    assert "does not lead back" in event.reason


def compacted(core: RaftCore, keep_after: int) -> None:
    """All six entries are committed and applied, and the log is given up to there; no Ready was taken since."""
    reply(core, 3, match=6)
    for fetch in drain(core).fetches:
        core.fetched(fetch, tuple(log_of(configuration(3), 1, 1, 1, 1)[fetch.after : fetch.to]), at(310))
    drain(core)
    assert core.status().applied == 6
    core.compact(core.state.log.last, keep_after)


def test_entries_that_come_back_from_disk_after_their_place_was_compacted_away_are_not_sent() -> None:
    """3 and 4 were read for follower 2, which has 2. The term of 2 is not known any more, so the leader cannot name the
    entry before 3. It sends nothing, and the follower gets the snapshot.

    Guard: the term of `prev` in `_send`, and of `sent` in `replicate`, of raft/consensus/replication.py.
    """
    core, fetch = asking()
    compacted(core, 3)
    core.fetched(fetch, tuple(log_of(configuration(3), 1, 1, 1, 1)[2:4]), at(310))
    out = drain(core)
    assert [each for each in out.to(2) if isinstance(each, AppendEntries) and each.entries] == []
    assert [event for event in out.events if isinstance(event, FollowerNeedsSnapshot)] == [FollowerNeedsSnapshot(2, 3)]
    assert progress(core, 2).mode is Mode.SNAPSHOT


def test_a_follower_at_the_end_of_the_compacted_part_is_streamed_to() -> None:
    """The log is given up to 2, which the follower has: what follows it is all here, and no snapshot is sent.

    Guard: the term of `sent` in `replicate` of raft/consensus/replication.py: the index alone would not do.
    """
    core, fetch = asking()
    compacted(core, 2)
    core.tick(at(core.next_deadline_ms()))
    out = drain(core)
    assert [event for event in out.events if isinstance(event, FollowerNeedsSnapshot)] == []
    core.fetched(fetch, tuple(log_of(configuration(3), 1, 1, 1, 1)[2:4]), at(380))
    out = drain(core)
    sent = [each for each in out.to(2) if isinstance(each, AppendEntries) and each.entries]
    assert [(each.prev_index, each.prev_term, len(each.entries)) for each in sent[:1]] == [(2, 1, 2)]
    assert progress(core, 2).mode is Mode.REPLICATE


def test_a_follower_that_has_all_before_the_log_needs_no_snapshot_after_another_one_was_taken() -> None:
    """The leader started from a snapshot up to 7 and took one up to its end since; its log still begins at 8. A
    follower that has 7 gets 8, not megabytes.

    Guard: `base` from the snapshot in `Log.__init__` of raft/consensus/log.py.
    """
    core = compacted_core()
    lead(core)
    reply(core, 3, match=12)
    drain(core)
    core.compact(core.state.log.last)
    reply(core, 2, match=0, success=False, prev=11, hint=(7, 1))
    assert sent_to(core, 2) == [(7, 5)]
    assert progress(core, 2).mode is Mode.PROBE


def differing(core: RaftCore, after: int = 2, *, sender: int = 2, term: int = 2) -> list[LogDiffers]:
    """That leader sends an entry of its term behind the entry `after`, whose header is another one at the leader. What
    the follower notes of it beside the rejection; it neither appends nor answers nor cuts."""
    mark = core.state.log.mark_at(after)
    assert mark is not None
    entries = tuple(extend(replace(mark, header_crc=mark.header_crc ^ 1), term))
    core.step(append_entries(entries, prev=(after, 1), term=term, sender=sender), at(0))
    out = drain(core)
    assert (out.entries, out.cut_after, out.to(sender)) == ([], None, [])
    assert all("header CRC" in event.reason for event in out.events if isinstance(event, MessageIgnored))
    return [event for event in out.events if isinstance(event, LogDiffers)]


def test_a_follower_whose_log_differs_says_so_after_a_bounded_number_of_rejections() -> None:
    """It says it once. Its entry stays, committed or not: the leader may be the damaged one."""
    for commit in (1, 2):
        core = make_core(1, 3, 1, commit=commit)
        crc = core.state.log.tail.entries[1].mark.header_crc
        assert [differing(core) for _ in range(CHAIN_REJECTIONS_MAX - 1)] == [[]] * (CHAIN_REJECTIONS_MAX - 1)
        assert differing(core) == [LogDiffers(leader=2, index=2, here=crc, there=crc ^ 1)]
        assert [differing(core) for _ in range(2 * CHAIN_REJECTIONS_MAX)] == [[]] * (2 * CHAIN_REJECTIONS_MAX)
        assert core.state.log.tail.entries[1].mark.header_crc == crc


def test_rejections_of_another_leader_or_place_are_counted_from_nothing() -> None:
    """One more message each is not enough: of the leader of the next term, and behind another entry."""
    core = make_core(1, 3, 1, 1)
    for after, sender, term in ((3, 2, 2), (3, 3, 3), (2, 3, 3), (3, 3, 3)):
        for _ in range(CHAIN_REJECTIONS_MAX - 1):
            assert differing(core, after, sender=sender, term=term) == []
    assert [event.leader for event in differing(core, 3, sender=3, term=3)] == [3]


def test_a_follower_keeps_committed_entries_that_a_leader_lacks() -> None:
    """The leader was elected with the help of a disk that was formatted again: its log has other entries where this one
    has committed ones. The follower answers where both logs agree, so that the leader asks there. It takes neither the
    entries in their place nor a snapshot over them, and says so once."""
    core = make_core(1, 3, 1, 2, 2, term=2, commit=4)
    kept = core.state.log.last

    def append(prev: int, prev_term: int, entries: tuple[Entry, ...] = ()) -> Drained:
        core.step(append_entries(entries, prev=(prev, prev_term), term=5), at(0))
        return drain(core)

    (answer,) = append(4, 4).to(2)
    assert isinstance(answer, AppendEntriesReply)
    assert not answer.success
    core.step(chunk(b"x", total=1, term=5, index=9, last_term=5), at(0))
    assert core.state.receiving is None
    drain(core)
    others = tuple(extend(core.state.log.tail.entries[1].mark, 4, 5))
    told: list[LogDiffers] = []
    for _ in range(2 * CHAIN_REJECTIONS_MAX):
        out = append(2, 1, others)
        assert (out.entries, out.cut_after, out.to(2)) == ([], None, [])
        told += [event for event in out.events if isinstance(event, LogDiffers)]
    assert [(event.leader, event.index, event.there) for event in told] == [(2, 3, others[0].mark.header_crc)]
    assert core.state.log.last == kept
