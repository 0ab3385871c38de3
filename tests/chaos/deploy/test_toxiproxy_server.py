"""Tests that only the measured version of the Toxiproxy server is used, and that a missing one is reported."""

import re
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


def _own(folder: Path, source: str) -> Path:
    """A script that prints that digest of its sources."""
    folder.mkdir(parents=True)
    path = folder / "toxiproxy-server-own"
    path.write_text(f'#!/bin/sh\n[ "$1" = -toxics ] && echo {source} || echo version {toxiproxy_server.VERSION}\n')
    path.chmod(0o755)
    return path


def test_server_with_own_toxics_goes_first(nowhere: Path) -> None:
    """Where it was built from the sources that are there, it is the server for everything."""
    _script(nowhere, toxiproxy_server.VERSION)
    own = _own(nowhere / "checkout" / ".tools" / "bin", toxiproxy_server.source())
    assert toxiproxy_server.server_path() == own == toxiproxy_server.own_server_path()


def test_own_toxics_of_other_sources_are_not_used(nowhere: Path) -> None:
    """One built from older sources is ignored, with the reason; without any other the fix is reported."""
    stock = _script(nowhere, toxiproxy_server.VERSION)
    with pytest.raises(toxiproxy_server.ToxiproxyNotFoundError, match="where Go is found"):
        toxiproxy_server.own_server_path()
    _own(nowhere / "checkout" / ".tools" / "bin", "0123456789abcdef")
    with pytest.raises(toxiproxy_server.ToxiproxyNotFoundError, match="built from other sources"):
        toxiproxy_server.own_server_path()
    assert toxiproxy_server.server_path() == stock


def test_own_toxics_are_built_for_the_same_version() -> None:
    """The library in go.mod is that of the server which the harness was measured with."""
    told = (Path(toxiproxy_server.__file__).parent.parent / "toxics" / "go.mod").read_text()
    (version,) = re.findall(r"Shopify/toxiproxy/v2 v(\S+)", told)
    assert version == toxiproxy_server.VERSION
