"""Fixtures of the tests of the HTTP layer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cluster.fake_node import Served, serve
from tests.cluster.http.access_world import AccessWorld


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A fake node, whose first two entries are internal."""
    async with serve() as served:
        yield served


@pytest.fixture(params=[True, False], ids=["fast", "aiohttp"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[AccessWorld]:
    """A node with access control on, both ways of serving."""
    async with AccessWorld(fast_path=request.param) as served:
        yield served
