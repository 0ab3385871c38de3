"""Starts nodes for tests of the console, writes to them as any program would, and logs in to a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from playwright.sync_api import Locator, Page

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


def token_field(shown: Page) -> Locator:
    """The field of the form that asks for a token."""
    return shown.get_by_role("textbox", name="Token", exact=True)


def log_in(shown: Page, token: str) -> None:
    """Fills that form."""
    token_field(shown).fill(token)
    shown.get_by_role("button", name="Log in", exact=True).click()
