"""The browser of the tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once for the tests of a file."""
    with chromium() as started:
        yield started
