"""A follower whose log differs from its leader's ends, so that its start reads its disk again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from structlog.testing import capture_logs

from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.findings import FileHealth, FilesDamaged
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.replica.state import ReplicaState
from raftlog.cluster.replica.status import tell_events
from raftlog.cluster.runtime.logging import get_logger
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.raft.events import LogDiffers
from raftlog.raft.types import Mark
from tests.cluster.files.disk_lab import SEGMENT_BYTES, batch
from tests.cluster.nodes import cluster_of, host_of
from tests.raft.wal.journal_driver import make_entries
from tests.support import hang_s

OTHERS = ((2, [20, 20]), (3, [20, 20]))
"""Sizes of the entries that nodes 2 and 3 have, and node 1 has not: with them it cannot win an election."""


def test_a_node_whose_log_differs_ends_for_damage() -> None:
    """The reason names the entry, both headers and the leader, and says that either may be wrong."""
    failures: list[BaseException] = []
    state = SimpleNamespace(term=3, log=SimpleNamespace(committed=0))
    node = SimpleNamespace(
        metrics=Metrics(),
        logger=get_logger(),
        core=SimpleNamespace(state=state),
        driver=SimpleNamespace(fail=failures.append),
        life=SimpleNamespace(start_index=7),
    )
    tell_events(cast(ReplicaState, node), [LogDiffers(leader=2, index=7, here=0xAB, there=0xCD)])
    assert [str(error) for error in failures if isinstance(error, FilesDamaged)] == [
        "log: damaged: entry 7 has header CRC 000000ab here, and 000000cd at the leader, node 2: one of the two is"
        " damaged, or of another history"
    ]


async def test_follower_whose_log_differs_ends_and_serves_again_after_a_start(tmp_path: Path) -> None:
    """A bit of the follower's memory of its newest entry flips. The follower appends nothing to that entry, ends
    with the code for damage, and says what to do; the others go on. Its files are intact: its next start serves."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        await nodes.all_at((await nodes.append(leader, b"before")).last)
        follower = (await nodes.followers())[0]
        log = follower.state.core.state.log
        newest, log.last = log.last, replace(log.last, header_crc=log.last.header_crc ^ 1)
        with capture_logs() as lines:
            last = (await nodes.append(leader, b"behind it")).last
            async with asyncio.timeout(hang_s()):
                assert await asyncio.shield(host_of(follower).ended) is NodeExit.DAMAGED
        assert log.last.index == newest.index, "nothing is appended to an entry that the leader does not have"
        told = [line for line in lines if line["event"] == "log_differs"]
        assert [(line["index"], line["leader"]) for line in told] == [(newest.index, leader.node_id)]
        assert told[0]["there"] == newest.header_crc != told[0]["here"]
        (end,) = [line for line in lines if line["event"] == "files_damaged"]
        assert "start the node again" in end["mend"]

        nodes.running.pop(follower.node_id)
        await host_of(follower).stop()
        report = check_folder(tmp_path / f"node-{follower.node_id}")
        assert report.state is FileHealth.INTACT
        await nodes.start(follower.node_id)
        await nodes.all_at(last)


async def written_behind(folder: Path, *sizes: int) -> tuple[Mark, Mark]:
    """A stopped node's log gets entries of these sizes, of the term in which it ends; where it ended, and ends."""
    disk, recovered = Disk.open(folder, segment_bytes=SEGMENT_BYTES)
    try:
        entries = make_entries(recovered.last, recovered.last.term, sizes)
        await disk.carry_out(batch(*entries))
    finally:
        await disk.close()
    return recovered.last, entries[-1].mark


async def test_follower_with_another_history_on_its_disk_ends_at_each_start_and_cuts_nothing(tmp_path: Path) -> None:
    """An intact entry has the same index and term as the leader's, and is committed nowhere: neither node can know
    which is right. No start repairs that, so each start reports it; the others go on.
    """
    async with cluster_of(3, tmp_path, disk__segment_bytes=SEGMENT_BYTES) as nodes:
        leader = await nodes.leader()
        await nodes.all_at((await nodes.append(leader, b"before")).last)
        for follower in await nodes.followers():
            await nodes.kill(follower.node_id)
        await nodes.kill(leader.node_id)  # last: the others would elect a leader, which appends an entry
        ends = [await written_behind(tmp_path / f"node-{node}", *sizes) for node, sizes in ((1, [10]), *OTHERS)]
        assert len({before for before, _ in ends}) == 1, "all three logs were equal"
        foreign = ends[0][1]
        for node in (2, 3):
            await nodes.start(node)
        last = (await nodes.append(await nodes.leader(), b"after")).last
        for _ in range(2):
            with capture_logs() as lines:
                follower = await nodes.start(1)
                async with asyncio.timeout(hang_s()):
                    assert await asyncio.shield(host_of(follower).ended) is NodeExit.DAMAGED
            (told,) = [line for line in lines if line["event"] == "log_differs"]
            assert (told["index"], told["here"]) == (foreign.index, foreign.header_crc)
            assert follower.state.core.state.log.last == foreign
            nodes.running.pop(1)
            await host_of(follower).stop()
        assert check_folder(tmp_path / "node-1").last == foreign.index
        await nodes.all_at(last)
