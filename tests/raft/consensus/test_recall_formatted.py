"""How a disk that was formatted under an old identity gets its vote (raftlog.raft.consensus.recall, NEW_DISK)."""

from __future__ import annotations

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Follower
from raftlog.raft.messages import RequestVoteReply
from raftlog.raft.types import NEW_DISK, HardState
from tests.raft.consensus.test_recall import THREE, a_core, connect, outputs, reply_of, sent, told_by
from tests.raft.lab import append_entries, at, configuration, log_of, vote_request


def a_new_disk(nodes: int = 3) -> RaftCore:
    """Node 1 on a folder that was formatted just now, for a log that may exist already."""
    return a_core(log_of(configuration(nodes)), 1, floor=NEW_DISK, members=configuration(nodes))


def test_a_formatted_disk_has_no_vote_before_every_voter_has_answered() -> None:
    """Node 2 has never been led either, and node 3 may be the only other node with what an earlier disk of node 1
    acknowledged (an acknowledged write was lost so in six commands). However long node 1 waits, it stays a follower."""
    core = a_new_disk()
    connect(core, 2, run=20, last=(1, 1), term=1)
    core.step(reply_of(2, led=(1, 1)), at(2))
    for now_ms in (1_000, 20_000, 500_000):
        core.tick(at(now_ms))
        core.step(vote_request(2, 1, core.state.term + 1, (1, 1)), at(now_ms))
        done = outputs(core, now_ms)
        assert [each.granted for each in sent(done) if isinstance(each, RequestVoteReply)] == [False]
        assert isinstance(core.state.role, Follower)
    connect(core, 3, run=30, last=(1, 1), term=1, now_ms=600_000)
    core.step(reply_of(3, led=(1, 1)), at(600_001))
    assert HardState(core.state.term, core.state.vote, 1, 0) in [each.hard_state for each in outputs(core, 600_001)]


def test_a_formatted_disk_votes_only_for_the_log_that_an_earlier_disk_may_have_promised() -> None:
    """Every voter has answered, and node 3 was led: its log has what the earlier disk acknowledged, and the shorter one
    of node 2 may not. Node 1 itself is elected only after a leader has sent it everything."""
    for last, is_granted in (((1, 1), False), ((4, 2), False), ((5, 2), True), ((2, 3), True)):
        core = a_new_disk()
        connect(core, 2, run=20, last=(1, 1), term=1)
        connect(core, 3, run=30, last=(2, 5), term=2)
        core.step(reply_of(2, led=(1, 1)), at(2))
        core.step(reply_of(3, led=(2, 5)), at(2))
        core.tick(at(50_000))
        assert (core.state.recall.floor, isinstance(core.state.role, Follower)) == (NEW_DISK, True)
        core.step(vote_request(3, 1, 4, last), at(50_001))
        answers = [each for each in sent(outputs(core, 50_001)) if isinstance(each, RequestVoteReply)]
        assert [each.granted for each in answers] == [is_granted], last


def test_a_voter_that_hangs_after_its_answer_has_not_answered_a_formatted_disk() -> None:
    """Node 3, which alone has a committed entry, was cut off after its answer, and its connection stays open. Node 2
    answers much later: with its log alone node 1 would elect a leader without that entry."""
    core = a_new_disk()
    connect(core, 2, run=20, last=(2, 4), term=2)
    connect(core, 3, run=30, last=(2, 5), term=2)
    core.step(reply_of(3, led=(2, 5)), at(2))
    core.tick(at(10_000))
    core.step(reply_of(2, led=(2, 4)), at(10_001))
    for has_answered_again in (False, True):
        if has_answered_again:
            core.step(reply_of(3, led=(2, 5)), at(10_002))
        for index, is_enough in ((4, False), (5, True)):
            core.step(vote_request(2, 1, core.state.term + 1, (index, 2)), at(10_003))
            replies = [each for each in sent(outputs(core, 10_003)) if isinstance(each, RequestVoteReply)]
            assert [each.granted for each in replies] == [has_answered_again and is_enough]


def test_a_formatted_disk_votes_again_once_its_leader_has_sent_everything() -> None:
    """No entry of its own proves that: those before the newest come first."""
    core = a_new_disk()
    connect(core, 2, run=20, last=(2, 2), term=2)
    core.step(reply_of(2, led=(2, 2), term=2), at(2))
    entries = log_of(THREE, 2, 3)[1:]
    core.step(append_entries(entries, prev=(1, 1), term=3, commit=3), at(60_000))
    outputs(core, 60_000)
    core.tick(at(60_001))
    assert (core.state.log.persisted, core.state.recall.floor) == (3, NEW_DISK)
    core.step(reply_of(2, led=(3, 3), term=3, healed=3), at(60_002))
    assert core.state.recall.floor == 0


def test_entries_of_a_leader_lift_no_floor_of_a_formatted_disk() -> None:
    """Every voter has answered, none of more than the first configuration. But the cluster is not new: an earlier disk
    may have promised more than is here."""
    core = a_new_disk()
    for peer in (2, 3):
        connect(core, peer, run=10 * peer, last=(1, 1), term=1)
    core.step(append_entries(log_of(THREE, 2)[1:], prev=(1, 1), term=2), at(2))
    outputs(core, 2)
    for peer in (2, 3):
        core.step(reply_of(peer, led=(1, 1), term=2), at(3))
    assert (core.state.recall.floor, core.state.recall.reported) == (NEW_DISK, None)


def test_a_promise_of_an_earlier_disk_is_reported_once() -> None:
    """The formatted disk begins its term. The same report again finds nothing to do, and writes nothing."""
    core = a_new_disk()
    connect(core, 2, run=20, last=(1, 1), term=1)
    for now_ms, state in ((2, HardState(4, 1, 1, NEW_DISK)), (3, None)):
        core.step(reply_of(2, promised=4, acked=(4, 9)), at(now_ms))
        assert [each.hard_state for each in outputs(core, now_ms) if each.hard_state] == ([state] if state else [])


def test_a_voter_answers_a_formatted_disk_with_its_newest_entry() -> None:
    """The earlier disk may have helped to commit it, without this node's knowledge."""
    core = a_core(log_of(THREE, 2, 2), 2)
    connect(core, 2, run=20, last=(1, 1), term=1)
    connect(core, 3, run=30, last=(2, 3), term=2)
    answer = told_by(core, 2, 20, floor=NEW_DISK)
    assert (answer.led_term, answer.led_index) == (2, 3)
    assert told_by(core, 3, 30).led_index == 1


def test_the_only_voter_needs_no_answer() -> None:
    """A new cluster of one node."""
    core = a_new_disk(1)
    core.tick(at(0))
    outputs(core, 0)
    assert core.state.recall.floor == 0
