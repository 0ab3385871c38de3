"""Client processes in a world: they work, they are judged, and the judges see planted bugs without other help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import raftlog.chaos.sim.world.world as world_module
from raftlog.chaos.judge.linearizable import check
from raftlog.chaos.judge.models import MODELS
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.sim.clients.clients import Clients, Errand
from raftlog.chaos.sim.clients.log_readers import LogReaders
from raftlog.chaos.sim.clients.oracle import Oracle
from raftlog.chaos.sim.clients.workload import Task
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.swarm import quiet
from raftlog.chaos.sim.invariants import Witness
from raftlog.chaos.sim.mutants import plant
from raftlog.chaos.sim.replica.life import Life
from raftlog.chaos.sim.seed.run import run_seed
from raftlog.chaos.sim.world.world import World
from raftlog.raft.codec.block import BlockRecord
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.statemachine.answers import Answer
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.sessions import ReceiptKind, ReceiptState

JUDGED = {
    "answers are those of their requests",
    "appends are exactly once, at their index",
    "answers are those of their index",
    "indexes follow real time",
    "client histories are linearizable",
    "copies of a request get its first answer",
}
"""The properties of `raftlog.chaos.sim.clients.oracle` and `raftlog.chaos.sim.clients.clients`."""


def tolerant(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, without its exceptions for a breach."""

    def call(*arguments: Any, **named: Any) -> Any:
        with suppress(InvariantBroken, Failure):
            return method(*arguments, **named)

    return call


class Blind(Witness):
    """A witness that reports nothing: only clients can find a bug then."""


for _name, _method in vars(Witness).items():
    if callable(_method) and not _name.startswith("_"):
        setattr(Blind, _name, tolerant(_method))


def test_a_quiet_world_answers_everything() -> None:
    """Without trouble nearly everything is answered, and the history is valid by the checker of the chaos harness."""
    outcome = run_seed(3, 30, swarm=replace(quiet(3), clients=4, client_every_us=400_000))
    stats = outcome.stats
    assert stats["histories valid"] == 1
    assert stats["client operations"] > 150
    assert stats.get("client operations unknown", 0) == 0
    for what in ("read", "stale", "write", "delete", "cas", "put if", "txn", "append"):
        assert stats[f"ok {what}"] > 0, what
    assert check(outcome.history.operations(), MODELS["cas-register"]).verdict is Verdict.VALID


@contextmanager
def blind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Worlds without a witness, whose readers of the log compare nothing: they would end the world first."""
    with monkeypatch.context() as patch:
        patch.setattr(world_module, "Witness", Blind)
        patch.setattr(Life, "_check", lambda _, check, *arguments, **named: tolerant(check)(*arguments, **named))
        patch.setattr(LogReaders, "check", lambda *_: None)
        yield


@pytest.mark.parametrize(
    ("mutant", "seeds"),
    [
        ("retry_applied_twice", range(1_000, 1_010)),
        ("timeout_told_as_a_failure", range(1_000, 1_015)),
        ("expired_session_told_as_not_applied", range(1_000, 1_010)),
        ("settled_sequence_told_as_not_applied", range(1_004, 1_010)),
        ("refused_copy_told_as_not_applied", range(1_000, 1_010)),
        ("only_the_last_sequence_kept", range(1_000, 1_010)),
        ("sessions_missing_from_the_snapshot", range(6_010, 6_020)),
    ],
)
def test_clients_alone_find_planted_bugs(mutant: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every invariant switched off, the answers to clients are enough."""
    with blind(monkeypatch), plant(mutant):
        found = next(filter(None, map(failure_of_seed, seeds)), None)
    print(f"{mutant}: {found}")
    assert found is not None


def failure_of_seed(seed: int) -> Failure | None:
    """What the clients find in a minute of that seed, whatever else may be found."""
    try:
        run_seed(seed, 60)
    except Failure as failure:
        return failure if failure.property in JUDGED else None
    return None


def lone(swarm_nodes: int = 3) -> tuple[World, Clients]:
    """A quiet world that has elected somebody, with two clients that do nothing by themselves."""
    world = World(5, replace(quiet(swarm_nodes), clients=2))
    world.clients = clients = Clients(world, Random(1), 2, 1 << 40)
    world.start()
    world.run_until(2_000_000)
    return world, clients


def test_a_killed_node_breaks_its_clients_connections() -> None:
    """A client that waits at the node learns so at once, not only at its deadline."""
    world, clients = lone()
    for client in clients.clients:
        client.has_session = False
        for _ in range(20):
            client.do(client.tasks.draw())
    world.run_until(world.now_us + 60)
    for replica in list(world.replicas.values()):
        replica.crash("killed", power=False)
    world.run_until(world.now_us + 20_000)
    assert world.stats.get("attempts broken", 0) + world.stats.get("attempts not_sent", 0) >= 30


def test_a_cut_client_hears_nothing() -> None:
    """A client that is cut from a node finds out by waiting."""
    world, clients = lone()
    for node in world.replicas:
        while (0, node) not in clients.cuts:  # it takes half of them, by chance
            clients.cut(node, 10_000_000)
    cut = clients.clients[0]
    cut.do(cut.tasks.draw())
    world.run_until(world.now_us + 6_000_000)
    assert world.stats.get("attempts timed_out", 0) >= 1
    assert world.stats.get("client operations unknown", 0) + world.stats.get("client operations failed", 0) >= 1


def test_a_receipt_ends_the_uncertainty() -> None:
    """What became of a request is claimed as the receipt says: done with its answer, never to be done, or unknown."""
    _, clients = lone()
    client = clients.clients[0]
    put = Task("put if", (("cas", "a", [None, "@0.9"]),), (BlockRecord(Operation.PUT, b"a", b"@0.9", argument=0),))
    done = Answer(Result.APPLIED, 2, 7, 7)
    for receipt in (
        ReceiptState(ReceiptKind.APPLIED, done),
        ReceiptState(ReceiptKind.APPLIED, done._replace(result=Result.COMPARE_FAILED)),
        ReceiptState(ReceiptKind.VOIDED),
        ReceiptState(ReceiptKind.EXPIRED),
        None,
    ):
        Errand(client, put).settle(receipt)
    found = [each for each in clients.history.operations() if each.f == "cas"]
    assert [(each.outcome, each.result, each.index) for each in found] == [
        ("ok", True, 7),
        ("ok", False, 7),
        ("fail", None, None),
        ("info", None, None),
        ("info", None, None),
    ]


def test_the_end_sees_what_was_lost() -> None:
    """A write that was acknowledged, and is in no node's state in the end, fails the run although no client read it."""
    oracle = Oracle()
    oracle.recording.invoke(1, "write", "a", "@1.1")
    oracle.recording.complete(1, "ok", index=7, term=1)

    class Machine:
        applied_index = 9

        def get(self, key: bytes) -> None:
            return None

    with pytest.raises(Failure, match="was answered with index 7"):
        oracle.check(Machine())
