"""A follower whose log differs from its leader's ends, so that its start reads its disk again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cluster.disk_check import check_folder
from cluster.disk_findings import State
from cluster.settings import NodeExit
from tests.cluster.nodes import cluster_of


@pytest.mark.asyncio
async def test_follower_whose_log_differs_ends_and_serves_again_after_a_start(tmp_path: Path) -> None:
    """A bit of the follower's memory of its newest entry flips. The follower appends nothing to that entry, ends
    with the code for damage, and says what to do; the others go on. Its files are intact: its next start serves."""
    async with cluster_of(3, tmp_path) as nodes:
        leader = await nodes.leader()
        await nodes.all_at((await nodes.append(leader, b"before")).last)
        follower = (await nodes.followers())[0]
        log = follower.core.state.log
        newest, log.last = log.last, replace(log.last, header_crc=log.last.header_crc ^ 1)
        with capture_logs() as lines:
            last = (await nodes.append(leader, b"behind it")).last
            async with asyncio.timeout(10):
                assert await asyncio.shield(follower.ended) is NodeExit.DAMAGED
        assert log.last.index == newest.index, "nothing is appended to an entry that the leader does not have"
        told = [line for line in lines if line["event"] == "log_differs"]
        assert [(line["index"], line["leader"]) for line in told] == [(newest.index, leader.node_id)]
        assert told[0]["there"] == newest.header_crc != told[0]["here"]
        (end,) = [line for line in lines if line["event"] == "files_damaged"]
        assert "start the node again" in end["mend"]

        nodes.running.pop(follower.node_id)
        await follower.stop()
        report = check_folder(tmp_path / f"node-{follower.node_id}")
        assert report.state is State.INTACT
        await nodes.start(follower.node_id)
        await nodes.all_at(last)
