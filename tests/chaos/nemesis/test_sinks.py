"""Faults of the runner of a sink, with a stand-in for the command."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.chaos.deploy.sink_process import SinkProcess
from raftlog.chaos.nemesis import sinks
from raftlog.chaos.nemesis.fault import Field


@pytest.mark.parametrize("ends", ["older", "younger", "none"])
def test_one_runner_is_left_after_a_pause_and_no_end_of_the_other_counts_as_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Of two runners that both live after some seconds one may have taken over, and the other not know it yet: it would
    end by itself later, as it should, and count as one that failed."""
    runner = """
import pathlib, sys, time
number = len(list(pathlib.Path().glob("started-*")))
pathlib.Path(f"started-{number}").touch()
while not pathlib.Path(f"end-{number}").exists():
    time.sleep(0.01)
sys.exit(1)
"""
    folder = tmp_path / "sink"
    sink = SinkProcess(folder, "keys", ["http://127.0.0.1:1"], [sys.executable, "-c", runner], lambda pid: None)
    monkeypatch.setattr(sinks, "FENCED_S", 60.0 if ends != "none" else 0.0)
    deployment: Any = SimpleNamespace(sink=sink)
    field = Field(deployment, 1, Random(1))
    pause = next(each for each in sinks.NEMESES if each.name == "pause-sink")
    older = sink.start()
    assert field.wait((folder / "started-0").exists, 60)
    injection = pause.inject(field)
    younger = sink.process
    assert younger is not None
    assert field.wait((folder / "started-1").exists, 60)
    if ends != "none":
        (folder / f"end-{int(ends == 'younger')}").touch()
    injection.heal()
    left = {"older": younger, "younger": older}.get(ends)
    assert sink.process is not None
    assert left in {None, sink.process}
    assert [each.poll() is None for each in (older, younger)] == [each is left for each in (older, younger)]
    sink.kill()
    assert sink.problems == []
