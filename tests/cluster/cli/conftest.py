"""Keeps the log lines of nodes in this process out of what the command line prints."""

import sys
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(scope="package", autouse=True)
def _logs_beside_the_commands() -> Iterator[None]:
    """CliRunner replaces sys.stdout and sys.stderr for all threads; structlog would print a node's line there."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    yield
    structlog.reset_defaults()
