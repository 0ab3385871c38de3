"""Closes the disks that a test has opened."""

from collections.abc import AsyncIterator

import pytest

from tests.cluster.files import disk_lab


@pytest.fixture(autouse=True)
async def _disks_are_closed() -> AsyncIterator[None]:
    disk_lab.OPENED.clear()  # tests of other rooms close theirs
    yield
    while disk_lab.OPENED:
        await disk_lab.OPENED.pop().close()
