"""Compares configurations with naive twins: a dict of roles for the changes, a list of entries for the one in force."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raftlog.raft import changes
from raftlog.raft.changes import AddLearners, ChangeAddresses, Promote, Remove
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.quorum import VoteOutcome, outcome
from raftlog.raft.refusals import ConfigurationRefused
from raftlog.raft.types import Entry, EntryKind
from tests.raft.lab import append_entries, at, configuration, configuration_entry, drain, extend, make_core

NODES = st.integers(1, 6)
VOTER, LEARNER = "voter", "learner"


def disk(number: int) -> str:
    """The incarnation of that number."""
    return f"{number:032x}"


class Changes(RuleBasedStateMachine):
    """Random changes on a configuration and on a dict: the same are refused, and all others lead to the same."""

    @initialize(nodes=st.integers(1, 4))
    def start(self, nodes: int) -> None:
        """Some voters, each with the disk of its own number."""
        self.configuration = configuration(nodes)
        self.roles = dict.fromkeys(range(1, nodes + 1), VOTER)
        self.disks = {node: disk(node) for node in self.roles}
        self.ports = {node: f"127.0.0.1:{node}" for node in self.roles}

    @rule(nodes=st.lists(NODES, max_size=3), disks=st.integers(0, 2))
    def add(self, nodes: list[int], disks: int) -> None:
        """New learners; with `disks` 1 all with one disk, with 2 with that of node 1."""
        members = tuple(Member(node, disk({0: node, 1: 77, 2: 1}[disks]), f"127.0.0.1:{node}", "") for node in nodes)
        incarnations = [member.incarnation for member in members]
        is_fine = (
            0 < len(nodes) == len(set(nodes)) == len(set(incarnations))
            and not set(nodes) & set(self.roles)
            and not set(incarnations) & set(self.disks.values())
        )
        if self._leads_to(AddLearners(members), is_fine=is_fine):
            for member in members:
                self.roles[member.node], self.disks[member.node] = LEARNER, member.incarnation
                self.ports[member.node] = member.peer

    @rule(nodes=st.lists(NODES, max_size=2))
    def promote(self, nodes: list[int]) -> None:
        """Learners become voters."""
        is_fine = 0 < len(nodes) == len(set(nodes)) and all(self.roles.get(node) == LEARNER for node in nodes)
        if self._leads_to(Promote(tuple(nodes)), is_fine=is_fine):
            self.roles |= dict.fromkeys(nodes, VOTER)

    @rule(nodes=st.lists(NODES, max_size=2))
    def remove(self, nodes: list[int]) -> None:
        """Members leave, but never the last voter."""
        rest = [node for node, role in self.roles.items() if role == VOTER and node not in nodes]
        is_fine = 0 < len(nodes) == len(set(nodes)) and all(node in self.roles for node in nodes) and bool(rest)
        if self._leads_to(Remove(tuple(nodes)), is_fine=is_fine):
            for node in nodes:
                del self.roles[node], self.disks[node], self.ports[node]

    @rule(node=NODES, port=st.integers(1, 3), is_same_disk=st.booleans())
    def move(self, node: int, port: int, is_same_disk: bool) -> None:
        """A member listens elsewhere; it is still the same disk."""
        incarnation = self.disks.get(node, disk(node)) if is_same_disk else disk(99)
        member = Member(node, incarnation, f"127.0.0.1:{port}", f"http://n{node}")
        there = self.configuration.member(node)
        is_fine = there is not None and is_same_disk and there != member
        if self._leads_to(ChangeAddresses((member,)), is_fine=is_fine):
            self.ports[node] = member.peer

    def _leads_to(self, change: AddLearners | Promote | Remove | ChangeAddresses, *, is_fine: bool) -> bool:
        """Whether it was taken, which must be as expected; on the way it may be joint."""
        before = self.configuration
        try:
            goal = changes.after(before, change)
        except ConfigurationRefused:
            assert not is_fine, change
            return False
        assert is_fine, change
        following = changes.joined(before, goal)
        if following.outgoing:
            self._check_joint(before, following, goal)
            following = changes.left(following)
        assert following == goal
        self.configuration = goal
        return True

    def _check_joint(self, before: Configuration, joint: Configuration, goal: Configuration) -> None:
        """Both majorities count, and everyone of either hears of it."""
        assert (joint.outgoing, joint.voters) == (before.voters, goal.voters)
        for node in {*self.roles, *[member.node for member in goal.members]}:
            assert joint.is_voter(node) == (before.is_voter(node) or goal.is_voter(node))
        assert {*before.voters, *[member.node for member in goal.members]} == {m.node for m in joint.members}
        sides = [{*before.voters}, {*goal.voters}]
        for group in (*sides, sides[0] & sides[1], sides[0] | sides[1]):
            wins = all(2 * len(group & side) > len(side) for side in sides)
            assert (outcome(joint, dict.fromkeys(group, True)) is VoteOutcome.WON) == wins

    @invariant()
    def agrees(self) -> None:
        """Roles, disks and addresses agree; and everything is sorted, so that equal members are equal bytes."""
        if not hasattr(self, "roles"):
            return
        found = self.configuration
        nodes = sorted(self.roles)
        assert [member.node for member in found.members] == nodes
        assert found.voters == tuple(node for node in nodes if self.roles[node] == VOTER)
        assert found.learners == tuple(node for node in nodes if self.roles[node] == LEARNER)
        assert found.outgoing == ()
        for node in range(1, 8):
            member = found.member(node)
            assert (member.incarnation if member else None) == self.disks.get(node)
            assert (member.peer if member else None) == self.ports.get(node)
            assert found.is_voter(node) == (self.roles.get(node) == VOTER)
            assert found.peers(node) == tuple(other for other in nodes if other != node)


class InForce(RuleBasedStateMachine):
    """A follower whose leaders append, replace and commit entries, some of them configurations.

    The newest configuration in its log is in force after every step (thesis 4.1; pitfall 41: a configuration that
    outlives its cut entry).
    """

    @initialize()
    def start(self) -> None:
        """A node as it was formatted."""
        self.core = make_core(1, 3)
        self.log: list[Entry] = list(self.core.state.log.tail.entries)
        self.members: dict[tuple[int, int], Configuration] = {(1, 1): configuration(3)}  # by index and term
        self.term, self.now_ms = 1, 0

    @rule(
        back=st.integers(0, 4),
        sizes=st.lists(st.integers(0, 5), max_size=4),
        commit=st.integers(0, 3),
        newer=st.booleans(),
    )
    def append(self, back: int, sizes: list[int], commit: int, newer: bool) -> None:
        """A leader's AppendEntries; a size is a configuration of so many voters, 0 another entry."""
        is_new = newer or self.term == 1
        self.term += is_new
        self.now_ms += is_new * self.core.state.options.election_timeout_min_ms  # the leader before is silent
        if not newer or not sizes:
            back = 0
        back = min(back, len(self.log) - 1)
        while back and self.log[len(self.log) - back - 1].index < self.core.state.log.committed:
            back -= 1
        kept = self.log[: len(self.log) - back]
        previous = kept[-1].mark
        entries: list[Entry] = []
        for size in sizes:
            if size:
                members = configuration(size)
                entry = configuration_entry(previous, members, self.term)
                self.members[entry.index, entry.term] = members
            else:
                (entry,) = extend(previous, self.term)
            entries.append(entry)
            previous = entry.mark
        if sizes:
            self.log = kept + entries
        ends = [entry.index for entry in self.log]
        message = append_entries(
            entries,
            prev=(kept[-1].index, kept[-1].term),
            term=self.term,
            sender=2 + self.term % 2,
            commit=ends[max(0, len(ends) - 1 - commit)],
        )
        self.core.step(message, at(self.now_ms))
        drain(self.core, self.now_ms)

    @invariant()
    def agrees(self) -> None:
        """The log is the leader's, and its newest configuration is in force."""
        if not hasattr(self, "log"):
            return
        state = self.core.state
        assert [(entry.index, entry.term) for entry in self.log] == list(
            zip(state.log.tail.ends, [entry.term for entry in state.log.tail.entries], strict=True)
        )
        newest = [entry for entry in self.log if entry.kind is EntryKind.CONFIGURATION][-1]
        assert state.configurations[-1] == (newest.index, self.members[newest.index, newest.term])


TestChangesAgainstTwin = Changes.TestCase
TestChangesAgainstTwin.settings = settings(max_examples=60, stateful_step_count=30)
TestInForceAgainstTwin = InForce.TestCase
TestInForceAgainstTwin.settings = settings(max_examples=40, stateful_step_count=25)
