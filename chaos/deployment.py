"""A real cluster to break: node processes, one proxy per ordered pair of peers and one per node for clients.

On a peer link only the dialler writes, so bytes from i to j travel upstream on the proxy i→j and nowhere else: a toxic
there cuts exactly one direction. Every node dials its peers through its own proxies (dial overrides), whatever
addresses the log's configuration names, so that no membership change or leader hint goes round them. The nodes are a
`cluster.local_cluster`; nodes and proxies end with the deployment, however that ends (`chaos.processes`).

Methods block for milliseconds; from asyncio: `asyncio.to_thread`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from chaos.processes import Processes
from chaos.toxiproxy import Stream, Toxiproxy
from cluster.local_cluster import LocalCluster

_CUT: Final = "cut"
NODE_COMMAND: Final = (sys.executable, "-m", "cluster.cli")
START_S: Final = 120.0
"""Until all nodes serve at first: seven interpreters start at once, on two cores that others may use too."""


class Deployment:
    """A cluster of `nodes` in `folder` behind proxies; a context manager. Nothing runs before `start`.

    `ports` gives free ports, `settings` are keys of the settings file (`raft.heartbeat_ms`) for every node,
    `command` runs the command line of each.
    """

    def __init__(
        self,
        folder: Path,
        ports: Callable[[int], list[int]],
        *,
        nodes: int = 3,
        settings: Mapping[str, Any] | None = None,
        command: Sequence[str] = NODE_COMMAND,
    ) -> None:
        self.folder = folder
        self.processes = Processes()
        ids = range(1, nodes + 1)
        pairs = [(sender, to) for sender in ids for to in ids if sender != to]
        self._peers = dict(zip(pairs, _addresses(ports(len(pairs))), strict=True))
        self._clients = dict(zip(ids, _addresses(ports(nodes)), strict=True))
        (self._api_port,) = ports(1)
        self._toxiproxy: Toxiproxy | None = None
        self.cluster = LocalCluster(
            folder,
            nodes,
            settings=settings,
            ports=ports(2 * nodes),
            dial={node: {to: at for (sender, to), at in self._peers.items() if sender == node} for node in ids},
            command=command,
            started=self.processes.watch,
        )

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Starts the proxies and all nodes, and waits until they are ready."""
        self._toxiproxy = Toxiproxy(self.processes, self._api_port, self.folder)
        for (sender, to), listen in self._peers.items():
            self._toxiproxy.add_proxy(peer_proxy(sender, to), listen=listen, upstream=self.cluster.place(to).peer)
        for node, listen in self._clients.items():
            upstream = self.cluster.url(node).removeprefix("http://")
            self._toxiproxy.add_proxy(client_proxy(node), listen=listen, upstream=upstream)
        self.cluster.start()
        self.cluster.wait_ready(timeout_s=START_S)

    def close(self) -> None:
        """Kills every process; files stay."""
        self.cluster.kill(*self.cluster.running)
        if self._toxiproxy is not None:
            self._toxiproxy.close()
        self.processes.close()

    # Where clients go.

    def url(self, node: int) -> str:
        """The base URL of the node's proxy for clients."""
        return f"http://{self._clients[node]}"

    @property
    def urls(self) -> list[str]:
        """Of all nodes."""
        return [self.url(node) for node in self._clients]

    def peer_address(self, sender: int, to: int) -> str:
        """Where `sender` dials to reach `to`: host:port of the proxy."""
        return self._peers[sender, to]

    @property
    def dial(self) -> dict[int, str]:
        """What a client should dial for the URL that a node advertises, so that leader hints keep the proxies."""
        return {node: self.url(node) for node in self._clients}

    # Faults of the network. All end with `heal`.

    @property
    def toxiproxy(self) -> Toxiproxy:
        """The server, for faults that have no method here."""
        if self._toxiproxy is None:
            raise RuntimeError("the deployment was not started: there are no proxies")
        return self._toxiproxy

    def cut(self, sender: int, to: int) -> None:
        """What `sender` sends to the peer `to` is swallowed; the other direction goes on."""
        self.toxiproxy.add_toxic(peer_proxy(sender, to), _CUT, "timeout", "upstream", {"timeout": 0})

    def partition(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Nothing between the two groups arrives; nobody is told."""
        for left in one:
            for right in other:
                self.cut(left, right)
                self.cut(right, left)

    def isolate(self, node: int) -> None:
        """Nothing between this node and any peer arrives; nobody is told."""
        self.partition([node], self._others(node))

    def refuse_peers(self, node: int) -> None:
        """As isolate, but the connections between this node and its peers are closed, and dials refused."""
        for other in self._others(node):
            self.toxiproxy.disable(peer_proxy(node, other))
            self.toxiproxy.disable(peer_proxy(other, node))

    def cut_client(self, node: int, stream: Stream) -> None:
        """Requests to (upstream) or answers of (downstream) this node's API are swallowed."""
        self.toxiproxy.add_toxic(client_proxy(node), f"{_CUT}-{stream}", "timeout", stream, {"timeout": 0})

    def refuse_clients(self, node: int) -> None:
        """Clients of this node are dropped and refused."""
        self.toxiproxy.disable(client_proxy(node))

    def heal(self) -> None:
        """Takes every fault of the network away."""
        self.toxiproxy.reset()

    def restore(self) -> None:
        """The deployment as it began, whatever was done to it: nothing cut, all nodes running and ready."""
        self.heal()
        self.cluster.restore()

    def _others(self, node: int) -> list[int]:
        return [other for other in self._clients if other != node]


def _addresses(ports: Sequence[int]) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports]


def peer_proxy(sender: int, to: int) -> str:
    """The name of the proxy that `sender` dials to reach `to`."""
    return f"peer-{sender}-{to}"


def client_proxy(node: int) -> str:
    """The name of the proxy that stands before a node's API."""
    return f"client-{node}"
