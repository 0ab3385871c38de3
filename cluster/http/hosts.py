"""Checks the Host and Origin of requests, so that a page of another site cannot use a browser to reach a node."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.query import authority_of
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.security.addresses import is_loopback_host

_SEEN_MAX: Final = 64
"""Most Host values remembered as good; a client may come by any number of proxies' ports."""
_NO_HOST: Final = frozenset("@/?#\\ \t")
_PROBE_PATHS: Final = frozenset({"/livez", "/readyz"})


class HostCheck:
    """The check of one node. `seen`: Host values that are good."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.seen: set[str] = set()

    def check(self, call: Call) -> str:
        """The host of the request, by its Host header and by its target, if that has one. Raises ApiError. A load
        balancer's plain check is HTTP/1.0 without a Host header; it may ask whether the node serves."""
        host = call.headers.get("Host")
        is_probe = call.path in _PROBE_PATHS or (call.method, call.path) == ("OPTIONS", "/")
        if host not in self.seen and not (host is None and is_probe):
            self._check(host or "")
        authority = authority_of(call.target, "http" if self._service.credentials is None else "https")
        if authority is None:
            return host or ""
        if authority not in self.seen:
            self._check(authority)
        return authority

    def _check(self, host: str) -> None:
        """Refuses requests that a browser was tricked into sending here under a foreign name (DNS rebinding)."""
        name = _hostname(host)
        if name is None or not (is_loopback_host(name) or name in self._own()):
            raise ApiError(
                Code.BAD_HOST,
                f"Host {host[:100]!r} is not a name of this node: use its advertised URL, or add it to http.hosts",
            )
        if len(self.seen) < _SEEN_MAX:
            self.seen.add(host)

    def _own(self) -> set[str]:
        service = self._service
        urls = [member.url for member in service.node.members().members if member.node == service.node.node_id]
        return {host.lower() for host in service.settings.http.hosts} | {urlsplit(url).hostname or "" for url in urls}


def check_origin(origin: str, host: str) -> None:
    """Raises ApiError forbidden for a write from a page of another site."""
    if origin.partition("://")[2].lower() != host.lower():
        raise ApiError(Code.FORBIDDEN, f"a write from a page of {origin[:100]!r}: only this node's own pages may write")


def _hostname(host: str) -> str | None:
    """The name without the port; None if the text is no host and port, as a user or a path in it (RFC 9110, 7.2)."""
    if not _NO_HOST.isdisjoint(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
