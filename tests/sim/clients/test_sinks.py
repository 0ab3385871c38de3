"""Sinks in a world: their store equals the log through all that happens to them, and the judge sees planted bugs."""

from dataclasses import replace
from random import Random

import pytest

from raftlog.chaos.sim.clients import sinks
from raftlog.chaos.sim.clients.sink_store import SinkServer
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.outcome import Outcome
from raftlog.chaos.sim.ground.swarm import quiet
from raftlog.chaos.sim.mutants import MUTANTS, plant
from raftlog.chaos.sim.seed.run import run_seed

SEEDS = range(1, 13)
SECONDS = 20


@pytest.fixture(autouse=True)
def _every_world_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "WORLDS", 1)


def world(seed: int) -> Outcome:
    """A small world: one kind of trouble of the nodes, beside that of the sink."""
    return run_seed(seed, SECONDS, swarm=replace(quiet(3), clients=1, faults=(("kill", 8_000_000),)))


def broken_by(seed: int) -> str | None:
    """The property that the world of that seed broke."""
    try:
        world(seed)
    except Failure as failure:
        return failure.property
    return None


def test_a_store_equals_the_log_after_every_commit() -> None:
    """Through kills and pauses of its runners, two at a time, lost answers, and a store that goes back to a copy."""
    seen: dict[str, int] = {}
    for seed in SEEDS[:6]:
        for what, count in world(seed).stats.items():
            seen[what] = seen.get(what, 0) + count
    assert seen["commits of a sink judged"] > 100
    for what in (
        "fault: kill sink",
        "fault: pause sink",
        "fault: second sink",
        "fault: restore sink's store",
        "fault: rebuild sink",
        "sometimes: a sink's runner was fenced",
        "sometimes: a sink's store was half loaded",
        "commits of a rebuild judged",
        "tries of a sink ended by StoreUnavailable",
    ):
        assert seen[what] > 0, what


def test_a_store_without_a_copy_goes_back_to_nothing() -> None:
    """The judge then knows of no runner that has opened it. (Seed 402427 of 30 November 2026 accused an older one.)"""
    server = SinkServer(Random(1), lambda: True)
    server.youngest["copy"], server.begins["copy"] = 195, 7
    server.restore()
    assert (server.position("copy"), server.youngest, server.begins) == (None, {}, {})


FIRST = ("sink_position_is_not_compared", "sink_shows_half_a_transaction")


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=() if name in FIRST else pytest.mark.extra)
        for name, each in MUTANTS.items()
        if "sink's" in each.worlds
    ],
)
def test_the_judge_sees_a_planted_bug(mutant: str) -> None:
    """Within the first worlds, which are clean without it. Each has a story, too, so `make test` plants two here."""
    with plant(mutant):
        found = next(((seed, broken) for seed in SEEDS if (broken := broken_by(seed)) is not None), None)
    assert found is not None, f"{len(SEEDS)} worlds do not see {mutant}"
    assert found[1] in (sinks.EQUAL, sinks.FENCED, sinks.ARRIVES, sinks.BACK)
    print(f"{mutant}: {found[1]}, seed {found[0]}")
    assert broken_by(found[0]) is None
