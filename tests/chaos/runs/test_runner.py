"""What the runner does with a fault that could not be installed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.chaos.nemesis import NEMESES, FaultSkipped, Field, Injection
from raftlog.chaos.runs.runner import FaultRun, _fault
from tests.chaos.record.runs import made


async def test_a_skipped_fault_leaves_nothing_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had placed until it found no target is removed, and the reason is kept."""

    def inject(field: Field) -> Injection:
        field.disabled.append("a")
        raise FaultSkipped("no target")

    run, enabled = made(tmp_path, []), list[str]()
    planned = replace(run.plan.planned[0], at_s=0.0)
    monkeypatch.setitem(cast(Any, NEMESES), planned.nemesis, replace(NEMESES[planned.nemesis], inject=inject))
    cluster = SimpleNamespace(nodes=[1, 2, 3])
    deployment: Any = SimpleNamespace(cluster=cluster, toxiproxy=SimpleNamespace(enable=enabled.append))
    await _fault(run, fault := FaultRun(planned), deployment, {planned.lane: asyncio.Lock()})
    assert (fault.outcome, fault.note, enabled) == ("skipped", "no target", ["a"])


async def test_a_fault_of_more_nodes_than_are_left_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster had five nodes when the faults were planned, and a leader was removed since."""
    run = made(tmp_path, [])
    planned = replace(run.plan.planned[0], at_s=0.0)
    monkeypatch.setitem(cast(Any, NEMESES), planned.nemesis, replace(NEMESES[planned.nemesis], nodes_min=5))
    deployment: Any = SimpleNamespace(cluster=SimpleNamespace(nodes=[1, 2, 4, 5]))
    await _fault(run, fault := FaultRun(planned), deployment, {planned.lane: asyncio.Lock()})
    assert (fault.outcome, fault.note) == ("skipped", "it needs 5 nodes, and the cluster has 4")
