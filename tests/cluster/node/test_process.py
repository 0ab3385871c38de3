"""Formatting a cluster, and node processes: how they start, refuse to start, and end."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from raftlog.cluster.config.cluster_file import SettingsError, first_entry, parse_cluster_file
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import load_settings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import FolderExists, FolderForeign
from raftlog.cluster.files.folder import encode_identity, parse_identity
from raftlog.cluster.node.formatting import format_cluster, format_file, new_cluster
from raftlog.cluster.node.local_cluster import LocalCluster, LocalClusterError
from raftlog.cluster.node.process import serve
from raftlog.cluster.node.start_error import StartError
from raftlog.cluster.runtime.logging import get_logger
from raftlog.raft.codec.configuration import decode_configuration
from tests.cluster.nodes import QUICK
from tests.support import HANG_S, RAFTLOG, free_ports, wait_until

SEGMENT = 1 << 20


def test_format_makes_the_same_first_entry_everywhere(tmp_path: Path) -> None:
    """Index 1 is the configuration, byte for byte equal on all nodes; term 1, so that no election rewrites it."""
    cluster = new_cluster(3, peer_ports=[1, 2, 3], http_ports=[4, 5, 6], parameters={"sessions_max": 7})
    file = tmp_path / "cluster.toml"
    folders = format_cluster(cluster, file, segment_bytes=SEGMENT)
    assert parse_cluster_file(file.read_text(encoding="utf-8"), "f") == cluster
    entries = []
    for node, folder in enumerate(folders, start=1):
        disk, recovered = Disk.open(folder, log_id=cluster.cluster.log, node=node, segment_bytes=SEGMENT)
        entries.append(recovered.tail)
        assert recovered.hard_state.term == 1
        assert recovered.hard_state.vote == 0
        assert recovered.configuration == cluster.configuration()
        del disk
    assert entries == [(first_entry(cluster),)] * 3
    assert decode_configuration(entries[0][0].data).parameters == (("sessions_max", 7),)


def test_format_never_touches_a_folder_with_something_in_it(tmp_path: Path) -> None:
    """An identity is made once: a second format is refused, and one node can be formatted by itself."""
    file = tmp_path / "cluster.toml"
    cluster = new_cluster(2, peer_ports=[1, 2], http_ports=[3, 4])
    format_cluster(cluster, file, segment_bytes=SEGMENT, nodes=[2])
    assert not (tmp_path / "node-1").exists()
    assert format_file(file, segment_bytes=SEGMENT, nodes=[1]) == [tmp_path / "node-1"]
    with pytest.raises(FolderExists):
        format_file(file, segment_bytes=SEGMENT)
    with pytest.raises(SettingsError, match="it has no node 9"):
        format_file(file, segment_bytes=SEGMENT, nodes=[9])
    with pytest.raises(SettingsError, match=r"no\.toml"):
        format_file(tmp_path / "no.toml", segment_bytes=SEGMENT)


def test_format_makes_no_folder_inside_another_nodes(tmp_path: Path) -> None:
    """Two nodes would be lost with one folder."""
    cluster = new_cluster(2, peer_ports=[1, 2], http_ports=[3, 4])
    inside = msgspec.structs.replace(cluster.node[1], data="node-1/inside")
    spoilt = msgspec.structs.replace(cluster, node=[cluster.node[0], inside])
    with pytest.raises(FolderForeign, match=r"node-1/inside: it is inside .*node-1, the data folder of a node"):
        format_cluster(spoilt, tmp_path / "cluster.toml", segment_bytes=SEGMENT)
    assert not (tmp_path / "node-1/inside").exists()


@pytest.mark.usefixtures("usual_umask")
def test_only_its_owner_can_read_the_folder_of_a_local_cluster(tmp_path: Path) -> None:
    """Data, certificates, cluster file and settings. The folders above it are as all others."""
    folder = tmp_path / "above" / "cluster"
    LocalCluster(folder, 2, secure=True)
    assert (folder / "node-2.toml").exists()
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert folder.parent.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of three, not started."""
    cluster = LocalCluster(tmp_path / "cluster", settings=QUICK)
    yield cluster
    cluster.kill(*cluster.nodes)


