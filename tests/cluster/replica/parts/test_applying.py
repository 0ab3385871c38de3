"""Tests when a node applies: behind the sync that a leader waits for, unless a client waits for the applied entry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.cluster.replica.parts.applying import DELAY_S, apply_if_due
from raftlog.cluster.runtime import clock

BUSY: dict[str, Any] = {"is_busy": True, "is_leader": False, "inflight": 0, "waiters": 0, "for_s": 0.0}


@pytest.mark.parametrize(
    ("more", "is_due"),
    [
        ({}, False),
        ({"is_busy": False}, True),
        ({"is_leader": True}, True),
        ({"inflight": 1}, True),
        ({"waiters": 1}, True),
        ({"for_s": DELAY_S}, True),
    ],
)
def test_apply_waits_only_for_a_quick_sync_without_waiting_clients(more: dict[str, Any], is_due: bool) -> None:
    """Each reason to apply at once, by itself: an idle disk, a leader, a forwarded request, a waiting reader, a slow
    disk."""
    now = BUSY | {"for_s": -60.0} | more  # a sync that began in a minute, so that no machine is slow enough
    runs: list[None] = []
    node: Any = SimpleNamespace(
        syncer=SimpleNamespace(is_busy=now["is_busy"], started=clock.monotonic() - now["for_s"]),
        core=SimpleNamespace(state=SimpleNamespace(role=SimpleNamespace(is_leader=now["is_leader"]))),
        writes=SimpleNamespace(pending=SimpleNamespace(inflight=now["inflight"], outcomes=0)),
        applier=SimpleNamespace(waiters=SimpleNamespace(heap=[None] * now["waiters"]), run=lambda: runs.append(None)),
    )
    apply_if_due(node)
    assert len(runs) == is_due
