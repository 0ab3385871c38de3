"""Changing the members of a running cluster: joint, one at a time, back when cut (thesis chapter 4; pitfalls, D)."""

from contextlib import suppress

import pytest

from raftlog.raft import changes
from raftlog.raft.changes import (
    AddLearners,
    ChangeAddresses,
    MemberChange,
    Promote,
    Remove,
    Replace,
    joined,
    left,
    swapped,
)
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus import membership
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.refusals import ConfigurationRefused, NotLeader, TransferInProgress, WhyRefused
from tests.raft.consensus.members.growing_lab import GrowingLab, member
from tests.raft.lab import at, configuration, drain, lead, make_core, reply

FIVE = configuration(5)
LEARNING = configuration(4, learners=[4])


def test_a_replacement_is_one_joint_change() -> None:
    """In comes one, out goes another; in between both majorities count."""
    following = joined(LEARNING, swapped(LEARNING, 3, 4))
    assert (following.voters, following.outgoing, following.learners) == ((1, 2, 4), (1, 2, 3), ())
    assert left(following).peers(0) == (1, 2, 4)


@pytest.mark.parametrize(
    ("change", "why", "words"),
    [
        (AddLearners(()), WhyRefused.INVALID, "at least one node"),
        (AddLearners((member(5), member(5))), WhyRefused.INVALID, "each once"),
        (AddLearners((member(0),)), WhyRefused.INVALID, "cannot be a node's number"),
        (AddLearners((member(2),)), WhyRefused.ALREADY_MEMBER, "node 2 is a voter already"),
        (AddLearners((member(4, disk=9),)), WhyRefused.ALREADY_MEMBER, "node 4 is a learner already"),
        (AddLearners((member(5, disk=2),)), WhyRefused.INCARNATION_REUSED, "that disk is the one of node 2"),
        (AddLearners((member(5), member(6, disk=5))), WhyRefused.INCARNATION_REUSED, "that disk is the one of node 5"),
        (Promote((9,)), WhyRefused.UNKNOWN_NODE, r"name one of \[1, 2, 3, 4\]"),
        (Promote((2,)), WhyRefused.NOTHING_CHANGES, "a voter already"),
        (Promote((4,)), WhyRefused.NOT_CAUGHT_UP, "automatic promotion"),
        (Remove((9,)), WhyRefused.UNKNOWN_NODE, "no member"),
        (Remove((1, 2, 3)), WhyRefused.LAST_VOTER, "add a voter first"),
        (Replace(9, member(5)), WhyRefused.UNKNOWN_NODE, "node 9"),
        (Replace(3, member(2, disk=8)), WhyRefused.ALREADY_MEMBER, "node 2 is a voter"),
        (Replace(3, member(3)), WhyRefused.INCARNATION_REUSED, "format a new data folder"),
        (Replace(1, member(1, disk=8)), WhyRefused.INVALID, "hand the leadership over first"),
        (ChangeAddresses((member(2),)), WhyRefused.NOTHING_CHANGES, "known at these"),
        (ChangeAddresses((member(2, disk=7),)), WhyRefused.INVALID, "replace it"),
        (ChangeAddresses((member(7),)), WhyRefused.UNKNOWN_NODE, "node 7"),
    ],
)
def test_an_impossible_change_is_refused_by_name(change: MemberChange, why: WhyRefused, words: str) -> None:
    """Each message names the fault and the fix, and nothing was appended."""
    core = make_core(1, 4, members=LEARNING)
    lead(core)
    reply(core, 2, match=2)
    drain(core)
    before = core.status().last
    with pytest.raises(ConfigurationRefused, match=words) as refused:
        core.propose_configuration(change, at(400))
    assert refused.value.why is why
    assert core.status().last == before
    assert core.state.configuration == LEARNING


def test_pitfall_40_no_change_before_the_first_commit_of_the_term() -> None:
    """The log of somebody else may hold a change that this leader does not know.

    Guard: the term in `check_calm` of raft/consensus/membership.py.
    """
    core = make_core(1, 3)
    lead(core)
    with pytest.raises(ConfigurationRefused, match="term 2 yet; try again") as refused:
        core.propose_configuration(Remove((3,)), at(400))
    assert refused.value.why is WhyRefused.NOT_READY
    reply(core, 2, match=2)
    core.propose_configuration(Remove((3,)), at(400))


