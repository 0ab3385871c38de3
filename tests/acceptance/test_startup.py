"""A node that cannot run refuses to start: with its exit code, and a message that says why and what to do.

The reasons that need no process of their own are in tests/cluster/node/test_process.py.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.conftest import SETTINGS
from tests.support import free_ports, raftlog, small_disk


@pytest.fixture
def formatted(tmp_path: Path) -> Iterator[LocalCluster]:
    """Data folders of a single node, nothing running."""
    with LocalCluster(tmp_path / "one", 1, settings=SETTINGS) as cluster:
        yield cluster


def _refused(cluster: LocalCluster, settings: Path | None = None) -> tuple[int, str]:
    """Exit code and words of node 1; it must end by itself."""
    settings = settings or cluster.settings_file(1)
    ended = raftlog("node", "--config", settings, "--set", "stop_with_stdin=false")  # no process holds it here
    assert "Traceback" not in ended.stderr + ended.stdout
    return ended.returncode, ended.stderr + ended.stdout


def _added(cluster: LocalCluster, line: str) -> None:
    settings = cluster.settings_file(1)
    settings.write_text(settings.read_text() + line + "\n")


def test_a_start_with_a_typo_in_the_settings_names_it(formatted: LocalCluster) -> None:
    """An unknown key is refused with the nearest one, the file is named."""
    _added(formatted, "limits.connection_max = 5")
    code, words = _refused(formatted)
    assert code == NodeExit.SETTINGS
    assert "node-1.toml: limits.connection_max is no setting; did you mean limits.connections_max?" in words


def test_a_start_without_valid_settings_is_refused(formatted: LocalCluster) -> None:
    """A broken file is named with the line; a missing one with what makes one."""
    _added(formatted, "raft.heartbeat_ms = = 3")
    code, words = _refused(formatted)
    assert (code, "node-1.toml" in words, "line" in words) == (NodeExit.SETTINGS, True, True)
    code, words = _refused(formatted, settings=formatted.folder / "absent.toml")
    assert (code, "absent.toml" in words) == (NodeExit.SETTINGS, True)


def test_a_second_process_on_the_same_data_folder_is_refused(formatted: LocalCluster) -> None:
    """Two processes never write one folder: the second is refused, whatever ports it was given, the first serves on."""
    formatted.start_node(1)
    formatted.wait_ready()
    peer, http = free_ports(2)
    _added(formatted, f'peer.listen = "127.0.0.1:{peer}"\nhttp.listen = "127.0.0.1:{http}"')
    code, words = _refused(formatted)
    assert code == NodeExit.DATA
    assert formatted.data(1).name in words
    assert formatted.ask(1, "/readyz")[0] == 200


def test_a_start_on_a_read_only_disk_is_refused(formatted: LocalCluster) -> None:
    """A data folder on a file system that is mounted read-only: named, with its own exit code."""
    data = formatted.data(1)
    kept = data.with_name("kept")
    data.rename(kept)
    data.mkdir()
    # The segments are preallocated: sparse in a tmpfs, so that 64 MiB of them fit.
    with small_disk(data, "256m"):
        subprocess.run(["cp", "-a", f"{kept}/.", data], check=True)
        subprocess.run(["mount", "-o", "remount,ro", data], check=True)
        code, words = _refused(formatted)
    assert code == NodeExit.READ_ONLY
    assert data.name in words
    assert "read-only" in words.lower()
