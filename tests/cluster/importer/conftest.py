"""Serves a node from a thread of its own, so that a test of an import is plain blocking code; and a real one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.nodes import QUICK


@pytest.fixture
def node() -> FakeNode:
    """The node that `client` asks."""
    return FakeNode()


@pytest.fixture
def client(node: FakeNode) -> Iterator[SyncClient]:
    """A client of a running node."""
    loop, stop, urls = asyncio.new_event_loop(), asyncio.Event(), list[str]()
    is_up = threading.Event()

    async def run() -> None:
        async with serve(node) as served:
            urls.append(served.url)
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert is_up.wait(10)
    with SyncClient(urls[0]) as client:
        yield client
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node that serves: tests stop its clients."""
    cluster = LocalCluster(tmp_path / "cluster", 1, settings=QUICK)
    cluster.restore()
    yield cluster
    cluster.kill(1)
