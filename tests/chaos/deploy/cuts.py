"""Cuts nodes of a deployment off from their peers or clients; `Deployment.heal` ends all of it."""

from __future__ import annotations

from raftlog.chaos.deploy.deployment import Deployment, client_proxy, peer_proxy
from raftlog.chaos.deploy.toxiproxy import Stream


def _of(deployment: Deployment, node: int) -> list[str]:
    """The proxies of both directions between the node and each of its peers."""
    others = [other for other in (*deployment.first_nodes, *deployment.spares) if other != node]
    return [name for other in others for name in (peer_proxy(node, other), peer_proxy(other, node))]


def cut(deployment: Deployment, proxy: str, stream: Stream = "upstream") -> None:
    """Bytes of that direction of the proxy are swallowed; the other direction goes on."""
    deployment.toxiproxy.add_toxic(proxy, f"cut-{stream}", "timeout", stream, {"timeout": 0})


def isolate(deployment: Deployment, node: int) -> None:
    """Nothing between this node and any peer arrives; connections stay open, and neither side gets an error."""
    for proxy in _of(deployment, node):
        cut(deployment, proxy)


def refuse_peers(deployment: Deployment, node: int) -> None:
    """As isolate, but the connections between this node and its peers are closed, and dials refused."""
    for proxy in _of(deployment, node):
        deployment.toxiproxy.disable(proxy)


def cut_client(deployment: Deployment, node: int, stream: Stream) -> None:
    """Requests to (upstream) or answers of (downstream) this node's API are swallowed."""
    cut(deployment, client_proxy(node), stream)


def refuse_clients(deployment: Deployment, node: int) -> None:
    """Clients of this node are dropped and refused."""
    deployment.toxiproxy.disable(client_proxy(node))
