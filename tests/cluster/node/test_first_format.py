"""A data folder that is made again under its old identity (raftlog.cluster.node.first_format, docs/decisions/0017)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from raftlog.cluster.api.diagnosis import diagnose
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.cli.commands import build
from raftlog.cluster.config.cluster_file import render_cluster_file
from raftlog.cluster.node.first_format import ask_members
from raftlog.cluster.node.formatting import format_file, new_cluster
from raftlog.cluster.replica.replica import Replica
from raftlog.cluster.runtime import clock
from raftlog.raft.types import NOBODY
from tests.cluster.cli.test_cli import Running
from tests.cluster.files.disk_lab import SEGMENT_BYTES
from tests.cluster.nodes import Nodes, cluster_of, deadline
from tests.support import free_port, wait_until_async


def lose(nodes: Nodes, node: int, *, is_forced: bool = False) -> None:
    """That node's data folder is lost, and an operator formats it again."""
    shutil.rmtree(nodes.data(node))
    format_file(nodes.file, segment_bytes=nodes.flags["disk.segment_bytes"], nodes=[node], is_forced=is_forced)


async def no_leader(nodes: Nodes, *among: int) -> None:
    """These nodes are connected, and elect no leader in many election timeouts."""
    states = [nodes.running[node].state.core.state for node in among]
    await wait_until_async(
        lambda: all(len(state.recall.recalled) == len(among) - 1 for state in states), what="answers"
    )
    until_ms = clock.read().monotonic_ms + 10 * states[0].options.election_timeout_max_ms
    await wait_until_async(
        lambda: any(state.leader != NOBODY for state in states) or clock.read().monotonic_ms > until_ms, 60
    )
    assert [state.leader for state in states] == [NOBODY] * len(among)


async def said_by(last_copy: Replica) -> str:
    """Which entries only that node has, as it says while it goes on."""
    life = last_copy.state.life
    await wait_until_async(lambda: life.only_here or life.ending, 30, what="it says which entries only it has")
    assert life.ending is None
    return life.only_here


