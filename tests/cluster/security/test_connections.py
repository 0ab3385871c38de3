"""Three node processes with TLS: valid certificates get in at the API and at peer ports, others are refused."""

from __future__ import annotations

import datetime
import http.client
import json
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from raftlog import Client, NewRecord, OutcomeUnknown, SyncClient, Unavailable, WatchEvent
from raftlog.cluster.cli.commands import build
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.peers.hello import decode_refusal, decode_word, encode_hello
from raftlog.cluster.security import authority
from raftlog.cluster.security.tls import TlsFiles
from raftlog.raft.codec.frame import FrameDecoder
from tests.cluster.nodes import hello_of
from tests.support import HANG_S, wait_until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

OTHER_LOG = "d" * 32
HANDSHAKES = 32


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with TLS, and more certificates of their authority beside those that they use."""
    home = tmp_path_factory.mktemp("secure")
    settings = {
        "limits.connections_max": 64 * HANDSHAKES,
        "disk.segment_bytes": 1 << 20,
        "security.revoked": str(home / "revoked"),
    }
    (home / "revoked").touch()
    with LocalCluster(home, 3, secure=True, settings=settings) as cluster:
        folder, log = folder_of(cluster), cluster.cluster.cluster.log
        authority.make_client(folder, "alice", log)
        authority.make_client(folder, "stranger", OTHER_LOG)
        authority.make_node(folder, OTHER_LOG, 9, ["127.0.0.1"])
        for name, days in (("expired", -30), ("tomorrow", 2)):
            then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(
                    authority, "_now", partial(datetime.datetime.fromtimestamp, then.timestamp(), datetime.UTC)
                )
                authority.make_client(folder, name, log, days=10)
        foreign = cluster.folder / "foreign"
        authority.make_authority(foreign, "foreign")
        authority.make_client(foreign, "alice", log)
        authority.make_node(foreign, log, 2, ["127.0.0.1"])
        cluster.restore()
        yield cluster


def folder_of(cluster: LocalCluster) -> Path:
    """Where its certificates are."""
    return Path(cluster.tls_files().ca).parent


def files_of(cluster: LocalCluster, stem: str) -> TlsFiles:
    """Of a holder; `foreign/…` is of another authority, and trusts this cluster's."""
    folder = folder_of(cluster)
    own = cluster.folder / stem if "/" in stem else folder / stem
    return TlsFiles(str(folder / "ca.pem"), f"{own}.pem", f"{own}.key")


