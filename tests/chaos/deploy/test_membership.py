"""The members come to be those of the beginning, whatever was left half-way; a pretended cluster takes every change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.chaos.deploy import membership
from raftlog.chaos.deploy.disk_account import DiskAccount
from raftlog.cluster.api.members import ChangeAnswer, ChangeIn, MemberAnswer, Members
from raftlog.cluster.api.status import fingerprint
from raftlog.cluster.api.values import LeaderHint


class Pretended:
    """A deployment of nodes 1 to 3 and number 4 to spare, and the cluster that it would drive: roles by node."""

    def __init__(self, folder: Path) -> None:
        self.first_nodes, self.spares = [1, 2, 3], [4]
        self.disks = DiskAccount()
        self.roles = dict.fromkeys(self.first_nodes, "voter")
        self.named = {node: f"disk-{node}" for node in self.first_nodes}  # incarnations by the log
        self.here = dict(self.named)  # and by the data folders
        self.asked: list[tuple[str, int]] = []
        self.folder = folder
        self.cluster: Any = SimpleNamespace(
            kill=lambda node: None,
            data=self._data,
            place=lambda node: SimpleNamespace(incarnation=self.here[node]),
            start_node=lambda node: None,
            dismiss=self._dismiss,
            running=[1],
            scheme="http",
        )

    def _data(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def _dismiss(self, node: int) -> int:
        self.here.pop(node, None)
        self.cluster.nodes = sorted(self.here)
        return 15

    def peer_of(self, node: int) -> str:
        return f"peer-{node}"

    def http_of(self, node: int) -> str:
        return f"http-{node}"

    def url(self, node: int) -> str:
        return f"proxy-{node}"

    def join(self, node: int, text: str) -> None:
        self.here[node] = text
        self.roles[node] = "voter"
        self.cluster.nodes = sorted(self.here)

    def members(self) -> Members:
        told = [
            MemberAnswer(node, fingerprint(self.named[node]), f"peer-{node}", f"http-{node}", role, match=1)
            for node, role in sorted(self.roles.items())
        ]
        return Members("log", told, LeaderHint(1, "http-1"), 9, 2)

    def ask(self, change: ChangeIn) -> ChangeAnswer | None:
        self.asked.append((change.change, change.node))
        is_there = change.node in self.roles
        match change.change:
            case "remove":
                del self.roles[change.node]
            case "promote":
                self.roles[change.node] = "voter"
            case "add" | "replace":
                assert is_there == (change.change == "replace"), "a cluster would refuse it"
                self.roles[change.node], self.named[change.node] = "learner", change.incarnation or ""
                return ChangeAnswer(change.change, change.node, True, 9, 2, join=change.incarnation)
        return ChangeAnswer(change.change, change.node, False, 9, 2)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    """As it began."""
    made = Pretended(tmp_path)
    made.cluster.nodes = made.first_nodes
    monkeypatch.setattr(membership, "members", lambda deployment: deployment.members())
    monkeypatch.setattr(membership, "_ask", lambda deployment, change: deployment.ask(change))
    return made


def settled(made: Pretended) -> list[tuple[str, int]]:
    """Settles, and returns the requested changes; in the end the members are right and every disk is the named one."""
    deployment: Any = made
    membership.settle(deployment)
    assert made.roles == dict.fromkeys([1, 2, 3], "voter")
    assert {node: made.named[node] for node in made.roles} == made.here
    assert made.disks.lost == {}
    return made.asked


def test_members_that_are_right_are_left_alone(pretended: Pretended) -> None:
    """Nothing is asked for."""
    assert settled(pretended) == []


def test_a_spare_number_is_removed(pretended: Pretended) -> None:
    """One that runs, and one that is a member although the harness never learned so and no process runs."""
    pretended.join(4, "disk-4")
    pretended.named[4] = "disk-4"
    assert settled(pretended) == [("remove", 4)]
    pretended.asked.clear()
    pretended.roles[4] = "learner"
    assert settled(pretended) == [("remove", 4)]


def test_a_lost_disk_is_put_aside_and_replaced(pretended: Pretended) -> None:
    """The old folder is no node's any more, so no start can take it up."""
    pretended.cluster.data(2).mkdir()
    pretended.disks.lose(2, "wiped")
    assert settled(pretended) == [("replace", 2)]
    assert [path.name.startswith("node-2.lost-") for path in pretended.folder.iterdir()] == [True]


def test_changes_that_ended_half_way_are_ended(pretended: Pretended) -> None:
    """A removed leader joins again though its disk counts as lost. A named disk that no node has is replaced. A learner
    is made a voter.
    """
    del pretended.roles[1]
    pretended.cluster.dismiss(1)
    pretended.disks.lose(1, "removed")
    pretended.named[2] = "disk that no node has"
    pretended.roles[3] = "learner"
    assert settled(pretended) == [("add", 1), ("replace", 2), ("promote", 3)]
