"""Runs etcd as a peer: three nodes on loopback, asked through the JSON gateway and through gRPC.

Debian's (3.4) and the newest, as `make peers` obtains them. It syncs its log before it answers, as raftlog does.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.instruments.processes import Processes
from bench.instruments.tools import Program
from bench.loads import h2load, wrk
from raftlog.cluster.node.ports import free_ports
from raftlog.cluster.security import authority

KEY = b"bench"
TXN_OPERATIONS_MAX = 128
"""etcd's own limit (--max-txn-ops)."""


class Etcd(Processes):
    """Three etcd processes under one folder, started by `start`, ended by `stop`."""

    def __init__(self, program: Program, folder: Path, *, secure: bool = False) -> None:
        """`secure`: TLS on every connection, and authentication; the load is that of a user with a role for all keys,
        by its token."""
        self._program = program
        super().__init__(folder)
        ports = free_ports(6)
        self._clients, self._peers = ports[:3], ports[3:]
        self._leader = 0
        self._tls = folder / "tls" if secure else None
        self._scheme = "https" if secure else "http"
        self._headers: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Name and version, as in "etcd 3.4.23"."""
        done = subprocess.run([self._program.path, "--version"], capture_output=True, text=True, check=True)
        return "etcd " + done.stdout.split("etcd Version:", 1)[1].split()[0] + (", secure" if self._tls else "")

    @property
    def url(self) -> str:
        """Where clients find the leader."""
        return f"{self._scheme}://127.0.0.1:{self._leader}"

    def start(self, deadline_s: float = 30.0) -> None:
        """Start all nodes and wait until they have a leader. Raises RuntimeError after the deadline."""
        cluster = ",".join(f"n{k}={self._scheme}://127.0.0.1:{port}" for k, port in enumerate(self._peers))
        flags: dict[str, object] = {
            "initial-cluster": cluster,
            "initial-cluster-state": "new",
            "log-level": "error",
            "snapshot-count": 100_000,
            "quota-backend-bytes": 8 << 30,
        }
        if self._tls is not None:
            authority.make_authority(self._tls, "bench")
            made = authority.make_node(self._tls, "bench", 1, ["127.0.0.1"])
            for side in ("", "peer-"):
                flags |= {f"{side}cert-file": made.certificate, f"{side}key-file": made.key}
            flags |= {"peer-trusted-ca-file": self._tls / "ca.pem", "peer-client-cert-auth": "true"}
        for k, (own, other) in enumerate(zip(self._clients, self._peers, strict=True)):
            client, peer = f"{self._scheme}://127.0.0.1:{own}", f"{self._scheme}://127.0.0.1:{other}"
            own_flags: dict[str, object] = {
                "name": f"n{k}",
                "data-dir": f"etcd-{k}",
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
            }
            words = [f"--{name}={value}" for name, value in (own_flags | flags).items()]
            self.launch(f"n{k}", [self._program.path, *words], self._program.full_environment())
        self._leader = self.wait("etcd has a leader", self._find_leader, deadline_s=deadline_s)
        if self._tls is not None:
            self._switch_authentication_on()

    def _switch_authentication_on(self) -> None:
        self.ask("/v3/auth/role/add", {"name": "all"})
        permission = {"permType": "READWRITE", "key": _b64(b"\0"), "range_end": _b64(b"\0")}  # every key
        self.ask("/v3/auth/role/grant", {"name": "all", "perm": permission})
        for user, role in (("root", "root"), ("bench", "all")):
            self.ask("/v3/auth/user/add", {"name": user, "password": "bench"})
            self.ask("/v3/auth/user/grant", {"user": user, "role": role})
        self.ask("/v3/auth/enable", {})
        granted = self.ask("/v3/auth/authenticate", {"name": "bench", "password": "bench"})
        self._headers = {"authorization": granted["token"]}

    def _find_leader(self) -> int | None:
        for port in self._clients:
            with suppress(OSError, ValueError, LookupError):
                status = self.ask("/v3/maintenance/status", {}, port)
                if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                    return port
        return None

    def ask(self, path: str, body: dict[str, Any], port: int = 0) -> Any:
        """One call of the JSON gateway, of the leader unless said otherwise. Raises OSError."""
        url = f"{self._scheme}://127.0.0.1:{port or self._leader}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), self._headers, method="POST")
        context = None if self._tls is None else ssl.create_default_context(cafile=self._tls / "ca.pem")
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return json.load(answer)

    def prepare(self, value: bytes, keys: int = 0) -> None:
        """Put the key that the read load asks for, and `keys` more in order, for the range."""
        self.ask("/v3/kv/put", {"key": _b64(KEY), "value": _b64(value)})
        for first in range(0, keys, 100):
            puts = [
                {"request_put": {"key": _b64(b"log/%09d" % k), "value": _b64(value)}}
                for k in range(first, min(keys, first + 100))
            ]
            self.ask("/v3/kv/txn", {"success": puts})

    def gateway_put(self, value: bytes) -> wrk.Load:
        """Put one key."""
        body = json.dumps({"key": _b64(KEY), "value": _b64(value)})
        return wrk.Load(f"{self.url}/v3/kv/put", "POST", body, "application/json", headers=self._headers)

    def gateway_get(self) -> wrk.Load:
        """A linearizable range of one key."""
        body = json.dumps({"key": _b64(KEY)})
        return wrk.Load(f"{self.url}/v3/kv/range", "POST", body, "application/json", headers=self._headers)

    def handshake(self) -> wrk.Load:
        """A new connection for each request, which asks for little."""
        return wrk.Load(f"{self.url}/version", "GET", headers={"Connection": "close"})

    def grpc_put(self, value: bytes) -> h2load.Load:
        """Put one key."""
        return h2load.Load(f"{self.url}/etcdserverpb.KV/Put", put_message(KEY, value), self._headers)

    def grpc_get(self) -> h2load.Load:
        """A linearizable range of one key."""
        return h2load.Load(f"{self.url}/etcdserverpb.KV/Range", h2load.field(1, KEY), self._headers)

    def grpc_txn(self, value: bytes, count: int) -> h2load.Load:
        """So many puts in one transaction, at most TXN_OPERATIONS_MAX."""
        puts = (put_message(b"bulk/%03d" % k, value) for k in range(count))
        message = b"".join(h2load.field(2, h2load.field(2, put)) for put in puts)
        return h2load.Load(f"{self.url}/etcdserverpb.KV/Txn", message)

    def grpc_range(self, count: int) -> h2load.Load:
        """`count` of the keys of `prepare`, with their values."""
        message = h2load.field(1, b"log/") + h2load.field(2, b"log0") + h2load.field(3, count)
        return h2load.Load(f"{self.url}/etcdserverpb.KV/Range", message)


def put_message(key: bytes, value: bytes) -> bytes:
    """etcdserverpb.PutRequest."""
    return h2load.field(1, key) + h2load.field(2, value)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
