"""Bytes that are no frame and no request: the connection ends, the node serves on, no leader changes."""

import errno
import os
import socket
import struct
from urllib.parse import urlsplit

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.acceptance.load import check_no_election
from tests.support import HANG_S, TooSlow

PIECES = {
    "nothing": b"",
    "zeros": bytes(4096),
    "HTTP to a peer port": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length of 4 GiB": struct.pack("<I", 0xFFFFFFFF) + bytes(64),
    "a length and no more": struct.pack("<I", 100),
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + os.urandom(508),
    "noise": os.urandom(65536),
    "a broken request line": b"\xff\xfe POST\r\n\r\n",
    "an endless header": b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,
    "a broken chunk": b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a lie about the length": b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
}


def _send(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except TimeoutError as error:
            raise TooSlow(f"{address} neither answered nor closed within 10 s") from error
        except OSError as error:
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
            # Closed on us before we had said everything: as good an answer.


def test_garbage_on_every_port(cluster: LocalCluster) -> None:
    """Everything that is thrown at the peer port and the API port of every node is refused within seconds; the term
    stays, writes and reads go on, the processes are the same."""
    leader = cluster.leader()
    before = cluster.status(leader)
    pids = [cluster.pid(node) for node in cluster.nodes]
    for node in cluster.nodes:
        for piece in PIECES.values():
            for address in (cluster.place(node).peer, urlsplit(cluster.url(node)).netloc):
                _send(address, piece)
    with SyncClient(cluster.urls) as client:
        client.put(b"still", b"here")
        item = client.get(b"still")
    assert item is not None
    assert item.value == b"here"
    check_no_election(before, cluster.status(leader))
    assert [cluster.pid(node) for node in cluster.nodes] == pids


def test_a_stranger_that_says_nothing(cluster: LocalCluster) -> None:
    """Silent connections to the peer port are closed after the time for a hello, so that they cannot use it up."""
    host, _, port = cluster.place(1).peer.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        try:
            assert connection.recv(65536) == b"" or connection.recv(65536) == b""
        except ConnectionResetError:
            pass
    assert cluster.ask(1, "/readyz")[0] == 200
