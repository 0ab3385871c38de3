"""What several tests of a node's files begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.disk_folder import copy_of, template


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template") / "node-1")


@pytest.fixture
def folder(_template: Path, tmp_path: Path) -> Path:
    """A stopped node's folder, to break: five segments, two snapshots."""
    return copy_of(_template, tmp_path / "node-1")
