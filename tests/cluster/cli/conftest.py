"""The fixtures that the tests of the commands share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.cluster.cli.test_cli import Running


@pytest.fixture(scope="module", autouse=True)
def _logs_beside_the_commands() -> Iterator[None]:
    """CliRunner replaces sys.stdout and sys.stderr for all threads; structlog would print a node's line there."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    yield
    structlog.reset_defaults()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A node and its command line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    running = Running()
    yield running
    running.stop()
