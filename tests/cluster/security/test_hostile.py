"""Bytes that are no TLS, broken handshakes and garbage behind good ones; and what openssl and curl see of the ports.

Nodes 1 and 2 of three run. The test plays node 3 with its real certificate. Node 2 also takes TLS 1.2, and clients
that have a token alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from raftlog import SyncClient
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.peers.hello import Purpose, encode_hello
from raftlog.cluster.security.tls import client_context
from raftlog.raft.codec.frame import encode_frame
from tests.cluster.nodes import hello_of
from tests.support import HANG_S, wait_until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

PLAIN = (
    b"",
    bytes(300),
    b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\xff\xff",
    b"\x15\x03\x03\x00\x02\x02\x28",
)
GROWTH_BYTES = 8 << 20
"""Most growth of a node's memory over a second round of the same attacks: its allocator's slack."""
SLOW_S = 5.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nodes 1 and 2 of three, with TLS, access control, and the token of the admin."""
    with LocalCluster(tmp_path_factory.mktemp("hostile"), 3, secure=True) as nodes:
        nodes.environments[2] = {
            "RAFTLOG_SECURITY_CLIENT_CERTIFICATES": "optional",
            "RAFTLOG_SECURITY_TLS_MIN": "1.2",
        }
        nodes.start([1, 2])
        nodes.wait_ready([1, 2])
        make_first_admin(nodes)
        yield nodes
        nodes.kill(*nodes.running)


def api_of(cluster: LocalCluster, node: int) -> tuple[str, int]:
    """Host and port of a node's API."""
    return "127.0.0.1", int(urlsplit(cluster.url(node)).port or 0)


def peer_of(cluster: LocalCluster, node: int) -> tuple[str, int]:
    """Host and port of a node's peer listener."""
    return "127.0.0.1", int(cluster.place(node).peer.rpartition(":")[2])


# -- attacks


