"""What a peer reports to an older copy of a disk that it refuses, and what the copy makes of it (decision 17, 12)."""

from __future__ import annotations

from dataclasses import replace

from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.events import WentUnderFloor
from raftlog.raft.hello import Start
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, RecallReply
from raftlog.raft.types import NOBODY, EntryKind, NodeId
from tests.raft.consensus.test_recall import (
    THREE,
    a_candidate,
    a_core,
    a_leader,
    acknowledge,
    connect,
    disk_of,
    events_of,
    grant,
    outputs,
    reply_of,
    sent,
)
from tests.raft.lab import append_entries, at, log_of


def start_of(run: int) -> Start:
    """What that process says of its start: its disk ends with entry 1."""
    return Start(run=run, last_index=1, last_term=1, term=1, floor=0)


def refuse(core: RaftCore, peer: NodeId, run: int, disk: str = "") -> list[RecallReply]:
    """That node refuses the process `run` of a peer; the reports that it sends."""
    core.hello_refused(peer, disk or disk_of(peer), at(3_000), start_of(run))
    return [each for each in sent(outputs(core, 3_000)) if isinstance(each, RecallReply)]


def test_a_refused_copy_is_warned_of_all_promises_and_again_once_its_link_opens() -> None:
    """It runs on an older copy of the disk, so the promises of the newest process count as well. A process that this
    node did not meet a successor of, and the newest process itself, hear nothing; nor does one that is taken meanwhile.
    """

    core = a_leader()
    assert refuse(core, 2, 20) == []
    assert refuse(core, 2, 7, "another disk") == []
    connect(core, 2, run=21, last=(2, 2), term=2)
    outputs(core, 3_000)
    (told,) = refuse(core, 2, 20)
    assert (told.run, told.promised_term, told.acked_index) == (20, 0, 0), "it knows its own promises"
    (told,) = refuse(core, 2, 7)
    assert (told.to, told.run, told.promised_term, told.acked_term, told.acked_index) == (2, 7, 2, 2, 2)
    assert not told.healed_index
    core.link_dialled(2, at(3_001), is_bulk=True)
    assert not any(isinstance(each, RecallReply) for each in sent(outputs(core, 3_001)))
    core.link_dialled(2, at(3_001))
    assert told in sent(outputs(core, 3_001))
    connect(core, 2, run=22, last=(2, 2), term=2)
    outputs(core, 3_002)
    core.link_dialled(2, at(3_002))
    assert not any(isinstance(each, RecallReply) for each in sent(outputs(core, 3_002)))


def test_an_acknowledgement_that_came_after_the_report_does_not_count() -> None:
    """The leader takes node 2 and refuses a copy of its disk. An acknowledgement of node 2 that was on its way then is
    not in the report, so the copy would vote against the entry. Node 2 lives: it is asked again at once and counts."""
    core = a_leader()
    core.propose(EntryKind.COMMANDS, 1, b"3", at(2_600))
    outputs(core, 2_600)
    leader = core.state.role
    assert isinstance(leader, Leader)
    on_its_way = AppendEntriesReply(sender=2, to=1, term=2, success=True, match=3, prev_index=2, round=leader.round)
    core.hello_refused(2, disk_of(2), at(3_000), start_of(7))
    told, asked = (each for each in sent(outputs(core, 3_000)) if each.to == 2)
    assert isinstance(told, RecallReply)
    assert isinstance(asked, AppendEntries)
    assert told.acked_index == 2
    assert (asked.prev_index, asked.round) == (2, leader.round)
    core.step(on_its_way, at(3_000))
    assert (leader.progress[2].match, core.state.log.committed) == (2, 2)
    assert refuse(core, 2, 7) == [told]
    acknowledge(core, 2)
    assert (leader.progress[2].match, core.state.log.committed) == (3, 3), "the second report asked for no new round"
    (told,) = refuse(core, 2, 7)
    assert told.acked_index == 3


def test_a_snapshot_goes_on_to_a_peer_whose_copy_is_refused() -> None:
    """Its answers prove nothing: a new round begins, and the follower still waits for the snapshot."""
    core = a_leader()
    core.propose(EntryKind.COMMANDS, 1, b"3", at(2_600))
    outputs(core, 2_600)
    acknowledge(core, 3)
    core.link_closed(2, at(2_600))
    core.compact(core.state.log.last, 3)
    connect(core, 2, run=20, last=(2, 2), term=2)
    for now_ms in (2_700, 2_800):
        core.tick(at(now_ms))
        outputs(core, now_ms)
    leader = core.state.role
    assert isinstance(leader, Leader)
    upload, before = leader.progress[2].sending, leader.round
    assert upload is not None
    refuse(core, 2, 7)
    assert leader.progress[2].sending is upload, "it does not begin again"
    assert leader.progress[2].round_first == before + 1


def test_a_vote_that_came_after_the_report_does_not_count() -> None:
    """As above with a vote: the copy could give a second one in that term. A vote that was counted is reported."""
    core = a_candidate()
    (told,) = refuse(core, 2, 7)
    assert told.promised_term == 0
    grant(core, 2)
    assert core.state.leader == NOBODY
    grant(core, 3)
    assert core.state.leader == 1
    core = a_leader()
    (told,) = refuse(core, 2, 7)
    assert told.promised_term == 2


def test_a_report_that_says_nothing_new_changes_nothing() -> None:
    """A peer that refuses a copy reports at each of its dials, and may lead. The copy leaves the term of that leader
    once, since it cannot heal there, and raises its floor no more, else its term would grow by one a second."""
    core = a_core(log_of(THREE), 1)
    leads = append_entries(prev=(1, 1), term=2)
    for _ in range(3):
        core.step(reply_of(2, promised=2, acked=(2, 4), led=(2, 5)), at(2))
        core.step(leads, at(3))
        done = outputs(core, 3)
        assert (core.state.recall.floor, core.state.term, core.state.recall.reported) == (3, 3, (2, 4))
        assert not core.state.recall.recalled
    assert not events_of(done, WentUnderFloor)
    core.step(replace(leads, sender=3, term=3), at(3))
    core.step(reply_of(2, promised=2, acked=(2, 4), led=(2, 5)), at(3))
    assert (core.state.recall.floor, core.state.term) == (3, 3)
    core.step(reply_of(3, promised=2, acked=(2, 5)), at(4))
    assert core.state.recall.reported == (2, 5)
    core.step(reply_of(3, promised=4, acked=(2, 5)), at(4))
    assert (core.state.recall.floor, core.state.term) == (5, 4)
