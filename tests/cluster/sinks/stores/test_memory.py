"""A sink's memory stays bounded, with values of any size."""

from __future__ import annotations

import multiprocessing
import re
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from raftlog import NewRecord
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.sinks.settings import SinkSettings
from tests.cluster.sinks.stores.conftest import MARKS
from tests.cluster.sinks.stores.kit import StoreBench

GROWTH_MAX = 48 << 20
"""Bytes, of the 64 MB that docs/sinks.md promises. Measured: 25 to 40 MiB. A runner that held a page while it read the
next one, and whose C library kept freed blocks, grew by 55 to 86 MiB with Tantivy."""
_processes = multiprocessing.get_context("spawn")


def peak_bytes() -> int:
    """The most resident memory that this process had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _follow(kind: type[SinkSettings], folder: Path, given: dict[str, Any], url: str, told: Connection) -> None:
    bench = StoreBench(kind, folder, **given)
    with SyncClient(url) as client:
        bench.made(client).run(until=client.log_page(1, limit=1).records[0].index)  # what the libraries need
        before = peak_bytes()
        run = bench.run(client)
        told.send((run.progress.rows, peak_bytes() - before))


@pytest.mark.parametrize(
    "bench",
    [pytest.param(each, marks=MARKS.get(each, ())) for each in ("sqlite", "redis", "tantivy")],
    indirect=True,
)
@pytest.mark.parametrize(("count", "size"), [pytest.param(400, 256 << 10, marks=pytest.mark.extra), (100, 1_000_000)])
def test_large_values_take_no_more_memory_than_said(
    bench: StoreBench, client: SyncClient, count: int, size: int
) -> None:
    """Of a log that is many times as large, by a process that follows it."""
    client.append(b"x")
    for number in range(count):
        client.append_many([NewRecord(b"%08d" % number + b"v" * size)])
    columns = {"id": "index", "v": "value:string"}
    made = bench.changed(columns=columns, **{"from": {"records": ""}})
    url = client.state.routes.configured[0]
    here, there = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_follow, args=(made.kind, made.folder, made.given, url, there))
    process.start()
    process.join(120)
    rows, growth = here.recv()
    here.close()
    there.close()
    print(f"{made.kind.__name__}: {growth >> 20} MiB more for {rows} values of {size} bytes")
    assert rows == count  # behind the first record, which is small
    assert growth <= GROWTH_MAX