@pytest.mark.parametrize("is_met", [True, False])
async def test_an_acknowledged_write_outlives_six_commands(tmp_path: Path, is_met: bool) -> None:
    """Node 2 is down, with or without having ever seen the cluster led; nodes 1 and 3 acknowledge a write, and stop.
    Node 3's folder is lost. `raftlog format` refuses to make it again, because node 1's folder shows that the cluster
    was led; with --again it does. Nodes 2 and 3 lead nothing without node 1, the last copy. With it they have the
    write."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        if is_met:
            await nodes.all_at((await nodes.append(leader, b"before")).last)
        else:
            await nodes.kill(2)
            lose(nodes, 2)
        if 2 in nodes.running:
            await nodes.kill(2)
        kept = (await nodes.append(await nodes.leader(), b"acknowledged by 1 and 3")).last
        await nodes.kill(1)
        await nodes.kill(3)
        shutil.rmtree(nodes.data(3))
        arguments = [
            "format",
            str(nodes.file),
            "--node",
            "3",
            "--segment-bytes",
            str(nodes.flags["disk.segment_bytes"]),
        ]
        refused = await asyncio.to_thread(CliRunner().invoke, build("format"), arguments)
        assert (refused.exit_code, nodes.data(3).exists()) == (1, False)
        for said in (f"{nodes.data(1)} has entries of its log", "raftlog members replace 3", "--again", "are lost"):
            assert said in refused.stderr
        assert (await asyncio.to_thread(CliRunner().invoke, build("format"), [*arguments, "--again"])).exit_code == 0
        for node in (2, 3):
            await nodes.start(node)
        await no_leader(nodes, 2, 3)
        await nodes.start(1)
        last = (await nodes.append(await nodes.leader(), b"after")).last
        assert last > kept
        await nodes.all_at(last)
        ends = {node: replica.state.core.state.log.term_at(kept) for node, replica in nodes.running.items()}
        assert len(set(ends.values())) == 1, ends
        assert nodes.running[1].applied >= last, "the last copy took the next entry, so its log is the others'"
        floors = [replica.state.core.state for replica in nodes.running.values()]
        await wait_until_async(lambda: not any(state.recall.floor for state in floors), what="all nodes vote again")


@pytest.mark.parametrize("first", [1, 2], ids=["2 heard of the term", "2 led before it"])
async def test_the_last_copy_of_acknowledged_entries_is_kept_and_named(tmp_path: Path, first: int) -> None:
    """As above, and the operator forced it: nodes 2 and 3 lead without the write. Node 1 takes no entry of theirs, cuts
    nothing, serves stale reads alone, and says which entries only it has, at every start; with a stack trace at none.
    So does it where the others' log has grown beyond its own, and where they send a snapshot. Node 2 may have never
    heard of the term of the lost entries: the forced disk has a term of its own, or nodes 2 and 3 would lead in that
    term again, with other entries under the same numbers."""
    async with cluster_of(3, tmp_path, disk__segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await nodes.leader()
        if leader.node_id != first:
            await leader.transfer(first, deadline())
            leader = await nodes.leader()
        await nodes.all_at((await nodes.append(leader, b"before")).last)
        await nodes.kill(2)
        kept = [(await nodes.append(await nodes.leader(), b"only here")).last for _ in range(3)]
        await nodes.all_at(kept[-1])
        await nodes.kill(1)
        await nodes.kill(3)
        lose(nodes, 3, is_forced=True)
        for node in (2, 3):
            await nodes.start(node)
        for grows in (1, 5, 5):
            for _ in range(grows):
                last = (await nodes.append(await nodes.leader(), b"after")).last
            with capture_logs() as lines:
                last_copy = await nodes.start(1)
                only_here = await said_by(last_copy)
            assert f"{kept[-1]} were committed here" in only_here or f"{kept[-1]} was committed here" in only_here
            assert "Acknowledged writes may be lost" in only_here
            assert [line["event"] for line in lines if line["event"] in ("log_kept", "failed")] == ["log_kept"]
            assert last_copy.state.core.state.log.last.index >= kept[-1], "nothing is cut"
            with pytest.raises(ApiError) as refusal:
                await last_copy.read_barrier(deadline(5))
            assert refusal.value.code is Code.STATES_DIFFER
            told = diagnose([each.view() for each in nodes.running.values()], {})
            assert any(cause.code == "log_differs" and cause.node == 1 for cause in told.causes)
            entries = await last_copy.read_log(kept[0], 100, 1 << 20)
            assert b"only here" in b"".join(entry.data for entry, _ in entries), "stale reads still show them"
            await nodes.kill(1)
            words = only_here.partition("raftlog disk dump FOLDER ")[2].split()[:3]
            arguments = ["disk", "dump", str(nodes.data(1)), *words, "-o", "json"]
            dumped = await asyncio.to_thread(CliRunner().invoke, build("disk"), arguments)
            assert dumped.stdout.count("b25seSBoZXJl") + dumped.stdout.count("only here") >= len(kept), dumped.output
        await nodes.all_at(last)


async def test_a_new_cluster_whose_nodes_were_formatted_one_by_one_is_led_once_all_run(tmp_path: Path) -> None:
    """As on three machines. Two of the three wait for the third; after that any two go on."""
    nodes = Nodes(tmp_path, 3, {})
    for node in (1, 2, 3):
        lose(nodes, node)
    try:
        for node in (1, 2):
            await nodes.start(node)
        await no_leader(nodes, 1, 2)
        await nodes.start(3)
        last = (await nodes.append(await nodes.leader(), b"first")).last
        await nodes.all_at(last)
        states = [replica.state.core.state for replica in nodes.running.values()]
        await wait_until_async(lambda: not any(state.recall.floor for state in states), what="all nodes vote")
        await nodes.kill(3)
        await nodes.append(await nodes.leader(), b"second")
    finally:
        for node in list(nodes.running):
            await nodes.kill(node)


def test_of_an_unreachable_cluster_the_silent_members_are_named(tmp_path: Path) -> None:
    """No process listens there, so the answer comes at once."""
    nodes = Nodes(tmp_path, 3, {})
    silent = ask_members(nodes.cluster, [3], None)
    assert sorted(silent) == [1, 2, 3]
    assert all("refused" in reason for reason in silent.values())


@pytest.fixture
def cli() -> Iterator[Running]:
    """A node that was led, and the command line."""
    running = Running()
    yield running
    running.stop()


def test_a_node_of_a_cluster_that_was_led_is_not_formatted_again(cli: Running, tmp_path: Path) -> None:
    """A member that answers knows the log. The refusal has the commands that give node 2 a new disk; nothing is made.
    A node of another log at that address proves nothing, and the forced way asks no node."""
    cli.run("append", "a")
    cluster = new_cluster(2, peer_ports=[7101, 7102], http_ports=[1, free_port()])
    file = tmp_path / "cluster.toml"
    nodes = [msgspec.structs.replace(cluster.node[0], url=cli.url), cluster.node[1]]
    file.write_text(render_cluster_file(msgspec.structs.replace(cluster, node=nodes)), encoding="utf-8")
    assert cli.run("format", str(file), "--node", "2").exit_code == 0
    shutil.rmtree(tmp_path / "node-2")

    head = msgspec.structs.replace(cluster.cluster, log=cli.node.log_id)
    file.write_text(render_cluster_file(msgspec.structs.replace(cluster, cluster=head, node=nodes)), encoding="utf-8")
    for node in (["--node", "2"], []):
        done = cli.run("format", str(file), *node)
        assert done.exit_code == 1
        assert f"node 1 at {cli.url} answers that this cluster was led" in done.stderr
        assert f"raftlog members replace 2 --peer 127.0.0.1:7102 --url {nodes[1].url} -e" in done.stderr
        assert not (tmp_path / "node-2").exists()
    assert cli.run("format", str(file), "--node", "2", "--force-new-cluster").exit_code == 0
    assert (tmp_path / "node-2" / "identity.json").exists()
