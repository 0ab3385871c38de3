"""When a node whose disk is full must hand over or end: only then is it an error that it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.chaos.nemesis import disks
from raftlog.chaos.nemesis.disks import ANSWERS_MS, can_hand_over
from raftlog.chaos.nemesis.fault import Field
from raftlog.cluster.api.status import FollowerStatus, SetDigestHex, Status

CUT_OFF = ANSWERS_MS + 1
NEVER = -1


def leader(voters: Sequence[int], contact_ms: Mapping[int, int], outgoing: Sequence[int] = ()) -> Status:
    """Node 4 leads; `contact_ms`: how old each follower's newest answer is."""
    return Status(
        log="",
        node=4,
        disk="",
        role="leader",
        term=1,
        leader=None,
        last=1,
        persisted=1,
        committed=1,
        applied=1,
        oldest=1,
        last_user_index=0,
        revision=0,
        state=SetDigestHex(0, "", "", ""),
        sessions=0,
        uptime_ms=0,
        version="",
        index=1,
        voters=list(voters),
        outgoing=list(outgoing),
        followers=[FollowerStatus(node, "replicate", 1, 0, 0.0, age) for node, age in contact_ms.items()],
    )


@pytest.mark.parametrize(
    ("status", "can"),
    [
        (leader([3, 4, 5], {3: 10, 5: 10}), True),
        (leader([3, 4, 5], {3: 10, 5: CUT_OFF}), False),
        (leader([3, 4, 5], {3: ANSWERS_MS, 5: NEVER}), False),
        (leader([1, 3, 4, 5], {1: 10, 3: 10, 5: 10}), True),
        (leader([1, 3, 4, 5], {1: 10, 3: 10, 5: CUT_OFF}), False),  # two of four are no majority
        (leader([1, 3, 4, 5], {1: 10, 2: 10, 3: 10, 5: CUT_OFF}), False),  # a learner has no vote
        (leader([1, 2, 3, 4, 5], {1: 10, 2: 10, 3: 10, 5: CUT_OFF}), True),
        (leader([1, 2, 3], {1: 10, 2: 10, 3: 10, 5: CUT_OFF}, outgoing=[3, 4, 5]), False),  # of the old voters only 3
        (leader([1, 2, 3], {1: 10, 2: 10, 3: 10, 5: 10}, outgoing=[3, 4, 5]), True),
    ],
)
def test_a_full_leader_must_hand_over_only_where_a_majority_without_it_answers(status: Status, can: bool) -> None:
    """A majority of the new voters, and of the old ones while the configuration is joint."""
    assert can_hand_over(status) is can


@pytest.mark.parametrize(
    ("code", "error", "events", "is_right"),
    [
        (13, "EIO", [], True),
        (13, "ENOSPC", ["disk_full"], True),
        (None, "ENOSPC", ["disk_full", "serving"], True),
        (None, "ENOSPC", ["disk_full", "disk_has_room_again"], False),
        (None, "ENOSPC", [], False),
        (None, "EIO", ["disk_full"], False),
        (0, "ENOSPC", ["disk_full"], False),
    ],
)
def test_a_node_whose_write_failed_must_end_or_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, error: str, events: list[str], is_right: bool
) -> None:
    """Without room only a footer may have been written: then the node counts as full, and goes on. What it has logged
    before does not count, and many requests may be logged since."""
    log = tmp_path / "node-1.log"
    log.write_text('{"event":"disk_full"}\n')

    def inject(call: str, **rule: object) -> int:
        lines = [*events, *["request"] * 10_000]
        with log.open("a") as file:
            file.writelines(f'{{"event":"{event}","code":"disk_full"}}\n' for event in lines)
        return 1

    cluster = SimpleNamespace(data=lambda node: "", log_file=lambda node: log, pid=lambda node: 4711)
    shim = SimpleNamespace(hits=lambda rule: [1], inject=inject)
    deployment: Any = SimpleNamespace(cluster=cluster)
    field = Field(deployment, 1, Random(1))
    monkeypatch.setattr(Field, "shim", shim)
    monkeypatch.setattr(Field, "leader_or_any", lambda self: 1)
    monkeypatch.setattr(Field, "gone", lambda self, node: code)
    monkeypatch.setattr(Field, "forget", lambda self: None)
    monkeypatch.setattr(disks, "_lose_power", lambda field, nodes: "nothing")
    fault = disks._failing("pwrite", error)
    if is_right:
        assert f"met {error}" in fault(field).proof
    else:
        with pytest.raises(RuntimeError):
            fault(field)
    assert (field.problems == []) is is_right
