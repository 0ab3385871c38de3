"""Promises that no log has any more, or not yet: those that a leader replaced, and those of disks that hang."""

from __future__ import annotations

from raftlog.raft.consensus import recall
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Follower
from raftlog.raft.events import PromisesLost
from raftlog.raft.messages import Recall
from raftlog.raft.ready import Ready
from tests.raft.consensus.test_recall import (
    OPTIONS,
    THREE,
    WAITED_MS,
    a_core,
    connect,
    events_of,
    outputs,
    reply_of,
    sent,
    told_by,
)
from tests.raft.lab import append_entries, at, log_of


def a_follower_with_an_entry_on_its_way_to_the_disk() -> tuple[RaftCore, Ready]:
    """Node 1 has taken entry 2@2 of node 2, run 20, and not written it; node 2 was started again since, as run 21."""
    core = a_core(log_of(THREE), 1)
    connect(core, 2, run=20, last=(1, 1), term=2)
    outputs(core, 1)
    (entry,) = log_of(THREE, 2)[1:]
    core.step(append_entries([entry], prev=(1, 1), term=2), at(WAITED_MS))
    ready = core.ready()
    assert ready is not None
    assert ready.entries == (entry,)
    connect(core, 2, run=21, last=(1, 1), term=2)
    return core, ready


def test_an_acknowledgement_that_has_not_left_is_not_remembered() -> None:
    """The leader cannot have counted it. If this disk hangs, and the leader ended before it wrote the entry itself, the
    report would keep the leader from voting, with another intact node, for as long as this node is connected."""
    core, ready = a_follower_with_an_entry_on_its_way_to_the_disk()
    assert told_by(core, 2, 21).led_index == 1
    core.persisted(ready.entries[-1].term, ready.entries[-1].index, at(WAITED_MS))
    answer = told_by(core, 2, 21)
    assert (answer.led_term, answer.led_index) == (2, 2)


def test_a_node_whose_disk_hangs_does_not_campaign_and_keeps_no_leader_from_voting() -> None:
    """It could not begin its term, nor give the vote that the reported entry needs. Once the disk moves again, it
    campaigns."""
    core, ready = a_follower_with_an_entry_on_its_way_to_the_disk()
    core.persisted(ready.entries[-1].term, ready.entries[-1].index, at(WAITED_MS))
    outputs(core, WAITED_MS)
    core.state.is_stalled = True
    assert told_by(core, 2, 21).led_index == 1
    core.link_closed(2, at(WAITED_MS))
    for is_stalled in (True, False):
        core.state.is_stalled = is_stalled
        role = core.state.role
        assert isinstance(role, Follower)
        core.tick(at(role.deadline_ms))
        assert isinstance(core.state.role, Follower) is is_stalled


def test_what_a_leader_replaced_on_this_disk_keeps_it_from_no_election() -> None:
    """The peer acknowledged 4@2 to this node, whose log held it until a leader of term 3 cut it. A report of a later
    entry counts, and is asked for again with each heartbeat: the peer's disk may hang since, or its log be cut, too."""
    core = a_core(log_of(THREE, 2), 3, kept=(2, 4))
    connect(core, 2, run=20, last=(2, 4), term=3)
    outputs(core, 1)
    core.step(reply_of(2, promised=2, acked=(2, 4), led=(2, 4)), at(2))
    assert core.state.recall.floor == 0
    assert not events_of(outputs(core, 3), PromisesLost)
    core.state.now = at(WAITED_MS)
    assert recall.may_campaign(core.state)
    core.step(reply_of(2, promised=2, led=(2, 5)), at(WAITED_MS))
    assert not recall.may_campaign(core.state)
    for led, is_asked_again in (((2, 5), True), ((2, 4), False)):
        core.step(reply_of(2, promised=2, led=led), at(core.state.now.monotonic_ms))
        core.tick(at(core.state.now.monotonic_ms + OPTIONS.heartbeat_ms))
        asked = [each for each in sent(outputs(core, WAITED_MS)) if isinstance(each, Recall)]
        assert bool(asked) is is_asked_again
    assert recall.may_campaign(core.state)


def test_a_report_counts_while_its_peer_answers() -> None:
    """This disk lacks 5@2, which the peer acknowledged. The peer hangs, and its connection stays open: after as long as
    a started node waits for a voter it counts as not connected, and this node campaigns. Its next answer counts."""
    core = a_core(log_of(THREE, 2), 3)
    connect(core, 2, run=20, last=(2, 5), term=3)
    answered_ms = WAITED_MS
    core.step(reply_of(2, promised=2, led=(2, 5)), at(answered_ms))
    patience_ms = recall.PATIENCE_TIMEOUTS * OPTIONS.election_timeout_max_ms
    for waited_ms in range(OPTIONS.heartbeat_ms, patience_ms + 1, OPTIONS.heartbeat_ms):
        core.tick(at(answered_ms + waited_ms))
        outputs(core, answered_ms + waited_ms)
        assert not recall.may_campaign(core.state)
    core.tick(at(answered_ms + patience_ms + OPTIONS.heartbeat_ms))
    assert recall.may_campaign(core.state)
    core.step(reply_of(2, promised=2, led=(2, 5)), at(answered_ms + patience_ms + OPTIONS.heartbeat_ms))
    assert not recall.may_campaign(core.state)
