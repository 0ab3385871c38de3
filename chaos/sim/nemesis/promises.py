"""Promises that a disk forgets without damage: a sync that was answered and not done, and a copy that runs too.

The disk is consistent in itself, so only peers know of it (docs/decisions/0017). They know while the processes that saw
the promises live and are reachable. A node that forgot something runs only so long, or until it has everything again.
"""

from __future__ import annotations

from random import Random
from typing import Final

from raftlog.chaos.sim.disk.disk import DiskRefused, Image, SimDisk
from raftlog.chaos.sim.disk.lies import KINDS, Lie
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.nemesis.targets import anyone, for_a_while
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.world.world import World
from raftlog.cluster.files.errors import DiskFenced
from raftlog.raft.consensus import recall
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.consensus.state import Memory
from raftlog.raft.hello import NEVER_MET
from raftlog.raft.types import NOBODY, NodeId

LOOK_US: Final = 500
"""Shorter than any process is down: its peers' ends are noticed before it is back."""

LIE_CUTS_US: Final = (0, 1_000, 20_000, 500_000, 3_000_000)
"""How long after the answer of a sync that is not done the power fails; other power cuts may come before."""


class Peers:
    """All other processes of a world, as they are when this is made: what they saw of one node's promises."""

    def __init__(self, world: World, node: NodeId) -> None:
        self._world, self._node = world, node
        self._incarnation = world.disks[node].incarnation
        self._count = len(world.replicas)
        self._others = [each for each in world.replicas.values() if each.node != node and not each.is_retired]
        self._lives = [each.life for each in self._others]
        self._is_complete = len(self._others) + 1 == self._count > 1
        self._is_alone = False  # one peer alone knows, and refuses the node
        self.has_lost_a_report = False  # of that peer: the node waits no more, and does not know what it lacks

    def keep(self, peer: NodeId) -> list[Node]:
        """From now on that one alone has to be there; the others, whom nothing was promised since."""
        self._is_alone = True
        others = [each for each in self._others if each.node != peer]
        self._others = [each for each in self._others if each.node == peer]
        self._lives = [each.life for each in self._others]
        return others

    def _is_reached(self, peer: Node) -> bool:
        """Whether the network leads to that process, and not to a copy of it that knows less."""
        return self._world.replicas[peer.node] is peer

    def can_tell(self) -> bool:
        """Whether they are all there still, and reach the node. A report on a clogged link may come too late."""
        world, node = self._world, self._node
        is_hindered = world.network.is_hindered
        return (
            world.disks[node].incarnation == self._incarnation
            and self._is_complete
            and self._count == len(world.replicas)
            and not self.has_lost_a_report
            and all(
                each.life == life
                and each.core is not None
                and self._is_reached(each)
                and not (each.is_paused or is_hindered(each.node, node) or is_hindered(node, each.node))
                for each, life in zip(self._others, self._lives, strict=True)
            )
        )

    def _memories(self) -> list[tuple[Node, Memory]]:
        """What the peers that run remember of that disk."""
        key = (self._node, self._incarnation)
        found = [(each, each.core.state.recall.memories.get(key)) for each in self._others if each.core is not None]
        return [(peer, memory) for peer, memory in found if memory is not None]

    def promised(self) -> int:
        """The newest term in which they remember a promise of that disk."""
        return max([max(memory.term, memory.term_now) for _, memory in self._memories()], default=0)

    def refuse(self, replica: Node) -> bool:
        """Whether they all refuse that process of the node: then none of its acknowledgements counts.

        A process that has just started and was not met yet is not refused. What earlier processes acknowledged is on
        its disk, and binds.
        """
        if replica.core is None:
            return False
        peers = [each for each in self._others if each.core is not None]
        return all(each.refusal_of(self._node, replica.hello) is not None for each in peers)

    def check_floor(self) -> None:
        """Raises Failure where the node knows what they remember of its disk, or waits for it no more, its log ends
        before that, and it is under no floor: its vote may elect a leader that lacks what it had acknowledged.

        A peer that refuses it reports once a second, unasked. A link that loses messages, as no connection does, may
        lose each of these reports."""
        core = self._world.replicas[self._node].core
        if core is None or core.state.recall.floor or not core.state.recall.run:
            return
        state = core.state
        sides = (state.configuration.voters, state.configuration.outgoing)
        if any(self._node in side and len(side) < 3 for side in sides):
            return  # no majority could go on without it (docs/decisions/0017, 9)
        has = max((state.log.term_at(state.log.persisted) or 0, state.log.persisted), state.recall.kept)
        for peer, memory in self._memories():
            refused = {} if peer.core is None or not self._is_alone else peer.core.state.recall.refused
            is_refused = refused.get(self._node) == (self._incarnation, state.recall.run)
            has_answered = peer.node in state.recall.recalled or (is_refused and not recall.is_waiting(state))
            acked = memory.lost_by(state.recall.run).acked if is_refused else memory.acked
            counts = self._is_reached(peer) and (is_refused or memory.run == state.recall.run)
            if counts and has_answered and acked > has:
                if is_refused and self._world.network.loses(peer.node, self._node):
                    self.has_lost_a_report = True
                    return
                evidence = f"node {self._node} has {has}, and node {peer.node} remembers {acked}"
                raise Failure("lost promises put a node under a floor", evidence)

    def forgets(self) -> None:
        """The node's disk is about to forget promises; called before that happens."""
        self._world.witness.rolled_back(self._node, self.promised())


