"""The hint after a failed request: no second cluster is proposed where some program accepted the connection."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raftlog import Client, SyncClient, TlsFiles, Unavailable
from raftlog.cluster.cli.commands import build
from raftlog.cluster.cli.frame.hints import hint_of
from raftlog.cluster.config.cluster_file import SettingsError
from raftlog.cluster.config.security_settings import SecuritySettings, check_security
from raftlog.cluster.security.authority import make_authority, make_client
from raftlog.cluster.security.tls import TlsError


def failed(url: str, tls: TlsFiles | None = None) -> Unavailable:
    """The error of a read there."""
    with SyncClient(url, bound=True, deadline_s=0.3, sessions=False, tls=tls) as client:
        with pytest.raises(Unavailable) as caught:
            client.get(b"a")
    return caught.value


def test_a_program_that_accepts_and_does_not_answer_is_no_missing_cluster(tmp_path: Path) -> None:
    """It closes each connection, as a node with TLS does to plain HTTP, or speaks no TLS. Both hints name the way on;
    only where no program listens a cluster is to be started."""
    make_authority(tmp_path, "own")
    made = make_client(tmp_path, "alice", "")
    files = TlsFiles(str(tmp_path / "ca.pem"), str(made.certificate), str(made.key))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]

        def accept() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                return  # the server is closed

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        plain, encrypted = failed(f"http://127.0.0.1:{port}"), failed(f"https://127.0.0.1:{port}", files)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert "write https:// instead of http://" in hint_of(plain)
    assert "it accepted the connection, and TLS did not come about" in str(encrypted)
    assert "RAFTLOG_CA" in hint_of(encrypted)
    assert "raftlog up" not in hint_of(plain) + hint_of(encrypted)
    assert "raftlog up" in hint_of(failed(f"http://127.0.0.1:{port}"))


async def test_a_program_that_accepts_and_never_shakes_hands_is_no_missing_cluster_either(tmp_path: Path) -> None:
    """The asyncio client's time is up amid the handshake: it says so, and not that there is no connection. Guard:
    `Connection.encrypt`."""
    make_authority(tmp_path, "own")
    made = make_client(tmp_path, "alice", "")
    files = TlsFiles(str(tmp_path / "ca.pem"), str(made.certificate), str(made.key))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        async with Client(url, bound=True, deadline_s=0.3, sessions=False, tls=files) as client:
            with pytest.raises(Unavailable, match="TLS did not come about within") as caught:
                await client.get(b"a")
    assert "RAFTLOG_CA" in hint_of(caught.value)


def test_a_folder_without_certificates_is_no_reason_for_a_second_authority(tmp_path: Path) -> None:
    """It may be the wrong folder."""
    told = CliRunner().invoke(build(), ["cert", "list", "--folder", str(tmp_path)])
    assert told.exit_code == 3
    assert "--folder names another place. Only a cluster without an authority gets a new one" in told.stderr


def test_without_the_key_of_its_authority_no_second_one_is_proposed(tmp_path: Path) -> None:
    """A certificate of another authority would be refused by every node."""
    with pytest.raises(TlsError, match="raftlog cert ca"):
        make_client(tmp_path, "alice", "")
    make_authority(tmp_path, "own")
    (tmp_path / "ca.key").unlink()
    with pytest.raises(TlsError, match=r"the key of .*ca\.pem is not here") as caught:
        make_client(tmp_path, "alice", "")
    assert "cert ca" not in str(caught.value)


def test_a_node_of_a_cluster_with_tls_is_not_told_to_do_without() -> None:
    """Its own URL says that the cluster has TLS. The message to a node with an http URL may name --insecure."""
    for url, is_told in (("https://10.0.0.1:7001", False), ("http://10.0.0.1:7001", True)):
        with pytest.raises(SettingsError, match="needs TLS") as caught:
            check_security(SecuritySettings(), ["http.listen"], url)
        assert ("--insecure" in str(caught.value)) is is_told
