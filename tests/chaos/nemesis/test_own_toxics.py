"""The nemeses of own toxics: skipped with a reason where there is nothing to do it with, and proved by counts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from raftlog.chaos.deploy.toxiproxy_server import ToxiproxyNotFoundError
from raftlog.chaos.nemesis import NEMESES, Field, Skipped, own_toxics


class FakeServer:
    """Lists the placed toxics; each of ours reports that it met `met` pieces."""

    def __init__(self, met: int) -> None:
        self.met = met
        self.placed: dict[tuple[str, str], tuple[str, dict[str, int]]] = {}

    def add_toxic(self, proxy: str, name: str, kind: str, stream: str, attributes: dict[str, int]) -> None:
        assert stream == "upstream"
        self.placed[proxy, name] = kind, attributes

    def remove_toxic(self, proxy: str, name: str) -> None:
        del self.placed[proxy, name]

    def toxics(self) -> dict[str, list[str]]:
        told: dict[str, list[str]] = {}
        for proxy, name in self.placed:
            told.setdefault(proxy, []).append(name)
        return told

    def attributes(self, proxy: str, name: str) -> dict[str, int]:
        assert self.placed[proxy, name][0] != "slicer"
        return {"done": self.met}


class FakeCluster:
    """Three nodes of which the second leads; each look at its metrics finds two more refused connections."""

    def __init__(self) -> None:
        self.nodes = [1, 2, 3]
        self.is_secure = False
        self.refused = 0

    def leader(self, timeout_s: float) -> int:
        return 2

    def ask(self, node: int, path: str, timeout_s: float) -> tuple[int, bytes]:
        assert path == "/metrics"
        if node == 3:
            raise OSError("it is down")
        self.refused += 1
        return 200, b'# HELP\nraftlog_link_closed_total{reason="refused"} %d.0\n' % self.refused


class FakeDeployment:
    """Only what these nemeses use."""

    def __init__(self, met: int) -> None:
        self.toxiproxy = FakeServer(met)
        self.cluster = FakeCluster()
        self.first_nodes = [1, 2, 3]


@pytest.fixture
def field(monkeypatch: pytest.MonkeyPatch) -> Field:
    """A cluster on which everything is met 7 times, on a machine where the toxics were built."""
    monkeypatch.setattr(own_toxics, "own_server_path", lambda: Path("own"))
    deployment: Any = FakeDeployment(7)
    return Field(deployment, 5, random.Random(1))


@pytest.mark.parametrize("nemesis", own_toxics.NEMESES, ids=lambda each: each.name)
def test_a_toxic_is_proved_by_its_own_count(nemesis: Any, field: Field) -> None:
    """Installed once something was met; healed it says how much that was and how many links nodes refused meanwhile."""
    server: Any = field.deployment.toxiproxy
    assert NEMESES[nemesis.name] is nemesis
    injected = nemesis.inject(field)
    kinds = {kind for kind, _ in server.placed.values()}
    assert kinds == {nemesis.name.partition("-")[0]} | ({"slicer"} if nemesis.name.endswith("-bytes") else set())
    assert all("seed" in attributes for kind, attributes in server.placed.values() if kind != "slicer")
    assert f"{7 * len([kind for kind, _ in server.placed.values() if kind != 'slicer'])} " in injected.proof
    assert str(injected.heal()).partition("; ")[0].split()[0].isdigit()
    assert server.placed == {}


def test_bodies_and_answers_of_clients_are_never_touched(field: Field) -> None:
    """The one on client links takes requests as its unit, of which only the first byte is changed."""
    server: Any = field.deployment.toxiproxy
    NEMESES["corrupt-requests"].inject(field)
    (((proxy, _), (_, attributes)),) = server.placed.items()
    assert proxy.startswith("client-")
    assert attributes["units"] == own_toxics.REQUESTS


def test_a_fault_without_own_toxics_is_skipped(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the toxics were not built the reason is that of the look-up; nothing is placed."""

    def missing() -> Path:
        raise ToxiproxyNotFoundError("there is no Go here")

    monkeypatch.setattr(own_toxics, "own_server_path", missing)
    with pytest.raises(Skipped, match="there is no Go here"):
        NEMESES["duplicate-link"].inject(field)
    assert field.placed == []


def test_a_toxic_that_meets_nothing_is_not_installed(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that carries nothing (it is cut, say) cannot be harmed: taken away again, and skipped with the reason."""
    server: Any = field.deployment.toxiproxy
    server.met = 0
    monkeypatch.setattr(own_toxics, "MET_S", 0.05)
    with pytest.raises(Skipped, match="nothing that passed the link from node"):
        NEMESES["reorder-link"].inject(field)
    assert server.placed == {}
