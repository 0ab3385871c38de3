"""What several tests of a node's files or links begin with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cluster.peers import hello_proof
from raftlog.cluster.replica.upkeep import disk_space, retention
from tests.cluster.disk.small_disk import SmallDisks
from tests.cluster.files.disk_folder import copy_of, template

CHALLENGE = 7
"""What such a transport says to the listener at a member's address; node 2, which tests play, repeats it."""


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template") / "node-1")


@pytest.fixture
def folder(_template: Path, tmp_path: Path) -> Path:
    """A stopped node's folder, to break: five segments, two snapshots."""
    return copy_of(_template, tmp_path / "node-1")


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """That of most machines: others may read new files, unless their maker asks for less."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def known_challenge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transport draws the challenge that `tests.cluster.peers.test_transport.hello_of` answers."""
    monkeypatch.setattr(hello_proof, "draw", lambda: CHALLENGE)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SmallDisks:
    """Disks that are full when the test says so; nodes look at them often."""
    for module, name in ((disk_space, "LOOK_S"), (disk_space, "SAVE_PAUSE_S"), (retention, "LOOK_S")):
        monkeypatch.setattr(module, name, 0.02)
    return SmallDisks(monkeypatch)
