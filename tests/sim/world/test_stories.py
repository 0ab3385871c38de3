"""Directed stories in the simulator: the schedule of figure 8, and Howard's topology, with the real core and without.

Random worlds come near them now and then; here they happen for sure, step by step, and each has a twin in which the
rule that it is about is taken out: then it must go wrong.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from raftlog.chaos.sim.invariants.elections.check_quorum import CheckQuorum
from raftlog.chaos.sim.invariants.elections.pre_vote import PreVote
from raftlog.chaos.sim.mutants import plant
from raftlog.chaos.sim.network import topologies
from raftlog.chaos.sim.network.topologies import Links
from raftlog.chaos.sim.world.world import World, quiet
from raftlog.raft.consensus import election
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.consensus.state import State
from raftlog.raft.options import Options
from raftlog.raft.types import NodeId

STEP_US = 20


class Story:
    """A quiet world whose links are cut and whose processes end when the story says so."""

    def __init__(self, nodes: int, seed: int = 1, **options: int) -> None:
        swarm = quiet(nodes)
        paced = Options()  # the pace of a real cluster
        pace = {
            name: getattr(paced, name)
            for name in ("heartbeat_ms", "election_timeout_min_ms", "election_timeout_max_ms")
        }
        self.world = World(seed, replace(swarm, options=replace(swarm.options, **pace, **options)))
        self.nodes = list(self.world.replicas)
        self.cuts: Links = ()
        self.prepare()
        self.world.start()

    def prepare(self) -> None:
        """Changes the world before its nodes start."""

    def wait(self, ms: int) -> None:
        """Let that time pass."""
        self.world.run_until(self.world.now_us + 1_000 * ms)

    def until(self, done: Callable[[], bool], ms: int = 20_000) -> None:
        """Let time pass in steps shorter than any delay, until it is so."""
        end_us = self.world.now_us + 1_000 * ms
        while not done():
            assert self.world.now_us < end_us, f"not within {ms} ms"
            self.world.run_until(self.world.now_us + STEP_US)

    def cut(self, links: Links) -> None:
        """From now on just these links are cut."""
        for link in self.cuts:
            self.world.network.heal(*link)
        self.cuts = links
        for link in links:
            self.world.network.cut(*link)

    def end(self, *nodes: NodeId) -> None:
        """Kill these processes; they stay down."""
        for node in nodes:
            self.world.replicas[node].is_held = True
            self.world.replicas[node].crash("the story says so", power=False)

    def begin(self, *nodes: NodeId) -> None:
        """Start them again."""
        for node in nodes:
            self.world.replicas[node].is_held = False
            self.world.restart(node)

    def state(self, node: NodeId) -> State:
        """What that node knows."""
        core = self.world.replicas[node].core
        assert core is not None
        return core.state

    def leads(self, node: NodeId) -> bool:
        """Whether it takes itself for the leader."""
        return isinstance(self.state(node).role, Leader)

    def make_leader(self, node: NodeId) -> None:
        """By a hand-over, as an operator does it."""
        self.until(lambda: self.world.leading() is not None)
        leading = self.world.leading()
        if leading is not None and leading.node != node:
            leading.tell(lambda core, now: core.transfer(node, now))
            self.until(lambda: self.leads(node))
        self.until(lambda: self.state(node).log.committed == self.state(node).log.last.index)
        self.wait(150)

    def sees(self, what: str) -> int:
        """How often that was counted."""
        return self.world.stats.get(what, 0)

    def has_voted(self, voter: NodeId, candidate: NodeId) -> bool:
        """Whether the candidate's vote in its term is durable there, and it does not lead yet."""
        durable = self.world.disks[voter].view.hard_state
        return (durable.term, durable.vote) == (self.state(candidate).term, candidate) and not self.leads(candidate)


def figure_8(story: Story) -> tuple[int, int]:
    """Raft paper figure 8, (a) to (c): gives the index and term of an entry that three of five hold at the end.

    It is of an older term than the leader's, node 1's; node 5 has another one in its place, of a term in between.
    """
    # (a) node 1 leads, and only node 2 gets its newest entry
    story.make_leader(1)
    story.cut(tuple(link for peer in (3, 4, 5) for link in topologies.both_ways(1, peer)))
    story.world.write()
    story.wait(20)
    index, term = story.state(1).log.last.index, story.state(1).term
    assert [node for node in story.nodes if story.world.disks[node].view.has(index, term)] == [1, 2]
    # (b) node 1 ends; node 5 is elected by 3 and 4, and no node gets its entry
    story.end(1)
    seen = topologies.only(story.nodes, [(3, 5), (4, 5)])
    story.cut(seen)
    story.until(lambda: story.has_voted(3, 5) and story.has_voted(4, 5))
    story.cut((*seen, (5, 3), (5, 4)))
    story.until(lambda: story.leads(5))
    between = story.state(5).term
    story.until(lambda: story.world.disks[5].view.has(index, between))
    # (c) node 5 ends; node 1 is elected again, and brings its old entry to node 3, but nothing newer
    story.end(5)
    seen = topologies.only(story.nodes, [(1, 2), (1, 3)])
    story.cut(seen)
    story.begin(1)
    story.until(lambda: story.world.disks[3].view.has(index, term))
    story.cut((*seen, (1, 3)))
    story.wait(50)
    assert story.leads(1)
    assert story.state(1).term > between > term
    assert not story.world.disks[3].view.has(story.state(1).log.last.index, story.state(1).term)
    return index, term


