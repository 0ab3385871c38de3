"""Runs a real cluster to break: node processes, one proxy per ordered pair of peers and one per node for clients.

On a peer link only the dialler writes. So bytes from i to j travel upstream on the proxy i→j and nowhere else, and a
toxic there cuts exactly one direction. Every node dials its peers through its own proxies (dial overrides), whatever
addresses the log's configuration names. So no membership change or leader hint bypasses the proxies. Numbers of nodes
that may join later have their proxies from the beginning. The nodes are a `raftlog.cluster.node.local_cluster`. Nodes
and proxies end with the deployment, also when the harness is killed (`raftlog.chaos.deploy.processes`).

Methods block for milliseconds; from asyncio: `asyncio.to_thread`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from raftlog.chaos.deploy.disk_account import DiskAccount
from raftlog.chaos.deploy.processes import Guard
from raftlog.chaos.deploy.sink_process import SinkProcess
from raftlog.chaos.deploy.toxiproxy import Toxiproxy, ToxiproxyHungError
from raftlog.chaos.shim.driver import Shim
from raftlog.chaos.shim.library import ShimMissing
from raftlog.cluster.node.first_admin import as_operator
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.node.ports import addresses

NODE_COMMAND: Final = (sys.executable, "-m", "raftlog.cluster.cli.main")
START_S: Final = 120.0
"""Until all nodes serve at first: seven interpreters start at once, on two cores that others may use too."""


class Deployment:
    """A cluster of `nodes` in `folder` behind proxies; a context manager. Nothing runs before `start`.

    `ports` gives free ports, `settings` are keys of the settings file (`raft.heartbeat_ms`) for every node,
    `command` runs the command line of each. `spares` more nodes may join later. With `has_shim` every node carries the
    preload library if it can be built; else `shim` is None and `no_shim` says why. `secure`: TLS on every link, and
    access control. Clients of this process then use the certificate of the first admin, until the deployment ends.
    """

    def __init__(
        self,
        folder: Path,
        ports: Callable[[int], list[int]],
        *,
        nodes: int = 3,
        spares: int = 0,
        has_shim: bool = False,
        secure: bool = False,
        settings: Mapping[str, Any] | None = None,
        command: Sequence[str] = NODE_COMMAND,
    ) -> None:
        self.folder = folder
        self._guard = Guard()
        self._command = command
        self.sink: SinkProcess | None = None
        self.disks = DiskAccount()
        self.shim: Shim | None = None
        self.no_shim = "this run was begun without the preload library"
        self._has_shim = has_shim
        self.first_nodes = list(range(1, nodes + 1))
        self.spares = list(range(nodes + 1, nodes + spares + 1))
        ids = [*self.first_nodes, *self.spares]
        pairs = [(sender, to) for sender in ids for to in ids if sender != to]
        self._peers = dict(zip(pairs, addresses(ports(len(pairs))), strict=True))
        self._clients = dict(zip(ids, addresses(ports(len(ids))), strict=True))
        (self._api_port,) = ports(1)
        self._toxiproxy: Toxiproxy | None = None
        self._operator = ExitStack()
        self.cluster = LocalCluster(
            folder,
            nodes,
            settings=settings,
            ports=ports(2 * nodes),
            dial={node: self.dial_of(node) for node in self.first_nodes},
            secure=secure,
            command=command,
            started=self._guard.watch,
        )
        self._upstream = {
            node: (self.cluster.place(node).peer, urlsplit(self.cluster.url(node)).netloc) for node in self.first_nodes
        }
        for node in self.spares:
            peer, http = addresses(ports(2))
            self._upstream[node] = peer, http

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the proxies and all nodes, and waits until they are ready."""
        self.start_proxies()
        if self._has_shim:
            try:
                self.shim = Shim(self.folder / "shim", [self.cluster.data(node) for node in self.first_nodes])
            except ShimMissing as error:
                self.no_shim = str(error)
        for node in self.first_nodes:
            self.prepare(node)
        self.cluster.start()
        self.cluster.wait_ready(timeout_s=START_S)
        if self.cluster.is_secure:
            self._operator.enter_context(as_operator(self.cluster))

    def start_proxies(self) -> None:
        """Starts a Toxiproxy server with every proxy; nothing is done to any."""
        self._toxiproxy = Toxiproxy(self._guard, self._api_port, self.folder)
        for (sender, to), listen in self._peers.items():
            self._toxiproxy.add_proxy(peer_proxy(sender, to), listen=listen, upstream=self._upstream[to][0])
        for node, listen in self._clients.items():
            self._toxiproxy.add_proxy(client_proxy(node), listen=listen, upstream=self._upstream[node][1])

    def make_sink(self, prefix: str) -> SinkProcess:
        """A sink of the keys below the prefix, whose runners reach the nodes through their proxies."""
        self.sink = SinkProcess(self.folder / "sink", prefix, self.urls, self._command, self._guard.watch)
        return self.sink

    def close(self) -> None:
        """Kills every process; files stay."""
        if self.sink is not None:
            self.sink.kill()
        self._operator.close()
        self.cluster.kill(*self.cluster.running)
        if self._toxiproxy is not None:
            self._toxiproxy.close()
        self._guard.close()

    # Where clients go.

    def url(self, node: int) -> str:
        """The base URL of the node's proxy for clients."""
        return f"{self.cluster.scheme}://{self._clients[node]}"

    @property
    def urls(self) -> list[str]:
        """Of all nodes."""
        return [self.url(node) for node in self.first_nodes]

    def peer_address(self, sender: int, to: int) -> str:
        """Where `sender` dials to reach `to`: host:port of the proxy."""
        return self._peers[sender, to]

    @property
    def dial(self) -> dict[int, str]:
        """What a client should dial for the URL that a node advertises, so that leader hints keep the proxies. Nodes
        that join later advertise their proxy."""
        return {node: self.url(node) for node in self.first_nodes}

    # Disks, and nodes that join.

    def peer_of(self, node: int) -> str:
        """Where that node listens to its peers: host:port."""
        return self._upstream[node][0]

    def http_of(self, node: int) -> str:
        """Where its API listens: host:port."""
        return self._upstream[node][1]

    def dial_of(self, node: int) -> dict[int, str]:
        """What that node dials instead of its peers' addresses."""
        return {to: at for (sender, to), at in self._peers.items() if sender == node}

    def prepare(self, node: int, **environment: str) -> None:
        """What the node has in its environment when it is started next: the preload library, and this."""
        own = dict(self.shim.environment(self.cluster.data(node))) if self.shim is not None else {}
        preloads = [each for each in (environment.pop("LD_PRELOAD", ""), own.pop("LD_PRELOAD", "")) if each]
        self.cluster.environments[node] = {
            **own,
            **environment,
            **({"LD_PRELOAD": ":".join(preloads)} if preloads else {}),
        }

    def changed_disk(self, node: int) -> None:
        """The harness itself has changed the files of this node, which does not run: as they are they are durable."""
        if self.shim is not None:
            self.shim.watch(self.cluster.data(node))

    def join(self, node: int, text: str) -> None:
        """Starts a node of that number on the new disk of this join file; one that has the number must not run."""
        adopted = self.cluster.adopt(text, dial=self.dial_of(node), http=self._upstream[node][1])
        assert adopted == node, f"a join file for node {adopted}, not for node {node}"
        self.changed_disk(node)
        self.prepare(node)
        self.cluster.start_node(node)

    @property
    def toxiproxy(self) -> Toxiproxy:
        """The server, for faults of the network. All end with `heal`."""
        if self._toxiproxy is None:
            raise RuntimeError("the deployment was not started: there are no proxies")
        return self._toxiproxy

    def heal(self) -> None:
        """Takes every fault of the network away; a server that hangs over it is replaced by another one."""
        try:
            self.toxiproxy.reset()
        except ToxiproxyHungError:
            self.toxiproxy.close()
            self.start_proxies()

    def restore(self) -> None:
        """Returns the deployment to its first state: no link cut, all nodes running and ready."""
        self.heal()
        self.cluster.restore()


def peer_proxy(sender: int, to: int) -> str:
    """The name of the proxy that `sender` dials to reach `to`."""
    return f"peer-{sender}-{to}"


def client_proxy(node: int) -> str:
    """The name of the proxy that stands before a node's API."""
    return f"client-{node}"
