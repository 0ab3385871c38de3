"""Quiet worlds: what clients are answered, how long a fail-over takes, and which processes a node believes."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from raftlog.chaos.sim.ground.clocks import Clock
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.chaos.sim.replica.node import Node
from raftlog.chaos.sim.seed.run import run_seed
from raftlog.chaos.sim.world.world import Failure, World, quiet
from raftlog.cluster.api.errors import Code, Outcome, Problem
from raftlog.cluster.protocol.request import RequestResult
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.consensus import election
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.consensus.state import State
from raftlog.raft.options import Options
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


def put(key: bytes, value: bytes) -> BlockRecord:
    """A write of one key."""
    return BlockRecord(Operation.PUT, key, value)


def told(world: World, replica: Node, record: BlockRecord, for_us: int = 3_000_000) -> RequestResult | Problem | None:
    """What that node answers to a write; None while it says nothing."""
    answers: list[RequestResult | Problem] = []
    replica.ask([record], answers.append, for_us=for_us)
    world.run_until(world.now_us + for_us + 500_000, lambda: bool(answers))
    return answers[0] if answers else None


@pytest.mark.parametrize("encode", [False, True])
def test_a_follower_passes_a_write_on_and_reads_its_own_state(encode: bool) -> None:
    """A write at a follower travels over the network to the leader and is settled by the follower's own apply; a read
    there asks the leader for its index."""
    world = healthy(1, encode=encode)
    follower = next(replica for replica in world.replicas.values() if replica is not leader_of(world))
    answer = told(world, follower, put(b"k", b"v"))
    assert isinstance(answer, RequestResult)
    assert world.stats["forwards"] == 1
    read: list[int | Problem] = []
    follower.read_barrier(read.append, world.now_us + 1_000_000)
    world.run_until(world.now_us + 1_000_000, lambda: bool(read))
    assert read == [answer.last]
    version = follower.machine.get(b"k")
    assert version is not None
    assert version.value == b"v"


def test_a_forward_into_a_cut_is_unknown_and_never_sent_again() -> None:
    """The follower cannot know whether the leader has it: after its deadline the outcome is unknown."""
    world = healthy(2)
    leading = leader_of(world)
    follower = next(replica for replica in world.replicas.values() if replica is not leading)
    assert isinstance(told(world, follower, put(b"k", b"1")), RequestResult)  # the link is up
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


def test_a_process_with_an_older_boot_is_not_heard() -> None:
    """The rule of raft/hello.py, as a node meets it: boots are counted per disk."""
    world = healthy(9)
    one, two = world.replicas[1], world.replicas[2]
    incarnation, boot, start = two.hello
    two.crash("stopped", power=False)
    world.restart(2)
    assert world.run_until(world.now_us + 5_000_000, lambda: one.hellos.met[2, incarnation].boot > boot)
    assert not one.greet(2, Hello(incarnation, boot, start))
    assert one.greet(2, Hello("f" * 32, 1, start))  # a new disk, unheard of yet: only its promises do not count
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