def bug_of_2015(lab: GrowingLab) -> tuple[Configuration, Configuration]:
    """The schedule: 1 removes 2 while no node hears it; 2 is elected, and removes 1 while only 3 hears it; then 1 and 4
    are alone together. Returns the configurations of 2 and 1 in the end.
    """
    lab.elect(1)
    lab.cut_off(1)
    lab.cores[1].propose_configuration(Remove((2,)), at(lab.now_ms))
    lab.settle()
    core = lab.cores[2]
    lab.now_ms = core.next_deadline_ms()
    core.tick(at(lab.now_ms))
    while core.status().role is not RoleName.LEADER:
        for node in list(lab.cores):
            lab.work(node)
        message = lab.wire.pop(0)
        if (message.sender, message.to) not in lab.cuts:
            lab.cores[message.to].step(message, at(lab.now_ms))
    lab.cut_off(2, 3)
    lab.settle()
    with suppress(ConfigurationRefused):  # it has not committed anything in its term
        core.propose_configuration(Remove((1,)), at(lab.now_ms))
    lab.settle()
    lab.heal()
    lab.cut_off(2, 3)
    lab.run(3_000)
    return lab.in_force(2), lab.in_force(1)


def test_pitfall_40_the_bug_of_2015_decides_nothing_twice() -> None:
    """With single steps {2, 3} of {2, 3, 4} and {1, 4} of {1, 3, 4} both decide, and share no voter. Here the joint
    majority keeps both pairs from deciding anything, and afterwards there is one cluster.

    Guard: `joined` of raft/changes.py, and the term in `check_calm` of
    raft/consensus/membership.py: either is enough.
    """
    lab = GrowingLab(4)
    bug_of_2015(lab)
    assert [core.status().commit for core in lab.cores.values()] == [2, 2, 2, 2]
    assert lab.leaders() == []
    lab.heal()
    lab.run(2_000)
    assert len(lab.leaders()) == 1
    assert len({lab.in_force(node) for node in lab.cores}) == 1
    lab.propose(lab.leaders()[0])
    lab.settle()
    assert lab.applied[1] == lab.applied[2] == lab.applied[3] == lab.applied[4]


