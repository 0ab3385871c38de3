"""Tests work around a snapshot: the compaction after a save, and the order of steps of an install."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.config.settings import LimitSettings
from raftlog.cluster.records.entries import log_entry
from raftlog.cluster.replica.upkeep import snapshots
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.ready import SnapshotInstall
from raftlog.raft.types import GENESIS, Mark
from raftlog.statemachine.machine import StateMachine
from tests.cluster.replica.log.test_applier import entries_after


def replica_of(calls: list[tuple[str, Any]], *, keep_after: int = 0, sending: tuple[int, ...] = ()) -> Any:
    """A replica whose disk and core note what they are asked for."""

    def note(name: str) -> Any:
        return lambda *arguments: calls.append((name, arguments))

    async def end_before(index: int, size: int) -> int:
        return keep_after

    async def asked(name: str, answer: Any) -> Any:
        calls.append((name, ()))
        return answer

    followers = [SimpleNamespace(snapshot_index=index) for index in sending]
    return SimpleNamespace(
        metrics=Metrics(),
        settings=SimpleNamespace(limits=LimitSettings(), retention=SimpleNamespace(bytes=0)),
        disk=SimpleNamespace(end_before=end_before, snapshot_bytes=1_000, install=lambda *_: asked("disk", None)),
        core=SimpleNamespace(
            compact=note("compact"), installed=note("core"), status=lambda: SimpleNamespace(followers=followers)
        ),
        applier=SimpleNamespace(installed=note("applier"), waiting=0, is_written=True),
        syncer=SimpleNamespace(is_idle=True, has_space=True),
        writes=SimpleNamespace(pending=SimpleNamespace(skipped=note("pending"))),
        snapshots=SimpleNamespace(index=40, is_damaged=True, saving=None),
        driver=SimpleNamespace(spawn=lambda work: work.close()),
        damage=SimpleNamespace(snapshot_saved=lambda: None),
        machine=StateMachine(),
        logger=SimpleNamespace(info=lambda *_, **__: None),
    )


@pytest.mark.parametrize(("sending", "kept"), [((), 90), ((0, 0), 90), ((0, 50), 50), ((95,), 90)])
async def test_a_saved_snapshot_keeps_the_log_behind_one_that_is_sent(sending: tuple[int, ...], kept: int) -> None:
    """A follower that is just given the snapshot of index 50 will need the entries from 51 on, whatever else may go."""
    calls: list[tuple[str, Any]] = []
    mark = Mark(100, 1, 0, 0, 0)
    await snapshots.saved(replica_of(calls, keep_after=90, sending=sending), mark)
    assert calls == [("compact", (mark, kept))]


async def test_an_installed_snapshot_reaches_core_applier_and_waiting_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First the disk, then the core, then the state, then the writes whose places it covers."""
    calls: list[tuple[str, Any]] = []
    machine = StateMachine()
    entry = entries_after(GENESIS, 1)[0]
    mark = Mark(entry.index, entry.term, 0, 0, 0)

    async def restored(replica: Any, stored: Any) -> tuple[StateMachine, int]:
        return machine, 1

    monkeypatch.setattr(snapshots, "_restore", restored)
    replica = replica_of(calls)
    stored = SimpleNamespace(mark=mark, folder=Path("s"), configuration=None, configuration_index=1)

    async def check_received(index: int) -> Any:
        return SimpleNamespace(), stored

    replica.disk.check_received = check_received

    machine.apply(log_entry(entry))
    await snapshots._install(replica, SnapshotInstall(mark.index, mark.term))
    assert [name for name, _ in calls] == ["disk", "core", "applier", "pending"]
    assert calls[2][1] == (machine, mark, 1)
    assert calls[3][1] == (mark.index, mark.term)
    assert replica.snapshots.index == mark.index
