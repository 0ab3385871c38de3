"""AppendEntries both ways and the commit rule (items 15 to 24, 26, 27, 30 and 31 of the pitfalls)."""

import pytest

from raftlog.raft.events import ConflictTruncated, MessageIgnored
from raftlog.raft.messages import AppendEntriesReply
from raftlog.raft.types import EntryKind, TermRun
from tests.raft.lab import (
    Lab,
    append,
    append_entries,
    appends,
    at,
    drain,
    extend,
    lead,
    make_core,
    progress,
    reply,
)


def test_pitfall_15_an_entry_of_an_older_term_is_not_committed_by_counting_copies() -> None:
    """Thesis figure 3.7: the leader of term 4 has the entry of term 2 on a majority. It must not commit that entry
    before one of its own term is there too; otherwise a leader with term 3 could still overwrite it.

    Guard: `log.term_at(index) != state.term` in `advance_commit` of raft/consensus/replication.py.
    """
    core = make_core(1, 5, 2, term=3)
    lead(core)
    assert core.status().term == 4
    reply(core, 2, match=2)
    reply(core, 3, match=2)
    assert core.status().commit == 1
    reply(core, 2, match=3)
    assert core.status().commit == 1
    reply(core, 3, match=3)
    assert core.status().commit == 3


def test_pitfall_16_commit_goes_no_further_than_the_proved_end() -> None:
    """A stale tail of an old leader is not committed by an empty heartbeat with a larger commit index.

    Guard: `min(message.commit, proved)` in `on_append` of raft/consensus/replication.py.
    """
    core = make_core(1, 3, 1, 1, 1)
    assert append(core, prev=(2, 1), term=2, commit=4).match == 2
    assert core.status().commit == 2


def test_pitfall_17_success_reports_the_proved_end_not_the_own_last_index() -> None:
    """A follower with a longer stale tail answers prev + entries.

    Guard: `proved` in `on_append` of raft/consensus/replication.py.
    """
    core = make_core(1, 3, 1, 1, 1, 1)
    entry = core.state.log.tail.entries[1]
    assert append(core, prev=(1, 1), term=2).match == 1
    assert append(core, [entry], prev=(1, 1), term=2).match == 2
    assert core.state.log.last.index == 5


def test_pitfall_18_an_older_shorter_append_takes_nothing_away() -> None:
    """Delivered after a newer one, it finds all its entries known, and cuts nothing.

    Guard: `_skip_known` in raft/consensus/replication.py.
    """
    core = make_core(1, 3)
    entries = extend(core.state.log.last, 2, 2, 2)
    append(core, entries, prev=(1, 1), term=2)
    core.step(append_entries([entries[0]], prev=(1, 1), term=2), at(0))
    out = drain(core)
    assert core.state.log.last.index == 4
    assert out.cut_after is None
    assert not [event for event in out.events if isinstance(event, ConflictTruncated)]


def test_pitfall_19_cutting_below_commit_halts_the_node() -> None:
    """A leader that contradicts a committed entry gets no answer; a truncation would meet an assertion.

    Guard: `_is_refused` in raft/consensus/replication.py; the first assert of `Log.cut` in raft/consensus/log.py.
    """
    core = make_core(1, 3, 1, 1, commit=3)
    other = extend(core.state.log.tail.entries[0].mark, 2, 2, 2)
    with pytest.raises(AssertionError):
        core.state.log.cut(1, other[0], 2)
    core.step(append_entries(other[:1], prev=(1, 1), term=2, commit=0), at(0))
    assert drain(core).to(2) == []
    assert (core.state.log.term_at(2), core.state.log.last.index) == (1, 3)


def test_pitfall_20_a_reply_from_another_term_moves_no_progress() -> None:
    """Held back across a leader change, an old success is dropped; so is one from a stranger, or of entries never sent.

    Guard: `_meet_term` in raft/consensus/core.py; the first two checks of `on_append_reply` in
    raft/consensus/replication.py.
    """
    core = make_core(1, 3, 1, term=5)
    lead(core)
    reply(core, 2, match=3, term=5)
    assert progress(core, 2).match == 0
    reply(core, 9, match=3)
    reply(core, 2, match=99)
    reply(core, 2, match=3, round=77)
    assert progress(core, 2).match == 0
    assert [type(event) for event in drain(core).events] == [MessageIgnored] * 3


