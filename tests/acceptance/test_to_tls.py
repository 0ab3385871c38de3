"""A running cluster changes from plain connections to TLS and back, or to another authority, one node at a time.

It serves all the while.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from raftlog import ClientError, NewRecord, SyncClient
from raftlog.cluster.api.members import ChangeIn
from raftlog.cluster.node.formatting import make_certificates, tls_files
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security import authority
from raftlog.cluster.security.tls import TlsFiles
from tests.support import wait_until

PAUSE_MAX_S = 5.0
"""Longest time without an acknowledged write: a hand-over and a dial take far less."""


class Load:
    """A writer in a thread of its own, which another one may replace while the cluster serves."""

    def __init__(self) -> None:
        self.sent = itertools.count()
        self.acknowledged: list[bytes] = []
        self.longest_s = 0.0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def use(self, make: Callable[[], SyncClient]) -> None:
        """Goes on with another client."""
        self.stop()
        self._end.clear()
        self._thread = threading.Thread(target=self._run, args=(make,))
        self._thread.start()

    def stop(self) -> None:
        """Ends once the write under way is acknowledged."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def check(self, found: list[bytes]) -> None:
        """Every acknowledged write is in the log once, in order, and none took long."""
        assert len(self.acknowledged) > 100
        assert found == self.acknowledged
        assert self.longest_s < PAUSE_MAX_S

    def _run(self, make: Callable[[], SyncClient]) -> None:
        with make() as client:
            while not self._end.is_set():
                value, began = b"%d" % next(self.sent), time.monotonic()
                client.append_many([NewRecord(value)])
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.acknowledged.append(value)


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_cluster_changes_to_tls_and_back_under_load(tmp_path: Path) -> None:
    """As docs/security.md says: both, then the addresses, then TLS alone. And the same way back. Every acknowledged
    write is in the log once, and none took longer than PAUSE_MAX_S."""
    with LocalCluster(tmp_path, 3, settings={"disk.segment_bytes": 1 << 20}) as cluster:
        make_certificates(tmp_path / "tls", cluster.cluster)
        files = tls_files(tmp_path / "tls", "client-operator")
        plain, encrypted = cluster.urls, [url.replace("http:", "https:") for url in cluster.urls]
        load = Load()

        def client(urls: list[str], *, bound: bool = False, deadline_s: float = 30) -> SyncClient:
            return SyncClient(urls, tls=files, deadline_s=deadline_s, bound=bound)

        def is_ready(node: int, urls: list[str]) -> bool:
            with suppress(ClientError), client([urls[node - 1]], bound=True, deadline_s=1) as one:
                one.get(b"none")
                return True
            return False

        def restart(mode: str, urls: list[str]) -> None:
            """Each node in turn, with the mode `plain`, `both` or `tls`."""
            cluster.file.write_text(
                cluster.file.read_text().replace(*(("http:", "https:") if mode == "tls" else ("https:", "http:")))
            )
            for node in cluster.nodes:
                cluster.stop_node(node)
                own = {
                    "RAFTLOG_SECURITY_MODE": mode,
                    "RAFTLOG_SECURITY_CA": files.ca,
                    "RAFTLOG_SECURITY_CERTIFICATE": str(tmp_path / f"tls/node-{node}.pem"),
                    "RAFTLOG_SECURITY_KEY": str(tmp_path / f"tls/node-{node}.key"),
                }
                cluster.environments[node] = {} if mode == "plain" else own
                cluster.start_node(node)
                wait_until(lambda node=node: is_ready(node, urls), deadline_s=30, what=f"node {node}")  # type: ignore[misc]

        def move(urls: list[str]) -> None:
            with client(urls) as one:
                for node, url in enumerate(urls, 1):
                    one.change_members(ChangeIn("address", node, url=url))

        cluster.restore()
        try:
            load.use(lambda: client(plain))
            restart("both", plain)
            load.use(lambda: client(encrypted))
            move(encrypted)
            restart("tls", encrypted)
            assert not is_ready(1, plain)
            restart("both", encrypted)
            load.use(lambda: client(plain))
            move(plain)
            restart("plain", plain)
        finally:
            load.stop()
        with client(plain) as one:
            found = [bytes(record.value or b"") for record in one.log(1) if record.operation == "append"]
    load.check(found)


def put(file: Path, content: bytes) -> None:
    """Puts a file in the place of another at once, as an operator should."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.replace(file)


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_cluster_changes_its_authority_under_load(tmp_path: Path) -> None:
    """As docs/security.md says: both authorities everywhere, then new certificates, then the new authority alone; one
    holder at a time, without a restart. Nodes that are killed afterwards come back by the new files. The certificate of
    the old authority does not get in any more. Every acknowledged write is in the log once."""
    with LocalCluster(tmp_path, 3, settings={"disk.segment_bytes": 1 << 20}, secure=True) as cluster:
        log, old, new = cluster.cluster.cluster.log, tmp_path / "tls", tmp_path / "new"
        authority.make_authority(new, "another one")
        authority.make_client(new, "operator", log)
        stems = {f"node-{node}": node for node in cluster.nodes} | {"client-operator": 0}
        folders = {stem: tmp_path / "machines" / stem for stem in stems}
        for stem, node in stems.items():
            folders[stem].mkdir(parents=True)
            for name in ("ca.pem", f"{stem}.pem", f"{stem}.key"):
                shutil.copy(old / name, folders[stem])
            if node:
                authority.make_node(new, log, node, ["127.0.0.1"])
                own = tls_files(folders[stem], stem)
                cluster.environments[node] = {
                    "RAFTLOG_SECURITY_CA": own.ca,
                    "RAFTLOG_SECURITY_CERTIFICATE": own.certificate,
                    "RAFTLOG_SECURITY_KEY": own.key,
                }
        files = tls_files(folders["client-operator"], "client-operator")
        load, both = Load(), (old / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes()

        def client() -> SyncClient:
            return SyncClient(cluster.urls, tls=files, deadline_s=30)

        def reads(node: int, tls: TlsFiles) -> bool:
            """Whether a node serves that client a linearizable read, for which it needs its peers."""
            with suppress(ClientError), SyncClient(cluster.url(node), bound=True, tls=tls, deadline_s=1) as one:
                one.get(b"none")
                return True
            return False

        def taken(node: int) -> int:
            return cluster.log_file(node).read_bytes().count(b"tls_files_taken")

        def renew(*names: str, content: bytes = b"") -> None:
            """Puts new files in the place of each holder's in turn; a node logs that it has taken them."""
            for stem, node in stems.items():
                before = taken(node) if node else 0
                for name in names:
                    file = folders[stem] / name.format(stem)
                    put(file, content or (new / file.name).read_bytes())
                if node:
                    wait_until(lambda node=node, before=before: taken(node) > before, what=f"node {node}")  # type: ignore[misc]
                else:
                    load.use(client)

        cluster.restore()
        try:
            load.use(client)
            renew("ca.pem", content=both)
            renew("{}.key", "{}.pem")
            renew("ca.pem", content=(new / "ca.pem").read_bytes())
            for node in cluster.nodes:
                cluster.kill(node)
                cluster.start_node(node)
                wait_until(lambda node=node: reads(node, files), 30, what=f"node {node}")  # type: ignore[misc]
        finally:
            load.stop()
        with client() as one:
            found = [bytes(record.value or b"") for record in one.log(1) if record.operation == "append"]
        former = TlsFiles(str(new / "ca.pem"), str(old / "client-operator.pem"), str(old / "client-operator.key"))
        assert not any(reads(node, former) for node in cluster.nodes)
    load.check(found)
