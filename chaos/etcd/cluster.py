"""Runs a real etcd behind the same proxies as a raftlog cluster, so that the same nemeses break it.

There is one proxy per ordered pair of members (`raftlog.chaos.etcd.router` leads etcd there) and one per member for
clients. Each etcd peer dials the other, and *reads* the other's messages or posts its own. So bytes from i to j travel
back on the connections that j dialled, and forth on those that i dialled. A toxic for the direction i to j is placed on
both.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from raftlog.chaos.deploy.deployment import START_S, client_proxy, peer_proxy
from raftlog.chaos.deploy.ports import addresses
from raftlog.chaos.deploy.processes import Process, Processes
from raftlog.chaos.deploy.toxiproxy import Stream, Toxiproxy
from raftlog.chaos.etcd.router import PEER_HOST
from raftlog.cluster.node.local_cluster import LocalClusterError

HEARTBEAT_MS: Final = 50
ELECTION_MS: Final = 500
"""A tenth and a half of etcd's own, so that a fault of seconds meets several elections."""

PEER_PORT: Final = 2380
ASK_S: Final = 2.0
READY_S: Final = 30.0
STOP_S: Final = 15.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """What a member says of itself."""

    node: int
    role: str
    term: int
    index: int
    revision: int


class EtcdCluster:
    """The members as processes; the questions and orders of a `LocalCluster` that nemeses have for one."""

    def __init__(
        self, binary: Path, folder: Path, processes: Processes, peers: Mapping[int, int], apis: Mapping[int, int],
        advertised: Mapping[int, str], routers: Mapping[int, str],
    ) -> None:  # fmt: skip
        """`peers` and `apis`: ports of each member; `advertised`: where clients reach it; `routers`: HTTP_PROXY."""
        self._binary = binary
        self._folder = folder
        self._processes = processes
        self._peers = peers
        self._apis = apis
        self._advertised = advertised
        self._routers = routers
        self._running: dict[int, Process] = {}
        self._paused: set[int] = set()

    @property
    def nodes(self) -> list[int]:
        """The ids of all members."""
        return list(self._apis)

    @property
    def running(self) -> list[int]:
        """Those whose processes run or stand."""
        return [node for node in self.nodes if self.pid(node) is not None]

    def url(self, node: int) -> str:
        """Its own address, past the proxies."""
        return f"http://127.0.0.1:{self._apis[node]}"

    def pid(self, node: int) -> int | None:
        """Its process, or None when it does not run."""
        process = self._running.get(node)
        return process.pid if process is not None and process.is_running else None

    def start(self, nodes: Iterable[int] | None = None) -> None:
        """Starts all members (or these) that do not run."""
        for node in nodes if nodes is not None else self.nodes:
            self.start_node(node)

    def start_node(self, node: int) -> None:
        """Starts one unless it runs."""
        if self.pid(node) is not None:
            return
        self._paused.discard(node)
        members = ",".join(f"n{each}={_peer_url(each)}" for each in self.nodes)
        argv: list[str | Path] = [
            self._binary, "--name", f"n{node}", "--data-dir", self._folder / "data" / f"etcd-{node}",
            "--listen-client-urls", self.url(node), "--advertise-client-urls", self._advertised[node],
            "--listen-peer-urls", f"http://127.0.0.1:{self._peers[node]}",
            "--initial-advertise-peer-urls", _peer_url(node), "--initial-cluster", members,
            "--initial-cluster-state", "new", "--log-level", "warn",
            "--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS),
        ]  # fmt: skip
        proxies = {"HTTP_PROXY": f"http://{self._routers[node]}", "NO_PROXY": "", "no_proxy": "", "HTTPS_PROXY": ""}
        self._running[node] = self._processes.start(
            f"etcd {node}", argv, log=self._folder / f"node-{node}.log", environment=proxies
        )

    def stop_node(self, node: int, number: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_S) -> int:
        """Stops it cleanly; 0. etcd ends itself by the very signal that it was stopped with."""
        process = self._running[node]
        process.signal(number)
        code = process.wait(timeout_s)
        return 0 if code == -number else code

    def kill(self, *nodes: int) -> None:
        """SIGKILL, to all of them before any is waited for."""
        killed = [self._running[node] for node in nodes if self.pid(node) is not None]
        for process in killed:
            process.signal(signal.SIGKILL)
        for process in killed:
            process.wait(STOP_S)
        self._paused.difference_update(nodes)

    def pause(self, node: int) -> None:
        """SIGSTOP; the process has stopped when this returns."""
        self._running[node].pause()
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._running[node].signal(signal.SIGCONT)
        self._paused.discard(node)

    def ask(self, node: int, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = ASK_S) -> Any:
        """What a member answers to GET, or with a body to POST. Raises OSError or ValueError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url(node)}{path}", data)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def hash(self, node: int, revision: int) -> dict[str, Any]:
        """A member's hash of its keys up to a revision (HashKV). Raises OSError or ValueError.

        Up to 3.4 this path served Hash. Newer versions have Hash at another path: a hash of everything that a member
        stores, also its own bookkeeping (etcd #16464).
        """
        try:
            told: dict[str, Any] = self.ask(node, "/v3/maintenance/hashkv", {"revision": revision})
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            told = self.ask(node, "/v3/maintenance/hash", {"revision": revision})
        return told

    def status(self, node: int) -> EtcdStatus | None:
        """The member's own status, or None when it does not answer."""
        try:
            return status_of(node, self.ask(node, "/v3/maintenance/status", {}))
        except (OSError, ValueError, KeyError):
            return None

    def leader(self, timeout_s: float = READY_S) -> int:
        """The member that leads in the newest term. Raises LocalClusterError when none does in time."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            told = [self.status(node) for node in self.running if node not in self._paused]
            if leaders := [(each.term, each.node) for each in told if each is not None and each.role == "leader"]:
                return max(leaders)[1]
            time.sleep(POLL_S)
        raise LocalClusterError(f"no leader within {timeout_s:g} s\n{self.tails()}")

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = READY_S) -> None:
        """Waits until these members (all that run) answer a linearizable read. Raises LocalClusterError."""
        end = time.monotonic() + timeout_s
        for node in nodes if nodes is not None else self.running:
            while True:
                with contextlib.suppress(OSError, ValueError):
                    if self.ask(node, "/health").get("health") == "true":
                        break
                if self.pid(node) is None or time.monotonic() > end:
                    raise LocalClusterError(f"etcd {node} is not ready within {timeout_s:g} s\n{self.tail(node)}")
                time.sleep(POLL_S)

    def restore(self, timeout_s: float = READY_S) -> None:
        """Starts or resumes all members and waits until they are ready."""
        for node in list(self._paused):
            self.resume(node)
        self.start()
        self.wait_ready(timeout_s=timeout_s)

    def tail(self, node: int) -> str:
        """The end of its log."""
        process = self._running.get(node)
        return "" if process is None else process.tail()

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(self.tail(node) for node in self.nodes)


class EtcdProxies:
    """Toxiproxy as the nemeses drive it, for links on which what i sends to j travels on two connections."""

    def __init__(self, real: Toxiproxy) -> None:
        self._real = real

    def add_toxic(
        self, proxy: str, name: str, kind: str, stream: Stream, attributes: dict[str, int] | None = None
    ) -> None:
        """On the link and, where it is one of peers, on the way back of the opposite one."""
        self._real.add_toxic(proxy, name, kind, stream, attributes)
        if (back := _opposite(proxy)) is not None:
            other: Stream = "downstream" if stream == "upstream" else "upstream"
            self._real.add_toxic(back, f"{name}-back", kind, other, attributes)

    def remove_toxic(self, proxy: str, name: str) -> None:
        """From both."""
        self._real.remove_toxic(proxy, name)
        if (back := _opposite(proxy)) is not None:
            self._real.remove_toxic(back, f"{name}-back")

    def disable(self, proxy: str) -> None:
        """As the server does."""
        self._real.disable(proxy)

    def enable(self, proxy: str) -> None:
        """As the server does."""
        self._real.enable(proxy)

    def toxics(self) -> dict[str, list[str]]:
        """What the server lists."""
        return self._real.toxics()


class EtcdDeployment:
    """Members, proxies and router; what nemeses know of a `raftlog.chaos.deploy.deployment.Deployment`. A context
    manager."""

    def __init__(self, binary: Path, folder: Path, ports: Callable[[int], list[int]], *, nodes: int) -> None:
        self.folder = folder
        self.processes = Processes()
        ids = range(1, nodes + 1)
        pairs = [(sender, to) for sender in ids for to in ids if sender != to]
        self._pairs = dict(zip(pairs, addresses(ports(len(pairs))), strict=True))
        self._clients = dict(zip(ids, addresses(ports(nodes)), strict=True))
        self._routers = dict(zip(ids, addresses(ports(nodes)), strict=True))
        self._peers = dict(zip(ids, ports(nodes), strict=True))
        (self._api_port,) = ports(1)
        self._real: Toxiproxy | None = None
        apis = dict(zip(ids, ports(nodes), strict=True))
        advertised = {node: self.url(node) for node in ids}
        self.cluster = EtcdCluster(binary, folder, self.processes, self._peers, apis, advertised, self._routers)

    def __enter__(self) -> EtcdDeployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Starts proxies, router and members, and waits until they are ready."""
        (self.folder / "data").mkdir(parents=True)
        self._real = Toxiproxy(self.processes, self._api_port, self.folder)
        routes: dict[str, dict[str, str]] = {}
        for (sender, to), listen in self._pairs.items():
            self._real.add_proxy(peer_proxy(sender, to), listen=listen, upstream=f"127.0.0.1:{self._peers[to]}")
            routes.setdefault(self._routers[sender], {})[f"{PEER_HOST.format(to)}:{PEER_PORT}"] = listen
        for node, listen in self._clients.items():
            upstream = self.cluster.url(node).removeprefix("http://")
            self._real.add_proxy(client_proxy(node), listen=listen, upstream=upstream)
        argv = [sys.executable, "-m", "raftlog.chaos.etcd.router", json.dumps(routes)]
        self.processes.start("router", argv, log=self.folder / "router.log")
        self.cluster.start()
        self.cluster.wait_ready(timeout_s=START_S)

    def close(self) -> None:
        """Kills every process; files stay."""
        if self._real is not None:
            self._real.close()
        self.processes.close()

    @property
    def toxiproxy(self) -> EtcdProxies:
        """The server."""
        assert self._real is not None, "the deployment was not started"
        return EtcdProxies(self._real)

    def url(self, node: int) -> str:
        """The base URL of the member's proxy for clients."""
        return f"http://{self._clients[node]}"

    @property
    def dial(self) -> dict[int, str]:
        """Of all members."""
        return {node: self.url(node) for node in self._clients}

    def peer_address(self, sender: int, to: int) -> str:
        """Where what `sender` sends to `to` goes through: host:port of the proxy."""
        return self._pairs[sender, to]

    def heal(self) -> None:
        """Takes every fault of the network away."""
        assert self._real is not None, "the deployment was not started"
        self._real.reset()


def status_of(node: int, told: Mapping[str, Any]) -> EtcdStatus:
    """The answer of /v3/maintenance/status. Raises KeyError or ValueError."""
    header = told["header"]
    is_leader = "leader" in told and told["leader"] == header["member_id"]
    return EtcdStatus(
        node, "leader" if is_leader else "follower", int(told.get("raftTerm", 0)), int(told.get("raftIndex", 0)),
        int(header.get("revision", 0)),
    )  # fmt: skip


def _opposite(proxy: str) -> str | None:
    words = proxy.split("-")
    return peer_proxy(int(words[2]), int(words[1])) if words[0] == "peer" else None


def _peer_url(node: int) -> str:
    return f"http://{PEER_HOST.format(node)}:{PEER_PORT}"


_TOOLS: Final = Path(__file__).resolve().parent.parent.parent / ".tools"


class EtcdNotFoundError(RuntimeError):
    """There is no etcd here; the message says how to get one."""


def etcd_path() -> Path:
    """The executable. Raises EtcdNotFoundError."""
    built = sorted(each for each in _TOOLS.glob("etcd-*") if each.is_file() and os.access(each, os.X_OK))
    if built:
        return built[-1]
    if found := shutil.which("etcd"):
        return Path(found)
    raise EtcdNotFoundError(
        "skipped: there is no etcd, neither in .tools (`make peers` builds one where Go is) nor on PATH "
        "(apt-get install etcd-server)"
    )
