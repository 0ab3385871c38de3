"""Fail-over runs that were interrupted go on where they were, and nothing that was measured is hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.chaos.runs import failover
from raftlog.chaos.runs.runner import FaultRun
from tests.chaos.record.runs import made


def _loss(number: int, nemesis: str, took_s: float | None) -> failover.Loss:
    return failover.Loss(
        number=number, nemesis=nemesis, took_s=took_s, term=number, placing_s=0.001, at_s=1.0, load=0.5
    )


def _write(folder: Path, *losses: failover.Loss) -> None:
    (folder / failover.LOSSES).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in losses))


async def test_measured_losses_are_not_done_again(tmp_path: Path) -> None:
    """Those in the folder count for the result, and their faults are skipped; a write that never came counts too."""
    run = made(tmp_path, [])
    run.workloads = []
    run.faults = [FaultRun(each) for each in failover.plan(7, 1)]
    assert failover.losses_of(tmp_path) == []
    _write(tmp_path, _loss(1, "kill-leader", 0.05), _loss(2, "pause-leader", None))
    nobody: Any = None
    await failover.lose_leaders(run, nobody, nobody, lambda told: pytest.fail(f"it did something: {told}"))
    assert [each.outcome for each in run.faults] == ["skipped", "skipped"]
    assert run.losses == {"kill-leader": [0.05], "pause-leader": [failover.LOST_S]}
    assert [row["within_goal"] for row in failover.summary(run.losses) if "goal" in row] == [True, False]


def test_broken_line_is_named(tmp_path: Path) -> None:
    """A file that is none, or that was cut, is refused by file and line before anything starts."""
    _write(tmp_path, _loss(1, "kill-leader", 0.05))
    with (tmp_path / failover.LOSSES).open("ab") as file:
        file.write(b'{"number": 2')
    with pytest.raises(ValueError, match=r"losses\.jsonl: line 2"):
        failover.losses_of(tmp_path)
