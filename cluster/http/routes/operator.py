"""Handles routes for operators and machines: status, members, liveness, readiness, metrics, version, routes."""

from __future__ import annotations

import pkgutil
from importlib.metadata import version
from typing import Final

import msgspec

from raftlog.cluster.api.status import SetDigestHex
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call, Service
from raftlog.cluster.protocol import cut_off
from raftlog.cluster.runtime import build, metrics
from raftlog.statemachine.access import needs

VERSION: Final = version("raftlog")
OPENAPI: Final = pkgutil.get_data("raftlog.cluster.api", "openapi.yaml") or b""
_NO_DIGEST: Final = SetDigestHex(0, "0" * 16, "0", "0")
_TEXT: Final = "text/plain; charset=utf-8"
_YAML: Final = "application/yaml"


async def get_status(service: Service, call: Call) -> HttpAnswer:
    """This node's view of itself, of the consumer groups and, on the leader, of its followers."""
    call.query()
    permissions = service.access.permissions(call)
    status = msgspec.structs.replace(service.node.status(), is_insecure=service.is_insecure)
    if permissions is not None and not permissions.allows(needs.OPERATE):
        # Enough to find the leader and a place in the log. A digest of the state would confirm a guess of a value.
        return service.answer(msgspec.structs.replace(status, state=_NO_DIGEST, followers=[]))
    consumers = await service.lags.farthest(service.limits.consumers_shown_max)
    return service.answer(msgspec.structs.replace(status, consumers=consumers))


async def get_members(service: Service, call: Call) -> HttpAnswer:
    """The members of the cluster, in the newest configuration."""
    call.query()
    return service.answer(service.node.members())


async def get_livez(service: Service, call: Call) -> HttpAnswer:
    """200 as long as the process serves; it never depends on a leader."""
    return _text(service, b"ok\n")


async def get_readyz(service: Service, call: Call) -> HttpAnswer:
    """200 when this node knows a leader and has caught up, else 503 with the reason."""
    node = service.node
    if service.is_stopping:
        return _text(service, b"stopping\n", 503)
    if node.is_fenced:
        return _text(service, b"fenced: this node met a disk error, or its state is wrong, and serves no more\n", 503)
    status = node.status()
    role = status.role
    if role == "removed":
        return _text(service, b"removed: this node is no member any more, and may be stopped\n", 503)
    if role == "joining":
        return _text(service, b"joining: no configuration names this node yet; add it: raftlog members add\n", 503)
    if status.digests.differ:
        text = f"states differ: at digest point {status.digests.differ} no majority has one state; no writes\n"
        return _text(service, text.encode(), 503)
    if status.is_cut_off:
        said = cut_off.words({each.node: each.reason for each in status.refused_by})
        return _text(service, f"cut off: {said}\n".encode(), 503)
    if not node.is_ready:
        return _text(service, b"not ready: no leader is known, or this node has not caught up\n", 503)
    return _text(service, b"ok\n")


async def get_metrics(service: Service, call: Call) -> HttpAnswer:
    """All metrics, for Prometheus."""
    told = service.node.metrics
    told.show_consumers(await service.lags.farthest(service.limits.consumers_shown_max))
    return _text(service, told.text(), content_type=metrics.CONTENT_TYPE)


async def get_version(service: Service, call: Call) -> HttpAnswer:
    """The version of this raftlog, and which of its modules run."""
    node = service.node
    return service.answer(
        {"version": VERSION, "modules": build.modules(), "api": "v1", "node": node.node_id, "log": node.log_id}
    )


async def get_openapi(service: Service, call: Call) -> HttpAnswer:
    """The description of these routes."""
    return _text(service, OPENAPI, content_type=_YAML)


async def get_routes(service: Service, call: Call) -> HttpAnswer:
    """The routes, one line each."""
    lines = [f"raftlog {VERSION}, node {service.node.node_id}, log {service.node.log_id}", "", *service.routes, ""]
    return _text(service, "\n".join(lines).encode())


def _text(service: Service, body: bytes, status: int = 200, content_type: str = _TEXT) -> HttpAnswer:
    node = service.node
    return HttpAnswer(service.identity, body, node.applied, node.term, status=status, content_type=content_type)
