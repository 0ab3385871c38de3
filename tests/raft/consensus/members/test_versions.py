"""Tests the cluster version: raised once every member knows a newer one; a node that does not know it stops."""

import pytest

from raftlog.raft.changes import AddLearners, Remove
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.raft.events import MessageIgnored, VersionRaised
from raftlog.raft.versions import known_to_all
from tests.raft.consensus.members.growing_lab import GrowingLab, member
from tests.raft.lab import at, configuration


def led(*knows: int) -> GrowingLab:
    """A cluster at version 1, led by node 1, all connected; `knows` is what nodes 1, 2 and so on know."""
    lab = GrowingLab(len(knows))
    for node, each in enumerate(knows, 1):
        lab.knows[node] = each
        lab.start(node)
    lab.elect(1)
    lab.connect()
    return lab


def versions(lab: GrowingLab) -> list[int]:
    """The cluster version in force at each node."""
    return [lab.in_force(node).version for node in lab.cores]


def test_pitfall_77_the_version_rises_once_every_member_knows_it() -> None:
    """A rolling upgrade: with two of three on version 2 nothing happens. With the third the leader appends it, behind
    one index on all nodes, and nothing else of the configuration changes. A second rise is a second entry.

    Guard: `_raise_version` of raft/consensus/reconfiguration.py.
    """
    lab = led(2, 2, 1)
    lab.run(500)
    assert versions(lab) == [1, 1, 1]
    lab.upgrade(3, 2)
    lab.run(200)
    assert versions(lab) == [2, 2, 2]
    assert len({lab.cores[node].state.configurations[-1] for node in lab.cores}) == 1
    index = lab.cores[1].state.configurations[-1][0]
    assert [each for each in lab.events[1] if isinstance(each, VersionRaised)] == [VersionRaised(index, 2)]
    assert lab.in_force(1).voters == (1, 2, 3)
    lab.run(500)
    assert lab.cores[1].status().last.index == index, "it is raised once"


def test_the_version_rises_as_far_as_all_know_and_in_one_step() -> None:
    """Programs of three versions: what counts is the oldest of them; those before it are not stopped at."""
    lab = led(4, 3, 5)
    lab.run(100)
    assert versions(lab) == [3, 3, 3]


def test_a_learner_must_know_the_version_too() -> None:
    """It applies as everybody does."""
    lab = led(2, 2, 2)
    lab.run(100)
    lab.join(4)
    assert known_to_all(configuration(4, learners=[4]), 1, 2, lab.cores[1].state.recall.said) == 0
    late = led(1, 2, 2)
    late.join(4)
    late.connect(4)
    late.change(1, AddLearners((member(4),), promote=False))
    late.cores[1].transfer(2, at(late.now_ms))
    late.run(1_000)
    assert late.leaders() == [2]
    late.upgrade(1, 2)
    late.run(300)
    assert versions(late) == [1, 1, 1, 1]
    late.upgrade(4, 2)
    late.run(300)
    assert versions(late) == [2, 2, 2, 2]


def test_an_unconnected_member_holds_the_version_back() -> None:
    """The leader cannot know with which program that node will start. Nor does a report of another disk count, or an
    old one.
    """
    lab = led(2, 2, 1)
    lab.disconnect(3)
    lab.run(300)
    assert versions(lab) == [1, 1, 1]
    lab.cores[1].link_opened(3, "f" * 32, 2, at(lab.now_ms))
    lab.run(300)
    assert versions(lab) == [1, 1, 1]
    lab.cores[1].link_opened(3, lab.names[3], 2, at(lab.now_ms))
    lab.cores[1].link_closed(3, at(lab.now_ms))
    lab.run(300)
    assert versions(lab) == [1, 1, 1]


def test_the_version_waits_for_a_change_of_the_members_and_keeps_them_waiting() -> None:
    """Only one configuration may be uncommitted (pitfall 40: the single-server bug of 2015), whatever it changes; later
    changes keep the version.
    """
    lab = led(2, 2, 2)
    lab.cores[1].state.recall.said.clear()
    lab.cut_off(1)
    lab.cores[1].propose_configuration(Remove((3,)), at(lab.now_ms))
    lab.connect()
    lab.settle()
    assert [each.version for _, each in lab.cores[1].state.configurations] == [1, 1]
    lab.heal()
    lab.run(1_000)
    assert lab.voters(1) == (1, 2)
    assert lab.in_force(1).version == 2
    assert lab.in_force(2).version == 2
    lab.change(1, Remove((2,)))
    lab.run(200)
    assert (lab.voters(1), lab.in_force(1).version) == ((1,), 2)


def test_a_version_that_was_not_committed_is_rolled_back() -> None:
    """A leader that is cut off appends it, and the others go on without. Its entry is cut, and the version with it
    (pitfall 41: a configuration that outlives its cut entry). The next leader raises it again, by the reports of the
    nodes connected to it.
    """
    lab = led(2, 2, 2)
    lab.cores[2].state.recall.said.clear()
    lab.cores[3].state.recall.said.clear()
    lab.cut_off(1)
    lab.settle()
    assert lab.in_force(1).version == 2
    lab.run(3_000)
    leader = next(node for node in lab.leaders() if node != 1)
    lab.heal()
    lab.run(500)
    assert versions(lab) == [1, 1, 1]
    lab.connect()
    lab.run(500)
    assert versions(lab) == [2, 2, 2]
    assert lab.leaders() == [leader]


def test_pitfall_71_an_older_program_follows_no_newer_version() -> None:
    """It refuses the entry itself with a clear message, before any of it is durable, and goes on: it may be a forged
    one. It stops at a start on a log or behind a snapshot with it, and at an arriving snapshot with it. So it never
    applies an unknown version.

    Guards: `unreadable` of raft/consensus/membership.py, `RaftCore` and its `installed`.
    """
    lab = led(2, 2, 1)
    lab.cores[1].link_opened(3, lab.names[3], 2, at(lab.now_ms))  # it was another program when it said so
    lab.run(200)
    reasons = {each.reason for each in lab.events[3] if isinstance(each, MessageIgnored)}
    assert [reason.partition(": start the version")[0] for reason in reasons] == [
        "impossible: the cluster is at version 2, this program knows versions up to 1"
    ]
    assert lab.disks[3][-1].index < lab.cores[1].state.configurations[-1][0]
    del lab.cores[3]
    lab.run(200)
    lab.knows[3] = 2
    lab.start(3)
    lab.connect(3)
    lab.run(200)
    assert versions(lab) == [2, 2, 2]
    lab.knows[3] = 1
    with pytest.raises(UnknownVersion, match="version 2"):
        lab.start(3)
    lab.snapshot(1)
    saved = lab.saved[1]
    lab.join(4)
    with pytest.raises(UnknownVersion, match="version 2"):
        lab.cores[4].installed(saved.mark, saved.configuration, saved.configuration_index, at(lab.now_ms))
    lab.snapshot(2)
    lab.knows[2] = 1
    with pytest.raises(UnknownVersion, match="version 2"):
        lab.start(2)