def context_of(cluster: LocalCluster, stem: str | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """A plain TLS client that trusts the cluster's authority, with that certificate or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(str(folder_of(cluster) / "ca.pem"))
    if version is not None:
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, version
    if stem is not None:
        files = files_of(cluster, stem)
        context.load_cert_chain(files.certificate, files.key)
    return context


def api_of(cluster: LocalCluster, node: int = 1) -> tuple[str, int]:
    """Host and port of a node's API."""
    place = urlsplit(cluster.url(node))
    return str(place.hostname), int(place.port or 0)


def peer_of(cluster: LocalCluster, node: int = 1) -> tuple[str, int]:
    """Host and port of a node's peer listener."""
    host, _, port = cluster.place(node).peer.rpartition(":")
    return host, int(port)


def talk(address: tuple[str, int], context: ssl.SSLContext, data: bytes) -> bytes:
    """What comes back for those bytes until the other side ends. Raises OSError."""
    with socket.create_connection(address, timeout=HANG_S) as plain, context.wrap_socket(plain) as encrypted:
        encrypted.sendall(data)
        received = b""
        while more := encrypted.recv(65_536):
            received += more
        return received


def causes(cluster: LocalCluster) -> dict[str, str]:
    """What node 1 gives as causes of trouble, by their codes: `raftlog explain` shows them."""
    told: Any = json.loads(cluster.ask(1, "/v1/explain/leaderless")[1])
    return {cause["code"]: cause["words"] for cause in told["causes"]}


GET = b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def test_a_client_with_a_certificate_does_everything(secure: LocalCluster) -> None:
    """Writes through every node, reads, the log, a watch over several nodes, and a hand-over that a follower passes on
    to the leader."""
    with SyncClient(secure.urls, tls=files_of(secure, "client-alice")) as client:
        for number in range(9):
            client.put(b"k%d" % number, b"v")
        client.append_many([NewRecord(b"a"), NewRecord(b"b")])
        assert client.get(b"k8") is not None
        page = client.log_page(1, limit=1_000)
        assert [record.value for record in page.records if record.operation == "append"] == [b"a", b"b"]
    leader = secure.leader()
    follower = next(node for node in secure.nodes if node != leader)
    with SyncClient(secure.url(follower), bound=True, tls=files_of(secure, "client-alice")) as client:
        client.put(b"through a follower", b"v")
        client.transfer_leadership(follower)
    wait_until(lambda: secure.leader() == follower, what="the hand-over")


async def test_the_asyncio_client_does_too(secure: LocalCluster) -> None:
    """The same files, the other client; a stream stays open over TLS."""
    async with Client(secure.urls, tls=files_of(secure, "client-alice")) as client:
        put = await client.put(b"async", b"v")
        async for event in client.watch(from_revision=put.revision):
            if isinstance(event, WatchEvent):
                assert event.changes[0].key == b"async"
                break


@pytest.mark.parametrize(
    ("stem", "reason"),
    [
        (None, "peer did not return a certificate"),
        ("foreign/client-alice", "unable to get local issuer certificate|certificate signature failure"),
        ("client-expired", "certificate has expired"),
        ("client-tomorrow", "certificate is not yet valid"),
    ],
)
@pytest.mark.parametrize("address", [api_of, peer_of])
def test_a_handshake_without_a_valid_certificate_fails(
    secure: LocalCluster, stem: str | None, reason: str, address: Callable[[LocalCluster], tuple[str, int]]
) -> None:
    """At the API and at the peer port: none, another authority's, an expired one, one that does not count yet. No byte
    comes back, and the node's log says why."""
    try:
        assert talk(address(secure), context_of(secure, stem), GET) == b""
    except (ssl.SSLError, ConnectionError):
        pass
    event = "tls_refused" if address is api_of else "peer_refused"
    wait_until(
        lambda: re.search(f'({reason}).*"event":"{event}"', secure.log_file(1).read_text()), what="a line of the log"
    )
    code = "client_refused" if address is api_of else "refused"
    assert re.search(f"node 1 refused .* ago: .*({reason})", causes(secure)[code]), causes(secure)


def test_old_versions_and_plain_bytes_are_refused(secure: LocalCluster) -> None:
    """TLS 1.2 is off by default. Plain HTTP gets no answer, and the connection ends."""
    for address in (api_of(secure), peer_of(secure)):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            talk(address, context_of(secure, "client-alice", ssl.TLSVersion.TLSv1_2), GET)
        with socket.create_connection(address, timeout=HANG_S) as plain:
            plain.sendall(GET)
            answer = b""
            try:
                while more := plain.recv(4_096):
                    answer += more
            except ConnectionResetError:
                pass
        assert b"HTTP" not in answer


def test_another_clusters_client_and_node_are_refused_at_the_api(secure: LocalCluster) -> None:
    """The same authority signed them: the answer names whose certificate it is."""
    for stem in ("client-stranger", "node-9"):
        answer = talk(api_of(secure), context_of(secure, stem), GET)
        assert answer.startswith(b"HTTP/1.1 403")
        assert OTHER_LOG.encode() in answer


@pytest.mark.parametrize(
    ("stem", "sender", "whose"),
    [("client-alice", 2, "client alice"), ("node-3", 2, "node 3"), ("node-9", 2, f"node 9 of log {OTHER_LOG}")],
)
def test_a_hello_must_be_that_of_the_certificates_node(
    secure: LocalCluster, stem: str, sender: int, whose: str
) -> None:
    """A client's certificate, another node's and another cluster's are refused by name at the peer port. The member
    that the hello names stays connected."""
    head = secure.cluster.cluster
    place = secure.place(sender)
    hello = hello_of(head.log, sender, place.incarnation, boot=10**6)
    answer = talk(peer_of(secure), context_of(secure, stem), encode_hello(hello))
    frames = [frame for frame in FrameDecoder().feed(answer) if decode_word(frame) is None]
    refused = decode_refusal(frames[-1])
    assert refused is not None
    assert f"its certificate is that of {whose}" in refused
    with SyncClient(secure.urls, tls=files_of(secure, "client-alice")) as client:
        client.put(b"after", b"v")


def test_the_certificate_of_a_removed_node_is_refused_at_the_peer_port(secure: LocalCluster) -> None:
    """Node 8 was a learner. As soon as its removal is applied, its certificate counts no more, with any disk, and
    without `security.revoked`. Before, AppendEntries with its key stopped all writes. A node that never was a member is
    heard: it may be about to join, or this node may have slept."""
    head, folder = secure.cluster.cluster, folder_of(secure)
    for node in (7, 8):
        authority.make_node(folder, head.log, node, ["127.0.0.1"])

    def said_to(sender: int, disk: str) -> str:
        hello = hello_of(head.log, sender, disk)
        with socket.create_connection(peer_of(secure), timeout=HANG_S) as plain:
            with context_of(secure, f"node-{sender}").wrap_socket(plain) as encrypted:
                encrypted.sendall(encode_hello(hello))
                encrypted.settimeout(0.5)
                frames = FrameDecoder()
                try:
                    while more := encrypted.recv(65_536):
                        for frame in frames.feed(more):
                            if (reason := decode_refusal(frame)) is not None:
                                return reason
                except TimeoutError:
                    pass
        return ""

    def change(body: dict[str, Any]) -> None:
        def answered() -> bool:
            context = context_of(secure, "client-alice")
            with closing(http.client.HTTPSConnection(*api_of(secure), timeout=HANG_S, context=context)) as connection:
                connection.request("POST", "/v1/members", json.dumps(body))
                answer = connection.getresponse()
                told = answer.read()
            return answer.status == 200 or b"already_member" in told or b"unknown_node" in told  # asked before

        wait_until(answered, 30, what=f"{body}")

    disk = "8" * 32
    place = {"peer": "127.0.0.1:1", "url": "https://127.0.0.1:2", "incarnation": disk}
    change({"change": "add", "node": 8, "promote": False, **place})
    assert said_to(8, disk) == ""
    change({"change": "remove", "node": 8})
    for each in (disk, "a" * 32):
        wait_until(lambda: "was removed from this cluster" in said_to(8, each), 30, what="a refusal")  # noqa: B023
    assert said_to(7, "a" * 32) == ""


def test_a_client_says_why_it_does_not_get_in(secure: LocalCluster) -> None:
    """A host that the certificate does not name, an authority that this client does not trust, a certificate that the
    node refuses. Nothing was written. In the last case the client cannot know that, and says so."""
    port = api_of(secure)[1]
    foreign = secure.folder / "foreign"
    untrusted = TlsFiles(str(foreign / "ca.pem"), str(foreign / "client-alice.pem"), str(foreign / "client-alice.key"))
    for url, files, reason in (
        (f"https://localhost:{port}", files_of(secure, "client-alice"), "localhost"),
        (secure.url(1), untrusted, "certificate verify failed"),
        (secure.url(1), files_of(secure, "foreign/client-alice"), "may have refused this client's certificate"),
    ):
        with SyncClient(url, bound=True, tls=files, deadline_s=1.5, sessions=False) as client:
            with pytest.raises((Unavailable, OutcomeUnknown), match=reason):
                client.put(b"never", b"v")
    with SyncClient(secure.urls, tls=files_of(secure, "client-alice")) as client:
        assert not client.get(b"never")


def test_silent_handshakes_keep_no_client_out(secure: LocalCluster) -> None:
    """Far more connections than handshakes are allowed say nothing. The oldest give way, so the next client gets in
    at once."""
    silent = [socket.create_connection(api_of(secure), timeout=HANG_S) for _ in range(4 * HANDSHAKES)]
    try:
        began = time.monotonic()
        with SyncClient(secure.url(1), bound=True, tls=files_of(secure, "client-alice"), deadline_s=5) as client:
            client.status()
        assert time.monotonic() - began < 4, "less than limits.handshake_timeout_ms"
    finally:
        for each in silent:
            each.close()


def test_a_new_certificate_is_taken_without_a_restart(secure: LocalCluster) -> None:
    """A bad new file leaves the old certificate in use, with a line of the log; so do the good files of another node. A
    good one is served soon after."""
    folder, log = folder_of(secure), secure.cluster.cluster.log
    own = folder / "node-1.pem"

    def served() -> int:
        with socket.create_connection(api_of(secure), timeout=HANG_S) as plain:
            with context_of(secure, "client-alice").wrap_socket(plain) as encrypted:
                return int(str((encrypted.getpeercert() or {})["serialNumber"]), 16)

    before, old = served(), own.read_bytes()
    own.write_bytes(b"-----BEGIN CERTIFICATE-----\nnothing\n")

    def told(reason: bytes) -> bool:
        assert served() == before
        return re.search(reason + b".*tls_files_refused", secure.log_file(1).read_bytes()) is not None

    wait_until(lambda: told(b"PEM"), what="the line about the bad file")
    assert "cannot use its changed certificate files" in causes(secure)["tls_files"]
    shutil.copy(folder / "node-2.key", folder / "node-1.key")
    shutil.copy(folder / "node-2.pem", own)
    wait_until(lambda: told(b"its certificate is that of node 2"), what="the line about the certificate of node 2")
    aside = secure.folder / "renewed"
    aside.mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(folder / name, aside / name)
    renewed = authority.make_node(aside, log, 1, ["127.0.0.1"])
    shutil.copy(renewed.key, folder / "node-1.key")
    shutil.copy(renewed.certificate, own)
    wait_until(lambda: served() != before, what="the new certificate")
    assert old != own.read_bytes()
    assert b"tls_files_taken" in secure.log_file(1).read_bytes()
    assert "tls_files" not in causes(secure)
    secure.kill(2)
    secure.start_node(2)
    secure.wait_ready([2])


def test_a_revoked_certificate_ends_open_connections_and_gets_in_no_more(secure: LocalCluster) -> None:
    """A client's and a node's. The list counts without a restart, for connections that are open too, and a list that
    cannot be read leaves the one before in use. Taken off the list, both get in again."""
    listed, folder = secure.folder / "revoked", folder_of(secure)
    runner = CliRunner()
    with socket.create_connection(api_of(secure), timeout=HANG_S) as plain:
        with context_of(secure, "client-alice").wrap_socket(plain) as encrypted:
            given = [
                "cert",
                "revoke",
                str(folder / "client-alice.pem"),
                str(folder / "node-3.pem"),
                "--list",
                str(listed),
            ]
            done = runner.invoke(build("cert"), given)
            assert done.exit_code == 0, done.output
            assert encrypted.recv(1) == b"", "the open connection ends"
    answer = talk(api_of(secure), context_of(secure, "client-alice"), GET)
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"its certificate is revoked (security.revoked)" in answer
    told = re.compile("node 3 at .*certificate is revoked|certificate is revoked.*node 3")
    wait_until(lambda: told.search(secure.log_file(1).read_text()), what="the refused peer")
    before = listed.read_bytes()
    listed.write_bytes(before + b"alice\n")
    wait_until(lambda: "line 3 is 'alice'" in secure.log_file(1).read_text(), what="the line about the bad list")
    assert talk(api_of(secure), context_of(secure, "client-alice"), GET).startswith(b"HTTP/1.1 403")
    listed.write_bytes(b"# none\n")
    wait_until(
        lambda: talk(api_of(secure), context_of(secure, "client-alice"), GET).startswith(b"HTTP/1.1 200"), what="200"
    )
    secure.wait_ready()


def test_a_node_does_not_start_with_anothers_certificate(secure: LocalCluster) -> None:
    """It says whose certificate it is, and how to make its own."""
    assert secure.stop_node(3) == 0
    settings = secure.settings_file(3)
    before = settings.read_text()
    settings.write_text(before.replace("node-3.pem", "node-2.pem").replace("node-3.key", "node-2.key"))
    secure.start_node(3)
    wait_until(lambda: secure.exit_code(3) == 2, what="the end of the node")
    assert "is the certificate of node 2 of log" in secure.tail(3)
    settings.write_text(before)
    secure.start_node(3)
    secure.wait_ready()
