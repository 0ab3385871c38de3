"""Directed stories of states that go wrong in memory: of a minority, of the leader, of a majority."""

import pytest

from raftlog.chaos.sim.invariants.durability.diverged_is_fenced import DivergedIsFenced
from raftlog.chaos.sim.nemesis import states
from raftlog.chaos.sim.nemesis.states import KEPT, flip
from raftlog.chaos.sim.replica.answers import settings_of
from raftlog.cluster.api.errors import Code, Problem
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.types import NodeId
from raftlog.statemachine.commands import Operation
from tests.sim.world.property_lab import THREE
from tests.sim.world.test_stories import Story


class Wrong(Story):
    """A world whose key is written, and whose values are flipped when the story says so."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        states.begin(self.world)
        self.until(lambda: all(KEPT in replica.machine._store.head for replica in self.world.replicas.values()))
        self.agreed = 0

    def prepare(self) -> None:
        """Digest points come often."""
        self.world.settings = settings_of(self.world, 5)

    def write(self, count: int) -> list[object]:
        """Appends so many records to the leader, one after the other; returns the answers."""
        answers: list[object] = []
        for _ in range(count):
            leading = self.world.leading()
            if leading is not None:
                leading.ask([BlockRecord(Operation.APPEND, None, b"v")], answers.append, for_us=2_000_000, plain=True)
            self.wait(50)
        return answers

    def corrupt(self, node: NodeId, value: bytes) -> None:
        """That node's state is wrong from now on."""
        replica = self.world.replicas[node]
        flip(replica.machine, KEPT, value)
        replica.corrupted = replica.mark.index
        self.world.atlas.unsound[node] = "the story says so"


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_wrong_minority_is_fenced_and_comes_back_sound(who: str) -> None:
    """The next digest point finds it under any leader; the others go on writing, and the node rebuilds its state."""
    story = Wrong(3)
    assert story.write(12)
    leading = story.world.leading()
    assert leading is not None
    node = leading.node if who == "leader" else next(each for each in story.nodes if each != leading.node)
    value = story.world.replicas[node].machine.get(KEPT).value
    story.corrupt(node, b"wrong")
    story.write(6)
    story.until(lambda: story.sees("sometimes: a wrong state was found out") == 1)
    story.until(lambda: story.world.replicas[node].core is not None)
    answers = story.write(10)
    assert sum(not isinstance(answer, Problem) for answer in answers) >= 5
    story.until(lambda: story.world.has_agreed(1))
    assert story.world.replicas[node].machine.get(KEPT).value == value
    assert story.sees("sometimes: a wrong state was found out") == 1


def test_a_majority_of_different_wrong_states_stops_the_writing() -> None:
    """With three different states no node is fenced, because no majority is right; every write is refused."""
    story = Wrong(3)
    story.write(12)
    for node in (1, 2):
        story.corrupt(node, b"wrong %d" % node)
    story.write(10)
    story.until(lambda: all(replica.state.watch.points.differ for replica in story.world.replicas.values()))
    answers = story.write(5)
    assert [answer.code for answer in answers if isinstance(answer, Problem)] == [Code.STATES_DIFFER] * 5
    assert story.sees("sometimes: a wrong state was found out") == 0


def test_two_different_states_wait_for_the_third_to_tell_who_is_right() -> None:
    """With one of three down, two that differ stop; the third comes back, reports, and the wrong one is fenced."""
    story = Wrong(3)
    story.write(12)
    leading = story.world.leading()
    assert leading is not None
    other, third = [node for node in story.nodes if node != leading.node]
    story.end(third)
    story.corrupt(other, b"wrong")
    story.write(10)
    story.until(lambda: bool(leading.state.watch.points.differ))
    answers = story.write(3)
    assert {answer.code for answer in answers if isinstance(answer, Problem)} == {Code.STATES_DIFFER}
    story.begin(third)
    story.until(lambda: story.sees("sometimes: a wrong state was found out") == 1)
    story.until(lambda: not leading.state.watch.points.differ)
    story.until(lambda: any(not isinstance(answer, Problem) for answer in story.write(1)))


def test_the_property_sees_who_answers_although_it_was_told() -> None:
    """A node may answer while one of three reports another state; after two such reports it may not."""
    seen = DivergedIsFenced()
    seen.applied(1, 10, b"wrong")
    seen.reported(1, 2, [(10, b"right")])
    seen.answers(1, THREE)
    seen.reported(1, 3, [(10, b"right")])
    with pytest.raises(InvariantBroken, match="diverged is fenced"):
        seen.answers(1, THREE)
    seen.began(1)
    seen.answers(1, THREE)


def test_a_late_repetition_of_the_first_write_does_not_make_a_wrong_state_right() -> None:
    """The answer of the write that the world begins with may be late, and then it is sent again: the second one changes
    nothing where the key is there."""
    story = Wrong(3)
    story.write(2)
    leading = story.world.leading()
    assert leading is not None
    story.corrupt(next(each for each in story.nodes if each != leading.node), b"wrong")
    states.begin(story.world)
    story.wait(600)
    story.write(12)
    assert story.sees("sometimes: a wrong state was found out") == 1
