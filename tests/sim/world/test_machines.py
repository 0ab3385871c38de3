"""State machines of one's own: the example holds, and those that are wrong in the usual ways are found."""

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from raftlog.chaos.sim.ground.machines import Host, NotAMachine, ShippedMachine, load_machine
from raftlog.chaos.sim.runs.runner import Job, Result, run_job
from raftlog.chaos.sim.world.world import MACHINE
from raftlog.statemachine.commands import LogEntry
from raftlog.statemachine.machine import StateMachine

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "examples"
HERE = "tests.sim.world.test_machines"


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `raftlog sim` run in docs/examples."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


class Counter:
    """Right, and as small as they get: how many records, and how long they were."""

    def __init__(self) -> None:
        self.count, self.bytes = 0, 0

    def apply(self, index: int, record: bytes) -> object:
        self.count += 1
        self.bytes += len(record)
        return self.count

    def digest(self) -> object:
        return self.count, self.bytes

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d %d" % (self.count, self.bytes)

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> "Counter":
        counter = cls()
        counter.count, counter.bytes = map(int, b"".join(chunks).split())
        return counter

    @staticmethod
    def record(random: Random) -> bytes:
        return random.randbytes(5)


class DiffersBetweenNodes(Counter):
    """Its state depends on which object it is, as one does that iterates over a set of objects."""

    made = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.own = next(self.made)

    def digest(self) -> object:
        return self.count, self.own


class AnswersDiffer(Counter):
    """Its state is right, its answers to clients are not."""

    made = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.own = next(self.made)

    def apply(self, index: int, record: bytes) -> object:
        super().apply(index, record)
        return self.own


class ForgetsInSnapshots(Counter):
    """Its snapshot lacks a field."""

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> "ForgetsInSnapshots":
        counter = cls()
        counter.count = int(b"".join(chunks).split()[0])
        return counter


class Raises(Counter):
    """Breaks a promise of its own after a while."""

    def apply(self, index: int, record: bytes) -> object:
        assert self.count < 30, "more than thirty"
        return super().apply(index, record)


def until_broken(machine: str, seeds: range, seconds: int = 8) -> Result:
    """The first seed that fails with that machine, or the last one."""
    for seed in seeds:
        result = run_job(Job(seed, seconds, machine=machine))
        if result.broken is not None:
            break
    return result


def test_the_example_holds() -> None:
    """docs/examples/bank.py under all faults: its Banks stay equal, and clients do move money."""
    result = run_job(Job(4, 8, machine="bank:Bank"))
    assert result.broken is None, result.broken
    assert result.stats["records made"] >= 20
    again = run_job(Job(4, 8, machine="bank:Bank"))
    assert again.digest == result.digest


@pytest.mark.parametrize(
    ("machine", "property"),
    [
        ("DiffersBetweenNodes", "equal effects and digests"),
        ("AnswersDiffer", "equal effects and digests"),
        ("ForgetsInSnapshots", "equal effects and digests"),
        ("Raises", "apply never raises"),
    ],
)
def test_a_wrong_machine_is_found(machine: str, property: str) -> None:
    """Each within a few worlds, under the name of the property that it breaks; the same machine without is right."""
    result = until_broken(f"{HERE}:{machine}", range(30))
    assert result.broken is not None
    assert result.broken.property == property, result.broken
    assert not result.broken.is_internal
    assert f"--state-machine {HERE}:{machine}" in result.job.command


def test_snapshots_of_both_machines_come_back() -> None:
    """A restored machine has the digest of the saved one, though apply went on in between; the walk can be closed."""
    host = load_machine(f"{HERE}:Counter")
    assert isinstance(host, Host)
    inner = ShippedMachine()
    hosted = host.beside(inner)
    inner.apply(LogEntry(1, 1, 1, 0, 0, ()))
    hosted.yours.apply(2, b"abc")
    before = hosted.digest()
    walk = inner.snapshot()
    hosted.yours.apply(3, b"d")
    chunks = list(walk)
    walk.close()
    assert hosted.digest() != before
    restored = ShippedMachine.restore(chunks)
    assert isinstance(restored, ShippedMachine)
    assert host.beside(restored).digest() == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "module:Class"),
        (":Bank", "module:Class"),
        ("no.such.module:A", "no.such.module"),
        ("bank:Nope", "no class Nope in bank"),
        ("bank:ACCOUNTS", "no class"),
        ("json:JSONDecoder", "has no apply"),
    ],
)
def test_what_is_no_machine_is_refused_with_the_reason(name: str, why: str) -> None:
    """The message names the missing method, before any seed runs."""
    with pytest.raises(NotAMachine, match=why):
        load_machine(name)


def test_the_shipped_machine_is_run_as_it_is() -> None:
    """Nothing is put around it."""
    assert load_machine(MACHINE) is StateMachine