class Attacker:
    """Makes one connection after the other, each drawn by chance, and says nothing of what comes back."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self._cluster = cluster
        self._contexts = {
            holder: client_context(cluster.tls_files(holder), checks_host=False)
            for holder in ("client-operator", "node-3")
        }

    def attack(self) -> None:
        """One connection to the API or the peer port of node 1."""
        address = self.chance.choice((api_of, peer_of))(self._cluster, 1)
        kind = self.chance.choice((self._before, self._inside, self._behind, self._behind, self._record))
        with socket.create_connection(address, timeout=SLOW_S) as plain, contextlib.suppress(OSError):
            if self.chance.random() < 0.5:  # the end is a reset
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            kind(plain)

    def _noise(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((1, 5, 100, 5_000, 70_000)))

    def _before(self, plain: socket.socket) -> None:
        """Bytes that are no handshake."""
        plain.sendall(self.chance.choice((*PLAIN, self._noise())))

    def _flights(self, plain: socket.socket, spoilt: int) -> None:
        """A handshake as far as the client's flight of number `spoilt`, which is cut, repeated or changed."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._contexts["client-operator"].wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        for flight in range(spoilt + 1):
            with contextlib.suppress(ssl.SSLWantReadError):
                session.do_handshake()
            data = outgoing.read()
            plain.sendall(self._spoilt(data) if flight == spoilt else data)
            if flight < spoilt:
                incoming.write(plain.recv(65_536))

    def _spoilt(self, data: bytes) -> bytes:
        if not data:
            return self._noise()
        at = self.chance.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << self.chance.randrange(8)]) + data[at + 1 :]
        return self.chance.choice((data[:at], flipped, data + data, data[:at] + self._noise() + data[at:]))

    def _inside(self, plain: socket.socket) -> None:
        """A handshake that breaks in the client's first or second flight."""
        self._flights(plain, self.chance.randrange(2))

    def _behind(self, plain: socket.socket) -> None:
        """Garbage behind a good handshake, as a client or as node 3, with a good hello before it or without."""
        holder = self.chance.choice(tuple(self._contexts))
        with self._contexts[holder].wrap_socket(plain, suppress_ragged_eofs=True) as encrypted:
            if self.chance.random() < 0.7:
                encrypted.sendall(self._hello())
            for _ in range(self.chance.randrange(1, 4)):
                encrypted.sendall(self._garbage())
            if self.chance.random() < 0.5:
                encrypted.recv(1_000)

    def _hello(self) -> bytes:
        place = self._cluster.place(3)
        purpose = self.chance.choice(tuple(Purpose))
        log, boot = self._cluster.cluster.cluster.log, self.chance.randrange(1 << 40)
        return encode_hello(hello_of(log, 3, place.incarnation, boot, purpose))

    def _garbage(self) -> bytes:
        header: tuple[object, ...] = self.chance.choice(
            ((), (1, 2, 3), ("x", b"y", None), (-1, True, [[[]]]), (1 << 63, 1 << 63, 1, 1, 0))
        )
        frame = encode_frame(self.chance.randrange(1, 20), header, self._noise())
        request = b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n" + self._noise()
        return self.chance.choice((frame, self._spoilt(frame), self._noise(), request, self._spoilt(request)))

    def _record(self, plain: socket.socket) -> None:
        """A record that no key made, behind a good handshake."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._contexts["node-3"].wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65_536))
            else:
                break
        plain.sendall(outgoing.read())
        noise = self._noise()[:16_000]
        plain.sendall(b"\x17\x03\x03" + len(noise).to_bytes(2, "big") + noise)


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("connections", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_hostile_bytes_end_no_node_and_leave_nothing_behind(cluster: LocalCluster, connections: int) -> None:
    """Before, inside and instead of a handshake, and behind a good one, at both ports, as a client and as node 3. The
    same node serves on, and its log has no error of its own. A second round of the same adds no memory beyond
    GROWTH_BYTES, and no descriptor stays open."""
    pid = cluster.pid(1)
    assert pid is not None
    before = descriptors(pid)
    sizes = []
    for _ in range(2):
        attacker = Attacker(cluster, seed=22)
        for _ in range(connections):
            attacker.attack()
        wait_until(lambda: descriptors(pid) <= before + 2, 30, what="the connections' ends")
        sizes.append(resident(pid))
    assert sizes[1] - sizes[0] < GROWTH_BYTES, sizes
    assert cluster.pid(1) == pid
    told = cluster.log_file(1).read_text()
    assert [line for line in told.splitlines() if '"level":"error"' in line or "Traceback" in line] == []
    with SyncClient(cluster.url(1), bound=True, tls=cluster.tls_files()) as client:
        client.put(b"still", b"here")
        assert client.get(b"still")


# -- openssl and curl


def ran(tool: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """That command's end; skips where there is no such tool."""
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on PATH")
    return subprocess.run(
        [tool, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=HANG_S, check=False
    )


def s_client(cluster: LocalCluster, address: tuple[str, int], *words: str) -> str:
    """What `openssl s_client` says of a handshake with the operator's certificate."""
    files = cluster.tls_files()
    done = ran(
        "openssl",
        "s_client",
        "-connect",
        f"{address[0]}:{address[1]}",
        "-CAfile",
        files.ca,
        "-cert",
        files.certificate,
        "-key",
        files.key,
        "-verify_return_error",
        *words,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("port", [api_of, peer_of], ids=["api", "peers"])
def test_openssl_sees_tls_1_3_and_a_chain_to_the_authority(
    cluster: LocalCluster, port: Callable[[LocalCluster, int], tuple[str, int]]
) -> None:
    """The version, one of the suites of TLS 1.3, a chain of ECDSA keys that verifies for the address, no compression,
    and no protocol by ALPN. Older versions, and TLS 1.2 where it is not allowed, get no handshake."""
    told = s_client(cluster, port(cluster, 1), "-verify_ip", "127.0.0.1", "-alpn", "h2,http/1.1")
    assert "Verify return code: 0 (ok)" in told, told
    assert "New, TLSv1.3, Cipher is TLS_" in told
    assert "Compression: NONE" in told
    assert "No ALPN negotiated" in told
    assert "Peer signature type: ECDSA" in told
    assert "CN = raftlog node 1" in told
    for version in ("-tls1_1", "-tls1_2"):
        assert "Cipher is (NONE)" in s_client(cluster, port(cluster, 1), version, "-cipher", "ALL:@SECLEVEL=0")


def test_openssl_gets_tls_1_2_where_it_is_allowed_and_only_with_forward_secrecy(cluster: LocalCluster) -> None:
    """With `security.tls_min = 1.2` a suite with an ephemeral key and authenticated encryption is agreed on. Others are
    not, and neither is TLS 1.1."""
    address = api_of(cluster, 2)
    assert "New, TLSv1.2, Cipher is ECDHE-ECDSA-AES256-GCM-SHA384" in s_client(cluster, address, "-tls1_2")
    for words in (("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), ("-tls1_2", "-cipher", "kRSA:SHA1:SHA256:SHA384:!AESGCM")):
        assert "Cipher is (NONE)" in s_client(cluster, address, *words), words


def curl(cluster: LocalCluster, node: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A request of curl, whose last line is the status."""
    ca = cluster.tls_files().ca
    return ran("curl", "-sS", "--cacert", ca, "-w", "\n%{http_code}", f"{cluster.url(node)}/v1/kv/none", *words)


def test_curl_gets_in_by_a_certificate_or_a_token_and_not_without(cluster: LocalCluster, tmp_path: Path) -> None:
    """Where certificates are required it gets no answer without one; where a token is enough, 401. The token stands in
    a file, so that no process list shows it."""
    files, header = cluster.tls_files(), tmp_path / "header"
    certificate = ("--cert", files.certificate, "--key", files.key)
    header.write_text(f"Authorization: Bearer {(Path(files.ca).parent / 'operator.token').read_text()}")
    token = ("-H", f"@{header}")
    for node, words, status in (
        (1, certificate, "404"),
        (1, (*certificate, *token), "404"),
        (1, (), "000"),
        (1, token, "000"),
        (2, certificate, "404"),
        (2, token, "404"),
        (2, (), "401"),
    ):
        done = curl(cluster, node, *words)
        assert done.stdout.splitlines()[-1] == status, (node, words, done)
    untrusted = ran("curl", "-sS", *certificate, f"{cluster.url(1)}/livez")
    assert untrusted.returncode == 60, untrusted
