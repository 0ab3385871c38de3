"""Starts nodes for tests of the console, and writes to them as any program would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import HANG_S


@contextmanager
def nodes_in(folder: Path, count: int = 1) -> Iterator[LocalCluster]:
    """Nodes that serve; they are killed at the end."""
    with LocalCluster(folder, count) as cluster:
        cluster.restore()
        yield cluster
        cluster.kill(*cluster.running)


def sent(
    url: str, method: str, target: str, body: object = b"", kind: str = "application/octet-stream"
) -> dict[str, Any]:
    """The answer to a request that succeeds. Bytes are the body as they are, all else is JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not isinstance(body, bytes):
        kind = "application/json"
    with urlopen(Request(url + target, data, {"Content-Type": kind}, method=method), timeout=HANG_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