def append(url: str, value: bytes) -> int:
    """Appends one record over HTTP; its index."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=HANG_S)
    try:
        connection.request("POST", "/v1/log", value, {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return int(json.loads(body)["last"])
    finally:
        connection.close()


async def refused(local: LocalCluster, node: int = 1, **http: str) -> tuple[NodeExit, str]:
    """Runs a node that cannot start, with these settings of section http: its exit code and what it says."""
    loaded = load_settings(local.settings_file(node), None, {f"http.{key}": value for key, value in http.items()})
    assert loaded.cluster is not None
    with pytest.raises(StartError) as error:
        await serve(loaded, loaded.cluster, get_logger())
    return error.value.code, str(error.value)


@pytest.mark.serial
def test_processes_elect_survive_a_kill_and_stop_cleanly(local: LocalCluster) -> None:
    """kill -9 of the leader loses nothing; SIGTERM and SIGINT end a node with 0; the cluster comes back as it was."""
    local.restore()
    leader = local.leader()
    indexes = [append(url, b"1") for url in local.urls]
    local.kill(leader)
    new = local.leader()
    assert new != leader
    indexes.append(append(local.place(new).url, b"2"))
    assert indexes == sorted(set(indexes))
    local.start_node(leader)
    local.wait_ready()
    wait_until(lambda: (status := local.status(leader)) and status.applied >= indexes[-1])

    pid = local.pid(new)
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    assert local.stop_node(new) == NodeExit.OK
    local.stop()
    assert local.running == []

    again = LocalCluster(local.folder)
    assert not again.is_new
    try:
        again.restore()
        assert all((status := again.status(node)) and status.applied >= indexes[-1] for node in again.nodes)
    finally:
        again.stop()


@pytest.mark.serial
def test_a_node_ends_with_the_process_that_started_it(local: LocalCluster) -> None:
    """The pipe to its starter closes, however that ended: a clean stop, nothing left behind."""
    local.start([1])
    process = local._running[1]
    wait_until(lambda: b'"serving"' in local.log_file(1).read_bytes() or local.pid(1) is None, 30)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == NodeExit.OK


async def test_an_occupied_port_is_named(local: LocalCluster) -> None:
    """Which key, which address, what to do; and the data folder is free again afterwards."""
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    api = urlsplit(local.place(1).url).netloc
    for key, place in (("peer.listen", local.place(1).peer), ("http.listen", api), ("http.probe_listen", probes)):
        host, port = place.split(":")
        with socket.create_server((host, int(port))):
            code, said = await refused(local, probe_listen=probes)
        assert code is NodeExit.ADDRESS_IN_USE
        assert f"{key} {place} is in use: stop what listens there" in said


async def test_an_address_of_probes_that_the_node_cannot_have_is_named(local: LocalCluster) -> None:
    """Of no host, and on all interfaces at the API's port. The other ports are free again afterwards."""
    code, said = await refused(local, probe_listen="no-host.invalid:1")
    assert code is NodeExit.SETTINGS
    assert said.startswith("http.probe_listen no-host.invalid:1: ")
    everywhere = f"0.0.0.0:{urlsplit(local.place(1).url).port}"
    code, said = await refused(local, probe_listen=everywhere)
    assert code is NodeExit.ADDRESS_IN_USE
    assert said.startswith(f"http.probe_listen {everywhere} is in use")


