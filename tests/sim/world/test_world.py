"""Quiet worlds: what clients are answered, how long a fail-over takes, and what a node does when its disk fails."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.replica.answers import Applied
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.seed.run import run_seed
from raftlog.chaos.sim.world.world import Failure, World, quiet
from raftlog.cluster.api.errors import Code, Outcome, Problem
from raftlog.raft.changes import AddLearners, MemberChange, Remove
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.consensus import election
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.state import State
from raftlog.raft.options import Options
from raftlog.raft.types import Now
from raftlog.statemachine.commands import Operation


def agreed(world: World) -> World:
    """The world once its nodes have a leader and the same log."""
    world.start()
    assert world.run_until(20_000_000, lambda: world.leading() is not None)
    world.write()
    assert world.run_until(world.now_us + 10_000_000, lambda: world.has_agreed(2))
    return world


def healthy(seed: int, nodes: int = 3, **swarm: object) -> World:
    """A quiet cluster with the options of the server and a leader, two seconds after its start."""
    world = World(seed, replace(quiet(nodes), options=Options(), **swarm))  # type: ignore[arg-type]
    world.start()
    world.run_until(2_000_000)
    assert world.leading() is not None
    return world


def leader_of(world: World) -> Node:
    """The leader."""
    leading = world.leading()
    assert leading is not None
    return leading


def written(world: World, every_us: int = 2_000) -> Callable[[], bool]:
    """Whether another write was acknowledged since now; a client writes every few milliseconds."""
    before = world.acknowledged

    def ask() -> None:
        world.write()
        world.after(every_us, ask)

    ask()
    return lambda: world.acknowledged > before


@pytest.mark.parametrize(("how", "median_ms"), [("killed", 150), ("paused", 700)])
def test_a_leader_that_goes_is_replaced_soon(how: str, median_ms: int) -> None:
    """The median over 15 worlds from its end to the next acknowledged write. A killed leader's links close, which is
    news. Nothing closes when a process is stopped: an election timeout has to pass."""
    took_ms: list[float] = []
    for seed in range(15):
        world = healthy(seed)
        leading = leader_of(world)
        began_us = world.now_us
        if how == "killed":
            leading.crash(how)
        else:
            leading.is_paused = True
        assert world.run_until(began_us + 5_000_000, written(world))
        took_ms.append((world.now_us - began_us) / 1_000)
    assert median(took_ms) <= median_ms, sorted(took_ms)
    assert max(took_ms) <= 2_000, sorted(took_ms)


def test_a_healthy_cluster_keeps_its_leader() -> None:
    """Fifteen simulated seconds without trouble: one election, nothing lost, nothing refused but by followers."""
    world = healthy(3)
    done = written(world, 50_000)
    world.run_until(15_000_000)
    assert done()
    assert world.stats["leaders"] == 1
    assert "conflicts cut" not in world.stats


def put(key: bytes, value: bytes) -> bytes:
    """A request block that writes one key."""
    return encode_block([BlockRecord(Operation.PUT, key, value)])


def told(world: World, replica: Node, block: bytes, for_us: int = 3_000_000) -> Applied | Problem | None:
    """What that node answers to a write; None while it says nothing."""
    answers: list[Applied | Problem] = []
    replica.submit(block, 1, 0, 0, world.now_us + for_us, answers.append)
    world.run_until(world.now_us + for_us + 500_000, lambda: bool(answers))
    return answers[0] if answers else None


@pytest.mark.parametrize("encode", [False, True])
def test_a_follower_passes_a_write_on_and_reads_its_own_state(encode: bool) -> None:
    """A write at a follower travels over the network to the leader and is settled by the follower's own apply; a read
    there asks the leader for its index."""
    world = healthy(1, encode=encode)
    follower = next(replica for replica in world.replicas.values() if replica is not leader_of(world))
    answer = told(world, follower, put(b"k", b"v"))
    assert isinstance(answer, Applied)
    assert world.stats["forwards"] == 1
    read: list[int | Problem] = []
    follower.read_barrier(read.append, world.now_us + 1_000_000)
    world.run_until(world.now_us + 1_000_000, lambda: bool(read))
    assert read == [answer.index]
    version = follower.machine.get(b"k")
    assert version is not None
    assert version.value == b"v"


def test_a_forward_into_a_cut_is_unknown_and_never_sent_again() -> None:
    """The follower cannot know whether the leader has it: after its deadline the outcome is unknown."""
    world = healthy(2)
    leading = leader_of(world)
    follower = next(replica for replica in world.replicas.values() if replica is not leading)
    assert isinstance(told(world, follower, put(b"k", b"1")), Applied)  # the link is up
    world.network.cut(follower.node, leading.node)
    answer = told(world, follower, put(b"k", b"2"), for_us=200_000)
    assert isinstance(answer, Problem)
    assert answer.outcome is Outcome.UNKNOWN


def test_without_a_leader_a_write_was_never_queued() -> None:
    """Two of three are down: after the deadline the outcome is not_applied."""
    world = healthy(3)
    one, *others = world.replicas.values()
    for replica in others:
        replica.is_held = True
        replica.crash("held", power=False)
    world.run_until(world.now_us + 3_000_000)
    answer = told(world, one, put(b"k", b"v"), for_us=300_000)
    assert isinstance(answer, Problem)
    assert (answer.code, answer.outcome) == (Code.NO_LEADER, Outcome.NOT_APPLIED)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_sync_fences_the_node_at_once(kind: str) -> None:
    """The leader's disk fails under a write: the process ends before it acknowledges anything, and others go on."""
    world = healthy(4)
    leading = leader_of(world)
    leading.is_held = True  # no event starts it again
    for peer in world.replicas:
        world.network.cut(leading.node, peer)
    leading.disk.fail_next(kind)
    answer = told(world, leading, put(b"k", b"v"))
    assert isinstance(answer, Problem)
    assert answer.outcome is Outcome.UNKNOWN
    assert world.run_until(world.now_us + 1_000_000, lambda: leading.core is None)
    assert world.stats["sometimes: a node fences itself"] == 1
    assert world.run_until(world.now_us + 5_000_000, lambda: world.leading() not in (None, leading))
    assert world.run_until(world.now_us + 5_000_000, written(world))


