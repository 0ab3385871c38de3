"""Fixtures of the tests of the fast path."""

from __future__ import annotations

import pytest

from raftlog.cluster.http.fast.connection import FastConnection
from raftlog.cluster.http.fast.head import RequestHead


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets of the requests that the fast path gave to aiohttp."""
    targets: list[str] = []
    lend = FastConnection._lend

    def note(self: FastConnection, head: RequestHead) -> None:
        targets.append(head.target)
        lend(self, head)

    monkeypatch.setattr(FastConnection, "_lend", note)
    return targets
