"""Tests that only the measured version of the Toxiproxy server is used, and that a missing one is reported."""

import subprocess
from pathlib import Path

import pytest

from raftlog.chaos.deploy import toxiproxy_server


def _script(folder: Path, version: str) -> Path:
    path = folder / "toxiproxy-server"
    path.write_text(f"#!/bin/sh\necho toxiproxy-server version {version}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the server: an empty checkout, and this folder alone on PATH."""
    monkeypatch.setattr(toxiproxy_server, "_CHECKOUT", tmp_path / "checkout")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_server_on_path_is_taken(nowhere: Path) -> None:
    """The right version on PATH is the answer."""
    server = _script(nowhere, toxiproxy_server.VERSION)
    assert toxiproxy_server.server_path() == server


def test_built_server_goes_before_path(nowhere: Path) -> None:
    """What set-up built is preferred to what the machine has."""
    folder = nowhere / "checkout" / ".tools" / "bin"
    folder.mkdir(parents=True)
    _script(nowhere, toxiproxy_server.VERSION)
    built = _script(folder, toxiproxy_server.VERSION)
    assert toxiproxy_server.server_path() == built


def test_other_version_is_refused_by_name(nowhere: Path) -> None:
    """Another version is not used, and the message names it, the wanted one and the command that fixes it."""
    _script(nowhere, "2.9.0")
    with pytest.raises(toxiproxy_server.ToxiproxyNotFoundError, match=r"2\.12\.0 .*2\.9\.0.*make setup"):
        toxiproxy_server.server_path()


def test_a_missing_toxiproxy_server_names_the_fix(nowhere: Path) -> None:
    """Without any server the message says where it was looked for and what to run."""
    with pytest.raises(toxiproxy_server.ToxiproxyNotFoundError, match=r"no `toxiproxy-server` on PATH.*make setup"):
        toxiproxy_server.server_path()


def test_the_machines_server_reports_its_version(toxiproxy_path: Path) -> None:
    """The server that set-up built starts and says 2.12.0, not "git"."""
    told = subprocess.run([toxiproxy_path, "-version"], capture_output=True, text=True, check=True)
    assert toxiproxy_server.VERSION in told.stdout + told.stderr