def overwrite(story: Story) -> None:
    """Figure 8 (d): node 1 ends, and node 5 is elected by 3 and 4: its entry has the newer term."""
    story.end(1, 2)
    story.cut(topologies.only(story.nodes, [(3, 5), (4, 5)]))
    story.begin(5)
    story.until(lambda: story.leads(5))
    story.until(lambda: story.state(5).log.committed >= story.state(5).log.last.index)


def one_at_a_time() -> Story:
    """Each message carries one entry, and the next one waits for the answer."""
    return Story(5, append_entries_max=1, inflight_messages_max=1)


def test_figure_8() -> None:
    """An entry of an older term that a majority holds is not committed by counting, so it may be replaced."""
    story = one_at_a_time()
    index, term = figure_8(story)
    assert story.state(1).log.committed < index
    overwrite(story)
    world = story.world
    assert world.stats["sometimes: old term waits for the no-op"] >= 1
    assert world.stats["sometimes: entry on a majority was cut"] == 1
    assert world.acknowledged < index
    story.cut(())
    story.begin(1, 2)
    story.until(lambda: world.has_agreed(index))
    assert not any(disk.view.has(index, term) for disk in world.disks.values())
    world.witness.finished()


def test_figure_8_with_entries_committed_by_counting() -> None:
    """In the same schedule the leader commits the entry that is going to be replaced, and the properties see it."""
    story = one_at_a_time()
    with (
        plant("older_term_committed_by_counting"),
        pytest.raises(InvariantBroken, match="a leader commits by counting only in its term"),
    ):
        figure_8(story)


SETTLE_MS = 5_000
LOOK_MS = 15_000


def changes_in_howards_topology(story: Story) -> tuple[int, int]:
    """Changes of the leader, and entries committed, while the topology stays; a client writes every 100 ms.

    1-2-3 connected, 4 only to 2, 5 only to 3 (Howard and Abraham 2020; Cloudflare 2020).
    """
    world = story.world
    story.cut(topologies.howard(story.nodes))
    story.wait(SETTLE_MS)
    leaders, committed = world.stats["leaders"], len(world.witness.known.committed)
    for _ in range(LOOK_MS // 100):
        world.write()
        story.wait(100)
    return world.stats["leaders"] - leaders, len(world.witness.known.committed) - committed


@pytest.mark.parametrize("leader", range(1, 6))
def test_howards_topology_has_a_stable_leader(leader: NodeId) -> None:
    """Under any first leader: after some seconds one leader stays, and goes on committing. Nodes 4 and 5 cannot see it,
    and do not disturb it."""
    story = Story(5, seed=leader)
    story.make_leader(leader)
    changes, committed = changes_in_howards_topology(story)
    assert changes == 0
    assert committed >= LOOK_MS // 100 * 9 // 10


def campaign_at_once(state: State, reason: str, *, link_closed: bool) -> None:
    """No pre-vote: a node that hears no leader raises the term."""
    election.campaign(state, reason, link_closed=link_closed)


def test_howards_topology_without_pre_vote_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug 11: nodes 4 and 5 raise the term again and again, and each time the leader has to go. Both halves of
    the protection are out: asking first, and keeping to a leader that is heard (thesis 4.2.3 and 9.6)."""
    monkeypatch.setattr(election, "pre_campaign", campaign_at_once)
    monkeypatch.setattr(election, "is_bound", lambda state, message: False)
    story = Story(5, seed=2)
    # what the properties know of pre-votes is out with them
    monkeypatch.setattr(PreVote, "campaigns", lambda *_: None)
    story.make_leader(1)
    changes, _ = changes_in_howards_topology(story)
    assert changes >= 10


def test_a_leader_that_nobody_answers_goes_only_with_check_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose messages arrive and whose answers do not: it steps down, and another one is elected; without
    check-quorum it keeps everybody from an election, for ever, and nothing is committed (thesis 6.2)."""

    def committed_behind_a_deaf_leader() -> int:
        story = Story(3, seed=3)
        story.make_leader(1)
        story.cut(topologies.inbound(story.nodes, 1))
        before = len(story.world.witness.known.committed)
        for _ in range(50):
            story.world.write()
            story.wait(100)
        return len(story.world.witness.known.committed) - before

    assert committed_behind_a_deaf_leader() >= 30
    monkeypatch.setattr(election, "agreed", lambda configuration, contacts: 1 << 50)
    monkeypatch.setattr(CheckQuorum, "leads", lambda *_: None)  # the property that would see it at once
    assert committed_behind_a_deaf_leader() == 0
