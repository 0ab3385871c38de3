"""A seed decides everything: equal traces on every run, whatever the hash seed, the Python, or what ran before."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.chaos.sim.ground.trace import Recorder
from raftlog.chaos.sim.runs.runner import Job, run_job, run_jobs
from raftlog.cluster.disk import older_segments
from raftlog.cluster.runtime import build

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SEEDS = (7, 8, 9)
SECONDS = 6
CODE = f"""
from raftlog.chaos.sim.seed.run import run_seed
for seed in {SEEDS}:
    print(run_seed(seed, {SECONDS}).digest)
"""
NEEDED = ("google_crc32c", "msgpack", "msgspec", "sortedcontainers", "xxhash")


@pytest.fixture(scope="module")
def here() -> list[str]:
    """The digests of a few seeds in this process."""
    return [run_job(Job(seed, SECONDS)).digest for seed in SEEDS]


def digests(python: str, **environment: str) -> list[str]:
    """The same in a process of its own."""
    ran = subprocess.run(
        [python, "-c", CODE], cwd=ROOT, env=os.environ | environment, check=True, capture_output=True, text=True
    )
    return ran.stdout.split()


def test_different_seeds_are_different_worlds(here: list[str]) -> None:
    """And every one of them held."""
    assert len(set(here)) == len(SEEDS)
    assert all(len(digest) == 16 for digest in here)


def test_a_process_that_did_other_things_before_gives_the_same(here: list[str]) -> None:
    """Nothing is carried over from seed to seed: in another order, and with a Recorder, the digests are equal."""
    run_job(Job(80, 1))
    again = [run_job(Job(seed, SECONDS), Recorder(lambda _: None)).digest for seed in reversed(SEEDS)]
    assert again == here[::-1]


def test_worker_processes_give_the_same(here: list[str]) -> None:
    """As `raftlog sim` runs them."""
    found = {result.job.seed: result.digest for result in run_jobs([Job(seed, SECONDS) for seed in SEEDS], 2)}
    assert [found[seed] for seed in SEEDS] == here


@pytest.mark.skipif(build.modules() == "interpreted", reason="no compiled modules here: make test-compiled")
def test_interpreted_modules_give_the_same_as_compiled_ones(here: list[str]) -> None:
    """A trace has every message, sync, fault and answer, so equal traces mean that both do the same."""
    assert digests(sys.executable, **{build.PURE: "1"}) == here


@pytest.mark.parametrize("hash_seed", ["0", *(pytest.param(each, marks=pytest.mark.extra) for each in ("1", "4242"))])
def test_the_hash_seed_changes_nothing(hash_seed: str, here: list[str]) -> None:
    """No set or dict whose order comes from hashes of text decides anything."""
    assert digests(sys.executable, PYTHONHASHSEED=hash_seed) == here


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_gives_the_same(version: str, here: list[str]) -> None:
    """Where that Python is installed with what the simulator imports; docs/simulator.md says how."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version == own:
        python = sys.executable
    else:
        made = ROOT / ".tools" / f"python-{version}" / "bin" / "python"
        python = str(made) if made.exists() else shutil.which(f"python{version}") or ""
    if not python or not can_import(python):
        pytest.skip(f"no Python {version} with {', '.join(NEEDED)}: see docs/simulator.md")
    assert digests(python) == here


def can_import(python: str) -> bool:
    """Whether that interpreter starts and has the packages."""
    try:
        ran = subprocess.run([python, "-c", f"import {', '.join(NEEDED)}"], capture_output=True, cwd="/", check=False)
    except OSError:
        return False
    return ran.returncode == 0


def test_a_slow_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that fetches a segment works in slices of time. They end by the clock of its world, which stands still
    meanwhile, and not by the clock of the machine: the shortest slice gives the digest of the usual one."""
    usual = run_job(Job(5, 20)).digest
    monkeypatch.setattr(older_segments, "SLICE_S", 1e-9)
    assert run_job(Job(5, 20)).digest == usual


def test_leaving_a_fault_out_changes_nothing_before_it() -> None:
    """Shrinking relies on it: up to the first fault that is left out, two runs are the same line by line."""
    lines: list[list[str]] = []
    for skip in (frozenset[int](), frozenset({3})):
        lines.append([])
        assert run_job(Job(7, SECONDS, skip), Recorder(lines[-1].append)).broken is None
    whole, without = lines
    at = next(nth for nth, line in enumerate(whole) if " FAULT 3 " in line)
    assert whole[:at] == without[:at]
    assert whole[at] != without[at]
    assert not any(" FAULT 3 " in line for line in without)
