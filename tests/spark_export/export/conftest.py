"""The node whose log the exports of this folder take, unless a file has another one."""

import pytest

from tests.spark_export.export.exports import LOG
from tests.spark_export.server import Served


@pytest.fixture
def served() -> Served:
    """The node's log, all of it committed."""
    return Served(LOG, entries_per_chunk=20)
