"""What the benchmarks compare with is pinned, and named with its command when it is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.instruments import tools

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_debian_package_is_pinned_to_a_version_and_a_hash() -> None:
    """`sha256 name version`, each name once."""
    lines = (ROOT / ".ci" / "peers.debs").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64} [a-z0-9.+-]+ [0-9][0-9A-Za-z.+:~-]*", line) for line in lines)
    names = [line.split()[1] for line in lines]
    assert len(set(names)) == len(names)
    assert {"etcd-server", "nats-server", "zookeeper", "wrk", "nghttp2-client"} <= set(names)


def test_missing_peers_are_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without any of them every one says `make peers`."""
    monkeypatch.setattr(tools, "TOOLS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for look in (
        lambda: tools.debian("wrk", "wrk"),
        lambda: tools.built("etcd"),
        lambda: tools.python_packages("nats"),
    ):
        with pytest.raises(tools.MissingTool, match="make peers"):
            look()
    with pytest.raises(tools.MissingTool, match="apt-get install"):
        tools.java_archives()


def test_peers_from_make_peers_go_before_installed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned version is the one that is measured; half an unpacking is none."""
    monkeypatch.setattr(tools, "TOOLS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = tmp_path / "peers" / "debian" / "usr" / "bin" / "wrk"
    binary.parent.mkdir(parents=True)
    binary.touch()
    with pytest.raises(tools.MissingTool):
        tools.debian("wrk", "wrk")
    (tmp_path / "peers" / "debian" / "stamp").touch()
    assert tools.debian("wrk", "wrk").path == str(binary)
    for name in ("etcd-3.7.3", "etcd-3.7.3.sum"):
        (tmp_path / name).touch()
    assert tools.built("etcd").path == str(tmp_path / "etcd-3.7.3")
