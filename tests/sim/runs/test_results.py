"""The record of runs: what a line of it says, how hours add up, and what the hash over the sources covers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raftlog.chaos.sim.runs import results
from raftlog.chaos.sim.runs.runner import Job, Result
from raftlog.chaos.sim.runs.summary import Summary
from raftlog.chaos.sim.world.world import World
from tests import membership_seeds

ENOUGH = {"simulated ms": 60_000, "client operations": 250, "faults": 12, "leaders": 3}


def summary_of(*seeds: int, seconds: int = 60) -> Summary:
    summary = Summary(seconds)
    for seed in seeds:
        summary.add(Result(Job(seed, seconds), 0.1, f"{seed:016x}", ENOUGH))
    return summary


def line(seeds: range, sources: str = "s", **changes: Any) -> dict[str, Any]:
    """A run of the record."""
    run = {
        "at": "2026-01-01T00:00Z", "seeds": f"{seeds.start}:{seeds.stop}", "seconds": 60, "hours": len(seeds) / 60,
        "failed": [], "too_little": [], "commit": "c" * 40, "sources": sources,
    }  # fmt: skip
    return run | changes


def test_hours_add_up_where_the_sources_are_the_same() -> None:
    """Equal sources add up; seeds that were run before count once; failed and idle runs do not count as clean."""
    told = results.sums(
        [
            line(range(60)), line(range(30, 90)), line(range(60), at="2026-01-02T00:00Z"),
            line(range(90, 150), failed=[91]), line(range(90, 150), too_little=["faults: 1 < 10"]),
            line(range(600), "other", at="2026-02-01T00:00Z"),
        ]
    )  # fmt: skip
    assert [(each.sources, round(each.clean_hours, 3), each.runs, each.failed_seeds) for each in told] == [
        ("other", 10.0, 1, 0),
        ("s", 1.5, 5, 1),
    ]


def test_a_run_is_kept_in_a_checkout(tmp_path: Path) -> None:
    """One line of JSON with what a reader needs; the record itself does not make the tree unclean."""
    root = tmp_path
    (root / "docs").mkdir()
    (root / "raft").mkdir()
    (root / "raft" / "log.py").write_text("a = 1\n")
    (root / "chaos" / "sim" / "seed").mkdir(parents=True)
    world = root / "chaos" / "sim" / "seed" / "run.py"
    world.write_text("def run() -> None:\n    from raftlog.raft import log\n")
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    sources = results.sources_hash(root)
    results.append(summary_of(7, 8), range(7, 100), sources, root)
    results.append(summary_of(9, 10), range(9, 11), sources, root)
    first, second = results.read(root)
    assert (first["seeds"], second["seeds"]) == ("7:9", "9:11")
    assert first["clean_tree"]
    assert second["clean_tree"]
    assert first["sources"] == sources
    assert first["digest"] == summary_of(8, 7).digest
    assert first["medians"] == {"client operations": 250, "faults": 12, "leader changes": 3}
    assert results.sums([first, second])[0].clean_hours == pytest.approx(4 / 60, abs=1e-3)
    (root / "raft" / "log.py").write_text("a = 2\n")
    assert results.sources_hash(root) != sources
    with pytest.raises(results.NoCheckout, match="changed"):
        results.append(summary_of(1), range(1, 2), sources, root)
    results.append(summary_of(1), range(1, 2), results.sources_hash(root), root)
    assert json.loads((root / results.RESULTS).read_text().splitlines()[-1])["clean_tree"] is False


def test_without_a_checkout_nothing_is_kept(tmp_path: Path) -> None:
    """An installed package has no record to keep."""
    with pytest.raises(results.NoCheckout):
        results.append(summary_of(1), range(1, 2), results.sources_hash(tmp_path), tmp_path)


def test_the_hash_covers_what_the_simulator_executes() -> None:
    """Every module of the project that `run_seed` loads is in the hash, and no command of the terminal is."""
    code = (
        "import os, sys, raftlog.chaos.sim.seed.run\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.startswith('raftlog.'): print(os.path.realpath(module.__file__))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=results.ROOT
    ).stdout
    executed = {str(path) for path in results.executed_files()}
    assert {path for path in loaded.split() if path not in executed} == set()
    assert not any(
        path.endswith(("commands.py", "diagram.py", "results.py")) and "chaos/sim/" in path for path in executed
    )


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    """The line that cannot be read, by number."""
    (tmp_path / "docs").mkdir()
    (tmp_path / results.RESULTS).write_text("{}\nnonsense\n")
    with pytest.raises(ValueError, match="line 2"):
        results.read(tmp_path)


def test_seeds_with_changes_of_members_are_counted() -> None:
    """A seed counts once for each state of the sources, and not if it failed; its faults are those that its
    world draws."""
    changing = [seed for seed in range(40) if membership_seeds.is_changing(seed)]
    assert 15 < len(changing) < 38
    for seed in (*changing[:2], *[seed for seed in range(40) if seed not in changing][:2]):
        kinds = {kind for kind, _ in World(seed).swarm.faults}
        assert bool(kinds & membership_seeds.KINDS) == (seed in changing)
    failed = changing[0]
    told = membership_seeds.count([line(range(40), failed=[failed]), line(range(20)), line(range(10), "other")])
    assert [(row.sources, row.seeds, row.failed, row.changing) for row in told] == [
        ("s", 40, 1, len(changing) - 1),
        ("other", 10, 0, sum(seed < 10 for seed in changing)),
    ]