def test_a_disk_that_cannot_be_opened_keeps_its_node_down_for_good() -> None:
    """Damage below the durable mark is refused by name: the node serves nothing, and is not started again."""
    world = healthy(5)
    victim = next(replica for replica in world.replicas.values() if replica is not leader_of(world))
    victim.crash("killed", power=False)
    victim.disk.wipe()
    world.restart(victim.node)
    assert victim.core is None
    assert victim.disk.refused
    world.run_until(world.now_us + 3_000_000)
    assert victim.core is None
    assert told(world, victim, put(b"k", b"v"), for_us=100_000) is None
    assert world.run_until(world.now_us + 5_000_000, written(world))


def test_a_full_disk_is_back_pressure() -> None:
    """The leader that has no room refuses at once, and goes on by itself when there is some."""
    world = healthy(6, nodes=1, segment_bytes=4_096)
    leading = leader_of(world)
    leading.disk.full = True
    answers = [told(world, leading, put(b"k", bytes(900)), for_us=300_000) for _ in range(12)]
    assert Code.DISK_FULL in [answer.code for answer in answers if isinstance(answer, Problem)]
    leading.disk.full = False
    world.run_until(world.now_us + 1_000_000)
    assert isinstance(told(world, leading, put(b"k", b"v")), Applied)


def test_a_restart_goes_on_from_a_snapshot() -> None:
    """The state comes back from the chunks on the disk, and the log behind them is applied again."""
    world = healthy(7)
    leading = leader_of(world)
    for nth in range(5):
        assert isinstance(told(world, leading, put(b"k", b"%d" % nth)), Applied)
    leading.save_snapshot()
    world.run_until(world.now_us + 1_000_000)
    assert isinstance(told(world, leading, put(b"k", b"last")), Applied)
    before = (leading.mark, leading.machine.digest(), leading.state.applier.last_user_index)
    leading.crash("power cut", power=True)
    assert world.run_until(world.now_us + 10_000_000, lambda: leading.core is not None)
    assert leading.mark.index > 1
    world.run_until(world.now_us + 3_000_000)
    assert leading.machine.digest() == before[1]
    assert leading.state.applier.last_user_index == before[2]