def has_everything(disk: SimDisk) -> bool:
    """Whether it has everything that it ever held: its next start has nothing to heal."""
    return not (disk.damaged or disk.view.is_healing or disk.refused)


def put_back(disk: SimDisk, image: Image) -> None:
    """The disk is that copy of itself again: it heals once it has what may have been counted there."""
    counted = disk.view.counted
    disk.roll_back(image)
    disk.view.lost(counted, has_lost_votes=True)


def take_away(world: World, node: NodeId) -> None:
    replica = world.replicas[node]
    replica.is_retired = True
    if replica.core is not None:
        replica.crash("taken away: its disk is beyond repair", power=False)


def is_informed(replica: Node) -> bool:
    """Whether no peer may still report a lost promise to it, and what they reported is durable."""
    if replica.core is None:
        return False
    state, view = replica.core.state, replica.disk.view
    durable = (view.hard_state.term, view.hard_state.vote, view.floor)
    return not recall.is_waiting(state) and durable == (state.term, state.vote, state.recall.floor)


def watch(world: World, node: NodeId, peers: Peers, what: str, whole: str) -> None:
    """Until that node has everything again: a node that its peers can no longer warn is taken away."""
    disk = world.disks[node]

    def look() -> None:
        if world.replicas[node].is_retired or disk is not world.disks[node]:
            return
        peers.check_floor()
        view = disk.view
        if view.is_uninformed and is_informed(world.replicas[node]) and not peers.has_lost_a_report:
            view.informed()
        if not view.is_healing:
            world.sometimes(whole)
            if peers.refuse(world.replicas[node]):  # for good, until its boot counter is as high as they demand
                start_until_taken(world, node)
        elif (view.is_uninformed or view.forgotten) and (not peers.can_tell() or world.is_healed):
            world.atlas.hit(node, "roll_back", what)
            take_away(world, node)
        else:
            world.after(LOOK_US, look)

    look()


def lying_sync(world: World, random: Random) -> None:
    """A disk answers one sync without doing it, and what it should have made durable is lost with the power."""
    node, kind, cut_us = anyone(world, random), random.choice(KINDS), random.choice(LIE_CUTS_US)
    replica, disk, peers = world.replicas[node], world.disks[node], Peers(world, node)
    if replica.core is None or replica.is_retired or disk.files.lie is not None or not peers.can_tell():
        return
    if not world.fault("lying sync", node, kind):
        return
    what = f"a sync of the {kind} was answered and not done"

    def answered() -> None:
        world.count("syncs answered and not done")
        life = replica.life

        def cut_power() -> None:
            if replica.life == life and world.replicas[node] is replica:
                replica.crash("power cut", power=True)

        for_a_while(world, cut_us, cut_power)

    def may_lose() -> bool:
        if world.is_healed or not (has_everything(disk) and peers.can_tell()) or not world.atlas.may_hit(node, "log"):
            return False
        peers.forgets()
        world.note(node, "damaged", what)
        world.count(f"lies come out: {kind}")
        world.after(0, lost)
        return True

    def lost() -> None:
        world.atlas.hit(node, "log", what)
        watch(world, node, peers, what, "a disk that lied about a sync has everything again")

    disk.files.lie = Lie(disk, kind, answered=answered, may_lose=may_lose)


