"""Handles routes for operators and machines: status, members, liveness, readiness, metrics, version, routes, backup."""

from __future__ import annotations

import asyncio
import pkgutil
from importlib.metadata import version
from typing import Final

import msgspec

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import BACKUP
from raftlog.cluster.api.members import MemberSeen
from raftlog.cluster.api.status import SetDigestHex, SnapshotAnswer
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.body import read_body
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, read_index
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.exchange.stream import Stream
from raftlog.cluster.protocol import cut_off
from raftlog.cluster.records.backup_format import BackupEncoder, BackupHead
from raftlog.cluster.records.snapshot_stream import chunks_of
from raftlog.cluster.runtime import build, clock, metrics
from raftlog.statemachine.access import needs

VERSION: Final = version("raftlog")
OPENAPI: Final = pkgutil.get_data("raftlog.cluster.api", "openapi.yaml") or b""
_NO_DIGEST: Final = SetDigestHex(0, "0" * 16, "0", "0")
TEXT: Final = "text/plain; charset=utf-8"
_YAML: Final = "application/yaml"


async def get_status(service: Service, call: Call) -> HttpAnswer:
    """This node's view of itself, of the consumer groups and, on the leader, of its followers."""
    call.query()
    permissions = service.access.permissions(call)
    is_insecure = service.settings.is_exposed and service.settings.security.insecure
    status = msgspec.structs.replace(service.node.status(), is_insecure=is_insecure)
    if permissions is not None and not permissions.allows(needs.OPERATE):
        digests = msgspec.structs.replace(status.digests, replicas=[])  # a digest would confirm a guess of a value
        status = msgspec.structs.replace(status, state=_NO_DIGEST, digests=digests)
        if not permissions.allows(needs.WATCH):  # enough to find the leader and a place in the log
            return service.answer(msgspec.structs.replace(status, followers=[]))
    consumers = await service.lags.farthest(service.limits.consumers_shown_max)
    return service.answer(msgspec.structs.replace(status, consumers=consumers))


async def get_members(service: Service, call: Call) -> HttpAnswer:
    """The members of the cluster, in the newest configuration."""
    call.query()
    return service.answer(service.node.members())


async def get_cluster(service: Service, call: Call) -> HttpAnswer:
    """This node's view of all members. Without `watch on cluster`: the members and the leader."""
    call.query()
    view, permissions = service.node.cluster(), service.access.permissions(call)
    if permissions is not None and not permissions.allows(needs.WATCH):
        lead = view.leader.node if view.leader else 0
        members = [
            MemberSeen(each.node, each.url, each.member, "leader" if each.node == lead else None)
            for each in view.members
        ]
        view = msgspec.structs.replace(view, members=members)
    return service.answer(view)


async def get_livez(service: Service, call: Call | None = None) -> HttpAnswer:
    """200 as long as the process serves; it never depends on a leader."""
    return service.bare(b"ok\n", TEXT)


async def get_readyz(service: Service, call: Call | None = None) -> HttpAnswer:
    """200 when this node knows a leader and has caught up, else 503 with the reason."""
    why = _why_unready(service)
    return service.bare(f"{why or 'ok'}\n".encode(), TEXT, 503 if why else 200)


def _why_unready(service: Service) -> str:
    node = service.node
    if service.is_stopping:
        return "stopping"
    if node.is_fenced:
        return "fenced: this node met a disk error, or its state is wrong, and serves no more"
    status = node.status()
    if status.role == "removed":
        return "removed: this node is no member any more, and may be stopped"
    if status.role == "joining":
        return "joining: no configuration names this node yet; add it: raftlog members add"
    if status.digests.differ:
        return f"states differ: at digest point {status.digests.differ} no majority has one state; no writes"
    if status.is_cut_off:
        return f"cut off: {cut_off.words({each.node: each.reason for each in status.refused_by})}"
    return "" if node.is_ready else "not ready: no leader is known, or this node has not caught up"


async def get_metrics(service: Service, call: Call | None = None) -> HttpAnswer:
    registry = service.node.metrics
    registry.show_consumers(await service.lags.farthest(service.limits.consumers_shown_max))
    return service.bare(registry.text(), metrics.CONTENT_TYPE)


async def get_version(service: Service, call: Call) -> HttpAnswer:
    """The version of this raftlog, and which of its modules run."""
    node = service.node
    return service.answer(
        {"version": VERSION, "modules": build.modules(), "api": "v1", "node": node.node_id, "log": node.log_id}
    )


async def get_openapi(service: Service, call: Call) -> HttpAnswer:
    return service.bare(OPENAPI, _YAML)


def routes_answer(service: Service, head: str) -> HttpAnswer:
    """The list of routes below that line."""
    return service.bare("\n".join([head, "", *service.routes, ""]).encode(), TEXT)


async def get_backup(service: Service, call: Call) -> Stream:
    """The present state as a backup (docs/formats.md). A backup that breaks off has no end, and is invalid."""
    query = call.query(READ_PARAMETERS)
    with service.load.backups:
        await read_index(service, call, query)
        service.access.check(call, needs.OPERATE)
        return await _stream_backup(service, call)


async def _stream_backup(service: Service, call: Call) -> Stream:
    """Makes a part when the one before was read: a part and the socket's buffer bound the waiting bytes."""
    node = service.node
    machine = node.machine
    mark, index, configuration = node.state_mark()
    head = BackupHead(
        node.log_id, node.node_id, mark.index, mark.term, machine.revision, machine.digest(), clock.wall_ms()
    )
    encoder = BackupEncoder()
    until = service.clock() + service.limits.backup_max_ms / 1000
    with Stream(service, call) as stream, machine.snapshot() as walk:
        last_user = node.last_user_index
        stream.start(BACKUP)
        try:
            await stream.write(encoder.begin(head))
            for part in chunks_of(last_user, walk):
                if part:
                    await stream.write(encoder.part(part))
                service.access.look(call, needs.OPERATE)
                await asyncio.sleep(0)  # a write that need not wait does not yield: this does
                if node.machine is not machine or service.is_stopping or service.clock() >= until:
                    return stream  # without an end: the connection is cut, so that no client takes it for a backup
        except ApiError:  # a backup has no place for an error: its end is missing
            return stream
        stream.end(encoder.end(mark, configuration, index))
    return stream


async def save_snapshot(service: Service, call: Call) -> HttpAnswer:
    """Saves this node's state as a snapshot, and answers once it is on the disk."""
    call.query()
    if await read_body(service, call):
        raise ApiError(Code.BAD_REQUEST, "POST /v1/snapshot takes no body: it is about this node's present state")
    node = service.node
    snapshot = await node.save_snapshot(call.deadline)
    return service.answer(SnapshotAnswer(node.node_id, snapshot, node.applied, node.term))