@pytest.mark.parametrize("gap", [False, True])
def test_pitfall_21_an_acknowledged_write_that_was_cut_meanwhile_proves_nothing(gap: bool) -> None:
    """A, B, A: entries go to the disk, are cut, and the same entries come again while the first write is under way.

    Its acknowledgement names the right term and index, but the cut that is queued behind it still lies ahead.
    Guard: `doubtful_index` and `doubtful_term` in `Log.acknowledge` of raft/consensus/log.py.
    """
    core = make_core(1, 5)
    first = extend(core.state.log.last, 2, 2)
    other = extend(core.state.log.last, 3)
    message = append_entries(first, prev=(1, 1), term=2)
    core.step(message, at(0))
    drain(core, sync=False)  # the write of (2, 2), (3, 2) is under way
    core.step(append_entries(other, prev=(1, 1), term=3, sender=3), at(0))
    drain(core, sync=False)
    core.persisted(2, 3, at(0))
    assert core.status().persisted == 1
    core.step(append_entries(first, prev=(1, 1), term=4, sender=4), at(0))
    if gap:
        drain(core, sync=False)
    core.persisted(2, 3, at(0))
    assert core.status().persisted == 1
    newer = extend(first[-1].mark, 4)
    core.step(append_entries(newer, prev=(3, 2), term=4, sender=4), at(0))
    drain(core, sync=False)
    core.persisted(4, 4, at(0))
    assert core.status().persisted == 4


def test_pitfall_22_a_leader_counts_itself_only_when_its_own_disk_is_done() -> None:
    """One follower's copy and the leader's unsynced one are no majority; two followers' copies are.

    Guard: `matches[state.node] = log.persisted` in `advance_commit` of raft/consensus/replication.py.
    """
    core = make_core(1, 3)
    lead(core)
    for sender in (2, 3):
        reply(core, sender, match=2)
    index = core.propose(EntryKind.COMMANDS, 1, b"x", at(400)).last
    out = drain(core, 400, sync=False)
    assert [appends(out, to)[0].entries[0].index for to in (2, 3)] == [index, index]  # they leave before the own sync
    reply(core, 2, match=index)
    assert core.status().commit == 2
    reply(core, 3, match=index)
    assert core.status().commit == index
    assert drain(core, 400, sync=False).committed == []  # not applied before it can be read from this disk
    core.persisted(core.state.term, index, at(400))
    assert [entry.index for entry in drain(core).committed] == [index]


def test_pitfall_22_a_single_voter_commits_when_its_disk_is_done() -> None:
    """Without followers nothing is committed before the own sync.

    Guard: as above.
    """
    core = make_core(1, 1)
    core.tick(at(300))
    out = drain(core, 300, sync=False)
    assert [entry.index for entry in out.entries] == [2]
    assert core.status().commit == 1
    core.persisted(2, 2, at(300))
    assert core.status().commit == 2


def test_pitfall_26_a_conflict_is_found_by_an_empty_append() -> None:
    """Prev is checked without entries too.

    Guard: the check of `prev` in `on_append` of raft/consensus/replication.py stands before any look at the entries.
    """
    core = make_core(1, 3, 1, 2)
    answer = append(core, prev=(3, 3), term=4)
    assert (answer.success, answer.match) == (False, 0)
    assert (answer.hint_index, answer.hint_term) == (3, 2)
    answer = append(core, prev=(9, 3), term=4)
    assert (answer.hint_index, answer.hint_term) == (3, 2)
    answer = append(core, prev=(3, 1), term=4)
    assert (answer.hint_index, answer.hint_term) == (2, 1)


def test_pitfall_27_a_heartbeat_carries_no_commit_above_the_followers_match() -> None:
    """min(match, commit); and a follower that receives a higher commit uses only the entries proved to it.

    Guard: `min(log.committed, proved)` in `_send` of raft/consensus/replication.py.
    """
    core = make_core(1, 3, 1, 1, 1)
    lead(core)
    reply(core, 2, match=5, prev=4)
    drain(core)
    assert core.status().commit == 5
    core.tick(at(core.next_deadline_ms()))
    out = drain(core)
    assert [(message.prev_index, message.commit) for message in appends(out, 2)] == [(5, 5)]
    beat, probe = appends(out, 3)
    assert (beat.prev_index, beat.commit, beat.entries) == (0, 0, ())
    assert (probe.prev_index, probe.commit, len(probe.entries)) == (4, 5, 1)
    behind = make_core(3, 3)
    assert append(behind, prev=(1, 1), term=2, commit=5, sender=1).match == 1
    assert behind.status().commit == 1


