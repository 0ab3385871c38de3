"""Reads from a certificate which node or client it names, and decides whether that node may speak as a peer.

The peer links and the HTTP API ask. A certificate names its holder by a URI among its subject alternative names:
`raftlog://LOG/node/3` or `raftlog://LOG/client/NAME` (RFC 5280, section 4.2.1.6). LOG is the log id of the cluster. A
certificate that was made elsewhere may leave the URI out: it is a client's, and its common name is the client's name.
Pure: `certificate` is what `ssl.SSLSocket.getpeercert` returns for a verified certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

SCHEME: Final = "raftlog"


class HolderKind(StrEnum):
    NODE = "node"
    CLIENT = "client"


class Holder(NamedTuple):
    """The holder that a certificate names. `log` is empty if it counts for any cluster of its authority."""

    log: str
    kind: HolderKind
    name: str  # a node's id, or a client's name

    def __str__(self) -> str:
        of = f" of log {self.log}" if self.log else ""
        return f"{self.kind} {self.name}{of}"


class UnknownHolder(ValueError):
    """A certificate names its holder in a way that raftlog does not know. The message says how."""


def holder_uri(holder: Holder) -> str:
    """The URI that names that holder in a certificate."""
    return f"{SCHEME}://{holder.log}/{holder.kind}/{quote(holder.name, safe='')}"


def holder_of(certificate: Mapping[str, Any]) -> Holder:
    """The holder of that verified certificate. Raises UnknownHolder."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    ours = [uri for uri in uris if uri.startswith(f"{SCHEME}://")]
    if len(ours) > 1:
        raise UnknownHolder(f"the certificate has {len(ours)} raftlog URIs: it must have one at most")
    if ours:
        return parse_holder_uri(ours[0])
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if not names:
        raise UnknownHolder("the certificate names neither a raftlog URI nor a common name")
    return Holder("", HolderKind.CLIENT, names[0])


def parse_holder_uri(uri: str) -> Holder:
    """The holder that a URI names. Raises UnknownHolder."""
    parts = urlsplit(uri)
    kind, _, name = parts.path.removeprefix("/").partition("/")
    if kind not in tuple(HolderKind) or not name or "/" in name or parts.query or parts.fragment:
        raise UnknownHolder(f"the certificate's URI is {uri!r}: it must be raftlog://LOG/node/ID or .../client/NAME")
    return Holder(parts.netloc, HolderKind(kind), unquote(name))


def peer_refusal(certificate: Mapping[str, Any] | None, log: str, node: int) -> str | None:
    """Why that certificate may not speak as this node of this log. None: it may."""
    if not certificate:
        return f"it shows no certificate: node {node} needs one (security.certificate)"
    try:
        holder = holder_of(certificate)
    except UnknownHolder as error:
        return str(error)
    wanted = Holder(log, HolderKind.NODE, str(node))
    if holder != wanted:
        return f"its certificate is that of {holder}, and it speaks as {wanted}"
    return None


def client_refusal(certificate: Mapping[str, Any] | None, log: str) -> str | None:
    """Why the holder of that certificate may not use this cluster's HTTP API. None: it may."""
    if not certificate:
        return "it shows no certificate"
    try:
        holder = holder_of(certificate)
    except UnknownHolder as error:
        return str(error)
    return f"its certificate is that of {holder}, another cluster's" if holder.log not in ("", log) else None
