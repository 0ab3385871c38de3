"""Runs raftlog as a contender: node processes on loopback with the shipped defaults, driven through their leader."""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.contenders import control
from bench.contenders.node_variant import FAST_PATH_VARIABLE
from bench.instruments.figures import Run
from bench.loads import wrk
from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.client.access_requests import change
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.first_admin import make_first_admin
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.node.ports import free_ports
from raftlog.cluster.security.tls import client_context
from raftlog.cluster.security.tokens import make_token

NAME = "raftlog"
PLAIN = "raftlog, plain aiohttp"
SECURE = "raftlog, secure"
_AGAIN = (503, 504)  # no leader, or the leader just lost its office: a later try gets another answer
_PAUSE_S = 0.1
_VARIANT = (sys.executable, "-m", "bench.contenders.node_variant")


class Raftlog:
    """Nodes in `folder`. No proxies; no settings but addresses. With `fast_path=False` every request is
    aiohttp's, which goes to the same gate and the same handlers. `secure`: TLS on every connection, and access control;
    the load is that of a user with the roles reader and writer, by its token: wrk shows no certificate."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        fast_path: bool = True,
        secure: bool = False,
    ) -> None:
        environment = {} if fast_path else {FAST_PATH_VARIABLE: "0"}
        self.name = SECURE if secure else NAME if fast_path else PLAIN
        self._headers: dict[str, str] = {}
        settings = {"security.client_certificates": "optional"} if secure else None
        self.cluster = LocalCluster(
            folder, nodes, settings=settings, command=_VARIANT, environment=environment, secure=secure
        )
        self._controls = dict(zip(self.cluster.nodes, free_ports(nodes), strict=True))
        for node, port in self._controls.items():
            self.cluster.environments[node] = {control.PORT_VARIABLE: str(port)}

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""
        return [pid for node in self.cluster.nodes if (pid := self.cluster.pid(node)) is not None]

    def start(self, timeout_s: float = 120.0) -> None:
        """Start all nodes and wait until they serve."""
        self.cluster.start()
        self.cluster.wait_ready(timeout_s=timeout_s)
        if self.cluster.is_secure:
            make_first_admin(self.cluster)
            token = make_token()
            with SyncClient(self.cluster.urls, sessions=False, tls=self.cluster.tls_files()) as client:
                client.call(change(AccessIn("set_user", "bench", roles=["reader", "writer"])))
                client.call(
                    change(AccessIn("add_token", "bench", token=token.identifier, token_hash=token.digest.hex()))
                )
            self._headers = {"Authorization": f"Bearer {token.text}"}

    def stop(self) -> None:
        """End all nodes."""
        self.cluster.stop()

    def prepare(self, value: bytes) -> None:
        """Put the key that the read load asks for. Raises RuntimeError if that fails."""
        self.ask("PUT", "/v1/kv/bench", value)

    def ask(self, method: str, target: str, body: bytes = b"", content_type: str = "application/octet-stream") -> bytes:
        """One request to the leader. Raises RuntimeError for any answer but 200."""
        return self.ask_all(method, target, [body], content_type)

    def ask_all(
        self, method: str, target: str, bodies: Iterable[bytes], content_type: str, *, again_s: float = 0.0
    ) -> bytes:
        """One request after the other over one connection to the leader; the last answer. Raises RuntimeError.

        `again_s` is for requests that may be carried out twice. It is the longest time in seconds to repeat a request,
        to the leader of the moment, while the answer is 503 or 504.
        """
        connection = self._connect()
        content = b""
        try:
            for body in bodies:
                give_up = time.monotonic() + again_s
                while True:
                    connection.request(method, target, body, {"Content-Type": content_type})
                    answer = connection.getresponse()
                    content = answer.read()
                    if answer.status == 200:
                        break
                    if answer.status not in _AGAIN or time.monotonic() >= give_up:
                        raise RuntimeError(f"{method} {target} answered {answer.status}: {content[:300]!r}")
                    connection.close()
                    time.sleep(_PAUSE_S)
                    connection = self._connect()
        finally:
            connection.close()
        return content

    def _connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.url).netloc
        if self.cluster.is_secure:
            context = client_context(self.cluster.tls_files(), checks_host=True)
            return http.client.HTTPSConnection(address, timeout=60, context=context)
        return http.client.HTTPConnection(address, timeout=60)

    @property
    def url(self) -> str:
        """The leader's."""
        return self.cluster.url(self.cluster.leader())

    def write(self, value: bytes) -> wrk.Load:
        """Append one record at the leader."""
        return wrk.Load(f"{self.url}/v1/log", "POST", value, headers=self._headers)

    def bulk_json(self, value: bytes, count: int) -> wrk.Load:
        """Append so many records in one request."""
        body = msgspec.json.encode([{"value": value.decode()}] * count)
        return wrk.Load(f"{self.url}/v1/log", "POST", body, "application/json")

    def bulk_msgpack(self, value: bytes, count: int) -> wrk.Load:
        """The same as msgpack."""
        return wrk.Load(f"{self.url}/v1/log", "POST", msgspec.msgpack.encode([value] * count), "application/msgpack")

    def read(self) -> wrk.Load:
        """A linearizable get of one key at the leader."""
        return wrk.Load(f"{self.url}/v1/kv/bench", "GET", headers=self._headers)

    def handshake(self) -> wrk.Load:
        """A new connection for each request, which asks for little."""
        return wrk.Load(f"{self.url}/livez", "GET", headers={"Connection": "close"})

    def commit(self, size: int, in_flight: int, seconds: float) -> Run:
        """So many appends in flight from within the leader's process: no HTTP."""
        return control.send(self._controls[self.cluster.leader()], control.Order(in_flight, seconds, size))
