"""Runs real nodes with programs of different versions: a rolling upgrade, and programs that are too old."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from raftlog.cluster.api.diagnosis import diagnose
from raftlog.cluster.config.cluster_file import SettingsError, parse_cluster_file, render_cluster_file
from raftlog.cluster.replica.replica import Replica
from raftlog.raft.changes import AddLearners
from raftlog.raft.codec.checks import UnknownVersion
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.cluster.nodes import QUICK, Nodes, deadline, host_of
from tests.cluster.replica.parts.test_digest_exchange import put
from tests.cluster.replica.parts.test_members import formatted
from tests.support import wait_until_async


@asynccontextmanager
async def older_cluster(folder: Path) -> AsyncIterator[Nodes]:
    """Three nodes of a program that knows cluster version 1 alone, on a log that began with it."""
    nodes = Nodes(folder, 3, QUICK | {"limits.digest_point_entries": 10}, cluster_version=1)
    try:
        for node in (1, 2, 3):
            await nodes.start(node, is_older=True)
        yield nodes
    finally:
        for node in list(nodes.running):
            await nodes.kill(node)


async def at_version(nodes: Nodes, version: int) -> None:
    """Waits until every running node has applied that cluster version."""
    everyone = nodes.running.values()
    await wait_until_async(lambda: all(node.machine.version == version for node in everyone), 30)


def older_of(leader: Replica) -> list[str]:
    """Whom `raftlog explain` names at that leader as what keeps the version back."""
    return [cause.words for cause in diagnose([leader.view()], {}).causes if cause.code == "older_version"]


def names_as_older(leader: Replica, nodes: list[int]) -> bool:
    """Whether these are the nodes that keep the version back, as that leader says. A new leader knows the version of a
    peer once the peer's link is open."""
    words = " ".join(older_of(leader))
    return [each for each in (1, 2, 3) if f"node {each}" in words] == nodes


def has_agreed(node: Replica, index: int) -> bool:
    """Whether its state is the majority's at a point from there on."""
    return node.status().digests.agreed >= index


def has_refused(node: Replica, words: str) -> bool:
    """Whether it refused a connection with such words lately."""
    return any(words in each.reason for each in node.view().refused)


async def test_pitfall_77_a_rolling_upgrade_raises_the_version_when_the_last_node_is_new(tmp_path: Path) -> None:
    """Node after node is stopped and started with the new program, while writes go on. Until the last one the cluster
    stays at version 1, and says for whom it waits; then all are at the newest, from one index on, in status, members
    and metrics. Digest points, whose value is another one from there, are agreed before, between and after."""
    async with older_cluster(tmp_path) as nodes:
        await put(nodes, 12)
        for number in (1, 2, 3):
            await nodes.stop(number)
            await nodes.start(number)
            if number < 3:
                await put(nodes, 12)
                leader = await nodes.leader()
                assert {node.status().cluster_version for node in nodes.running.values()} == {1}
                if leader.status().known_version == CLUSTER_VERSION:  # that leader names the nodes for which it waits
                    older = [2, 3] if number == 1 else [3]
                    await wait_until_async(partial(names_as_older, leader, older), 30, what=f"nodes {older} named")
                assert {node.status().digests.differ for node in nodes.running.values()} == {0}
        await at_version(nodes, CLUSTER_VERSION)
        await put(nodes, 12)
        leader = await nodes.leader()
        assert older_of(leader) == []
        assert {node.state.core.state.configurations[-1][0] for node in nodes.running.values()} == {
            leader.state.core.state.configurations[-1][0]
        }
        for node in nodes.running.values():
            status = node.status()
            assert (status.cluster_version, status.known_version) == (CLUSTER_VERSION, CLUSTER_VERSION)
            sample = node.metrics.registry.get_sample_value
            assert sample("raftlog_cluster_version") == CLUSTER_VERSION
            assert sample("raftlog_cluster_version_known") == CLUSTER_VERSION
            assert (status.digests.differ, host_of(node).ended.done()) == (0, False)
        assert [member.known_version for member in leader.members().members] == [CLUSTER_VERSION] * 3
        newest = max(node.status().digests.newest for node in nodes.running.values())
        for node in nodes.running.values():
            await wait_until_async(partial(has_agreed, node, newest), 30, what="an agreed point")


async def test_pitfall_71_an_older_program_neither_joins_nor_starts(tmp_path: Path) -> None:
    """After the version was raised, a node with an older program that wants to join is refused by name on every link.
    So nothing is proved or sent to it, and it gets no vote; with the new program it joins. On a folder that holds that
    version the older program does not start.
    """
    async with older_cluster(tmp_path) as nodes:
        for number in (1, 2, 3):
            await nodes.stop(number)
            await nodes.start(number)
        await at_version(nodes, CLUSTER_VERSION)
        member = formatted(nodes, 4)
        await (await nodes.leader()).change_members(AddLearners((member,)), deadline(20))
        late = await nodes.start(4, is_older=True)
        words = f"the cluster is at version {CLUSTER_VERSION}: start a newer version of raftlog on node 4"
        for number in (1, 2, 3):
            await wait_until_async(partial(has_refused, nodes.running[number], words), 30, what="a refusal")
        assert late.status().role == "joining"
        assert late.state.core.state.log.last.index == 1
        await nodes.kill(4)
        await nodes.start(4)
        await nodes.all_at((await nodes.leader()).applied)
        assert nodes.running[4].machine.version == CLUSTER_VERSION
        await nodes.kill(4)
        with pytest.raises(
            UnknownVersion, match=f"is at version {CLUSTER_VERSION}, this program knows versions up to 1"
        ):
            await nodes.start(4, is_older=True)


def test_a_cluster_file_says_the_version_that_its_log_begins_with(tmp_path: Path) -> None:
    """A new one the newest; one that was made before there were others says nothing and means 1, so that the first
    entry made of it is the same bytes as ever. One of a newer raftlog is refused."""
    new, old = (Nodes(tmp_path / f"{version}", 1, QUICK, cluster_version=version) for version in (0, 1))
    for nodes, version in ((new, CLUSTER_VERSION), (old, 1)):
        text = render_cluster_file(nodes.cluster)
        assert ("cluster_version" in text) == (version > 1)
        read = parse_cluster_file(text, "cluster.toml")
        assert read == nodes.cluster
        assert read.configuration().version == version
    newer = render_cluster_file(new.cluster).replace(
        f"cluster_version = {CLUSTER_VERSION}", f"cluster_version = {CLUSTER_VERSION + 1}"
    )
    with pytest.raises(
        SettingsError, match=f"is {CLUSTER_VERSION + 1}; this raftlog knows 1 to {CLUSTER_VERSION}: use"
    ):
        parse_cluster_file(newer, "cluster.toml")