def test_a_follower_that_was_down_too_long_takes_the_leaders_snapshot() -> None:
    """What it lacks is gone from the leader's log: chunks come over the wire, are written aside and installed; a power
    cut afterwards loses nothing of it."""
    world = healthy(10, segment_bytes=4_096)
    leading = leader_of(world)
    victim = next(replica for replica in world.replicas.values() if replica is not leading)
    victim.is_held = True
    victim.crash("held", power=False)
    for round in range(12):
        assert isinstance(told(world, leading, put(b"k%d" % round, bytes(900))), Applied)
        leading.save_snapshot()
        world.run_until(world.now_us + 200_000)
    core = leading.core
    assert core is not None
    assert core.state.log.first > victim.disk.view.durable_last + 1
    victim.is_held = False
    world.restart(victim.node)
    assert world.run_until(world.now_us + 5_000_000, lambda: "sometimes: snapshot installed" in world.stats)
    assert world.run_until(world.now_us + 5_000_000, lambda: world.has_agreed(world.acknowledged))
    digest = leading.machine.digest()
    assert victim.machine.digest() == digest
    victim.crash("power cut", power=True)
    world.restart(victim.node)
    assert world.run_until(world.now_us + 5_000_000, lambda: world.has_agreed(world.acknowledged))
    assert victim.machine.digest() == digest


def test_members_come_and_go() -> None:
    """A node joins and becomes a voter, the leader is removed and stopped, and the others go on without it."""
    world = healthy(8)
    member = world.newcomer()
    world.join(member)
    first = leader_of(world)

    def ask(change: MemberChange) -> None:
        def tell(core: RaftCore, now: Now) -> None:
            core.propose_configuration(change, now)

        first.tell(tell)

    def voters() -> tuple[int, ...]:
        core = leader_of(world).core
        assert core is not None
        return () if core.status().is_changing else core.state.configuration.voters

    ask(AddLearners((member,), True))
    assert world.run_until(world.now_us + 5_000_000, lambda: voters() == (1, 2, 3, 4))
    ask(Remove((first.node,)))
    left = tuple(node for node in (1, 2, 3, 4) if node != first.node)
    assert world.run_until(world.now_us + 5_000_000, lambda: leader_of(world) is not first and voters() == left)
    world.retire(first.node)
    assert world.run_until(world.now_us + 5_000_000, written(world))
    assert world.run_until(world.now_us + 5_000_000, lambda: world.has_agreed(world.acknowledged))


def test_a_process_with_an_older_boot_is_not_heard() -> None:
    """The rule of raft/hello.py, as a node meets it: boots are counted per disk."""
    world = healthy(9)
    one, two = world.replicas[1], world.replicas[2]
    incarnation, boot, start = two.hello
    two.crash("stopped", power=False)
    world.restart(2)
    assert world.run_until(world.now_us + 5_000_000, lambda: one.hellos.met[2, incarnation].boot > boot)
    assert not one.greet(2, Hello(incarnation, boot, start))
    assert one.greet(
        2, Hello("f" * 32, 1, start)
    )  # a new disk that this node has not heard of yet: only its promises do not count
    assert not one.greet(2, Hello(incarnation, boot, start))
    assert one.greet(9, Hello("9" * 32, 1, start))  # a member that this node has not heard of yet


def test_a_failure_carries_its_seed_and_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller of `run_seed` gets the property by name, and the world as it was."""

    def fail(state: State) -> None:
        raise InvariantBroken(1, "planted", "nowhere")

    monkeypatch.setattr(election, "tick", fail)
    with pytest.raises(Failure) as raised:
        run_seed(5, 1)
    assert raised.value.seed == 5
    assert raised.value.property == "planted"
    assert raised.value.world is not None
    assert raised.value.world.atlas.describe()


def test_clocks_drift_and_jump_and_never_run_backward() -> None:
    """Rates and jumps change what a node reads; the monotonic clock only rises, and says when something is due."""
    clock = Clock(rate=1_100, wall_ms=5_000)
    clock.boot(1_000_000, 7_000_000)
    assert clock.read(1_000_000).monotonic_ms == 7_000
    assert clock.read(11_000_000).monotonic_ms == 18_000
    for due_ms in (18_001, 20_000, 23_456):
        due_us = clock.due_us(due_ms)
        assert clock.read(due_us).monotonic_ms >= due_ms > clock.read(due_us - 2).monotonic_ms
    before = clock.read(11_000_000)
    clock.set_rate(11_000_000, 900)
    clock.jump_wall(-60_000)
    after = clock.read(11_000_000)
    assert (after.monotonic_ms, after.wall_ms) == (before.monotonic_ms, before.wall_ms - 60_000)
    assert clock.read(12_000_000).monotonic_ms == 18_900