class Clone:
    """Two processes of one node, on its disk and on a copy of it that was made while it ran or between two starts; the
    network leads to one of them at a time, and the other one stands still. It ends as soon as the peers
    know too little: then the process that is reached stays."""

    def __init__(self, world: World, random: Random, node: NodeId, peers: Peers, image: Image) -> None:
        self._world, self._random, self._node, self._peers = world, random, node, peers
        disk = world.disks[node]
        self._number = sum(fault.kind == "clone" for fault in world.faults)
        self._disk = SimDisk(
            node,
            disk.log,
            disk.first,
            incarnation=disk.incarnation,
            segment_bytes=disk.segment_bytes,
            random=world.random_of(f"disk {node} copy {self._number}"),
        )
        self._disk.roll_back(image)
        self._turns = random.randint(1, 8)

    def start(self) -> None:
        copy = self._world.replicas[self._node].twin(self._disk, f" copy {self._number}")
        copy.life = self._number * LIVES  # no life of one is one of the other
        self._lead_to(copy)
        self._world.after(LOOK_US, self._look)
        self._again()

    def _lead_to(self, other: Node) -> None:
        world, node = self._world, self._node
        self._peers.forgets()
        core = world.replicas[node].core
        is_leading = core is not None and isinstance(core.state.role, Leader)
        if is_leading or not self._peers.refuse(world.replicas[node]):
            # a leader counts itself, with acknowledgements from before its peers refused it
            other.disk.view.lost(world.disks[node].view.counted)
        world.note(node, "another process is reached", other.life)
        world.count("times another process of a node was reached")
        world.dials.lead_to(other)
        world.dials.closed(node)
        if world.clients is not None:
            world.clients.ended(node)
        if other.core is None:
            other.start()
        else:
            world.witness.switched(other.core, other.disk, other.mark, other.machine)

    def _again(self) -> None:
        self._world.after(self._random.choice((2_000, 30_000, 300_000, 1_000_000)), self._turn)

    def _turn(self) -> None:
        other = self._world.dials.behind.get(self._node)
        if other is None or self._world.is_healed:
            return
        if self._turns == 0 or not self.may_go_on():
            settle(self._world, self._node, self._peers)
            return
        self._turns -= 1
        if not self._world.replicas[self._node].corrupted:
            self._lead_to(other)
        self._again()

    def may_go_on(self) -> bool:
        """Whether peers know all promises of the node, and may still report its loss to it."""
        world, node = self._world, self._node
        replica, disk = world.replicas[node], world.disks[node]
        is_sound = not (replica.is_retired or disk.damaged or disk.refused)
        return is_sound and self._peers.can_tell() and world.atlas.may_hit(node, "log")

    def _look(self) -> None:
        if self._node in self._world.dials.behind and not self._world.is_healed:
            if self.may_go_on():
                self._peers.check_floor()
                self._world.after(LOOK_US, self._look)
            else:
                settle(self._world, self._node, self._peers)


def refused_copy(world: World, random: Random) -> None:
    """A node is copied and started again, and comes back as the copy. Its leader met the later start and refuses the
    copy; all other nodes are started again meanwhile, and take it. So the leader alone can warn it of what it lost."""
    node, ago_us = anyone(world, random), random.randint(50_000, random.choice((500_000, 3_000_000)))
    replica, disk = world.replicas[node], world.disks[node]
    core = replica.core
    if core is None or disk.process.is_busy or replica.is_retired or node in world.dials.behind:
        return
    term, vote, leader, peers = core.state.term, core.state.vote, core.state.leader, Peers(world, node)
    if leader in (NOBODY, node) or not peers.can_tell() or not world.atlas.may_hit(node, "log"):
        return
    if not world.fault("refused copy", node, f"of {ago_us} us ago"):
        return
    image = disk.copy()
    replica.crash("killed, and copied", power=False)
    replica.start()

    def bring_back() -> None:
        core = replica.core
        is_there = world.replicas[node] is replica and not replica.is_retired
        if core is None or not (is_there and has_everything(disk) and peers.can_tell()):
            return
        is_same = (core.state.term, core.state.vote, core.state.leader) == (term, vote, leader)
        met = world.replicas[leader].hellos.met.get((node, disk.incarnation), NEVER_MET)
        if not is_same or met.run != core.state.recall.run or not world.atlas.may_hit(node, "log"):
            return  # it may have promised something to others, or the leader would not refuse the copy
        what = f"came back as it was {ago_us} us ago, before its last start"
        replica.crash(what, power=False)
        peers.forgets()
        for other in peers.keep(leader):
            other.crash("killed, and forgets the later start", power=False)
            other.start()
        put_back(disk, image)
        replica.start()
        world.count("refused copies that some peers took")
        watch(world, node, peers, what, "a refused copy has everything again")

    for_a_while(world, ago_us, bring_back)