@pytest.mark.serial
def test_probes_reach_a_node_that_clients_cannot_reach(tmp_path: Path) -> None:
    """They need no certificate and no user. They are answered while the API has all the connections that it may have,
    while its new certificate is wrong, and while the node stops."""
    probe, limit = free_ports(1)[0], 64
    settings = QUICK | {"http.probe_listen": f"0.0.0.0:{probe}", "limits.connections_max": limit}
    local = LocalCluster(tmp_path / "cluster", 1, settings=settings, secure=True)

    def ask(path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", probe, timeout=HANG_S)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status

    local.start()
    clients: list[socket.socket] = []
    try:
        wait_until(lambda: b'"serving"' in local.log_file(1).read_bytes(), 30, what="the node")
        wait_until(lambda: ask("/readyz") == 200, 30, what="a leader")
        (local.folder / "tls" / "node-1.pem").write_text("nothing")
        wait_until(lambda: b"tls_files_refused" in local.log_file(1).read_bytes(), what="the refused certificate")
        api = urlsplit(local.url(1))
        clients += [socket.create_connection(("127.0.0.1", api.port or 0)) for _ in range(2 * limit)]
        assert [ask(path) for path in ("/livez", "/readyz", "/metrics", "/v1/status")] == [200, 200, 200, 404]
    finally:
        for each in clients:
            each.close()
        local.stop()


async def test_a_data_folder_that_is_not_this_nodes_is_refused(local: LocalCluster) -> None:
    """In use, missing, of another node, of another cluster, of a newer version: the error names it, with the fix."""
    disk, _ = Disk.open(local.data(1), segment_bytes=SEGMENT)
    code, said = await refused(local)
    assert code is NodeExit.DATA
    assert "another process has it open" in said
    await disk.close()

    identity = local.data(1) / "identity.json"
    own = parse_identity(identity.read_bytes())
    identity.write_bytes(encode_identity(replace(own, version=9)))
    code, said = await refused(local)
    assert code is NodeExit.UNKNOWN_VERSION
    assert "start a newer raftlog" in said
    identity.write_bytes(encode_identity(replace(own, log_id="ab" * 16)))
    code, said = await refused(local)
    assert code is NodeExit.DATA
    assert f"it belongs to log {'ab' * 16}" in said

    shutil.rmtree(local.data(1))
    code, said = await refused(local)
    assert code is NodeExit.DATA
    assert "raftlog format" in said

    shutil.copytree(local.data(2), local.data(1))
    before = {path: path.stat().st_mtime_ns for path in local.data(1).rglob("*")}
    code, said = await refused(local)
    assert code is NodeExit.DATA
    assert "it belongs to node 2" in said
    assert {path: path.stat().st_mtime_ns for path in local.data(1).rglob("*")} == before


@pytest.mark.serial
@pytest.mark.parametrize(
    ("flags", "said"), [(("-O",), "without python -O"), ((), "stop_with_stdin=false")], ids=["asserts", "stdin"]
)
def test_a_process_that_a_node_cannot_run_in_is_refused(local: LocalCluster, flags: tuple[str, ...], said: str) -> None:
    """python -O removes the asserts, which are part of the design. A node that shall end with its standard input needs
    one that can end: /dev/null, as under `&` or a service manager, cannot."""
    command = [sys.executable, *flags, "-m", "raftlog.cluster.cli.main", "node"]
    command += ["--config", str(local.settings_file(1))]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert ended.returncode == NodeExit.SETTINGS
    assert said in ended.stderr


@pytest.mark.serial
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--config", "{folder}/absent.toml"), "absent.toml: No such file or directory"),
        (("--config", "{settings}", "--set", "limits.record_max=1"), "did you mean limits.records_max?"),
        (("--config", "{settings}", "--set", "nonsense"), "write KEY=VALUE"),
        (("--config", "{settings}", "--set", "http.probe_listen=127.0.0.1"), "it must be host:port"),
        ((), "raftlog node --config FILE --node ID"),
        (("--config", "{settings}", "--set", "data=absent"), "raftlog format"),
        (("--config", "{settings}", "--set", "stop_with_stdin=false"), "is in use: stop what listens there"),
    ],
    ids=range(7),
)
def test_each_refusal_of_a_node_is_one_line_of_its_log(local: LocalCluster, words: tuple[str, ...], said: str) -> None:
    """`not_started`, with the reason and the exit code of the process: settings that cannot be read, and those that
    cannot be met."""
    given = [word.format(folder=local.folder, settings=local.settings_file(1)) for word in words]
    host, port = local.place(1).peer.split(":")
    with socket.create_server((host, int(port))):
        ended = subprocess.run(
            [*RAFTLOG, "node", *given],
            stdin=subprocess.PIPE,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    line = json.loads(ended.stderr.splitlines()[-1])
    assert (line["event"], line["exit"]) == ("not_started", ended.returncode)
    assert said in line["reason"]
    assert ended.returncode in (NodeExit.SETTINGS, NodeExit.DATA, NodeExit.ADDRESS_IN_USE)


@pytest.mark.serial
def test_a_log_that_takes_nothing_does_not_stop_a_node(tmp_path: Path) -> None:
    """Standard error on a full disk: the node leads, answers and ends with its own exit code; only its lines are lost.
    (Without the guard its first line raised in the middle of a start, or of a fence, and it neither served nor ended.)
    """
    local = LocalCluster(tmp_path / "cluster", 1, settings=QUICK)
    command = [*RAFTLOG, "node", "--config", str(local.settings_file(1)), "--set", "stop_with_stdin=false"]
    with open("/dev/full", "wb") as full:
        node = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=full, stderr=full)
    try:
        wait_until(lambda: (told := local.status(1)) is not None and told.role == "leader", 30, what="a leader")
        assert append(local.url(1), b"x") > 0
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0
    finally:
        node.kill()
        node.wait()


@pytest.mark.serial
def test_a_cluster_that_does_not_come_up_says_why(local: LocalCluster) -> None:
    """`wait_ready` ends with the node's own words, not with a timeout."""
    host, port = local.place(2).peer.split(":")
    with socket.create_server((host, int(port))):
        local.start([2])
        with pytest.raises(LocalClusterError, match="is in use"):
            local.wait_ready()


def test_a_node_takes_the_open_files_that_it_may_have() -> None:
    """Where a shell begins with few, the hard limit counts: a thousand clients are no reason to stop taking them."""
    code = (
        "import resource; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); "
        "from raftlog.cluster.node.process import allow_open_files; allow_open_files(); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
