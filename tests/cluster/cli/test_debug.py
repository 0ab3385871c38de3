"""`raftlog debug bundle` has what the nodes say, the reason for each file that it lacks, and no secret of the nodes."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import raftlog, variables_of

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]


def bundle(local: LocalCluster, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, as the operator of that cluster."""
    environment = {"RAFTLOG_ENDPOINTS": ",".join(local.urls), **variables_of(local.tls_files())}
    return raftlog("debug", "bundle", *options, cwd=local.folder, environment=environment)


def content_of(archive: Path) -> dict[str, bytes]:
    """The files in it, without the name of its folder."""
    with tarfile.open(archive) as tar:
        found = {}
        for entry in tar:
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read()
        return found


def secrets_of(local: LocalCluster) -> list[bytes]:
    """The text of each private key and token file of the cluster, line by line."""
    files = [path for path in local.folder.rglob("*") if path.suffix in (".key", ".token") or path.name == "token"]
    return [
        line for file in files for line in file.read_bytes().splitlines() if len(line) > 20 and b"-----" not in line
    ]


def test_a_bundle_has_all_nodes_and_no_secret(tmp_path: Path) -> None:
    """Three nodes with TLS and access control, one of them stopped. The archive has what the others say, the disk check
    of the stopped one, and the reason for each file that is missing. No key, value, token or private key is in it."""
    with LocalCluster(tmp_path / "nodes", 3, secure=True, settings={"log.file": "node.log"}) as local:
        local.restore()
        token = make_first_admin(local).read_bytes().strip()
        with SyncClient(local.urls, tls=local.tls_files("client-operator")) as client:
            client.put(b"very secret key", b"very secret value")
        local.stop_node(3)
        out = tmp_path / "bundle.tar.gz"
        configs = [option for node in (1, 3) for option in ("--config", local.settings_file(node))]
        done = bundle(local, *configs, "--out", out)
        assert done.returncode == 0, done.stderr
        again = bundle(local, "--out", out)
        assert again.returncode == 1
        assert "bundle.tar.gz: File exists" in again.stderr
        secrets = [token, b"very secret key", b"very secret value", *secrets_of(local)]
        url = local.place(3).url
    found = content_of(out)
    per_node = {f"nodes/{node}/{name}" for node in (1, 2) for name in ("status.json", "members.json", "metrics.txt")}
    per_machine = {f"machine/{node}/{name}" for node in (1, 3) for name in ("settings.json", "log.txt", "files.json")}
    others = {"about.json", "explain.json", "machine/3/disk_check.json", "troubles.txt"}
    assert found.keys() == per_node | per_machine | others
    assert b"raftlog_is_leader" in found["nodes/1/metrics.txt"]
    assert json.loads(found["nodes/1/status.json"])["node"] == 1
    assert json.loads(found["machine/3/disk_check.json"])["state"] == "intact"
    assert b'"event":' in found["machine/1/log.txt"]
    troubles = found["troubles.txt"].decode()
    assert len(troubles.splitlines()) == 2
    assert url in troubles
    assert "machine/1/disk_check.json" in troubles
    assert "a process has it open; stop that node first" in troubles
    assert len(secrets) > 10
    everything = b"".join(found.values())
    assert [secret for secret in secrets if secret in everything] == []