def test_pitfall_40_the_story_of_2015_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both guards out, two disjoint majorities commit different entries at one index."""
    monkeypatch.setattr(changes, "joined", lambda old, new: new)
    monkeypatch.setattr(membership, "check_calm", lambda state, role: None)
    lab = GrowingLab(4)
    assert [each.voters for each in bug_of_2015(lab)] == [(2, 3, 4), (1, 3, 4)]
    committed = [{entry.index: entry for entry in lab.applied[node]} for node in (1, 2)]
    shared = sorted({*committed[0]} & {*committed[1]})
    assert any(committed[0][index] != committed[1][index] for index in shared)


def test_a_second_change_under_way_is_refused() -> None:
    """Neither a second entry nor one within a joint configuration, nor while leadership is handed over."""
    lab = GrowingLab(3)
    core = lab.elect(1)
    lab.cut_off(1)
    core.propose_configuration(AddLearners((member(4),)), at(lab.now_ms))
    with pytest.raises(ConfigurationRefused, match=r"entry 3 is not finished; try again") as refused:
        core.propose_configuration(Remove((2,)), at(lab.now_ms))
    assert refused.value.why is WhyRefused.OVERLAPS
    lab.heal()
    lab.run(100)
    core.transfer(2, at(lab.now_ms))
    with pytest.raises(TransferInProgress):
        core.propose_configuration(Remove((3,)), at(lab.now_ms))
    with pytest.raises(NotLeader):
        lab.cores[3].propose_configuration(Remove((3,)), at(lab.now_ms))


def test_pitfall_44_a_joint_configuration_needs_both_majorities() -> None:
    """For a commit and for an election alike: {1, 2} of the new three is not enough when four were there.

    Guard: `outgoing` in `agreed` and `outcome` of raft/quorum.py.
    """
    lab = GrowingLab(5)
    core = lab.elect(1)
    lab.cut_off(1, 2)
    core.propose_configuration(Remove((4, 5)), at(lab.now_ms))
    lab.settle()
    assert lab.in_force(2).outgoing == FIVE.voters
    assert core.status().commit == 2
    lab.run(3_000)
    assert lab.leaders() == [3]  # the old majority still decides, and cuts the uncommitted entry
    lab.heal()
    lab.run(1_000)
    assert {lab.voters(node) for node in lab.cores} == {FIVE.voters}


def test_pitfall_44_a_restarted_node_knows_that_it_is_joint() -> None:
    """The configuration comes from the log at a start too, and the next leader then leaves it."""
    lab = GrowingLab(4)
    core = lab.elect(1)
    lab.cuts = {(a, b): True for a in lab.cores for b in (1,)}  # nobody's answer arrives
    core.propose_configuration(Remove((4,)), at(lab.now_ms))
    lab.settle()
    lab.heal()
    for node in list(lab.cores):
        lab.stop(node)
        lab.start(node)
        assert lab.in_force(node).outgoing == (1, 2, 3, 4)
    lab.elect(2)
    lab.run(200)
    assert [lab.voters(node) for node in lab.cores] == [(1, 2, 3)] * 4


@pytest.mark.parametrize("restart", [False, True])
def test_pitfall_41_a_change_that_is_cut_is_gone_on_leader_and_follower(restart: bool) -> None:
    """The one before is in force again, after a restart too.

    Guard: `roll_back` of raft/consensus/membership.py; `earlier` of RaftCore.
    """
    lab = GrowingLab(5)
    core = lab.elect(1)
    lab.cut_off(1, 2)
    core.propose_configuration(Remove((5,)), at(lab.now_ms))
    lab.settle()
    assert lab.in_force(1).outgoing == lab.in_force(2).outgoing == FIVE.voters
    if restart:
        for node in (1, 2):
            lab.stop(node)
            lab.start(node)
    lab.elect(3)
    lab.propose(3)
    lab.settle()
    lab.heal()
    lab.run(1_000)
    assert {lab.voters(node) for node in lab.cores} == {FIVE.voters}
    assert lab.cores[1].status().configuration_index == 1


def test_pitfall_49_a_crash_at_any_message_of_a_change_loses_nothing_and_ends() -> None:
    """The leader is killed after each possible number of delivered messages; a write acknowledged before stays."""
    for deliveries in range(40):
        lab = GrowingLab(3)
        core = lab.elect(1)
        lab.join(4)
        lab.change(1, AddLearners((member(4),), promote=False))
        written = lab.propose(1)
        lab.settle()
        core.propose_configuration(Replace(3, member(4)), at(lab.now_ms))
        core.tick(at(lab.now_ms + 60))
        for _ in range(deliveries):
            for node in list(lab.cores):
                lab.work(node)
            if lab.wire:
                message = lab.wire.pop(0)
                lab.cores[message.to].step(message, at(lab.now_ms))
        lab.stop(1)
        lab.wire.clear()
        lab.run(2_000)
        (leader,) = lab.leaders()
        assert any(entry.index == written for entry in lab.applied[leader])
        lab.start(1)
        lab.run(2_000)
        assert lab.voters(leader) in {(1, 2, 3), (1, 2, 4)}
        assert {lab.voters(node) for node in lab.voters(leader)} == {lab.voters(leader)}


def test_a_change_that_would_lose_the_quorum_is_refused() -> None:
    """Of three, one is dead: without one of the others nothing could be committed any more."""
    lab = GrowingLab(3)
    core = lab.elect(1)
    lab.stop(3)
    lab.run(700)
    with pytest.raises(ConfigurationRefused, match=r"\[3\] do not; start those first, or remove") as refused:
        core.propose_configuration(Remove((2,)), at(lab.now_ms))
    assert refused.value.why is WhyRefused.QUORUM_LOST
    lab.change(1, Remove((3,)))
    assert lab.voters(1) == lab.voters(2) == (1, 2)


def test_reads_open_while_the_configuration_is_left_are_answered() -> None:
    """The round was asked of two, and only one of them is left when it could be answered.

    Guard: `reads.confirm` in `advance` of raft/consensus/reconfiguration.py.
    """
    core = make_core(1, 2)
    lead(core)
    reply(core, 2, match=2)
    joint = core.propose_configuration(Remove((2,)), at(400))
    drain(core)
    core.read(7, at(400))
    drain(core)
    reply(core, 2, match=joint)
    assert [read.context for read in drain(core).reads] == [7]
