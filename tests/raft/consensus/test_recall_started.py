"""What a started node promises before its peers have reported, and what restarted peers still know."""

from __future__ import annotations

import pytest

from raftlog.raft.consensus import recall
from raftlog.raft.messages import AppendEntriesReply, Recall, RequestVoteReply, TimeoutNow
from raftlog.raft.types import NOBODY, NodeId
from tests.raft.consensus.test_recall import THREE, a_core, connect, outputs, reply_of, sent, told_by
from tests.raft.lab import append_entries, at, log_of, vote_request


def test_a_started_node_acknowledges_nothing_before_the_voters_have_reported_their_memory() -> None:
    """Its disk may have lost the vote for a leader of a newer term. The leader before that one may still lead. With
    this node's answers it would commit an entry, and serve a read, beside the newer leader. Nor does the node campaign
    for a leader that hands over: it may have voted in the next term.

    Guard: `is_waiting` in `on_append` of raft/consensus/replication.py, `may_campaign` in `on_timeout_now`.
    """
    core = a_core(log_of(THREE), 2)
    connect(core, 2, run=20, last=(2, 2), term=2)
    connect(core, 3, run=30, last=(2, 2), term=2)
    (entry,) = log_of(THREE, 2)[1:]
    asked = (
        append_entries(prev=(1, 1), term=2, round=1),
        append_entries([entry], prev=(1, 1), term=2, round=1),
        TimeoutNow(sender=2, to=1, term=2, last_index=1),
    )
    for message in asked:
        core.step(message, at(2))
    core.step(reply_of(2, term=2), at(3))
    for message in asked:
        core.step(message, at(3))
    assert not [each for each in sent(outputs(core, 3)) if not isinstance(each, Recall)]
    core.step(reply_of(3, promised=3, term=3), at(4))
    outputs(core, 4)
    core.step(asked[1], at(5))
    (answer,) = [each for each in sent(outputs(core, 5)) if isinstance(each, AppendEntriesReply)]
    assert (answer.success, answer.term) == (False, 3), "the leader of term 2 learns the newer term"

    core = a_core(log_of(THREE), 2)  # a disk that lost nothing
    connect(core, 2, run=20, last=(2, 2), term=2)
    connect(core, 3, run=30, last=(1, 1), term=1)
    for peer in (2, 3):
        core.step(reply_of(peer, promised=2), at(3))
    core.step(asked[1], at(4))
    (answer,) = [each for each in sent(outputs(core, 4)) if isinstance(each, AppendEntriesReply)]
    assert (answer.success, answer.match) == (True, 2)


def test_a_started_node_does_not_confirm_a_read_by_a_rejection() -> None:
    """The leader would count the rejection's round. This node's disk may have lost a vote for a newer leader.

    Guard: `is_waiting` above the rejection in `on_append` of raft/consensus/replication.py.
    """
    core = a_core(log_of(THREE, 1, 1), 2)
    connect(core, 2, run=20, last=(2, 3), term=2)
    connect(core, 3, run=30, last=(2, 3), term=2)
    probe = append_entries(prev=(3, 2), term=2, round=5)
    core.step(probe, at(2))
    assert not [each for each in sent(outputs(core, 2)) if isinstance(each, AppendEntriesReply)]
    for peer in (2, 3):
        core.step(reply_of(peer, term=2), at(3))
    outputs(core, 3)
    core.step(probe, at(4))
    (answer,) = [each for each in sent(outputs(core, 4)) if isinstance(each, AppendEntriesReply)]
    assert (answer.success, answer.round) == (False, 5)


def test_a_started_node_waits_for_a_node_that_its_configuration_does_not_name() -> None:
    """Its disk may have lost the configuration that names it, and with that the promises that this node knows of.

    Guard: `strangers` in `is_waiting` of raft/consensus/recall.py.
    """
    core = a_core(log_of(THREE), 2)
    connect(core, 2, run=20, last=(1, 1), term=2)
    connect(core, 5, run=50, last=(2, 2), term=2)
    core.step(reply_of(2), at(2))
    core.step(vote_request(2, 1, 3, (1, 1)), at(core.state.options.election_timeout_min_ms + 10))
    assert not [each for each in sent(outputs(core, 400)) if isinstance(each, RequestVoteReply) and each.granted]
    core.step(reply_of(5, acked=(2, 2), promised=2), at(500))
    outputs(core, 500)
    assert core.state.recall.floor == 4


@pytest.mark.parametrize(("term", "vote"), [(2, NOBODY), (3, NOBODY), (3, 2)])
def test_a_started_node_votes_for_no_other_node_in_a_term_that_a_peer_began_in(term: int, vote: NodeId) -> None:
    """The peer's process remembers promises since its start, and its disk the term then. In this term an earlier
    process of this node may have voted, and its disk may have lost that. A vote that it still has stays; a later start
    of the peer changes nothing.

    Guard: `_enter_term` of raft/consensus/recall.py.
    """
    core = a_core(log_of(THREE, 2), term, vote=vote)
    connect(core, 2, run=20, last=(2, 2), term=3)
    connect(core, 3, run=30, last=(2, 2), term=1)
    for peer in (2, 3):
        core.step(reply_of(peer), at(3))
    assert (core.state.term, core.state.vote, core.state.recall.floor) == (3, vote or 1, 0)
    core.step(vote_request(3, 1, 3, (9, 3)), at(5_000))
    answers = [each for each in sent(outputs(core, 5_000)) if isinstance(each, RequestVoteReply)]
    assert not [each for each in answers if each.granted]
    connect(core, 3, run=31, last=(2, 2), term=7)
    assert core.state.term == 3


@pytest.mark.parametrize("is_late", [False, True])
def test_what_an_ended_process_of_a_peer_reported_counts_no_more(is_late: bool) -> None:
    """The peer had received an entry from this node, reported it after this node's restart, and ended before it had
    synced the entry. Its next process is asked and does not know the entry, so this node campaigns. Otherwise no log
    would have the entry, and of two voters none would ever lead. The report may also arrive after the link has closed.

    Guard: `link_opened` of raft/consensus/recall.py.
    """
    core = a_core(log_of(THREE), 2)
    connect(core, 2, run=20, last=(1, 1), term=2)
    connect(core, 3, run=30, last=(1, 1), term=2)
    core.step(reply_of(3), at(2))
    if is_late:
        core.link_closed(2, at(3))
    core.step(reply_of(2, led=(2, 2)), at(3))
    outputs(core, 3)
    assert not recall.may_campaign(core.state)
    connect(core, 2, run=21, last=(1, 1), term=2)
    assert [each.to for each in sent(outputs(core, 4)) if isinstance(each, Recall)] == [2]
    core.step(reply_of(2), at(5))
    assert recall.may_campaign(core.state)


def test_a_restarted_peer_reports_the_entries_that_are_committed() -> None:
    """It remembers no promise of before its start, but knows the committed entries: no log that lacks one may win."""
    peer = a_core(log_of(THREE, 2, 2), 2)
    peer.state.log.committed = 3
    connect(peer, 2, run=20, last=(1, 1), term=2)
    outputs(peer, 1)
    assert (told_by(peer, 2, 20).led_term, told_by(peer, 2, 20).led_index) == (2, 3)
