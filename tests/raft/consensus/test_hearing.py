"""Whose messages count: those of members' disks, and of other disks what a node that slept must be able to take."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from raftlog.raft.changes import AddLearners, Promote
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import check_state
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.events import MessageIgnored
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    RecallReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.raft.types import Mark
from tests.raft.consensus.members.growing_lab import GrowingLab, member
from tests.raft.lab import (
    append,
    append_entries,
    at,
    configuration,
    configuration_entry,
    drain,
    extend,
    lead,
    make_core,
    reply,
)

OUT, OUT_DISK, STRANGER, STRANGER_DISK = 4, "4" * 32, 9, "9" * 32
MEMBERS = replace(configuration(3), removed=((OUT, OUT_DISK),))
GONE = ((OUT, OUT_DISK), (OUT, "a fresh disk"), (OUT, ""), (STRANGER, OUT_DISK))
"""The removed disk; its number with another disk, which its key proves as well; its disk under another number."""


def a_core(role: str) -> RaftCore:
    """Node 1 in term 2 with five committed entries: it leads, or hears node 2, which leads, or hears no leader."""
    core = make_core(1, 3, 1, 1, 1, members=MEMBERS)
    if role == "leader":
        lead(core, now_ms=300)
        reply(core, 2, match=5, now_ms=300)
    else:
        last = core.state.log.last
        append(core, extend(last, 2), prev=(4, 1), term=2, commit=5, now_ms=300)
    drain(core, 300)
    assert core.status().commit == 5
    if role == "alone":
        core.state.now = at(900)
    return core


def forged(sender: int, term: int) -> list[Message]:
    """What the holder of a key may send, as a leader, a candidate and a follower: each could change something."""
    head: dict[str, Any] = {"sender": sender, "to": 1, "term": term}
    rival = tuple(extend(Mark(3, 1), term, term))
    return [
        AppendEntries(prev_index=0, prev_term=0, commit=0, round=0, **head),
        AppendEntries(prev_index=3, prev_term=1, commit=5, round=0, entries=rival, **head),
        AppendEntries(prev_index=5, prev_term=2, commit=6, round=0, entries=tuple(extend(Mark(5, 2), term)), **head),
        RequestVote(last_index=99, last_term=term, transfer=True, **head),
        RequestVote(last_index=99, last_term=term, **head),
        RequestVote(last_index=99, last_term=term, pre=True, link_closed=True, **head),
        InstallSnapshot(
            snapshot_index=99, snapshot_term=term, offset=0, total=1, crc=0x527D5351, done=True, data=b"\0", **head
        ),
        TimeoutNow(last_index=1, **head),
        RequestVoteReply(request_term=term, granted=False, **head),
        AppendEntriesReply(success=False, match=0, prev_index=0, round=0, **head),
        InstallSnapshotReply(snapshot_index=1, snapshot_term=1, offset=0, accepted=False, **head),
        RecallReply(
            run=0,
            promised_term=term,
            acked_term=term,
            acked_index=99,
            led_term=term,
            led_index=99,
            healed_index=0,
            is_alone=False,
            is_lost=True,
            **head,
        ),
    ]


def is_moved(core: RaftCore, message: Message, disk: str) -> bool:
    """Whether the core took anything of the message: else it sends nothing, and says that it ignored it."""
    before = core.status()
    core.step(message, core.state.now, disk)
    check_state(core.state)
    out = drain(core, core.state.now.monotonic_ms)
    is_ignored = [type(event) for event in out.events] == [MessageIgnored]
    is_same = core.status() == before and not out.entries and not out.to(message.sender)
    assert is_same or not is_ignored
    return not is_ignored


@pytest.mark.parametrize(
    ("sender", "role", "term"),
    [*product([*GONE, (STRANGER, STRANGER_DISK), (2, STRANGER_DISK)], ["leader", "follower"], [3, 2])],
)
def test_a_node_that_hears_its_leader_takes_nothing_of_a_disk_that_is_no_member(
    sender: tuple[int, str], role: str, term: int
) -> None:
    """A removed node, one that never was a member, and another disk under a member's number. In a newer term, and in
    the term of the leader. An answer of that term moves nothing.

    Guard: `refusal_of` of raft/consensus/hearing.py.
    """
    for message in forged(sender[0], term):
        core = a_core(role)
        status = core.status()
        if isinstance(message, RequestVoteReply | AppendEntriesReply | InstallSnapshotReply) and term == 2:
            core.step(message, core.state.now, sender[1])
            drain(core, 300)
        elif role == "leader" and sender == (2, STRANGER_DISK) and term == 2 and isinstance(message, TimeoutNow):
            continue
        else:
            assert not is_moved(core, message, sender[1]), message
        assert replace(core.status(), followers=()) == replace(status, followers=())


def test_pitfall_46_a_promise_counts_only_from_the_disk_that_is_named() -> None:
    """A wiped or foreign disk has forgotten what its number promised before: its vote elects no leader."""
    for disk, is_elected in (("a wiped disk", False), (member(2).incarnation, True)):
        core = make_core(1, 3)
        for pre in (True, False):
            core.tick(at(300))
            drain(core, 300)
            vote = RequestVoteReply(sender=2, to=1, term=1 if pre else 2, request_term=2, granted=True, pre=pre)
            core.step(vote, at(300), disk if not pre else member(2).incarnation)
        assert (core.status().role is RoleName.LEADER) == is_elected


@pytest.mark.parametrize("sender", GONE)
def test_a_node_that_hears_no_leader_takes_nothing_of_a_disk_that_was_removed(sender: tuple[int, str]) -> None:
    """The removal is applied here: the node knows it for good, since its configurations and snapshots name the disk."""
    for message in forged(sender[0], 3):
        assert not is_moved(a_core("alone"), message, sender[1]), message


def test_a_node_that_hears_no_leader_follows_a_leader_that_it_does_not_know() -> None:
    """It slept while node 9 joined, or while node 3 got another disk. Else a lagging node could never catch up, and a
    majority that needs its vote would elect no leader."""
    for node, disk in ((STRANGER, STRANGER_DISK), (3, "a fresh disk")):
        for message in forged(node, 3)[:5]:
            assert is_moved(a_core("alone"), message, disk), message


def test_a_removal_that_is_not_committed_bars_no_node() -> None:
    """It may be cut, and node 3 may lead by the configuration before it: once the leader is silent, it is followed."""
    core = make_core(1, 3, members=configuration(3))
    without = replace(configuration(2), removed=((3, member(3).incarnation),))
    last = core.state.log.last
    entry = configuration_entry(last, without, 2)
    append(core, [entry], prev=(1, 1), term=2, commit=1, now_ms=100)
    rival = append_entries(extend(last, 3), prev=(1, 1), term=3, sender=3)
    core.step(rival, at(200), member(3).incarnation)
    assert core.status().term == 2
    core.step(rival, at(400), member(3).incarnation)
    assert (core.status().term, core.status().leader) == (3, 3)
    assert core.state.configuration.member(3) is not None


def grown(nodes: int = 3) -> GrowingLab:
    """A lab that node 1 leads."""
    lab = GrowingLab(nodes)
    lab.elect(1)
    lab.connect()
    lab.run(300)
    return lab


def test_a_removed_leader_holds_up_no_election() -> None:
    """Its key goes on with heartbeats of its own term. Its followers do not wait for it any more.

    Guard: `hear_leader` of raft/consensus/state.py.
    """
    core = a_core("follower")
    core.state.configurations = [(1, replace(MEMBERS, members=MEMBERS.members[:1], voters=(1,), removed=((2, "2"),)))]
    deadline_ms = core.next_deadline_ms()
    core.step(append_entries(prev=(5, 2), term=2, commit=5), at(400), "2")
    assert core.next_deadline_ms() == deadline_ms


def test_voters_that_a_lagging_majority_does_not_know_elect_a_leader_with_it() -> None:
    """1 and 2 have the entry that makes 4 and 5 voters. Then 3, which slept, is the third voter that is left beside 4
    and 5: it votes for one of them, and follows it (a voter that answers no candidate whom its own configuration does
    not name would leave a majority without a leader)."""
    lab = grown()
    lab.stop(3)
    for node in (4, 5):
        lab.join(node)
        lab.connect(node)
        lab.change(1, AddLearners((member(node),), promote=False))
        lab.run(300)
        lab.change(1, Promote((node,)))
        lab.run(300)
    assert lab.voters(4) == (1, 2, 3, 4, 5)
    lab.stop(1)
    lab.stop(2)
    core = lab.start(3)
    assert core.state.configuration.member(4) is None
    lab.run(5_000)
    assert len(lab.leaders()) == 1
    assert lab.voters(3) == (1, 2, 3, 4, 5)


def test_a_vote_for_a_hand_over_needs_a_voter_with_everything_in_the_next_term() -> None:
    """The flag alone gets past a follower that hears its leader: anybody can set it.

    Guard: `is_bound` of raft/consensus/election.py.
    """
    learner = Configuration((*MEMBERS.members, Member(5, "5" * 32, "", "")), (1, 2, 3), learners=(5,))
    for sender, term, last, is_taken in (
        (3, 3, (5, 2), True),
        (3, 4, (5, 2), False),
        (3, 3, (4, 1), False),
        (5, 3, (5, 2), False),
    ):
        core = a_core("follower")
        core.state.configurations = [(1, learner)]
        core.step(
            RequestVote(sender=sender, to=1, term=term, last_index=last[0], last_term=last[1], transfer=True), at(310)
        )
        assert (core.status().term == term) == is_taken, (sender, term, last)
