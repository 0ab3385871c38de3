"""Runs real nodes with programs of different versions: a made-up version 2, and programs that are too old for it."""

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
from raftlog.statemachine import versions
from tests.cluster.nodes import QUICK, Nodes, deadline
from tests.cluster.replica.parts.test_members import formatted
from tests.support import wait_until_async


@asynccontextmanager
async def at_version_2(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    """Three nodes, of which one program after the other is a made-up next one. Until the last one the cluster stays at
    version 1, and says for whom it waits."""
    monkeypatch.setattr(versions, "CLUSTER_VERSION", 2)  # of the state machine; `knows` of the rest
    nodes = Nodes(folder, 3, QUICK)
    try:
        for node in (1, 2, 3):
            await nodes.start(node)
        for node in (1, 2, 3):
            assert {each.status().cluster_version for each in nodes.running.values()} == {1}
            await nodes.stop(node)
            await nodes.start(node, knows=2)
            leader = await nodes.leader()
            older = [*range(node + 1, 4)]
            if leader.status().known_version == 2 and older:  # that leader names the nodes for which it waits
                await wait_until_async(partial(names_as_older, leader, older), 30, what=f"nodes {older} named")
        everyone = nodes.running.values()
        await wait_until_async(lambda: all(each.machine.version == 2 for each in everyone), 30)
        yield nodes
    finally:
        for node in list(nodes.running):
            await nodes.kill(node)


def names_as_older(leader: Replica, nodes: list[int]) -> bool:
    """Whether these are the nodes that keep the version back, as that leader says. A new leader knows the version of a
    peer once the peer's link is open."""
    causes = diagnose([leader.view()], {}).causes
    words = " ".join(cause.words for cause in causes if cause.code == "older_version")
    return [each for each in (1, 2, 3) if f"node {each}" in words] == nodes


def has_refused(node: Replica, words: str) -> bool:
    """Whether it refused a connection with such words lately."""
    return any(words in each.reason for each in node.view().refused)


async def test_pitfall_71_an_older_program_neither_joins_nor_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the version was raised, a node with an older program that wants to join is refused by name on every link.
    So nothing is proved or sent to it, and it gets no vote; with the new program it joins. On a folder that holds that
    version the older program does not start.
    """
    async with at_version_2(tmp_path, monkeypatch) as nodes:
        sample = (await nodes.leader()).metrics.registry.get_sample_value
        assert (sample("raftlog_cluster_version"), sample("raftlog_cluster_version_known")) == (2, 2)
        assert [member.known_version for member in (await nodes.leader()).members().members] == [2] * 3
        member = formatted(nodes, 4)
        await (await nodes.leader()).change_members(AddLearners((member,)), deadline(20))
        late = await nodes.start(4)
        words = "the cluster is at version 2: start a newer version of raftlog on node 4"
        for number in (1, 2, 3):
            await wait_until_async(partial(has_refused, nodes.running[number], words), 30, what="a refusal")
        assert late.status().role == "joining"
        assert late.state.core.state.log.last.index == 1
        await nodes.kill(4)
        await nodes.start(4, knows=2)
        await nodes.all_at((await nodes.leader()).applied)
        assert nodes.running[4].machine.version == 2
        await nodes.kill(4)
        with pytest.raises(UnknownVersion, match="is at version 2, this program knows versions up to 1"):
            await nodes.start(4)


def test_a_cluster_file_says_the_version_that_its_log_begins_with(tmp_path: Path) -> None:
    """The newest, so that the first entry made of it is the same bytes for ever. That of a newer raftlog is refused."""
    cluster = Nodes(tmp_path, 1, QUICK).cluster
    text = render_cluster_file(cluster)
    assert parse_cluster_file(text, "cluster.toml") == cluster
    assert cluster.configuration().version == 1
    with pytest.raises(SettingsError, match="is 2; this raftlog knows 1 to 1: use"):
        parse_cluster_file(text.replace("cluster_version = 1", "cluster_version = 2"), "cluster.toml")
