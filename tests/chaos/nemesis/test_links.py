"""A short break of all links at once, on real nodes behind Toxiproxy: connections end together, the leader stays."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.deploy.toxiproxy import ToxiproxyError, ToxiproxyHungError
from raftlog.chaos.nemesis import NEMESES, Field
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
