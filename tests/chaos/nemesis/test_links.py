"""A short break of all links at once, on real nodes behind Toxiproxy: connections end together, the leader stays."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.chaos.deploy.deployment import Deployment, client_proxy
from raftlog.chaos.deploy.toxiproxy import ToxiproxyError, ToxiproxyHungError
from raftlog.chaos.nemesis import NEMESES, Field, links
from raftlog.chaos.nemesis.fault import Toxic
from tests.support import free_ports

pytestmark = [pytest.mark.serial, pytest.mark.toxiproxy]

BREAKS = 3


@pytest.mark.parametrize(("name", "links"), [("broken-all", 6), ("broken-leader", 4)])
def test_a_break_of_all_links_is_proved_and_leaves_the_leader(
    tmp_path: Path, toxiproxy_path: Path, name: str, links: int
) -> None:
    """All connections end together. Each can be dialled again at once, so no election follows."""
    with Deployment(tmp_path / "nodes", free_ports, nodes=3) as deployment:
        deployment.start()
        leader = deployment.cluster.leader()
        before = deployment.cluster.status(leader)
        for number in range(BREAKS):
            field = Field(deployment, number, random.Random(number))
            injected = NEMESES[name].inject(field)
            assert injected.proof.startswith(f"{links} connections on {links} links ended")
            deployment.cluster.wait_ready()
            assert before is not None
            assert injected.heal() == f"term {before.term} before, {before.term} after"
        assert deployment.cluster.leader() == leader
        assert set(map(tuple, deployment.toxiproxy.toxics().values())) == {()}


def test_a_break_that_no_connection_meets_is_an_error(
    tmp_path: Path, toxiproxy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof can fail: where nothing closes the connections, the fault is not installed."""
    with Deployment(tmp_path / "nodes", free_ports, nodes=3) as deployment:
        deployment.start()
        monkeypatch.setattr("raftlog.chaos.nemesis.links.CONNECT_S", 0.2)
        monkeypatch.setattr(type(deployment.toxiproxy), "drop", lambda *_: None)
        with pytest.raises(ToxiproxyError, match="6 of 6 connections outlived"):
            NEMESES["broken-all"].inject(Field(deployment, 1, random.Random(1)))


def test_a_proxy_that_hangs_leaves_no_other_part_of_the_fault() -> None:
    """Toxiproxy hung over one of four toxics, and the other three cut a node off for the rest of a run."""
    gone: list[str] = []

    class Hanging:
        """A Toxiproxy that hangs over proxy b."""

        def remove_toxic(self, proxy: str, name: str) -> None:
            """Removes it, but hangs over one."""
            if proxy == "b":
                raise ToxiproxyHungError(f"no answer to: remove {name} from {proxy}")
            gone.append(f"{name} of {proxy}")

        def enable(self, proxy: str) -> None:
            """Takes connections again."""
            gone.append(proxy)

    field = Field(cast(Any, SimpleNamespace(toxiproxy=Hanging())), 1, random.Random(1))
    field.placed += [("a", "x"), ("b", "x"), ("c", "x")]
    field.disabled += ["d"]
    with pytest.raises(ToxiproxyHungError, match="remove x from b"):
        field.forget()
    assert (gone, field.placed, field.disabled) == (["x of c", "x of a", "d"], [], [])


def test_each_fault_of_links_is_on_the_bytes_and_links_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node sends goes upstream through the proxy of the link; only answers to clients go downstream."""
    placed: list[Toxic] = []

    def place(toxics: Iterable[Toxic]) -> str:
        placed.extend(toxics)
        return "placed"

    monkeypatch.setattr(links, "end_of", lambda _: "ECONNRESET")
    nodes = (1, 2, 3)
    deployment = SimpleNamespace(peer_address=lambda *_: "127.0.0.1:1")
    one = {f"peer-{a}-{b}" for a, b in ((1, 2), (2, 1), (1, 3), (3, 1))}
    every = {f"peer-{a}-{b}" for a in nodes for b in nodes if a != b}
    chance = SimpleNamespace(choice=lambda _: 1, randint=lambda least, _: least)
    field: Any = SimpleNamespace(
        nodes=nodes, deployment=deployment, chance=chance, place=place, forget=None, leader=lambda: 1
    )
    expected = {
        "latency": ("latency", "upstream", every),
        "client-latency": ("latency", "downstream", {client_proxy(1)}),
        "bandwidth": ("bandwidth", "upstream", one),
        "late-delivery": ("bandwidth", "upstream", {"peer-1-2", "peer-1-3"}),
        "half-messages": ("limit_data", "upstream", one),
        "reset": ("reset_peer", "upstream", one),
    }
    for name, (kind, stream, proxies) in expected.items():
        placed.clear()
        NEMESES[name].inject(field)
        assert {each.proxy for each in placed} == proxies, name
        assert {(each.kind, each.stream) for each in placed} == {(kind, stream)}, name
    others = {each.name for each in links.NEMESES} - expected.keys()
    assert others == {"refused", "broken-all", "broken-leader"}, "a fault without a row"
