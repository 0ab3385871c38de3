"""The Spark bench judges the goals of its issue by its own figures, and names those for which it has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.instruments import machine
from bench.loads import openloop
from bench.spark.__main__ import (
    ALL,
    EXPORT,
    FILES,
    HASH,
    KAFKA,
    LOCAL,
    NO_OP,
    PARQUET,
    PROVED,
    STREAM,
    Figure,
    Report,
    goals_of,
    keep_bytecode,
    markdown,
)
from bench.spark.live import Held, Latency

ONE, THOUSAND = "raftlog, entries of 1", "raftlog, entries of 1,000"


def figures(rate: int, *, files: int, kafka: int) -> list[Figure]:
    """Every job of every contender at these rates; one round in three is far off, which no median shows."""
    ours = [(name, job) for name in (ONE, THOUSAND) for job in (NO_OP, HASH, PARQUET, STREAM, EXPORT, PROVED)]
    return [
        *(Figure(name + local, job, [rate, rate, 1]) for name, job in ours for local in ("", LOCAL)),
        *(Figure(name + ALL, job, [rate // 2, rate // 2, 1]) for name, job in ours if job in (NO_OP, HASH)),
        Figure(FILES, HASH, [files, 1, files]),
        Figure(FILES + ALL, HASH, [files // 2, 1, files // 2]),
        *(Figure(KAFKA, job, [kafka, kafka, 10 * kafka]) for job in (NO_OP, HASH, PARQUET, STREAM)),
    ]


def offered(rate: float) -> openloop.Offered:
    """An open loop that reached this rate."""
    return openloop.Offered(3_000, 64, 60_000, 60_000, 0, rate, 1.0, 2.0, 3.0, 4.0)


LATENCY = Latency(100, 150.0, 400.0)
HELD = Held(offered(3_000), offered(2_800), 7, True)


def test_each_goal_is_judged_by_its_own_figure() -> None:
    """With everything fast enough all goals are met; slower rows, a faster rival, slower writes and another leader each
    fail theirs alone."""
    goals, unjudged = goals_of(figures(2_600_000, files=6_000_000, kafka=2_000_000), LATENCY, HELD, [1, 1000])
    assert unjudged == []
    assert len(goals) == 31
    assert all(goal.is_met for goal in goals), [goal.what for goal in goals if not goal.is_met]

    def missed(*told: object) -> set[str]:
        return {goal.what for goal in goals_of(*told)[0] if not goal.is_met}  # type: ignore[arg-type]

    slow = missed(figures(2_400_000, files=6_000_010, kafka=1_000_000), LATENCY, HELD, [1, 1000])
    assert slow == {
        f"{what}, {name}{local}"
        for name in (ONE, THOUSAND)
        for local in ("", LOCAL)
        for what in ("rows/s into no-op", "hash beside Parquet files")
    } | {f"hash beside Parquet files, {name}{ALL}" for name in (ONE, THOUSAND)}
    rival = missed(figures(2_600_000, files=6_000_000, kafka=2_200_000), LATENCY, HELD, [1])
    assert rival == {f"{job} beside Kafka, {ONE}{local}" for job in (NO_OP, STREAM, PARQUET) for local in ("", LOCAL)}
    held = Held(offered(3_000), offered(2_600), 7, False)
    live = missed(figures(2_600_000, files=6_000_000, kafka=2_000_000), Latency(100, 201.0, 300.0), held, [1])
    assert live == {
        "commit to visible, p50 ms",
        "write rate with Spark at nice 19, of that alone",
        "leader changes meanwhile",
    }


def test_a_spark_goal_without_a_figure_is_named() -> None:
    """A goal without a figure is neither met nor missed: the page says that it lacks one, and why."""
    some = [figure for figure in figures(2_600_000, files=6_000_000, kafka=1) if figure.contender != KAFKA]
    goals, unjudged = goals_of(some, None, HELD, [1])
    assert [name for name in unjudged if "Kafka" in name] == [
        f"{job} beside Kafka, {ONE}{local}" for local in ("", LOCAL) for job in (NO_OP, STREAM, PARQUET)
    ]
    assert "commit to visible, p50 ms" in unjudged
    disk = machine.Disk("ext4", 100, 100.0, 200.0)
    page = markdown(
        Report(
            "now", 5_000_000, 2, "4g", 0.01, True, disk, some, None, HELD, goals, unjudged, {KAFKA: "no mvn on PATH"}
        )
    )
    assert "no figure for the goal: commit to visible, p50 ms" in page
    assert "skipped kafka: no mvn on PATH" in page
    assert "2,800/s beside Spark at nice 19, which read the log 7 times; the same leader" in page


def test_processes_of_the_bench_keep_their_bytecode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That holds even if the environment forbids bytecode. Otherwise each of Spark's processes would compile its
    packages at its start, and a streaming query's start would be measured at twice its time.
    """
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "elsewhere")
    keep_bytecode(tmp_path)
    subprocess.run([sys.executable, "-c", "import bench.comparison.goals"], check=True, env=os.environ.copy())
    assert list(tmp_path.glob("**/goals.*.pyc"))