def test_pitfall_30_an_entry_proposed_before_a_step_down_may_be_committed() -> None:
    """The core never says that it failed: the next leader commits it, so its outcome was unknown, not failed.

    Guard: `_leave_leadership` in raft/consensus/state.py touches no entry.
    """
    lab = Lab(3)
    lab.elect(1)
    lab.run(100)
    index = lab.propose(1)
    lab.work(1)
    lab.cuts = {(3, 1): True, (2, 1): True}  # its entries leave, the answers do not come back
    lab.run(2_500)
    assert 1 not in lab.leaders()
    (leader,) = lab.leaders()
    assert lab.cores[leader].state.log.term_at(index) == 2
    assert lab.cores[leader].status().commit > index


def test_pitfall_31_an_overloaded_follower_answers_every_append() -> None:
    """However many messages come in one turn, the newest answer covers them all, and refusals are answered too.

    Guard: every path of `on_append` in raft/consensus/replication.py ends in `_answer`, but for impossible messages.
    """
    core = make_core(1, 3)
    entries = extend(core.state.log.last, *[2] * 200)
    previous = core.state.log.last
    for entry in entries:
        core.step(append_entries([entry], prev=(previous.index, previous.term), term=2), at(0))
        previous = entry.mark
    answers = [message for message in drain(core).after_sync if isinstance(message, AppendEntriesReply)]
    assert [answer.match for answer in answers] == [201]


def test_replies_leave_at_once_only_when_all_they_promise_is_durable() -> None:
    """A heartbeat up to durable entries is answered without waiting for a sync under way; anything else waits."""
    core = make_core(1, 3)
    entries = extend(core.state.log.last, 2, 2)
    core.step(append_entries(prev=(1, 1), term=2, round=1), at(0))
    out = drain(core, sync=False)
    assert (len(out.messages), len(out.after_sync)) == (0, 1)  # the entry is durable, the term is not
    core.step(append_entries([entries[0]], prev=(1, 1), term=2, round=1), at(0))
    out = drain(core, sync=False)
    assert (len(out.messages), len(out.after_sync)) == (0, 1)  # neither term nor entry is durable
    core.persisted(2, 2, at(0))
    core.step(append_entries([entries[1]], prev=(2, 2), term=2, round=1), at(0))
    core.step(append_entries(prev=(2, 2), term=2, commit=2, round=2), at(0))
    out = drain(core, sync=False)
    assert [message.round for message in out.messages if isinstance(message, AppendEntriesReply)] == [2]
    assert [message.match for message in out.after_sync if isinstance(message, AppendEntriesReply)] == [3]


def test_entries_with_a_gap_are_refused_loudly() -> None:
    """Entries must follow prev and one another, with terms that do not fall or pass the leader's."""
    core = make_core(1, 3)
    entries = extend(core.state.log.last, 2, 2, 2)
    later = extend(core.state.log.last, 5)
    for wrong in ([entries[1]], [entries[0], entries[2]], later):
        core.step(append_entries(wrong, prev=(1, 1), term=2), at(0))
        assert any(
            "does not follow" in event.reason for event in drain(core).events if isinstance(event, MessageIgnored)
        )
    assert core.state.log.last.index == 1


def test_cluster_clock_goes_on_by_monotonic_time_and_wall_time_never_back() -> None:
    """clock_ms counts the leader's monotonic time across leaders; time_ms is raised to the entry before."""
    core = make_core(1, 1)
    core.tick(at(300))
    drain(core, 300)
    noop = core.state.log.tail.entries[-1]
    assert (noop.clock_ms, noop.time_ms) == (300, at(300).wall_ms)
    core.propose(EntryKind.CLOCK, 1, b"", at(450)._replace(wall_ms=5))
    drain(core, 450)
    clock = core.state.log.tail.entries[-1]
    assert (clock.clock_ms, clock.time_ms) == (450, at(300).wall_ms)
    assert core.state.log.run_firsts == [1, 2]
    assert TermRun(2, 2).first == core.state.log.run_firsts[1]
