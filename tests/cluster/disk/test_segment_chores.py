"""What an error in the background ends: the node where its state is concerned, else one piece of work, with a line."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from raftlog.cluster.config.cluster_file import split_address
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.files.scrub import Looker
from raftlog.cluster.runtime import logging
from raftlog.raft.consensus.core import RaftCore
from tests.cluster.nodes import cluster_of, host_of
from tests.cluster.peers.test_transport import configuration_of, transports
from tests.support import hang_s, streams_served, wait_until_async


async def test_a_defect_in_a_dial_ends_that_dial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception other than OSError ended the dialling of that peer for good, without a line."""
    defects = [ValueError("a defect"), ValueError("a defect")]
    really = split_address

    def split(*arguments: Any) -> tuple[str, int]:
        if defects:
            raise defects.pop()
        return really(*arguments)

    async def holds(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr("raftlog.cluster.peers.dialled.split_address", split)
    with capture_logs() as lines:
        async with transports(1, listening=[1]) as ((one,), _, (port,)), streams_served(holds) as other:
            one.set_members(configuration_of([port, other]))
            await wait_until_async(lambda: all(one.connections().values()), what="links behind the defect")
    told = [line for line in lines if line["event"] == "peer_link_failed"]
    assert [(line["peer"], str(line["exc_info"])) for line in told] == [(2, "a defect")]


async def test_scrubbing_that_fails_is_a_line_and_a_metric_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each reason, however often it comes: the next round tries again."""

    def fails(*_: object) -> Any:
        raise RuntimeError("a defect in every round")

    monkeypatch.setattr(Looker, "round", fails)
    with capture_logs() as lines:
        async with cluster_of(1, tmp_path, scrub__bytes_per_second=1 << 20, scrub__pause_ms=1) as nodes:
            node = await nodes.leader()

            def failures() -> float:
                return node.metrics.registry.get_sample_value("raftlog_scrub_failures_total") or 0

            await wait_until_async(lambda: failures() >= 3, what="rounds that failed")
            assert (await nodes.append(node, b"all the same")).last
    assert [line["reason"] for line in lines if line["event"] == "scrub_round_failed"] == [
        "RuntimeError: a defect in every round"
    ]


async def test_an_error_of_the_core_about_a_link_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only closed the connection that brought it, and the core went on as if nothing had been."""
    async with cluster_of(3, tmp_path) as nodes:
        node = (await nodes.followers())[0]

        def fails(self: RaftCore, *_: object) -> None:
            if self is node.state.core:
                raise AssertionError("a defect")

        monkeypatch.setattr(RaftCore, "link_opened", fails)
        for other in nodes.running.values():
            for link in host_of(other).transport.links_to(node.node_id):
                link.redial()
        async with asyncio.timeout(hang_s()):
            assert await asyncio.shield(host_of(node).ended) is NodeExit.FAILURE
        monkeypatch.undo()


async def test_an_error_of_an_unawaited_job_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback, and a thread: standard error had a stack trace, the log had nothing."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back behind the test
    loop = asyncio.get_running_loop()
    with capture_logs() as lines:
        logging.log_strays(loop, logging.get_logger(node=1))
        try:
            loop.call_soon(lambda: 1 // 0)
            thread = threading.Thread(target=lambda: 1 // 0, name="a-thread")
            thread.start()
            await wait_until_async(lambda: len(lines) >= 2, what="two lines")
            thread.join()
        finally:
            loop.set_exception_handler(None)
    assert {line["event"] for line in lines} == {"stray_error"}
    assert {line["reason"] for line in lines} == {"ZeroDivisionError('integer division or modulo by zero')"}
    assert "a-thread" in {line["where"] for line in lines}