LIVES: Final = 1_000_000


def clone(world: World, random: Random) -> None:
    """A copy of a node's disk is started as a second process of that node, and sometimes the one, sometimes the other
    is reached. Where the first was started again since, both have one boot counter."""
    node, how = anyone(world, random), random.choice(("while it runs", "between two starts", "before a restart"))
    later_us = random.choice((random.randint(1_000, 50_000), random.randint(50_000, 3_000_000)))
    replica, disk = world.replicas[node], world.disks[node]
    if replica.core is None or disk.process.is_busy or node in world.dials.behind or not Peers(world, node).can_tell():
        return
    if not world.atlas.may_hit(node, "log") or not world.fault("clone", node, f"{how}, started {later_us} us later"):
        return
    if how == "between two starts":
        replica.crash("killed, to be copied", power=False)
    image, peers = disk.copy(), Peers(world, node)
    if how == "between two starts":
        replica.start()

    def begin() -> None:
        is_sound = not (disk.damaged or world.atlas.is_lost(node) or disk.refused or replica.corrupted)
        if not is_sound or world.replicas[node] is not replica or node in world.dials.behind:
            return
        if how == "before a restart" and replica.core is not None:
            replica.crash("killed", power=False)
            replica.start()
        other = Clone(world, random, node, peers, image)
        if other.may_go_on() and replica.core is not None:
            other.start()

    for_a_while(world, later_us, begin)


def settle(world: World, node: NodeId, peers: Peers | None = None) -> None:
    """The process that stands still is gone. The other one is started until its boot counter is as high as its peers
    demand, if they refuse it; and taken away if it still lacks promises that they do not know."""
    behind = world.dials.behind.pop(node)
    behind.vanish()
    replica = world.replicas[node]
    if replica.is_retired:
        return
    others = [each for each in world.replicas.values() if each is not replica]
    if any(world.dials.is_refused(node, each.node) for each in others) or replica.core is None:
        start_until_taken(world, node)
    if peers is None:
        peers = Peers(world, node)
    watch(world, node, peers, "a copy ran beside it", "a copy that ran beside its original has everything again")


def start_until_taken(world: World, node: NodeId) -> None:
    """Each start counts: the last one is newer than all that the peers have met. A disk that fails, perhaps because it
    is full, is tried again later."""
    replica, disk = world.replicas[node], world.disks[node]

    def again() -> None:
        is_there = world.replicas[node] is replica and world.disks[node] is disk and node not in world.dials.behind
        others = [each for each in world.replicas.values() if each is not replica and each.core is not None]
        is_refused = replica.core is None or any(each.refusal_of(node, replica.hello) for each in others)
        if is_there and is_refused and not replica.is_retired:
            start_until_taken(world, node)

    if replica.core is not None:
        replica.crash("started again until its peers take it", power=False)
    key = (node, disk.incarnation)
    met = max(each.hellos.met.get(key, NEVER_MET).boot for each in world.replicas.values())
    try:
        while disk.view.hard_state.boot < met:
            disk.open()
            disk.crash(power=False)
    except DiskRefused:
        pass  # its next start says so
    except DiskFenced:
        world.after(LOOK_US, again)
    replica.start()


def heal(world: World) -> None:
    """Of two processes of a node one is left, and no disk lies any more."""
    for node in list(world.dials.behind):
        settle(world, node)
    for disk in world.disks.values():
        lie, disk.files.lie = disk.files.lie, None
        if lie is not None:
            lie.make_good()
